"""Compare a result with a sample of its reference, where all of it would take too long.

Every point is multiplied with random directions and compared relative to the 2-norm of its rows; random
columns and rows of every point, and some points whole, are compared entry by entry.
"""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from scaling.core import inputs
from scaling.core import reference as references
from scaling.core.check import EntryComparison, PointsComparison, compare_points
from scaling.core.reference import Arrays, ReferenceSpec, flatten_inputs, point_ranges
from scaling.core.tolerances import Jacobians, relative_error
from scaling.options.reference import fd_check, float64
from scaling.options.reference.finite_differences import result_bounds
from scaling.options.reference.float64 import Evaluation

_DIRECTIONS = 2
_COLUMNS, _ROWS = 8, 4
_SIGNS = 3  # random signs that show the size of a sum that cancels


class Sample(NamedTuple):
    """What of a Jacobian is compared, the same for all points of a case: columns and rows by number."""

    columns: np.ndarray
    rows: np.ndarray


def compare_samples(spec: ReferenceSpec, got: np.ndarray) -> Iterator[PointsComparison]:
    """Yield what is compared: a sample of each block of points, and some points whole."""
    generator = np.random.default_rng([spec.case.data_seed, 1])
    whole = _pick(_count_whole_points(spec), spec.case.points, generator)
    for start, stop in point_ranges(spec):
        yield _compare_block(spec, got[start:stop], start, stop)
        for point in map(int, whole[(start <= whole) & (whole < stop)]):
            yield compare_points(spec, got[point : point + 1], point, point + 1)


