"""Compute a Jacobian larger than the devices step by step, into an array on the host.

Per-point inputs are kept on the host as well, and travel with each step; what points share stays on the
devices. A step is some points, and of a whole Jacobian some of its seeds. The last steps begin so early that
they are as long as the others: what they share with the step before them is computed twice. One result is
fetched while the next is computed.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from scaling.core import inputs
from scaling.core.case import Case
from scaling.core.gather import is_summed_on_host
from scaling.core.layout import START, Program
from scaling.core.shape import DerivativeShape, result_shape
from scaling.core.workload import Workload


class OffloadStep(NamedTuple):
    """The first point and the first seed of a step."""

    point: int
    seed: int


@dataclasses.dataclass(frozen=True)
class BlockStarts(Sequence):
    """The starts of blocks of `length` in a range of `total`; the last block ends with the range."""

    total: int
    length: int

    def __len__(self) -> int:
        return -(-self.total // self.length)

    def __getitem__(self, number: Any) -> Any:
        if not 0 <= number < len(self):
            raise IndexError(number)
        return max(0, min(number * self.length, self.total - self.length))


@dataclasses.dataclass(frozen=True)
class OffloadSteps(Sequence):
    """All steps of a case in order: for each block of points every block of seeds. They are not held in
    memory.
    """

    points: BlockStarts
    seeds: BlockStarts

    def __len__(self) -> int:
        return len(self.points) * len(self.seeds)

    def __getitem__(self, number: Any) -> Any:
        if not 0 <= number < len(self):
            raise IndexError(number)
        point, seed = divmod(number, len(self.seeds))
        return OffloadStep(self.points[point], self.seeds[seed])


@dataclasses.dataclass(frozen=True)
class OffloadPlan:
    """What one step computes, as a case with fewer points and a shape with fewer seeds, and all steps."""

    case: Case
    sizes: DerivativeShape
    seeds: int | None  # of a step, where these are cut
    steps: OffloadSteps


def plan_offload(case: Case, workload: Workload, sizes: DerivativeShape) -> OffloadPlan:
    """Return the steps of a case with storage=host, by its `block` and `chunk`."""
    points, a = case.points, case.axes[0]
    some = points if case.block is None else min(points, a * case.block)
    step = dataclasses.replace(case, points=some, block=None, storage=None)
    seeds = _seeds(case, workload, sizes)
    if seeds is not None:
        step, whole = dataclasses.replace(step, chunk=None), sizes.seeds
        sizes = _fewer(sizes, seeds)
    starts = BlockStarts(whole, seeds) if seeds else BlockStarts(1, 1)
    return OffloadPlan(step, sizes, seeds, OffloadSteps(BlockStarts(points, some), starts))


def _seeds(case: Case, workload: Workload, sizes: DerivativeShape) -> int | None:
    """Return how many seeds a step takes; None where they are not divided, as their slices have no place in
    the result.
    """
    part, seeds = sizes.parts[0], case.axes[1] * case.chunk if isinstance(case.chunk, int) else 0
    step = workload.reduction.columns if part.columns else workload.reduction.rows
    kept = step.placed and not part.along and sizes.coloring is None
    return seeds if kept and len(sizes.parts) == 1 and 0 < seeds < part.seeds else None


def _fewer(sizes: DerivativeShape, seeds: int) -> DerivativeShape:
    """Return the shape of a step with so many seeds."""
    (part,) = sizes.parts
    fewer = dataclasses.replace(sizes, parts=(dataclasses.replace(part, seeds=seeds),))
    return (
        dataclasses.replace(fewer, inputs=seeds)
        if part.columns
        else dataclasses.replace(fewer, outputs=seeds)
    )


def result_bytes(case: Case, workload: Workload, sizes: DerivativeShape) -> int:
    """Return the bytes of the host array that holds the whole result."""
    return math.prod(result_shape(case, workload, sizes)) * result_dtype(case, workload, sizes).itemsize


def result_dtype(case: Case, workload: Workload, sizes: DerivativeShape) -> np.dtype:
    """Return the dtype of that array: float64 where sums of several devices are added up, otherwise that of
    the case."""
    added = case.axes[1] > 1 and any(is_summed_on_host(workload, part) for part in sizes.parts)
    return np.dtype(np.float64) if added else jnp.dtype(case.dtype)


def make_offload_runner(
    case: Case,
    workload: Workload,
    sizes: DerivativeShape,
    plan: OffloadPlan,
    program: Program,
    call: Callable,
) -> Callable[[], np.ndarray]:
    """Return a function that computes the whole result, each time into the same array: (points, outputs,
    inputs).
    """
    host = {name: inputs.point_rows(case, workload, name, 0, case.points) for name in workload.points}
    staying = {
        name: inputs.place_inputs(plan.case, workload, program, names=[name])[0]
        for name in program.arguments
        if name not in host
    }
    starts = {step.seed: _placed_start(plan, workload, program, step.seed) for step in plan.steps}
    result: list[np.ndarray] = []

    def moved(point: int) -> dict[str, Any]:
        mine = {name: rows[point : point + plan.case.points] for name, rows in host.items()}
        return dict(zip(host, inputs.place_inputs(plan.case, workload, program, mine, host), strict=True))

    def fetched(step: OffloadStep, made: Any) -> None:
        blocks = program.pieces(made)
        if not result:
            result.append(np.empty(result_shape(case, workload, sizes), blocks[0].dtype))
        part = result[0][step.point : step.point + len(blocks[0])]
        if plan.seeds is not None and sizes.parts[0].columns:
            part = part[:, :, step.seed : step.seed + plan.seeds]
        elif plan.seeds is not None:
            part = part[:, step.seed : step.seed + plan.seeds]
        start = 0
        for block in blocks:
            whole = block.reshape(*part.shape[:2], -1)
            part[:, :, start : start + whole.shape[2]] = whole
            start += whole.shape[2]

    def ask() -> np.ndarray:
        before: tuple[OffloadStep, Any] | None = None
        moving: dict[str, Any] = {}
        at = -1
        for step in plan.steps:
            if step.point != at:
                moving, at = moved(step.point), step.point
            given = {**staying, **moving, START: starts[step.seed]}
            made = call(*[given[name] for name in program.arguments])
            if before is not None:
                fetched(*before)
            before = step, made
        assert before is not None
        fetched(*before)
        return result[0]

    return ask


def _placed_start(plan: OffloadPlan, workload: Workload, program: Program, seed: int) -> Any:
    """Place the number of the first seed of a step on the devices; None where every step has all seeds."""
    if plan.seeds is None:
        return None
    at = dataclasses.replace(program, given={**program.given, START: np.asarray(seed, np.int32)})
    return inputs.place_inputs(plan.case, workload, at, names=[START])[0]
