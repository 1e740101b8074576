"""Implement `storage=host`: compute a result that exceeds device memory in steps, and collect it on the host.

A step computes the Jacobians of some points (batch elements), or only the rows or columns for some seeds. It
copies the points from the host to the devices, where the shared inputs stay. All steps run the same program
and have the same size, so that the last step may repeat points or seeds of the previous one. The result of a
step is copied to the host while the next step is computed.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from scaling.core import layout
from scaling.core.case import Case
from scaling.core.compile_case import CompiledCase, count_bytes
from scaling.core.inputs import point_rows
from scaling.core.layout import is_summed_on_host
from scaling.core.shape import DerivativeShape, ceil_div, input_structs, result_shape
from scaling.core.workload import Workload


@dataclass(frozen=True)
class StepPlan:
    """The division of a case with `storage=host` into steps that run one after another."""

    case: Case  # the case that one step computes
    sizes: DerivativeShape  # the shape of the derivative that one step computes
    seeds: int | None  # the number of seeds (tangents or cotangents) of a step, or None for all seeds
    count: int  # the number of steps
    host_bytes: int  # the bytes of all per-point inputs and of the result on the host
    moved_bytes: int  # the bytes copied from and to the host by each device, except the inputs of one step


def plan_offload(case: Case, workload: Workload, sizes: DerivativeShape) -> StepPlan:
    """Divide a case with `storage=host` into steps, and return the `StepPlan`.

    In each step, a device computes `case.block` points and, if the seeds can be divided, `case.chunk` seeds.
    """
    points = case.points if case.block is None else min(case.points, case.mesh_shape[0] * case.block)
    step = dataclasses.replace(case, points=points, block=None, storage=None)
    step_sizes, count = sizes, ceil_div(case.points, points)
    seeds = _seeds_per_step(case, workload, sizes)
    if seeds is not None:
        step = dataclasses.replace(step, chunk=None)
        part = dataclasses.replace(sizes.parts[0], seeds=seeds)
        outputs, inputs = (sizes.outputs, seeds) if part.computes_columns else (seeds, sizes.inputs)
        step_sizes = dataclasses.replace(sizes, parts=(part,), outputs=outputs, inputs=inputs)
        count *= ceil_div(sizes.seeds, seeds)
    result = result_bytes(case, workload, sizes)
    case_bytes, step_bytes = (count_bytes(input_structs(each, workload)[0]) for each in (case, step))
    moved = (case_bytes - step_bytes) // case.mesh_shape[0] + result // case.devices
    return StepPlan(step, step_sizes, seeds, count, case_bytes + result, moved)


def _seeds_per_step(case: Case, workload: Workload, sizes: DerivativeShape) -> int | None:
    """Return the number of seeds in each step, or None if the seeds cannot or need not be divided."""
    part = sizes.parts[0]
    seeds = case.mesh_shape[1] * case.chunk if isinstance(case.chunk, int) else 0
    reduction = workload.reduction.columns if part.computes_columns else workload.reduction.rows
    can_divide_seeds = (
        not (reduction.sums_seeds or reduction.products or part.along) and sizes.coloring is None
    )
    return seeds if can_divide_seeds and len(sizes.parts) == 1 and 0 < seeds < part.seeds else None


def result_bytes(case: Case, workload: Workload, sizes: DerivativeShape) -> int:
    """Return the size in bytes of the host array that contains the whole result of a case."""
    return math.prod(result_shape(case, workload, sizes)) * _result_dtype(case, workload, sizes).itemsize


def _result_dtype(case: Case, workload: Workload, sizes: DerivativeShape) -> np.dtype:
    """Return the dtype of the result: float64 if the host sums partial results, else the case's dtype."""
    is_summed = case.mesh_shape[1] > 1 and any(is_summed_on_host(workload, part) for part in sizes.parts)
    return np.dtype(np.float64) if is_summed else jnp.dtype(case.dtype)


def iterate_steps(points: int, block: int, seeds: int, chunk: int) -> Iterator[tuple[int, int]]:
    """Yield the indices (point, seed) at which each step of `block` points and `chunk` seeds starts.

    If the last step would be smaller, it starts earlier and repeats some points or seeds.
    """
    for point in range(0, points, block):
        for seed in range(0, seeds, chunk):
            yield min(point, points - block), min(seed, seeds - chunk)


def make_offload_runner(compiled: CompiledCase) -> Callable[[], np.ndarray]:
    """Return a function without arguments that runs all steps of a case and returns the whole result.

    Each call overwrites the NumPy array that the previous call returned.
    """
    case, workload, plan, program = compiled.case, compiled.workload, compiled.offload, compiled.program
    assert plan is not None and program is not None
    block, (seeds, chunk) = plan.case.points, (compiled.sizes.seeds, plan.seeds) if plan.seeds else (1, 1)
    host_inputs = {name: point_rows(case, workload, name, 0, case.points) for name in workload.points}
    result = np.empty(
        result_shape(case, workload, compiled.sizes), _result_dtype(case, workload, compiled.sizes)
    )

    def place(
        names: Iterable[str], seed_arguments: Mapping[str, Any], rows: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, Any]:
        names, source = list(names), dataclasses.replace(program, seed_arguments=seed_arguments)
        return dict(zip(names, layout.place_inputs(plan.case, workload, source, rows, names), strict=True))

    names_on_device = (name for name in program.arguments if name not in host_inputs)
    shared_arguments = place(names_on_device, program.seed_arguments)
    start_arguments = {}
    for _, seed in iterate_steps(1, 1, seeds, chunk):
        start = {**program.seed_arguments, layout.START: np.asarray(seed, np.int32)}
        start_arguments[seed] = place([layout.START], start) if plan.seeds else {}

    def copy_to_host(point: int, seed: int, output: Any) -> None:
        pieces = program.pieces(output)
        target = result[point : point + len(pieces[0])]
        if plan.seeds is not None:
            is_column = compiled.sizes.parts[0].computes_columns
            target = target[:, :, seed : seed + chunk] if is_column else target[:, seed : seed + chunk]
        np.concatenate([piece.reshape(*target.shape[:2], -1) for piece in pieces], axis=2, out=target)

    def run() -> np.ndarray:
        pending: list[tuple[int, int, Any]] = []  # the steps whose results have not been copied to the host
        points: dict[str, Any] = {}
        for point, seed in iterate_steps(case.points, block, seeds, chunk):
            if not pending or point != pending[0][0]:
                rows = {name: x[point : point + block] for name, x in host_inputs.items()}
                points = place(rows, program.seed_arguments, rows)
            arguments = {**shared_arguments, **points, **start_arguments[seed]}
            pending.append((point, seed, compiled.stages.call(*[arguments[x] for x in program.arguments])))
            if len(pending) > 1:
                copy_to_host(*pending.pop(0))
        copy_to_host(*pending.pop())
        return result

    return run
