"""Look again at entries that fail: what rounding explains at inputs within a rounding of those asked for is
no error.

They are evaluated at nudged inputs in the dtype of the case, and may be off by what these differ by.
"""

from typing import Any

import numpy as np

from scaling.core.check import reduce_reference
from scaling.core.comparison import Block, Comparisons, EntryComparison, SampledPart
from scaling.core.question import Question
from scaling.core.reduction_reference import Jacobians
from scaling.core.tolerances import ROUNDINGS, ROUNDOFF, relative_error
from scaling.options.reference import fd_check, float64, numeric

_FAIR = 64  # roundings of a value that may show in its derivative
_NUDGES, _NUDGE_ROUNDINGS = (
    8,
    2,
)  # evaluations of what failed, and how many roundings the inputs of each are moved by
_POINTS_AGAIN, _COLUMNS_AGAIN = (
    8,
    32,
)  # of what failed in a block, evaluated again; the rest is judged by their noise


def look_again(compared: Comparisons, roundoff: float) -> None:
    """Evaluate what failed at nudged inputs in the dtype of the case: what these differ by is allowed on top.

    An entry that may then be off by more than `most` says nothing, and is left out.
    """
    question = compared.question
    if not compared.again:
        return
    native = (
        question.computed.native
        if question.computed
        else numeric.native(question.case, question.workload, compared.again[0][0].named)
    )
    for block, comparison in compared.again:
        if compared.first is None:
            _look_at(compared, native, block, comparison, roundoff)
    for block, flat in compared.later:
        compared.count(block, flat, ~(flat <= compared.worst_allowed))


def _look_at(
    compared: Comparisons, native: float64.Evaluation, block: Block, whole: EntryComparison, roundoff: float
) -> None:
    """Evaluate some of what failed in a block again, and judge the rest by it."""
    question, all_errors = compared.question, relative_error(np.abs(whole.got - whole.want), whole.size)
    part = _worst_part(all_errors > compared.allowed, all_errors, whole.by_column)
    named = block.named if question.reduction.sums_points else _at_points(native, block.named, part)
    comparison = whole.at(part)
    error = np.abs(comparison.got - comparison.want)
    # Of an output that crosses zero here, the size elsewhere counts.
    typical = np.sqrt(np.mean(np.broadcast_to(whole.size, whole.want.shape) ** 2, axis=0))
    typical = typical if part.columns is None else typical[..., part.columns]
    noise, natural, drowned = _explained(
        question, native, named, comparison, part, roundoff, compared.allowed * typical
    )
    size = np.where(drowned, np.maximum(comparison.size, natural), comparison.size)
    fine, allowed = (
        error <= compared.allowed * comparison.size,
        compared.allowed + relative_error(noise, size),
    )
    coarse = ~(allowed <= question.most)
    wrong = ~fine & ~(error <= compared.allowed * comparison.size + np.where(coarse, 4 * noise, noise))
    lost = ~fine & ~wrong & coarse
    at = np.zeros(len(all_errors), bool)
    at[part.points] = wrong.reshape(len(wrong), -1).any(axis=1)
    kept = np.zeros(len(all_errors))
    kept[part.points] = np.where(lost, 0.0, relative_error(error, size)).reshape(len(error), -1).max(axis=1)
    compared.worst_allowed = max(
        compared.worst_allowed, float(np.where(fine | lost, compared.allowed, allowed).max())
    )
    compared.count(block, kept, at)
    _judge_rest(
        compared,
        block,
        all_errors,
        part,
        float(np.mean(lost[~fine])) if (~fine).any() else 0.0,
        bool(drowned.any()),
    )


