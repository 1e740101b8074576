"""Shared by the benchmarks: measure cases in interleaved turns in this process, on one core."""

import os
import sys

from scaling.core import environment
from scaling.workers import cores

CORES = cores.usable_cores()[:1]
os.sched_setaffinity(0, CORES)
if not os.environ.get("SCALING_BENCH"):  # restart, because XLA and glibc read these variables at start-up
    os.execve(
        sys.executable,
        [sys.executable, *sys.argv],
        os.environ | environment.variables("cpu") | {"SCALING_BENCH": "1"},
    )

import jax

from scaling.core import run_case, shape, workload
from scaling.core.case import Case
from scaling.core.record import Record
from scaling.core.timing import Sampling
from scaling.study import completion

HERE = {"digest": "benchmark", "platform": "cpu"}


def complete_case(**fields: object) -> Case:
    """Return a case on one device with these fields, and with all defaults filled in."""
    case = completion.complete(Case(**{"api": "jit", **fields}))  # type: ignore[arg-type]
    return completion.without_trivial_blocks(case, shape.derivative_shape(case, workload.build(case)))


def measure_in_turns(cases: list[Case], seconds: float = 2.0) -> list[Record]:
    """Return the record of each case. All are checked, and then sampled in turns until all have enough samples."""
    sampling = Sampling(least=9, seconds=seconds)
    place = run_case.ProcessGroup(jax.devices()[:1], "cpu")
    attempts = [run_case.prepare_case(Record(case, "failed", HERE), place, sampling) for case in cases]
    waiting = [each for each in attempts if not each.ended]
    while waiting:
        waiting = [
            each
            for each, enough in [(each, run_case.take_turn(each)) for each in waiting]
            if not enough and not each.ended
        ]
    return [each.record for each in attempts]
