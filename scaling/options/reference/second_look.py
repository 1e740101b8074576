"""Look again at entries that fail: what rounding explains at nearby inputs is no error.

They are evaluated at inputs that are moved by a rounding, in the dtype of the case, and may be off by what
these evaluations differ by.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from scaling.core.check import CheckProgress, EntryComparison, PointsComparison
from scaling.core.reference import Arrays, ReferenceSpec, reduce_reference
from scaling.core.tolerances import ROUNDINGS, ROUNDOFF, Jacobians, relative_error
from scaling.options.reference import examine, fd_check, float64
from scaling.options.reference.float64 import Evaluation

_FAIR = 64  # roundings of a value that may show in its derivative
_NUDGES, _NUDGE_ROUNDINGS = (
    8,
    2,
)  # evaluations of what failed, and by how many roundings each moves the inputs
_POINTS_AGAIN, _COLUMNS_AGAIN = 8, 32  # of what failed in a block; the rest is judged by these

Columns = np.ndarray | slice


class Retry(NamedTuple):
    """Some entries of a block that are evaluated again.

    native: how the function is evaluated in the dtype of the case. named: the inputs at the points of the
    entries. measure: evaluates the entries, (evaluation, inputs) -> array like `want`.
    """

    spec: ReferenceSpec
    native: Evaluation
    named: Arrays
    got: np.ndarray
    want: np.ndarray
    size: np.ndarray
    measure: Callable[[Evaluation, Arrays], np.ndarray]


def look_again(compared: CheckProgress) -> None:
    """Evaluate what failed at nearby inputs in the dtype of the case: what these differ by is allowed on top.

    An entry that may then be off by more than `max_tolerance` proves nothing, and is left out.
    """
    spec, first = compared.spec, compared.suspects[0][0]
    assert first.inputs is not None
    computed = spec.computed
    native = computed.native if computed else examine.native(spec.case, spec.workload, first.inputs)
    for block, comparison in compared.suspects:
        if compared.first_wrong is None:
            _look_at(compared, native, block, comparison)
    for block, error in compared.suspects_over_budget:
        compared.record_errors(block, error, ~(error <= compared.allowed))


def _look_at(
    compared: CheckProgress, native: Evaluation, block: PointsComparison, whole: EntryComparison
) -> None:
    """Evaluate some of what failed in a block again, and judge the rest by it."""
    spec, errors = compared.spec, relative_error(np.abs(whole.result - whole.expected), whole.scale)
    points, columns = _choose_entries(spec, whole, errors)
    retry = _retry(spec, native, block, whole, points, columns)
    # Of an output that crosses zero here, the size elsewhere counts.
    typical = np.sqrt(np.mean(np.broadcast_to(whole.scale, whole.expected.shape) ** 2, axis=0))[..., columns]
    noise, natural, drowned = _explain(retry, spec.tolerance * typical)
    error, limit = np.abs(retry.got - retry.want), spec.tolerance * retry.size
    size = np.where(drowned, np.maximum(retry.size, natural), retry.size)
    fine, allowed = error <= limit, spec.tolerance + relative_error(noise, size)
    coarse = ~(allowed <= spec.max_tolerance)
    wrong = ~fine & ~(error <= limit + np.where(coarse, 4 * noise, noise))
    lost = ~fine & ~wrong & coarse
    is_wrong, kept = np.zeros(len(errors), bool), np.zeros(len(errors))
    is_wrong[points] = wrong.reshape(len(wrong), -1).max(axis=1)
    kept[points] = np.where(lost, 0.0, relative_error(error, size)).reshape(len(error), -1).max(axis=1)
    most = float(np.where(fine | lost, spec.tolerance, allowed).max())
    compared.allowed = max(compared.allowed, most)
    compared.record_errors(block, kept, is_wrong)
    # The rest of what failed is judged by these entries.
    errors[points[:, None], ..., columns] = 0.0
    failed = errors > compared.allowed
    share = float(np.mean(lost[~fine])) if (~fine).any() else 0.0  # of these entries, which prove nothing
    retried = points.size if isinstance(columns, slice) else columns.size
    compared.undecided_entries += int(share * max(int(failed.sum()), retried))
    if failed.any() and not share and not drowned.any():
        by_point = errors.reshape(len(errors), -1)
        compared.record_errors(block, by_point.max(axis=1), failed.reshape(by_point.shape).max(axis=1))


def _choose_entries(
    spec: ReferenceSpec, whole: EntryComparison, errors: np.ndarray
) -> tuple[np.ndarray, Columns]:
    """Return the points and columns of the largest errors among those that failed, and of some others."""
    failed = errors > spec.tolerance
    by_point = failed.reshape(len(failed), -1)
    points = _choose(by_point.max(axis=1), errors.reshape(by_point.shape).max(axis=1), _POINTS_AGAIN)
    linear = spec.reduction.linear_in_inputs and not spec.reduction.sums_points
    if whole.measure is not None or spec.case.ad_mode.is_value or spec.case.target == "hvp" or not linear:
        return points, slice(None)  # columns cannot be evaluated one by one
    by_column, worst = (array[points].reshape(-1, array.shape[-1]) for array in (failed, errors))
    return points, _choose(by_column.max(axis=0), worst.max(axis=0), _COLUMNS_AGAIN)


def _choose(failed: np.ndarray, error: np.ndarray, most: int) -> np.ndarray:
    """Return the numbers of some that failed: the worst ones, and others at even distances."""
    numbers = np.flatnonzero(failed)
    order = numbers[np.argsort(-error[numbers], kind="stable")]
    worst, rest = order[: most // 2], np.sort(order[most // 2 :])
    if len(rest):
        rest = rest[np.linspace(0, len(rest) - 1, min(len(rest), most - most // 2)).astype(int)]
    return np.unique(np.concatenate([worst, rest]))


def _retry(
    spec: ReferenceSpec,
    native: Evaluation,
    block: PointsComparison,
    whole: EntryComparison,
    points: np.ndarray,
    columns: Columns,
) -> Retry:
    """Return entries of a block to evaluate again."""
    assert block.inputs is not None
    named, measure = block.inputs, functools.partial(_evaluate, spec, columns)
    if spec.reduction.sums_points:
        measure = functools.partial(_evaluate_sum, spec)
    else:
        named = {name: x[points] if name in native.own else x for name, x in named.items()}
    if whole.measure is not None:
        measure = functools.partial(whole.measure, points=points)
    arrays = (
        np.broadcast_to(each, whole.expected.shape) for each in (whole.result, whole.expected, whole.scale)
    )
    got, want, size = (array[points][..., columns] for array in arrays)
    return Retry(spec, native, named, got, want, size, measure)


def _explain(retry: Retry, typical: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the noise of entries, their natural size, and whether the noise hides them.

    typical: the tolerance at the typical size of each entry.
    """
    spec, computed = retry.spec, retry.spec.computed
    noise, natural = _noise(retry)
    of_values = _rounding_of_value(spec) * natural
    noise = np.maximum(noise, np.minimum(typical, of_values))
    jitter = _jitter(retry)
    # Where the reference is nothing but its own rounding, that grows with the roundoff.
    zero = retry.size <= 8 * jitter
    finer = ROUNDOFF[computed.evaluation.dtype] if computed else spec.roundoff
    largest = noise.max(axis=tuple(range(1, noise.ndim)), keepdims=True)
    noise = np.where(zero, np.maximum(largest, ROUNDINGS * jitter * spec.roundoff / finer), noise)
    drowned = (zero | (noise > spec.max_tolerance * retry.size)) & (noise <= of_values)
    return noise, natural, drowned