def sum_over_outputs(spec: ReferenceSpec, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the derivative of the sum over outputs of each point, and its size: two (points, inputs)."""
    assert spec.computed is not None
    backward, of = spec.computed.backward, float64.summed(spec.computed.evaluation)
    evaluate = float64.rows if backward else float64.columns
    which = np.arange(1 if backward else spec.sizes.inputs)
    value = evaluate(of, inputs.exact_inputs(spec.case, spec.workload, start, stop), which)[:, 0]
    return value, np.abs(value)


def compared_shares(spec: ReferenceSpec, kept: float) -> dict[str, float]:
    """Return the share of entries that a sample compares, and of points that are compared whole.

    kept: the share of the compared entries that rounding does not decide.
    """
    if _has_products(spec):
        return {"entries": kept, "points": 1.0}
    sample, outputs = _sample(spec), spec.reduction.shape(spec.sizes.outputs, spec.sizes.inputs)[0]
    whole = 0.0 if spec.reduction.sums_points else _count_whole_points(spec) / spec.case.points
    columns, rows = len(sample.columns) / spec.sizes.inputs, len(sample.rows) / outputs
    some = columns if spec.reduction.sampling == "columns" else rows + columns - rows * columns
    return {"entries": kept * (some + (1 - some) * whole), "points": 1.0 if some == 1 else whole}


def _has_products(spec: ReferenceSpec) -> bool:
    """Return whether the result is products of Jacobians with a vector."""
    return spec.case.target == "hvp" or spec.reduction.sampling == "products"


def _pick(count: int, below: int, generator: np.random.Generator) -> np.ndarray:
    """Return `count` different numbers below a limit, in order; all of them where there are no more."""
    return np.sort(generator.choice(below, min(count, below), replace=False))


def _count_whole_points(spec: ReferenceSpec) -> int:
    """Return how many points are compared whole, within half of the budget."""
    assert spec.computed is not None
    if _has_products(spec) or spec.case.ad_mode.finite_step:
        return 0
    seconds_of_point = spec.computed.seconds / spec.case.points
    return int(min(spec.case.points, references.BUDGET_SECONDS / 2 / seconds_of_point))


def _sample(spec: ReferenceSpec) -> Sample:
    """Return the columns that are compared at every point, and the rows where reverse mode is defined."""
    assert spec.computed is not None
    generator = np.random.default_rng(spec.case.data_seed)
    outputs = 1 if spec.reduction.sums_outputs else spec.sizes.outputs
    rows = _pick(_ROWS, outputs, generator) if spec.computed.backward else np.arange(0)
    return Sample(_pick(_COLUMNS, spec.sizes.inputs, generator), rows)


def _compare_block(spec: ReferenceSpec, got: np.ndarray, start: int, stop: int) -> PointsComparison:
    """Compare a sample of the entries of a block of points."""
    assert spec.computed is not None
    named = inputs.exact_inputs(spec.case, spec.workload, start, stop)
    generator = np.random.default_rng([spec.case.data_seed, start])
    of, got, extra = spec.computed.evaluation, got.astype(np.float64), np.zeros(stop - start)
    if _has_products(spec):
        comparisons = [_compare_products(spec, of, named, got[:, :, 0], generator)]
    elif spec.reduction.sampling == "columns":
        comparisons = list(_compare_gram(of, named, got, _sample(spec), generator))
    else:
        comparisons = list(_compare_jacobians(spec, of, named, got, generator))
    if spec.case.ad_mode.finite_step:
        sizes = [each.scale.reshape(len(got), -1).max(axis=1) for each in comparisons]
        extra = relative_error(result_bounds(spec, start, stop), np.min(sizes, axis=0))
    return PointsComparison(start, named, comparisons, extra)


def _compare_jacobians(
    spec: ReferenceSpec, of: Evaluation, named: Arrays, got: np.ndarray, generator: np.random.Generator
) -> Iterator[EntryComparison]:
    """Compare Jacobians, or their sums over outputs; what the pattern of a coloured result lacks is zero."""
    summed, chosen = spec.reduction.sums_outputs, _sample(spec)
    if spec.pattern is None:
        J, row, column = Jacobians(got), np.arange(got.shape[1])[:, None], np.arange(got.shape[2])
    else:
        J, row, column = Jacobians(got[:, 0], spec.pattern), spec.pattern.rows, spec.pattern.cols
    for _ in range(_DIRECTIONS):
        direction = fd_check.random_direction(of, named, generator)
        flat = flatten_inputs(of.names, of.own, direction, len(got))
        measure = functools.partial(_along, direction, summed)
        want = measure(of, named)
        size = np.maximum(np.sqrt(J.by_output(J.values**2, flat**2)), np.abs(want))
        yield EntryComparison(J.by_output(J.values, flat), want, size, measure)
    measure = functools.partial(_lines, float64.columns, chosen.columns, summed)
    entries = np.stack([J.by_output(J.values * (column == k)) for k in chosen.columns], axis=2)
    yield EntryComparison(entries, measure(of, named), J.largest_by_output()[:, :, None], measure)
    if len(chosen.rows):
        measure = functools.partial(_lines, float64.rows, chosen.rows, summed)
        entries = np.stack([J.by_input(J.values * (row == k)) for k in chosen.rows], axis=1)
        want = measure(of, named)
        yield EntryComparison(entries, want, np.abs(want).max(axis=2, keepdims=True), measure)


def _compare_products(
    spec: ReferenceSpec, of: Evaluation, named: Arrays, got: np.ndarray, generator: np.random.Generator
) -> EntryComparison:
    """Compare the products of Jacobians with a vector, the point itself or ones: (points, outputs)."""
    along_point = spec.case.target == "hvp" or spec.reduction.along_point
    direction = {name: named[name] if along_point else np.ones_like(named[name]) for name in of.names}
    measure = functools.partial(_along, direction, False)
    want = measure(of, named)
    size = np.abs(want)
    for _ in range(_SIGNS):
        signed = {name: x * generator.choice([-1.0, 1.0], np.shape(x)) for name, x in direction.items()}
        size = np.maximum(size, np.abs(float64.along(of, named, signed)))
    return EntryComparison(got, want, size, measure)


def _compare_gram(
    of: Evaluation, named: Arrays, got: np.ndarray, chosen: Sample, generator: np.random.Generator
) -> Iterator[EntryComparison]:
    """Compare J^T J, written out: (points, inputs, inputs)."""
    for _ in range(_DIRECTIONS):
        direction = generator.choice([-1.0, 1.0], got.shape[2])
        measure = functools.partial(_lines, float64.gram_along, direction, False)
        want = measure(of, named)
        size = np.maximum(np.sqrt((got**2).sum(axis=2)), np.abs(want))
        yield EntryComparison(got @ direction, want, size, measure)
    measure = functools.partial(_lines, float64.gram_columns, chosen.columns, False)
    size = np.abs(got).max(axis=2, keepdims=True)
    yield EntryComparison(got[:, :, chosen.columns], measure(of, named), size, measure)


def _along(
    direction: Arrays, summed: bool, of: Evaluation, named: Arrays, points: Any = slice(None)
) -> np.ndarray:
    """Evaluate the derivative of the outputs, or of their sum, along a direction at some points."""
    there = {name: x[points] if name in of.own else x for name, x in direction.items()}
    return float64.along(float64.summed(of) if summed else of, named, there)


def _lines(
    evaluate: Any, which: np.ndarray, summed: bool, of: Evaluation, named: Arrays, points: Any = None
) -> np.ndarray:
    """Evaluate columns or rows of the derivative of the outputs, or of their sum, which all points share."""
    lines: np.ndarray = evaluate(float64.summed(of) if summed else of, named, which)
    return lines