def _explained(
    question: Question,
    native: float64.Evaluation,
    named: Any,
    comparison: EntryComparison,
    part: SampledPart,
    roundoff: float,
    typical: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the noise of entries, their natural size, and whether the noise hides them.

    typical: the tolerance at the typical size of each entry.
    """
    noise, natural = _noise(question, native, named, comparison, part, roundoff)
    of_values = rounding_of_value(roundoff, question.workload.terms) * natural
    noise = np.maximum(noise, np.minimum(typical, of_values))
    jitter = _jitter(question, named, comparison, part)
    # Where the reference is nothing but its own rounding, that grows with the roundoff.
    zero = comparison.size <= 8 * jitter
    finer = ROUNDOFF[question.computed.evaluation.dtype] if question.computed else roundoff
    largest = noise.max(axis=tuple(range(1, noise.ndim)), keepdims=True)
    noise = np.where(zero, np.maximum(largest, ROUNDINGS * jitter * roundoff / finer), noise)
    drowned = (zero | (noise > question.most * comparison.size)) & (noise <= of_values)
    return noise, natural, drowned


def _judge_rest(
    compared: Comparisons, block: Block, errors: np.ndarray, part: SampledPart, lost: float, drowned: bool
) -> None:
    """Judge the entries that failed and were not evaluated again. lost: the share of those that were and say
    nothing."""
    rest = errors.copy()
    if part.columns is None:
        rest[part.points] = 0.0
    else:
        rest[np.ix_(part.points, *map(np.arange, errors.shape[1:-1]), part.columns)] = 0.0
    failed = rest > compared.worst_allowed
    many = int(failed.sum())
    compared.left_out += int(
        lost * max(many, part.points.size if part.columns is None else part.columns.size)
    )
    if many and not lost and not drowned:
        compared.count(
            block, rest.reshape(len(rest), -1).max(axis=1), failed.reshape(len(failed), -1).any(axis=1)
        )


def rounding_of_value(roundoff: float, terms: int) -> float:
    """Return what rounding may do to a number of this roundoff on the way to a derivative, relative to the
    number."""
    return _FAIR * roundoff * float(np.sqrt(terms))


def _worst_part(failed: np.ndarray, error: np.ndarray, by_column: bool) -> SampledPart:
    """Return the points, and the columns, of the largest errors among those that failed, and some of the
    others that did."""
    points = failed.reshape(len(failed), -1)
    picked = _some_of(points.any(axis=1), error.reshape(len(error), -1).max(axis=1), _POINTS_AGAIN)
    if not by_column:
        return SampledPart(picked)
    columns = failed[picked].reshape(-1, failed.shape[-1])
    return SampledPart(
        picked,
        _some_of(columns.any(axis=0), error[picked].reshape(columns.shape).max(axis=0), _COLUMNS_AGAIN),
    )


def _some_of(failed: Any, error: Any, most: int) -> np.ndarray:
    """Return at most so many numbers of what failed: the worst half, and of the others those that lie
    evenly."""
    numbers = np.flatnonzero(failed)
    order = numbers[np.argsort(-error[numbers], kind="stable")]
    rest = np.sort(order[most // 2 :])
    evenly = (
        rest[np.linspace(0, len(rest) - 1, min(len(rest), most - most // 2)).astype(int)]
        if len(rest)
        else rest
    )
    return np.unique(np.concatenate([order[: most // 2], evenly]))


def _at_points(of: float64.Evaluation, named: Any, part: SampledPart) -> dict[str, np.ndarray]:
    """Return the inputs of some points."""
    return {name: array[part.points] if name in of.own else array for name, array in named.items()}


def _noise(
    question: Question,
    native: float64.Evaluation,
    named: Any,
    comparison: EntryComparison,
    part: SampledPart,
    roundoff: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return what rounding explains of what is compared, and the size that values and inputs give it: two
    (points, ...).

    It explains the range at nudged inputs in the dtype of the case, and no less than is typical of the other
    entries; and what forward mode in that dtype is off by, as far as the rounding of a value over its input
    may be (1 - tanh^2 where tanh is near 1). Nothing where the function cannot be evaluated.
    """
    assert comparison.measure is not None
    try:
        with float64.evaluating(native.dtype):
            found = _nudged(native, named, comparison, part, roundoff)
            here, value = comparison.measure(native, named, part), np.abs(float64.values(native, named))
    except Exception:
        return np.zeros((1,) * comparison.want.ndim), np.zeros((1,) * comparison.want.ndim)
    natural = _natural(question, native, named, value, comparison.want)
    noise = found.max(axis=0) - found.min(axis=0)
    noise = np.maximum(
        noise,
        comparison.size * np.median(relative_error(noise, np.broadcast_to(comparison.size, noise.shape))),
    )
    off = np.abs(here - comparison.want)
    off = np.where(off <= rounding_of_value(roundoff, question.workload.terms) * natural, 2 * off, 0.0)
    noise = np.maximum(noise, off.max(axis=-1, keepdims=True))
    return noise, natural


def _natural(
    question: Question, of: float64.Evaluation, named: Any, value: np.ndarray, like: np.ndarray
) -> np.ndarray:
    """Return the size that value and inputs give a derivative, of a shape that broadcasts with `like`."""
    typical = np.sqrt(np.mean([np.mean(named[name] ** 2) for name in of.names])) or 1.0
    value = np.maximum(value, np.sqrt(np.mean(value**2, axis=0)))  # an output may cross zero at a point
    along_x = (
        question.case.ad_mode.is_value or question.reduction.along_point or question.case.target == "hvp"
    )
    size = value if along_x else (value / typical) ** question.reduction.degree
    if question.reduction.sums_points:
        return np.full((1,) * max(1, like.ndim), size.sum())
    if like.shape[1] != size.shape[1]:
        size = size.max(axis=1, keepdims=True)
    return size.reshape(*size.shape, *[1] * (like.ndim - 2))


def _jitter(question: Question, named: Any, comparison: EntryComparison, part: SampledPart) -> np.ndarray:
    """Return how far the reference moves when its inputs move by a rounding of its own: the largest of each
    point."""
    if question.computed is None:
        return np.zeros(1)
    of = question.computed.evaluation
    with float64.evaluating(of.dtype):
        found = _nudged(of, named, comparison, part, max(ROUNDOFF[of.dtype], question.computed.inside))
    return (
        np.abs(found - comparison.want)
        .max(axis=(0, *range(2, found.ndim)))
        .reshape(-1, *[1] * (found.ndim - 2))
    )


def _nudged(
    of: float64.Evaluation, named: Any, comparison: EntryComparison, part: SampledPart, roundoff: float
) -> np.ndarray:
    """Return what is compared at inputs that are moved by some roundings, again and again: (nudges, ...)."""
    assert comparison.measure is not None
    generator = np.random.default_rng(1)
    moved = [fd_check.nudged(of, named, _NUDGE_ROUNDINGS * roundoff, generator) for _ in range(_NUDGES)]
    return np.array([comparison.measure(of, each, part) for each in moved])


def measure(question: Question, of: float64.Evaluation, named: Any, part: SampledPart) -> np.ndarray:
    """Return what the reference would say, evaluated otherwise: (points, outputs', inputs')."""
    if question.case.ad_mode.is_value:
        return float64.values(of, named)[:, :, None]
    if part.columns is not None:
        return float64.columns(
            float64.summed(of) if question.reduction.sums_outputs else of, named, part.columns
        )
    J = float64.jacobian(of, named)
    if question.sizes.summed and question.workload.reduce is not None:
        J = J.sum(axis=1, keepdims=True)
    return reduce_reference(question, Jacobians(J), None, named)[0]


def measure_sum(question: Question, of: float64.Evaluation, named: Any, part: SampledPart) -> np.ndarray:
    """Return the sum over some points, so that its noise is that of the sum over all of them: (1, inputs)."""
    each = float64.columns(float64.summed(of), named, np.arange(question.sizes.inputs))[:, 0]
    return each.sum(axis=0, keepdims=True) * np.sqrt(question.case.points / len(each))