def _noise(retry: Retry) -> tuple[np.ndarray, np.ndarray]:
    """Return what rounding explains of the entries, and the size that values and inputs give them.

    It explains the range at nudged inputs in the dtype of the case, and no less than is typical of the other
    entries; and what forward mode in that dtype is off by, as far as the rounding of a value over its input
    may be (1 - tanh^2 where tanh is near 1). Nothing where the function cannot be evaluated.
    """
    native, want, size = retry.native, retry.want, retry.size
    try:
        with float64.evaluating(native.dtype):
            nudged = _evaluate_nudged(retry, native, retry.spec.roundoff)
            here, value = retry.measure(native, retry.named), np.abs(float64.values(native, retry.named))
    except Exception:
        return np.zeros((1,) * want.ndim), np.zeros((1,) * want.ndim)
    natural = _natural_size(retry, value)
    noise = nudged.max(axis=0) - nudged.min(axis=0)
    # An entry without a size of its own has no relative noise that would be typical of others.
    noise = np.maximum(noise, size * min(1.0, float(np.median(relative_error(noise, size)))))
    off = np.abs(here - want)
    off = np.where(off <= _rounding_of_value(retry.spec) * natural, 2 * off, 0.0)
    return np.maximum(noise, off.max(axis=-1, keepdims=True)), natural


