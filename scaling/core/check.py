"""The check: whether a result is right, at every point. It runs before any time is kept.

Every entry is compared relative to the size of what is added up in its output (tolerances.py), so that a
small output cannot hide behind a large one and a sum that cancels is judged by its terms. A sum over
points is one result, of which every copy is checked. With coloured seeds a result is the entries of a
detected pattern; what the pattern lacks counts as zero, so that one that lacks an entry is wrong.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from scaling.core import extensions, inputs
from scaling.core.case import Case, Refusal
from scaling.core.pattern import Pattern, to_dense
from scaling.core.reference import (
    Arrays,
    ReferenceSpec,
    expected_result,
    point_ranges,
    reference_jacobians,
    reference_spec,
    reference_values,
)
from scaling.core.shape import DerivativeShape
from scaling.core.tolerances import at_least, least_size, reduce_jacobians, relative_error
from scaling.core.workload import Workload

_SCANNED_NUMBERS = 2**16  # of a result at a time, which may fill half the memory
_SUMMED_AGAIN = 64  # points of a sum that are evaluated again
_NUMBERS_AGAIN = 2**24  # of all blocks that are evaluated again
_INCOMPARABLE = 0.01  # the share of entries that may be left out because rounding decides them


class Verdict(NamedTuple):
    """The result of the check.

    error: the largest over all points. tolerance: the largest that was allowed. reason: None if every
    point passed. checked: the share of all entries that were compared one by one, and of points all of
    whose entries were.
    """

    error: float | None
    tolerance: float
    reason: str | None = None
    text: str | None = None
    checked: dict[str, float] | None = None


@dataclass(frozen=True)
class EntryComparison:
    """Entries of a result and of its reference at a block of points: got and want, (points, ...).

    size: what a deviation is divided by, of a shape that broadcasts with them. measure: evaluates a sample
    again, (evaluation, inputs of some points, points=their numbers) -> array like `want` there.
    """

    got: np.ndarray
    want: np.ndarray
    size: np.ndarray
    measure: Callable[..., np.ndarray] | None = None


class Block(NamedTuple):
    """What is compared at a block of points, or of all copies of a sum.

    named: the inputs at which it can be evaluated again. extra: the bound of a finite step, (points,).
    """

    start: int
    named: Arrays | None
    comparisons: list[EntryComparison]
    extra: np.ndarray
    words: str = ""


@dataclass
class Comparisons:
    """The errors of all blocks so far, and what failed, kept to be evaluated again.

    first: the first point that is wrong. later: what failed beyond the numbers that are evaluated again.
    """

    spec: ReferenceSpec
    worst_allowed: float
    worst: float = 0.0
    first: int | None = None
    words: str = ""
    entries: int = 0
    left_out: int = 0
    again: list[tuple[Block, EntryComparison]] = field(default_factory=list)
    later: list[tuple[Block, np.ndarray]] = field(default_factory=list)

    def add(self, block: Block) -> None:
        """Compare a block of points."""
        least = least_size(self.spec.case)
        for comparison in block.comparisons:
            comparison = dataclasses.replace(comparison, size=np.maximum(comparison.size, least))
            error = relative_error(np.abs(comparison.got - comparison.want), comparison.size)
            self.entries += error.size
            flat = error.reshape(len(error), -1).max(axis=1)
            wrong = ~(flat <= self.spec.tolerance + block.extra)
            if not wrong.any() or not self.spec.repeatable:
                self.count(block, flat, wrong)
            elif sum(each.want.size for _, each in self.again) < _NUMBERS_AGAIN:
                self.again.append((block, comparison))
            else:
                self.later.append((block, flat))

    def count(self, block: Block, error: np.ndarray, wrong: np.ndarray) -> None:
        """Note the errors of some points, (points,), and the first that is wrong."""
        if wrong.any() and (self.first is None or block.start + int(np.argmax(wrong)) < self.first):
            self.first, self.words = block.start + int(np.argmax(wrong)), block.words
        self.worst = max(self.worst, float(np.max(error, initial=0.0)))
        extra = float(np.max(np.broadcast_to(block.extra, error.shape), where=error > 0, initial=0.0))
        self.worst_allowed = max(self.worst_allowed, self.spec.tolerance + extra)

    def verdict(self) -> Verdict:
        """Return the result of the check."""
        spec, allowed = self.spec, self.worst_allowed
        kept = 1 - self.left_out / max(1, self.entries)
        reason = text = checked = None
        if spec.case.ad_mode.finite_step and allowed > spec.most:
            reason, text = "no_digits", "a finite difference with this step and dtype has no correct digit"
        elif self.first is not None:
            point = f"{_unit(spec)} {self.first}"
            reason, text = (
                "wrong_answer",
                f"{point} is wrong; the largest error is {self.worst:.3g}{self.words}",
            )
        elif self.left_out > _INCOMPARABLE * self.entries:
            share = f"{self.left_out} of {self.entries} entries of the result"
            reason, text = "no_digits", f"rounding in {spec.case.dtype} decides {share}"
        elif spec.sampled:
            checked = extensions.load("sampled_reference").compared_shares(spec, kept)
        else:
            checked = {"entries": kept, "points": 1.0 if kept == 1 else 0.0}
        return Verdict(self.worst, allowed, reason, text, checked)


def verdict(
    case: Case,
    workload: Workload,
    sizes: DerivativeShape,
    got: np.ndarray,
    platform: str,
    *,
    pattern: Pattern | None = None,
) -> Verdict:
    """Compare a result, (points, outputs', inputs') as `collect` gives it, with the reference.

    pattern: where the entries of a coloured result lie; without one they are those of the workload's own
    pattern.
    """
    spec = reference_spec(case, workload, sizes, platform, pattern)
    expected, one_for_all = _expected_shape(spec), spec.reduction.sums_points
    if got.shape[1:] != expected or (len(got) != case.points and not one_for_all) or not len(got):
        words = f"{expected} of each of {case.points} points is expected"
        raise Refusal(f"the result has the shape {got.shape}, where {words}")
    if (bad := _first_not_finite(got)) is not None:
        words = f"the result is not finite at {_unit(spec)} {bad}"
        return Verdict(None, spec.tolerance, "not_finite", words)
    if reason := _why_nothing_is_proved(spec):
        return Verdict(None, spec.tolerance, *reason)
    compared, session = Comparisons(spec, spec.tolerance), contextlib.nullcontext()
    if spec.computed is not None:
        session = extensions.load("computed_reference").session(spec.computed)
    with session:
        for block in _blocks(spec, got):
            compared.add(block)
    if compared.again:
        extensions.load("reevaluate").reevaluate_failures(compared)
    return compared.verdict()


def _unit(spec: ReferenceSpec) -> str:
    """Return what the leading axis of a result counts."""
    return "copy" if spec.reduction.sums_points else "point"


def _expected_shape(spec: ReferenceSpec) -> tuple[int, int]:
    """Return the shape of a result at each point, or of each copy of a sum; nothing is broadcast."""
    sizes = spec.sizes
    if spec.case.ad_mode.is_value:
        return (1, 1) if spec.reduction.sums_points else (sizes.values, 1)
    if spec.pattern is not None:
        return 1, len(spec.pattern.rows)
    return spec.reduction.shape(1 if sizes.summed else sizes.outputs, sizes.inputs)


def _first_not_finite(got: np.ndarray) -> int | None:
    """Return the first point, or copy, where a result is not finite."""
    step = max(1, _SCANNED_NUMBERS // max(1, got[0].size))
    for start in range(0, len(got), step):
        fine = np.isfinite(got[start : start + step])
        if not fine.all():
            return start + int(np.argmin(fine.reshape(len(fine), -1).all(axis=1)))
    return None


def _why_nothing_is_proved(spec: ReferenceSpec) -> tuple[str, str] | None:
    """Return why a result cannot be checked, whatever it is: (reason, words)."""
    if spec.tolerance > spec.most:
        words = f"a result that adds up {spec.rounding.total} terms in {spec.case.dtype}"
        limit = f"more than the {spec.most:g} with which it proves anything"
        return "no_digits", f"{words} may be off by {spec.tolerance:.2g}, {limit}"
    if spec.computed is not None and spec.computed.wrong:
        return "wrong_answer", spec.computed.wrong
    if spec.computed is not None and spec.computed.unsure:
        return "no_digits", spec.computed.unsure
    return None


def _blocks(spec: ReferenceSpec, got: np.ndarray) -> Iterator[Block]:
    """Yield what is compared, block by block, or of all copies at once."""
    if spec.reduction.sums_points:
        yield _compare_sum(spec, got)
    elif spec.sampled:
        yield from extensions.load("sampled_reference").compare_samples(spec, got)
    else:
        for start, stop in point_ranges(spec):
            yield compare_points(spec, got[start:stop], start, stop)


def compare_points(spec: ReferenceSpec, got: np.ndarray, start: int, stop: int) -> Block:
    """Compare all entries of a block of points."""
    want, size = expected_result(spec, start, stop)
    largest = size.reshape(len(size), -1).max(axis=1)
    got, words, missing = got.astype(np.float64), "", []
    if spec.common is None and spec.pattern is not None:
        got = to_dense(spec.pattern, got[:, 0])
    elif spec.common is not None and spec.common.has is not None:  # the workload's own pattern is another
        index, has, lacking = spec.common.at, spec.common.has, want[..., spec.common.lacking]
        if lacking.size:
            missing = [EntryComparison(np.zeros_like(lacking), lacking, size[..., spec.common.lacking])]
        if count := int(np.count_nonzero(lacking.any(axis=(0, 1)))):
            words = f"; of the entries that are not zero the pattern lacks {count}"
        want, size = (
            np.where(has, want[..., index], 0.0),
            np.where(has, size[..., index], largest[:, None, None]),
        )
    extra = np.zeros(len(got))
    if spec.case.ad_mode.finite_step:  # the bound of one entry is not compared with the error of another
        bounds = extensions.load("finite_step").result_bounds(spec, start, stop)
        size, extra = largest[:, None, None], relative_error(bounds, largest)
    named = inputs.exact_inputs(spec.case, spec.workload, start, stop)
    return Block(start, named, [EntryComparison(got, want, size), *missing], extra, words)


def _compare_sum(spec: ReferenceSpec, got: np.ndarray) -> Block:
    """Compare the sum over all points and outputs, (copies, 1, inputs), of values or of their derivative."""
    want = size = bound = np.zeros(())
    for start, stop in point_ranges(spec):
        value, magnitude = _terms_of_sum(spec, start, stop)
        want, size = want + value.sum(axis=0), size + magnitude.sum(axis=0)
        if spec.case.ad_mode.finite_step:
            option = extensions.load("finite_step")
            bound = bound + option.input_bounds(spec, start, stop, spec.rounding.total).sum(axis=0)
    got = got[:, 0].astype(np.float64)
    comparison = EntryComparison(got, np.broadcast_to(want, got.shape), np.full(got.shape, size.max()))
    points = min(_SUMMED_AGAIN, spec.case.points)
    named = inputs.exact_inputs(spec.case, spec.workload, 0, points) if spec.repeatable else None
    return Block(0, named, [comparison], np.full(len(got), relative_error(bound.max(), size.max())))


def _terms_of_sum(spec: ReferenceSpec, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Return what each point adds to a sum, and its size: two (points, inputs), or (points, 1) of values."""
    if spec.case.ad_mode.is_value:
        value, floor = reference_values(spec, start, stop)
        size = at_least(np.abs(value), floor)
        return value.sum(axis=1, keepdims=True), size.sum(axis=1, keepdims=True)
    if spec.sampled:
        summed: tuple[np.ndarray, np.ndarray] = extensions.load("sampled_reference").sum_over_outputs(
            spec, start, stop
        )
        return summed
    J, floor = reference_jacobians(spec, start, stop)
    value, size = reduce_jacobians(spec.reduction, J, spec.rounding, floor)
    return value[:, 0], size[:, 0]
