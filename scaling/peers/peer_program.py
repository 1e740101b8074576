"""Prepare the program of a peer in a worker as a `PlacedProgram`, which is timed and checked like JAX."""

import dataclasses
import functools
import math

import numpy as np

from scaling.core import compile_case, inputs, shape
from scaling.core.case import Case, Refusal
from scaling.core.run_case import Attempt, PlacedProgram, describe_memory_shortage
from scaling.core.workload import Workload
from scaling.peers import interface


def prepare_program(attempt: Attempt, case: Case, workload: Workload) -> PlacedProgram:
    """Return the program of a peer for a case, and note its compile time and number of passes in `attempt`.

    Raise `TooLarge` if the inputs and the result do not fit into memory.
    """
    group, sizes = attempt.group, shape.derivative_shape(case, workload)
    one_device = dataclasses.replace(case, devices=1)  # the threads of a peer share all arrays
    describe_shortage = functools.partial(
        describe_memory_shortage, one_device, group._replace(devices=group.devices[:1])
    )
    compile_case.raise_if_too_large(compile_case.lower_bound(one_device, workload, sizes), describe_shortage)
    expected_shape = shape.result_shape(case, workload, sizes)
    arrays = inputs.input_arrays(case, workload)
    prepared = interface.module(case.engine).prepare(case, workload, sizes, arrays, case.devices)
    attempt.note(compile_seconds=prepared.compile_seconds, passes=prepared.passes)

    def collect(result: object) -> np.ndarray:
        array = prepared.collect(result)
        if np.size(array) != math.prod(expected_shape):
            returned = f"{case.engine} returns {case.mode} of {case.workload} as {np.shape(array)}"
            raise Refusal(f"{returned}, where {expected_shape} is expected")
        return np.asarray(array).reshape(expected_shape)

    return PlacedProgram(case, workload, sizes, prepared.call, collect, prepared.sample)
