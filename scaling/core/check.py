"""Compare each entry or nonzero of a result with its reference, collect errors, and return a `Verdict`.

Each entry of a result may differ from the expected entry by tolerance * scale (reference.py). An entry with
a larger error is a suspect: checks/rounding_check.py evaluates it again with random rounding errors, and
decides whether rounding explains the error. With seeds=colored, expected entries outside of the sparsity
pattern are compared with zero, to detect a nonzero that the pattern lacks.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from scaling.core import load_option, reference
from scaling.core.case import Refusal
from scaling.core.derivative import Derivative, to_dense
from scaling.core.reference import ReferenceSpec

_MAX_SUSPECT_ELEMENTS = 2**24  # once the suspects have this many array elements, they are evaluated again
_UNDERFLOW_MARGIN = 2.0**10  # results below this many times (smallest normal / roundoff) may lose digits
_MAX_UNDECIDED = 0.01  # largest fraction of entries that may be undecidable because of rounding


class Verdict(NamedTuple):
    """The decision whether a result agrees with its reference, with the largest error that was found."""

    error: float | None  # the largest relative error, or None if no entry was compared
    tolerance: float  # the largest relative error that was allowed
    reason: str | None = None  # a key of `record.REASONS`, or None if the result is correct
    text: str | None = None  # an explanation of the reason, or None if the result is correct
    checked: dict[str, float] | None = None  # as in `Record`, or None if the result is not correct


@dataclass(frozen=True)
class EntryComparison:
    """Elements of a result to compare, with their expected values and the scale of their errors."""

    result: np.ndarray  # of shape (points, ...)
    expected: np.ndarray  # of the same shape
    scale: np.ndarray  # error = |result - expected| / scale; broadcasts to the shape of `result`
    # measure(evaluation, inputs, points=indices) recomputes entries. None if the whole result is compared.
    measure: Callable[..., np.ndarray] | None = None
    # An entry is undecided if its error is within the tolerance, but its difference exceeds this limit.
    provable: np.ndarray | None = None  # None for `max_tolerance` times `scale`


class PointsComparison(NamedTuple):
    """The comparisons of a result with its expected values at a range of points (batch elements)."""

    start: int  # the index of the first point, or 0 for a sum over points
    stop: int  # the entries are evaluated again with the inputs at the points [start, stop)
    comparisons: list[EntryComparison]  # the entries to compare
    step_error: np.ndarray  # shape (points,): the additional relative error allowed for a finite difference
    note: str = ""  # text to append to the explanation of a wrong answer


@dataclass
class CheckProgress:
    """The state of a check: the largest error so far, the first wrong point, and counts of entries."""

    spec: ReferenceSpec
    allowed: float  # the largest tolerance so far
    largest_error: float = 0.0  # the largest relative error so far
    first_wrong: int | None = None  # the index of the first wrong point
    note: str = ""  # the error and the tolerance of this point, and the note of its `PointsComparison`
    entries: int = 0  # the number of compared entries
    undecided_entries: int = 0  # the number of entries with a rounding error too large to compare
    # The comparisons with an error over the tolerance. rounding_check.py evaluates their entries again.
    suspects: list[tuple[PointsComparison, EntryComparison]] = field(default_factory=list)
    reevaluation_seconds: float = 0.0  # the time that these evaluations have taken
    skipped_entries: int = 0  # the number of entries over the tolerance that were not evaluated again

    def add_until_full(self, ranges: Iterator[PointsComparison]) -> bool:
        """Compare ranges of points. Stop early, and return False, if there are too many `suspects`."""
        for points in ranges:
            for comparison in points.comparisons:
                self.add(points, comparison)
            if sum(suspect.expected.size for _, suspect in self.suspects) > _MAX_SUSPECT_ELEMENTS:
                return False
        return True

    def add(self, points: PointsComparison, comparison: EntryComparison) -> None:
        """Record the errors of a comparison, or add it to `suspects` if it must be evaluated again."""
        spec, underflow = self.spec, reference.smallest_normal(self.spec.case)
        least_scale = _UNDERFLOW_MARGIN * underflow / reference.ROUNDOFF[spec.case.dtype]
        scale, provable = np.maximum(comparison.scale, least_scale), comparison.provable
        if provable is None:
            # If an entry is this small at all points, an underflow may explain an error within the tolerance.
            largest_scale = np.max(comparison.scale, axis=0, initial=0.0)
            is_tiny = spec.max_tolerance * largest_scale < spec.tolerance * least_scale
            provable = np.where(is_tiny, 0.0 if is_tiny.all() else underflow, spec.max_tolerance * scale)
        difference = np.abs(comparison.result - comparison.expected)
        error = reference.relative_error(difference, scale)
        is_undecided = (difference > provable) & (error <= spec.tolerance)
        self.entries += error.size
        self.undecided_entries += int(np.count_nonzero(is_undecided))
        by_point = np.where(is_undecided, 0.0, error).reshape(len(error), -1).max(axis=1)
        is_wrong = ~(by_point <= spec.tolerance + points.step_error)
        if is_wrong.any() and spec.repeatable:
            self.suspects.append((points, dataclasses.replace(comparison, scale=scale)))
        else:
            self.record_errors(points, comparison, by_point, is_wrong)

    def record_errors(
        self, points: PointsComparison, comparison: EntryComparison, error: np.ndarray, is_wrong: np.ndarray
    ) -> None:
        """Update the largest error, the allowed error and the first wrong point.

        `error` contains the relative errors of `comparison`, and `is_wrong` whether they are too large. Both
        arrays have one element for each entry, or one for each point.
        """
        error, is_wrong_point = (x.reshape(len(x), -1).max(axis=1) for x in (error, is_wrong))
        first = int(np.argmax(is_wrong_point))
        if is_wrong_point[first] and (self.first_wrong is None or points.start + first < self.first_wrong):
            tolerance = self.spec.tolerance + points.step_error[first]
            error_note = f"; its relative error is {error[first]:.3g}, the tolerance {tolerance:.2g}"
            text = load_option("rounding_check").describe_first_wrong(self.spec, comparison, is_wrong)
            self.first_wrong, self.note = points.start + first, error_note + text + points.note
        self.largest_error = max(self.largest_error, float(np.max(error, initial=0.0)))
        if step_error := float(np.max(points.step_error, where=error > 0, initial=0.0)):
            self.allowed = max(self.allowed, self.spec.tolerance + step_error)

    def verdict(self) -> Verdict:
        """Return the `Verdict` on the result after all comparisons."""
        spec, decided_share = self.spec, 1 - self.undecided_entries / max(1, self.entries)
        reason = text = checked = None
        if spec.case.ad_mode.finite_step and self.allowed > spec.max_tolerance:
            reason, text = "no_digits", "a finite difference with this step and dtype has no correct digit"
        elif self.first_wrong is not None:
            reason = "wrong_answer"
            text = f"{_point_or_copy(spec)} {self.first_wrong} is wrong{self.note}"
        elif self.skipped_entries:
            skipped = f"{self.skipped_entries} entries with an error over the tolerance"
            reason, text = "no_digits", f"{skipped} were not evaluated again, to save time"
        elif self.undecided_entries > _MAX_UNDECIDED * self.entries:
            undecided = f"{self.undecided_entries} of {self.entries} entries of the result"
            reason, text = "no_digits", f"rounding to {spec.case.dtype} is too coarse to check {undecided}"
        elif spec.sampled:
            checked = load_option("sampled_check").compared_shares(spec, decided_share)
        else:
            checked = {"entries": decided_share, "points": 1.0 if decided_share == 1 else 0.0}
        return Verdict(self.largest_error, self.allowed, reason, text, checked)


def verdict(derivative: Derivative, result: np.ndarray, platform: str) -> Verdict:
    """Compare `result`, an array on the host, with its expected values, and return the `Verdict`."""
    spec = reference.reference_spec(derivative, platform)
    _require_shape(spec, result)
    if (point := reference.first_not_finite(result)) is not None:
        text = f"the result is not finite at {_point_or_copy(spec)} {point}"
        reason = "no_digits" if spec.case.ad_mode.finite_step else "not_finite"
        return Verdict(None, spec.tolerance, reason, text)
    if (computed := spec.computed) is not None and (text := computed.wrong or computed.unsure):
        return Verdict(None, spec.tolerance, "wrong_answer" if computed.wrong else "no_digits", text)
    by_hand = computed is None and spec.case.ad_mode.by_workload  # may repeat an error of the closed form
    if by_hand and (text := load_option("computed_reference").describe_wrong_closed_form(spec)):
        return Verdict(None, spec.tolerance, "wrong_answer", text)
    progress = CheckProgress(spec, allowed=min(spec.tolerance, spec.max_tolerance))
    ranges, is_complete = _compare_ranges(spec, result), False
    while not is_complete:
        with computed.session() if computed is not None else contextlib.nullcontext():
            is_complete = progress.add_until_full(ranges)
        if progress.suspects:
            load_option("rounding_check").reevaluate_failures(progress)
    return progress.verdict()


def _point_or_copy(spec: ReferenceSpec) -> str:
    return "copy" if spec.reduction.sums_points else "point"


def _require_shape(spec: ReferenceSpec, result: np.ndarray) -> None:
    points, shape = spec.case.points, spec.derivative.result_shape[1:]
    has_points = len(result) == points or (spec.reduction.sums_points and len(result) > 0)
    if result.shape[1:] != shape or not has_points:
        raise Refusal(f"the result has the shape {result.shape}, not {shape} for each of {points} points")


def _compare_ranges(spec: ReferenceSpec, result: np.ndarray) -> Iterator[PointsComparison]:
    if spec.reduction.sums_points:
        yield load_option("data_parallel").compare_sum(spec, result)
    elif spec.sampled:
        yield from load_option("sampled_check").compare_samples(spec, result)
    else:
        for start, stop in reference.point_ranges(spec):
            yield compare_points(spec, result[start:stop], start, stop)


def compare_points(spec: ReferenceSpec, result: np.ndarray, start: int, stop: int) -> PointsComparison:
    """Return the comparison of `result` with its expected values at the points [start, stop).

    `result` contains only these points.
    """
    expected, scale = reference.expected_result(spec, start, stop)
    largest_scale = scale.reshape(len(scale), -1).max(axis=1)
    result, comparisons, note = result.astype(np.float64), [], ""
    if spec.common is None and spec.pattern is not None:
        result = to_dense(spec.pattern, result[:, 0])
    elif spec.common is not None:
        is_common, positions, missing = spec.common
        if missing.size:  # entries that are zero in the result, because its pattern lacks them
            lacking = expected[..., missing]
            comparisons = [EntryComparison(np.zeros_like(lacking), lacking, scale[..., missing])]
            nonzero_count = np.count_nonzero(lacking.any(axis=(0, 1)))
            note = f"; the pattern lacks {nonzero_count} of the nonzero entries" if nonzero_count else ""
        scale = np.where(is_common, scale[..., positions], largest_scale[:, None, None])
        expected = np.where(is_common, expected[..., positions], 0.0)
    step_error = np.zeros(len(result))
    if spec.case.ad_mode.finite_step:  # one error bound holds for all entries, so they have the same scale
        scale = largest_scale[:, None, None]
        errors = np.abs(result - expected) - spec.tolerance * scale
        bounds = load_option("finite_step").result_bounds(spec, start, stop, errors)
        step_error = reference.relative_error(bounds, largest_scale)
    comparisons = [EntryComparison(result, expected, scale), *comparisons]
    return PointsComparison(start, stop, comparisons, step_error, note)
