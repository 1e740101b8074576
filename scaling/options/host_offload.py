"""Compute a result that is larger than device memory in steps, into one array on the host (`storage=host`).

The per-point inputs are also stored on the host, and each step copies the points (batch elements) that it
needs to the devices. The shared inputs stay on the devices. A step computes the Jacobians of some points, or
only the rows or columns for some seeds (tangents or cotangents). All steps run the same program and therefore
have the same size. If the size does not divide the number of points or seeds, the last step repeats points or
seeds of the previous step. The result of a step is copied to the host while the next step is computed.
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
    """The size and number of the steps that compute a case whose inputs and result are on the host.

    Attributes:
        case: the case that one step computes. All steps run the same program.
        sizes: the shape of the derivative that one step computes.
        seeds: the number of seeds (tangents or cotangents) of a step, or None if each step has all seeds.
        count: the number of steps.
        host_bytes: the bytes of all per-point inputs and of the result on the host.
        moved_bytes: the bytes of per-point inputs and results that each device copies from and to the host,
            without the inputs of one step.
    """

    case: Case
    sizes: DerivativeShape
    seeds: int | None
    count: int
    host_bytes: int
    moved_bytes: int


def plan_offload(case: Case, workload: Workload, sizes: DerivativeShape) -> StepPlan:
    """Return the size, the number and the memory of the steps that compute a case with `storage=host`.

    In each step, a device computes `case.block` points and, if the seeds can be divided, `case.chunk` seeds.
    `sizes` is the shape of the whole derivative.
    """
    points = case.points if case.block is None else min(case.points, case.axes[0] * case.block)
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
    moved = (case_bytes - step_bytes) // case.axes[0] + result // case.devices
    return StepPlan(step, step_sizes, seeds, count, case_bytes + result, moved)


def _seeds_per_step(case: Case, workload: Workload, sizes: DerivativeShape) -> int | None:
    """Return the number of seeds (tangents or cotangents) in each step, or None if each step has all seeds.

    Seeds are divided among steps only if each seed yields a separate row or column of the result.
    """
    part = sizes.parts[0]
    seeds = case.axes[1] * case.chunk if isinstance(case.chunk, int) else 0
    reduction = workload.reduction.columns if part.computes_columns else workload.reduction.rows
    has_own_slices = (
        not (reduction.sums_seeds or reduction.products or part.along_point) and sizes.coloring is None
    )
    return seeds if has_own_slices and len(sizes.parts) == 1 and 0 < seeds < part.seeds else None


def result_bytes(case: Case, workload: Workload, sizes: DerivativeShape) -> int:
    """Return the size in bytes of the array on the host that contains the whole result of a case."""
    return math.prod(result_shape(case, workload, sizes)) * _result_dtype(case, workload, sizes).itemsize


def _result_dtype(case: Case, workload: Workload, sizes: DerivativeShape) -> np.dtype:
    """Return float64 if the host sums partial results of several devices, else the dtype of the case."""
    is_summed = case.axes[1] > 1 and any(is_summed_on_host(workload, part) for part in sizes.parts)
    return np.dtype(np.float64) if is_summed else jnp.dtype(case.dtype)


def iterate_steps(points: int, block: int, seeds: int, chunk: int) -> Iterator[tuple[int, int]]:
    """Yield the indices (point, seed) at which each step starts.

    Each step has `block` of all `points` points and `chunk` of all `seeds` seeds. If `block` does not divide
    `points`, the last block starts earlier and repeats some points of the previous block. The same applies
    to `chunk` and `seeds`.
    """
    for point in range(0, points, block):
        for seed in range(0, seeds, chunk):
            yield min(point, points - block), min(seed, seeds - chunk)


def make_offload_runner(compiled: CompiledCase) -> Callable[[], np.ndarray]:
    """Return a function without arguments that runs all steps of a case and returns the whole result.

    The result is a NumPy array of the shape that `shape.result_shape` returns, such as (points, outputs,
    inputs). Each call overwrites the array that the previous call returned.
    """
    case, workload, plan, program = compiled.case, compiled.workload, compiled.plan, compiled.program
    assert plan is not None and program is not None
    block, (seeds, chunk) = plan.case.points, (compiled.sizes.seeds, plan.seeds) if plan.seeds else (1, 1)
    host_inputs = {name: point_rows(case, workload, name, 0, case.points) for name in workload.points}
    result = np.empty(
        result_shape(case, workload, compiled.sizes), _result_dtype(case, workload, compiled.sizes)
    )

    def place(
        names: Iterable[str], seed_arguments: Mapping[str, Any], rows: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, Any]:
        """Return the arguments `names` as arrays on the devices, with per-point inputs from `rows`."""
        names, source = list(names), dataclasses.replace(program, seed_arguments=seed_arguments)
        return dict(zip(names, layout.place_inputs(plan.case, workload, source, rows, names), strict=True))

    names_on_device = (name for name in program.arguments if name not in host_inputs)
    shared_arguments = place(names_on_device, program.seed_arguments)
    first_seeds = {}
    for _, seed in iterate_steps(1, 1, seeds, chunk):
        start = {**program.seed_arguments, layout.START: np.asarray(seed, np.int32)}
        first_seeds[seed] = place([layout.START], start) if plan.seeds else {}

    def copy_to_host(point: int, seed: int, output: Any) -> None:
        """Copy the result of the step that starts at a point and a seed into the whole result."""
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
            arguments = {**shared_arguments, **points, **first_seeds[seed]}
            pending.append((point, seed, compiled.stages.call(*[arguments[x] for x in program.arguments])))
            if len(pending) > 1:
                copy_to_host(*pending.pop(0))
        copy_to_host(*pending.pop())
        return result

    return run
