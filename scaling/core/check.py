"""The check: whether a result is right, at every point. It runs before any time is kept.

The reference is in float64 at the inputs as the dtype rounded them, block of points by block of points, and
knows nothing of the mode under test: a closed form in NumPy, or for a function without one its own derivative
in float64. Every entry is compared over the size of what is added up in its output (reduction_reference.py),
so that a small output cannot hide behind a large one and a sum that cancels is judged by its terms. A sum
over points is one result, of which every copy is checked. With coloured seeds a result is the entries of a
detected pattern; what the pattern lacks counts as zero, so that one that lacks an entry is wrong.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from scaling.core import extensions, inputs
from scaling.core import pattern as patterns
from scaling.core.case import SECOND, Case, Refusal
from scaling.core.comparison import Block, Comparisons, EntryComparison, Verdict
from scaling.core.pattern import Pattern
from scaling.core.question import PLAIN, Keyed, Question, closed_form, make_question
from scaling.core.reduction_reference import Jacobians, Rounding, reduce_jacobians
from scaling.core.reductions import REDUCTIONS, WHOLE
from scaling.core.shape import DerivativeShape
from scaling.core.tolerances import relative_error, tolerance, unit_roundoff
from scaling.core.workload import Reference, Workload

_BLOCK_NUMBERS = (
    2**16
)  # of a block: its arrays stay in the cache, and their memory is not given back each time
_KEPT_BYTES = 2**26
_SUMMED_AGAIN = 64  # points of a sum that are evaluated again


def verdict(
    case: Case,
    workload: Workload,
    sizes: DerivativeShape,
    got: np.ndarray,
    platform: str,
    *,
    pattern: Pattern | None = None,
) -> Verdict:
    """Compare a result, (points, outputs', inputs') as `collect` gives it, with the reference: every point,
    or every copy.

    pattern: where the entries of a coloured result lie; without one they are those of the workload's own
    pattern.
    """
    question = make_question(case, workload, sizes, platform, pattern)
    expected, one_for_all = _expected_shape(question), question.reduction.sums_points
    if got.shape[1:] != expected or (len(got) != case.points and not one_for_all) or not len(got):
        words = f"{expected} of each of {case.points} points is expected"
        raise Refusal(f"the result has the shape {got.shape}, where {words}")
    inside = question.computed.inside if question.computed else 0.0
    allowed = tolerance(case, question.rounding.total, platform, inside)
    each = "copy" if one_for_all else "point"
    if (bad := _not_finite(got)) is not None:
        return Verdict(None, allowed, "not_finite", f"the result is not finite at {each} {bad}")
    if reason := _hopeless(question, allowed):
        return Verdict(None, allowed, *reason)
    compared = Comparisons(question, allowed)
    with _session(question):
        for block in _blocks(question, got):
            compared.add(block)
    if compared.again:
        extensions.load("second_look").look_again(compared, unit_roundoff(case, platform, inside))
    return compared.verdict(each)


def _session(question: Question) -> contextlib.AbstractContextManager[None]:
    """Return the context in which JAX is set up for a reference that is computed."""
    if question.computed is None:
        return contextlib.nullcontext()
    session: contextlib.AbstractContextManager[None] = extensions.load("computed_reference").session(
        question.computed
    )
    return session


def _measure(question: Question, how: str) -> Any:
    """Return the function that evaluates some entries of the reference again, when a second look needs it."""
    return lambda *given: getattr(extensions.load("second_look"), how)(question, *given)


def _hopeless(question: Question, allowed: float) -> tuple[str, str] | None:
    """Return why a result cannot be checked, whatever it is: (reason, words)."""
    if allowed > question.most:
        words = f"a result that adds up {question.rounding.total} terms in {question.case.dtype} may be off by {allowed:.2g}"
        return "no_digits", f"{words}, more than the {question.most:g} with which it proves anything"
    if question.computed is not None and question.computed.wrong:
        return "wrong_answer", question.computed.wrong
    if question.computed is not None and question.computed.unsure:
        return "no_digits", question.computed.unsure
    return None


def _expected_shape(question: Question) -> tuple[int, int]:
    """Return the shape of a result at each point, or of each copy of a sum over points; nothing is
    broadcast."""
    sizes = question.sizes
    if question.case.ad_mode.is_value:
        return (1, 1) if question.reduction.sums_points else (sizes.values, 1)
    if question.pattern is not None:
        return 1, len(question.pattern.rows)
    return question.reduction.shape(1 if sizes.summed else sizes.outputs, sizes.inputs)


def _not_finite(got: np.ndarray) -> int | None:
    """Return the first point, or copy, where a result is not finite; block by block, as a result may fill
    half the memory."""
    step = max(1, _BLOCK_NUMBERS // max(1, got[0].size))
    for start in range(0, len(got), step):
        fine = np.isfinite(got[start : start + step])
        if not fine.all():
            return start + int(np.argmax(~fine.reshape(len(fine), -1).all(axis=1)))
    return None


def point_ranges(question: Question) -> Iterator[tuple[int, int]]:
    """Yield blocks of points whose full derivative, before any sum, stays small."""
    case, workload, sizes = question.case, question.workload, question.sizes
    draws = [*workload.points.values(), *workload.shared.values()]
    cells = sizes.outputs * max(sizes.inputs, 1)
    if question.known is not None:
        cells = sizes.outputs + sizes.inputs + len(question.known.rows)
    elif question.sampled and question.pattern is not None:
        cells = 16 * (sizes.outputs + sizes.inputs) + len(question.pattern.rows)
    elif question.reduction.products:
        cells = max(cells, sizes.inputs**2)
    numbers = cells + sum(int(np.prod(draw.shape)) for draw in draws)
    step = max(
        1, _BLOCK_NUMBERS * (16 if question.computed else 1) // numbers
    )  # a call of JAX wants more to do
    return ((start, min(start + step, case.points)) for start in range(0, case.points, step))


def _blocks(question: Question, got: np.ndarray) -> Iterator[Block]:
    """Yield what is compared, block by block, or of all copies at once."""
    case = question.case
    if question.reduction.sums_points:
        yield (_sum_of_values if case.ad_mode.is_value else _sum_of_derivatives)(question, got)
        return
    common = (
        patterns.common_entries(question.pattern, question.known)
        if question.pattern is not None and question.known is not None
        else None
    )
    whole = extensions.load("computed_reference").whole_points(question) if question.sampled else ()
    for start, stop in point_ranges(question):
        part = got[start:stop]
        if question.sampled:
            yield extensions.load("computed_reference").sampled_block(question, part, start, stop)
            for point in whole:
                if start <= point < stop:
                    yield _block_of(question, part[point - start : point - start + 1], point, point + 1)
        elif common is not None:
            yield _block_of_entries(question, common, part, start, stop)
        else:
            yield _block_of(question, part, start, stop)


def _block_of(question: Question, got: np.ndarray, start: int, stop: int) -> Block:
    """Compare all entries of a block of points."""
    named = inputs.exact_inputs(question.case, question.workload, start, stop)
    if question.pattern is not None:
        got = patterns.to_dense(question.pattern, got[:, 0].astype(np.float64))
    want, size = _wanted(question, start, stop)
    got = got.astype(np.float64)
    if not question.stepping:
        measure = _measure(question, "measure") if question.known is None else None
        by_column = (
            question.reduction.linear_in_inputs
            and not question.case.ad_mode.is_value
            and question.case.target != "hvp"
        )
        return Block(start, named, [EntryComparison(got, want, size, measure, by_column)], np.zeros(len(got)))
    size = size.reshape(len(size), -1).max(
        axis=1
    )  # so that the bound of one entry is not compared with the error of another
    comparison = EntryComparison(got, want, size[:, None, None])
    return Block(start, named, [comparison], relative_error(step_bound(question, start, stop), size))


def _block_of_entries(
    question: Question, common: patterns.CommonEntries, got: np.ndarray, start: int, stop: int
) -> Block:
    """Compare the entries of a pattern with those that the workload knows, and what the pattern lacks with
    zero."""
    assert question.known is not None
    want, size = (array[:, 0] for array in _wanted(question, start, stop))
    size = np.broadcast_to(size, want.shape)
    named = inputs.exact_inputs(question.case, question.workload, start, stop)
    here, scale, words = want, size, ""
    if common.at is not None and common.has is not None:
        largest = size.max(axis=1, keepdims=True)
        here = np.where(common.has, want[:, common.at], 0.0)
        scale = np.where(common.has, size[:, common.at], largest)
    extra = np.zeros(len(got))
    if question.stepping:
        scale = np.broadcast_to(size.max(axis=1, keepdims=True), here.shape)
        extra = relative_error(step_bound(question, start, stop), size.max(axis=1))
    comparisons = [EntryComparison(got[:, 0].astype(np.float64), here, scale)]
    if common.lacking is not None and common.lacking.size:
        lacking = want[:, common.lacking]
        comparisons.append(EntryComparison(np.zeros_like(lacking), lacking, size[:, common.lacking]))
        if count := int(np.count_nonzero(np.abs(lacking).max(axis=0) > 0)):
            words = f"; of the entries that are not zero the pattern lacks {count}"
    return Block(start, named, comparisons, extra, words)


def step_bound(question: Question, start: int, stop: int) -> np.ndarray:
    """Return how far the finite step of the mode may move the result: (points,)."""
    case, workload, sizes = question.case, question.workload, question.sizes
    bound = extensions.load("finite_step").step_bound(
        case, workload, sizes, start, stop, question.rounding.terms
    )
    linear = question.reduction.degree == 1  # then the bound does not depend on the Jacobian
    J = Jacobians(np.zeros((stop - start, 1, 1))) if linear else reference_jacobians(question, start, stop)[0]
    return np.asarray(question.reduction.step_bound(J, bound))


def _wanted(question: Question, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the expected result, (points, outputs', inputs') or (points, 1, entries), and its size."""
    case, sizes = question.case, question.sizes
    numbers = question.reduction.degree * question.reduction.numbers(sizes.outputs, max(sizes.inputs, 1))
    numbers = len(question.known.rows) if question.at_entries and question.known is not None else numbers
    if 8 * case.points * numbers > _KEPT_BYTES:
        return _block(question, start, stop)
    what = {
        "mode": "value" if case.ad_mode.is_value else "jacfwd",
        "batch": "whole" if sizes.summed and sizes.outputs > 1 else "vmap",  # where that sums outputs
        "seeds": "colored" if question.at_entries else "identity",
    }
    want, size = _whole(
        dataclasses.replace(case, **PLAIN | what), question.rounding, Keyed(question.identity, question)
    )
    return want[start:stop], size[start:stop]


