"""Compute a Jacobian larger than the devices step by step, into an array on the host (storage=host).

Per-point inputs are kept on the host as well, and travel with each step; what points share stays on the
devices. A step is some points, and of a whole Jacobian some of its seeds. The last blocks begin early enough
to be as long as the others: what they share with the block before them is computed twice. One result is
fetched while the next is computed.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from scaling.core import layout
from scaling.core.case import Case
from scaling.core.compile_case import CompiledCase, StepPlan, count_bytes
from scaling.core.gather import is_summed_on_host
from scaling.core.inputs import point_rows
from scaling.core.shape import DerivativeShape, ceil_div, input_structs, result_shape
from scaling.core.workload import Workload


class Step(NamedTuple):
    """The first point and the first seed of a step."""

    point: int
    seed: int


def plan_offload(case: Case, workload: Workload, sizes: DerivativeShape) -> StepPlan:
    """Return the steps of a case with storage=host, by its `block` and `chunk`."""
    block = case.points if case.block is None else min(case.points, case.axes[0] * case.block)
    step = dataclasses.replace(case, points=block, block=None, storage=None)
    seeds, of_step, count = _seeds_of_step(case, workload, sizes), sizes, ceil_div(case.points, block)
    if seeds is not None:
        step = dataclasses.replace(step, chunk=None)
        part = dataclasses.replace(sizes.parts[0], seeds=seeds)
        outputs, inputs = (sizes.outputs, seeds) if part.computes_columns else (seeds, sizes.inputs)
        of_step = dataclasses.replace(sizes, parts=(part,), outputs=outputs, inputs=inputs)
        count *= ceil_div(sizes.seeds, seeds)
    result = result_bytes(case, workload, sizes)
    of_case, of_block = (count_bytes(input_structs(each, workload)[0]) for each in (case, step))
    moved = (of_case - of_block) // case.axes[0] + result // case.devices
    return StepPlan(step, of_step, seeds, count, of_case + result, moved)


def _seeds_of_step(case: Case, workload: Workload, sizes: DerivativeShape) -> int | None:
    """Return how many seeds a step takes; None where slices have no place in the result."""
    part, seeds = sizes.parts[0], case.axes[1] * case.chunk if isinstance(case.chunk, int) else 0
    step = workload.reduction.columns if part.computes_columns else workload.reduction.rows
    kept = not (step.sums_seeds or step.products or part.along_point) and sizes.coloring is None
    return seeds if kept and len(sizes.parts) == 1 and 0 < seeds < part.seeds else None


def result_bytes(case: Case, workload: Workload, sizes: DerivativeShape) -> int:
    """Return the bytes of the host array that holds the whole result.

    It is float64 where sums of several devices are added up, otherwise of the dtype of the case.
    """
    added = case.axes[1] > 1 and any(is_summed_on_host(workload, part) for part in sizes.parts)
    dtype = np.dtype(np.float64) if added else jnp.dtype(case.dtype)
    return math.prod(result_shape(case, workload, sizes)) * dtype.itemsize


def iterate_steps(points: int, block: int, seeds: int, chunk: int) -> Iterator[Step]:
    """Yield all steps in order: for each block of points every block of seeds, all of the same lengths."""
    for point in range(0, points, block):
        for seed in range(0, seeds, chunk):
            yield Step(min(point, points - block), min(seed, seeds - chunk))


def make_offload_runner(one: CompiledCase) -> Callable[[], np.ndarray]:
    """Return a function that computes the whole result, each time into the same array.

    The array has the shape (points, outputs, inputs).
    """
    case, workload, plan, program = one.case, one.workload, one.plan, one.program
    assert plan is not None and program is not None
    block, (seeds, chunk) = plan.case.points, (one.sizes.seeds, plan.seeds) if plan.seeds else (1, 1)
    host = {name: point_rows(case, workload, name, 0, case.points) for name in workload.points}
    fixed = [name for name in program.arguments if name not in host]
    placed = dict(zip(fixed, layout.place_inputs(plan.case, workload, program, names=fixed), strict=True))
    starts = {
        step.seed: _place_start(plan, workload, program, step.seed) if plan.seeds else None
        for step in iterate_steps(1, 1, seeds, chunk)
    }
    result: list[np.ndarray] = []

    def move_points(point: int) -> dict[str, Any]:
        rows = {name: x[point : point + block] for name, x in host.items()}
        return dict(zip(host, layout.place_inputs(plan.case, workload, program, rows, host), strict=True))

    def fetch(step: Step, made: Any) -> None:
        pieces = program.pieces(made)
        if not result:
            result.append(np.empty(result_shape(case, workload, one.sizes), pieces[0].dtype))
        part = result[0][step.point : step.point + len(pieces[0])]
        if plan.seeds is not None and one.sizes.parts[0].computes_columns:
            part = part[:, :, step.seed : step.seed + chunk]
        elif plan.seeds is not None:
            part = part[:, step.seed : step.seed + chunk]
        start = 0
        for piece in pieces:
            whole = piece.reshape(*part.shape[:2], -1)
            part[:, :, start : start + whole.shape[2]] = whole
            start += whole.shape[2]

    def run() -> np.ndarray:
        running: tuple[Step, Any] | None = None
        moved: dict[str, Any] = {}
        for step in iterate_steps(case.points, block, seeds, chunk):
            if running is None or step.point != running[0].point:
                moved = move_points(step.point)
            given = {**placed, **moved, layout.START: starts[step.seed]}
            made = one.stages.call(*[given[name] for name in program.arguments])
            if running is not None:
                fetch(*running)
            running = step, made
        assert running is not None
        fetch(*running)
        return result[0]

    return run


def _place_start(plan: StepPlan, workload: Workload, program: layout.Program, seed: int) -> Any:
    """Place the number of the first seed of a step on the devices."""
    given = {**program.given, layout.START: np.asarray(seed, np.int32)}
    at = dataclasses.replace(program, given=given)
    return layout.place_inputs(plan.case, workload, at, names=[layout.START])[0]
