"""Implement `storage=host`: divide a case into steps (`StepPlan`), run them, and collect results on the host.

A step computes the Jacobians of some points (batch elements), or the columns or rows of these Jacobians for
some seeds. Each step copies its points from the host to the devices. The shared inputs are copied only once.
The result of a step is copied to the host while the next step is computed. All steps run the same program on
arrays of the same shapes. Therefore the last step may repeat points or seeds of the previous step.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scaling.core import layout
from scaling.core.compile_case import CompiledCase, count_bytes
from scaling.core.derivative import Derivative, ceil_div
from scaling.core.inputs import input_structs, point_rows
from scaling.core.layout import is_summed_on_host


@dataclass(frozen=True)
class StepPlan:
    """The division of a case with storage=host into steps that run one after another on the devices."""

    step: Derivative  # the part of the derivative that one step computes, as a case of its own
    seeds: int | None  # the number of seeds (tangents or cotangents) of a step, or None for all seeds
    count: int  # the number of steps
    host_bytes: int  # the bytes of all per-point inputs and of the result on the host
    moved_bytes: int  # the bytes that each device copies from and to the host, without the inputs of one step


def plan_offload(derivative: Derivative) -> StepPlan:
    """Return a division of a case into steps of `case.block` points and `case.chunk` seeds per device."""
    case = derivative.case
    points = case.points if case.block is None else min(case.points, case.mesh_shape[0] * case.block)
    step_count, seeds = ceil_div(case.points, points), _seeds_per_step(derivative)
    chunk = case.chunk if seeds is None else None
    case_of_step = dataclasses.replace(case, points=points, block=None, storage=None, chunk=chunk)
    step = dataclasses.replace(derivative, case=case_of_step)
    if seeds is not None:
        part = dataclasses.replace(derivative.parts[0], seeds=seeds)
        outputs, inputs = (step.outputs, seeds) if part.computes_columns else (seeds, step.inputs)
        step = dataclasses.replace(step, parts=(part,), outputs=outputs, inputs=inputs)
        step_count *= ceil_div(derivative.seeds, seeds)
    result_bytes = math.prod(derivative.result_shape) * _result_dtype(derivative).itemsize
    case_bytes, step_bytes = (
        count_bytes(input_structs(each.case, each.workload)[0]) for each in (derivative, step)
    )
    moved_bytes = (case_bytes - step_bytes) // case.mesh_shape[0] + result_bytes // case.devices
    return StepPlan(step, seeds, step_count, case_bytes + result_bytes, moved_bytes)


def _seeds_per_step(derivative: Derivative) -> int | None:
    """Return the number of seeds in each step, or None if every step computes all seeds."""
    case, part = derivative.case, derivative.parts[0]
    seeds = case.mesh_shape[1] * case.chunk if isinstance(case.chunk, int) else 0
    reduction = derivative.workload.reduction
    slices = reduction.columns if part.computes_columns else reduction.rows
    is_sum = slices.sums_seeds or slices.products or bool(part.along)
    can_divide = not is_sum and derivative.coloring is None and len(derivative.parts) == 1
    return seeds if can_divide and 0 < seeds < part.seeds else None


def _result_dtype(derivative: Derivative) -> np.dtype:
    """Return the dtype of the result on the host.

    It is float64 if the host sums the results of the steps, otherwise the dtype of the case.
    """
    is_summed = any(is_summed_on_host(derivative.workload, part) for part in derivative.parts)
    if is_summed and derivative.case.mesh_shape[1] > 1:
        return np.dtype(np.float64)
    return jnp.dtype(derivative.case.dtype)


def iterate_steps(points: int, block: int, seeds: int, chunk: int) -> Iterator[tuple[int, int]]:
    """Yield the index of the first point and the index of the first seed of each step.

    Every step has `block` points and `chunk` seeds. If the numbers do not divide evenly, the last step starts
    earlier and repeats some points or seeds.
    """
    for point in range(0, points, block):
        for seed in range(0, seeds, chunk):
            yield min(point, points - block), min(seed, seeds - chunk)


def make_offload_runner(compiled: CompiledCase) -> Callable[[], np.ndarray]:
    """Return a function without arguments that runs all steps of a case and returns the result.

    The result is a NumPy array. Each call overwrites the array that the previous call returned.
    """
    derivative, plan, program = compiled.derivative, compiled.offload, compiled.program
    case, workload = derivative.case, derivative.workload
    assert plan is not None and program is not None
    block = plan.step.case.points
    seeds, chunk = (derivative.seeds, plan.seeds) if plan.seeds else (1, 1)
    host_inputs = {name: point_rows(case, workload, name, 0, case.points) for name in workload.points}
    host_result = np.empty(derivative.result_shape, _result_dtype(derivative))

    names_on_device = [name for name in program.arguments if name not in host_inputs]
    placed = layout.place_inputs(program, None, names_on_device)
    device_arguments = dict(zip(names_on_device, placed, strict=True))
    if plan.seeds:
        start = program.arguments[layout.START]
        seed_starts = {  # index of the first seed of a step -> the argument with this index
            seed: jax.device_put(np.full(start.shape, seed, start.dtype), start.sharding)
            for _, seed in iterate_steps(1, 1, seeds, chunk)
        }

    def run() -> np.ndarray:
        uncopied: list[tuple[int, int, Any]] = []  # the steps whose results have not been copied to the host
        arguments, placed_point = dict(device_arguments), None
        for point, seed in iterate_steps(case.points, block, seeds, chunk):
            if point != placed_point:
                rows = {name: x[point : point + block] for name, x in host_inputs.items()}
                arguments.update(zip(rows, layout.place_inputs(program, host=rows, names=rows), strict=True))
                placed_point = point
            if plan.seeds:
                arguments[layout.START] = seed_starts[seed]
            uncopied.append((point, seed, compiled.stages.call(*[arguments[x] for x in program.arguments])))
            if len(uncopied) > 1:
                _copy_to_host(compiled, host_result, *uncopied.pop(0))
        _copy_to_host(compiled, host_result, *uncopied.pop())
        return host_result

    return run


def _copy_to_host(compiled: CompiledCase, result: np.ndarray, point: int, seed: int, output: Any) -> None:
    """Copy the output of a step from the devices to its place in `result`, an array on the host.

    `point` and `seed` are the indices of the first point and the first seed of the step.
    """
    assert compiled.program is not None
    pieces, chunk = compiled.program.pieces(output), compiled.offload.seeds
    target = result[point : point + len(pieces[0])]
    if chunk is not None:
        is_column = compiled.derivative.parts[0].computes_columns
        target = target[:, :, seed : seed + chunk] if is_column else target[:, seed : seed + chunk]
    np.concatenate([piece.reshape(*target.shape[:2], -1) for piece in pieces], axis=2, out=target)