@functools.lru_cache(maxsize=4)
def _whole(problem: Case, rounding: Rounding, keyed: Keyed) -> tuple[np.ndarray, np.ndarray]:
    """Return all that the reference says of a problem, worked out once for every way of computing it."""
    question = keyed.value
    blocks = [_block(question, start, stop) for start, stop in point_ranges(question)]
    return np.concatenate([want for want, _ in blocks]), np.concatenate([size for _, size in blocks])


def _block(question: Question, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    case, workload = question.case, question.workload
    if case.ad_mode.is_value:
        value, terms = _value(question, start, stop)
        size = np.abs(value) if question.computed else np.abs(value).max(axis=1, keepdims=True)
        return value[:, :, None], _at_least(size, None if terms is None else terms[:, None])[:, :, None]
    J, floor = reference_jacobians(question, start, stop)
    if question.at_entries:
        assert J.pattern is not None
        size = _at_least(_largest_of_rows(J), None if floor is None else floor[:, None])
        return J.values[:, None], size[:, None, J.pattern.rows]
    return reduce_reference(question, J, floor, inputs.exact_inputs(case, workload, start, stop))


def _largest_of_rows(J: Jacobians) -> np.ndarray:
    """Return the largest magnitude in each row of the entries of a pattern: (points, outputs)."""
    assert J.pattern is not None
    largest = np.zeros((len(J.values), J.pattern.outputs))
    np.maximum.at(largest.T, J.pattern.rows, np.abs(J.values).T)
    return largest


def reduce_reference(
    question: Question, J: Jacobians, floor: np.ndarray | None, named: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return what is made of Jacobians, (points, outputs', inputs'), and its size. floor: (points,), the
    least of an entry."""
    if question.case.target != "hvp" and not question.reduction.along_point:
        return reduce_jacobians(question.reduction, J, question.rounding, floor)
    x = np.concatenate(
        [_rows_of(question.workload, named, name, len(J.values)) for name in question.workload.names], axis=1
    )
    if question.reduction.along_point:
        return reduce_jacobians(question.reduction, J, question.rounding, floor, x)
    size = np.abs(J.values) @ np.abs(x)[:, :, None]
    terms = None if floor is None else (floor * np.abs(x).max(axis=1))[:, None, None]
    return J.values @ x[:, :, None], _at_least(size, terms)


def _rows_of(workload: Workload, named: Any, name: str, points: int) -> np.ndarray:
    """Return an input as a row for each point: (points, numbers)."""
    x = named[name]
    return (
        x.reshape(points, -1)
        if name in workload.points
        else np.broadcast_to(x.reshape(1, -1), (points, x.size))
    )


def _value(question: Question, start: int, stop: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the values of a block of points, (points, outputs), and the size of their terms, (points,),
    where it is known.
    """
    case, workload = question.case, question.workload
    named = inputs.exact_inputs(case, workload, start, stop)
    closed = closed_form(case, workload)
    assert closed is not None
    said = closed(named)
    _validate(question, said, None, start, stop)
    return said.value, said.value_terms


def reference_jacobians(question: Question, start: int, stop: int) -> tuple[Jacobians, np.ndarray | None]:
    """Return the Jacobians of a block of points, and the least size of an entry: (points,). They are summed
    where the batch is.
    """
    case, workload, sizes = question.case, question.workload, question.sizes
    named = inputs.exact_inputs(case, workload, start, stop)
    if question.known is not None:
        assert workload.nonzeros is not None
        said = workload.nonzeros(named)
        _validate(question, said, (1, len(question.known.rows)), start, stop)
        entries = Jacobians(said.derivative[:, 0], question.known)
        if question.at_entries or (question.reduction is not WHOLE and not question.reduction.products):
            return entries, said.derivative_terms
        return Jacobians(patterns.to_dense(question.known, entries.values)), said.derivative_terms
    assert workload.reference is not None
    said = workload.reference(named)
    _validate(
        question, said, (sizes.outputs, sizes.outputs if case.target in SECOND else sizes.inputs), start, stop
    )
    J, floor = said.derivative, said.derivative_terms
    if sizes.summed and workload.reduce is not None:  # what is reduced is what the sum over outputs leaves
        size = np.abs(J) if floor is None else np.maximum(np.abs(J), floor[:, None, None])
        J, floor = J.sum(axis=1, keepdims=True), size.sum(axis=1).max(axis=1)
    return Jacobians(J), floor


def _validate(
    question: Question, said: Reference, each: tuple[int, int] | None, start: int, stop: int
) -> None:
    """Refuse a reference that is not finite, or not of the expected shape. each: the shape of a
    derivative."""
    due: dict[str, tuple[int, ...]] = {"value": (stop - start, question.sizes.values)}
    if each is not None:
        due["derivative"] = (stop - start, *each)
    for name, shape_due in due.items():
        found = getattr(said, name)
        if np.shape(found) != shape_due:
            raise Refusal(f"the reference's {name} has the shape {np.shape(found)}, not {shape_due}")
        if not np.all(np.isfinite(found)):
            raise Refusal(f"the reference's {name} is not finite in points {start} to {stop - 1}")


def _at_least(size: np.ndarray, terms: np.ndarray | None) -> np.ndarray:
    return size if terms is None else np.maximum(size, terms)


def _sum_of_values(question: Question, got: np.ndarray) -> Block:
    """Compare one number, the sum of a value over all points and outputs: every copy."""
    total, size = 0.0, 0.0
    for start in range(0, question.case.points, step := max(1, 2**18 // question.sizes.values)):
        value, terms = _value(question, start, min(start + step, question.case.points))
        magnitude = np.abs(value) if terms is None else np.maximum(np.abs(value), terms[:, None])
        total, size = total + float(value.sum()), size + float(magnitude.sum())
    comparison = EntryComparison(got.reshape(-1).astype(np.float64), np.array(total), np.array(size))
    return Block(0, None, [comparison], np.zeros(len(got)))


def _sum_of_derivatives(question: Question, got: np.ndarray) -> Block:
    """Compare the derivative of the sum over all points and outputs, by inputs that they share: (copies, 1,
    inputs)."""
    sizes = question.sizes
    bound = np.zeros(sizes.inputs)
    if question.stepping:
        for start, stop in point_ranges(question):
            steps = extensions.load("finite_step").step_bound(
                question.case, question.workload, sizes, start, stop, question.rounding.total
            )
            bound = bound + steps.sum(axis=0)
    want, size = np.zeros(sizes.inputs), np.zeros(sizes.inputs)
    for start, stop in point_ranges(question):
        value, magnitude = _summed_over_outputs(question, start, stop)
        want, size = want + value.sum(axis=0), size + magnitude.sum(axis=0)
    got = got[:, 0].astype(np.float64)
    extra = relative_error(np.full(len(got), bound.max()), size.max())
    named, measure = None, None
    if question.known is None and not question.stepping:
        named = inputs.exact_inputs(
            question.case, question.workload, 0, min(_SUMMED_AGAIN, question.case.points)
        )
        measure = _measure(question, "measure_sum")
    return Block(
        0,
        named,
        [EntryComparison(got, np.broadcast_to(want, got.shape), np.full(got.shape, size.max()), measure)],
        extra,
    )


def _summed_over_outputs(question: Question, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the derivative of the sum over outputs of each point, and its size: two (points, inputs)."""
    if question.sampled:
        sampled: tuple[np.ndarray, np.ndarray] = extensions.load("computed_reference").sum_over_outputs(
            question, start, stop
        )
        return sampled
    J, floor = reference_jacobians(question, start, stop)
    value, magnitude = reduce_jacobians(REDUCTIONS["points"], J, question.rounding, floor)
    return value[:, 0], magnitude[:, 0]