def _natural_size(retry: Retry, value: np.ndarray) -> np.ndarray:
    """Return the size that value and inputs give a derivative; it broadcasts with the entries."""
    spec, shape = retry.spec, retry.want.shape
    value = np.maximum(value, np.sqrt(np.mean(value**2, axis=0)))  # an output may cross zero at a point
    along_x = spec.case.ad_mode.is_value or spec.reduction.along_point or spec.case.target == "hvp"
    typical = np.sqrt(np.mean([np.mean(retry.named[name] ** 2) for name in retry.native.names])) or 1.0
    size = value if along_x else (value / typical) ** spec.reduction.degree
    if spec.reduction.sums_points:
        return np.full((1,) * max(1, len(shape)), size.sum())
    if shape[1] != size.shape[1]:
        size = size.max(axis=1, keepdims=True)
    return size.reshape(*size.shape, *[1] * (len(shape) - 2))


def _jitter(retry: Retry) -> np.ndarray:
    """Return how far the reference moves when its inputs move by one of its own roundings: by point."""
    computed = retry.spec.computed
    if computed is None:
        return np.zeros(1)
    of: Evaluation = computed.evaluation
    with float64.evaluating(of.dtype):
        nudged = _evaluate_nudged(retry, of, max(ROUNDOFF[of.dtype], computed.inside))
    moved = np.abs(nudged - retry.want)
    return np.asarray(moved.max(axis=(0, *range(2, moved.ndim))).reshape(-1, *[1] * (moved.ndim - 2)))


def _evaluate_nudged(retry: Retry, of: Evaluation, roundoff: float) -> np.ndarray:
    """Evaluate entries at inputs that are moved by some roundings: (nudges, ...)."""
    generator, by = np.random.default_rng(1), _NUDGE_ROUNDINGS * roundoff
    moved = [fd_check.nudge(of, retry.named, by, generator) for _ in range(_NUDGES)]
    return np.array([retry.measure(of, named) for named in moved])


def _rounding_of_value(spec: ReferenceSpec) -> float:
    """Return what rounding may do to a number on the way to a derivative, relative to the number."""
    return _FAIR * spec.roundoff * float(np.sqrt(spec.workload.terms))


def _evaluate(spec: ReferenceSpec, columns: Columns, of: Evaluation, named: Arrays) -> np.ndarray:
    """Evaluate the reference otherwise, at some columns or all: (points, outputs', inputs')."""
    if spec.case.ad_mode.is_value:
        return float64.values(of, named)[:, :, None]
    if not isinstance(columns, slice):
        return float64.columns(float64.summed(of) if spec.reduction.sums_outputs else of, named, columns)
    J = float64.jacobian(of, named)
    if spec.sizes.summed and spec.workload.reduce is not None:
        J = J.sum(axis=1, keepdims=True)
    return reduce_reference(spec, Jacobians(J), None, named)[0]


def _evaluate_sum(spec: ReferenceSpec, of: Evaluation, named: Arrays) -> np.ndarray:
    """Evaluate the sum over some points, scaled to the noise of the sum over all of them: (1, inputs)."""
    each = float64.columns(float64.summed(of), named, np.arange(spec.sizes.inputs))[:, 0]
    return np.asarray(each.sum(axis=0, keepdims=True) * np.sqrt(spec.case.points / len(each)))
