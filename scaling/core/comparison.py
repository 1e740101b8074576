"""Compare a result with its reference, entry by entry, and decide whether it is right."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from scaling.core import extensions
from scaling.core.question import Question
from scaling.core.tolerances import least_size, relative_error

_NUMBERS_AGAIN = 2**24  # of all blocks that are evaluated again
_INCOMPARABLE = 0.01  # the share of entries that may be left out because rounding decides them


class Verdict(NamedTuple):
    """The result of the check.

    error: the largest over all points. tolerance: the largest of what was allowed. reason: None if every
    point passed. checked: the share of all entries that were compared one by one, and of points all of whose
    entries were.
    """

    error: float | None
    tolerance: float
    reason: str | None = None
    text: str | None = None
    checked: dict[str, float] | None = None


@dataclass(frozen=True)
class SampledPart:
    """Some points of a block by number, and columns where these can be evaluated alone."""

    points: np.ndarray
    columns: np.ndarray | None = None


Measure = Callable[[Any, Any, SampledPart], np.ndarray]  # (evaluation, inputs, part)


@dataclass(frozen=True)
class EntryComparison:
    """A part of a result and of its reference at a block of points, and how to evaluate some of it again.

    got, want: (points, ...). size: what a deviation is divided by, of a shape that broadcasts with them.
    measure: (evaluation, inputs of some points, which these are) -> array like want there; None where that is
    not offered. by_column: whether the last axis is the columns of a Jacobian, some of which can be evaluated
    alone.
    """

    got: np.ndarray
    want: np.ndarray
    size: np.ndarray
    measure: Measure | None = None
    by_column: bool = False

    def at(self, part: SampledPart) -> "EntryComparison":
        """Return the comparison of some points, and of some columns."""
        arrays = (
            np.broadcast_to(array, self.want.shape)[part.points] for array in (self.got, self.want, self.size)
        )
        got, want, size = arrays if part.columns is None else (array[..., part.columns] for array in arrays)
        return dataclasses.replace(self, got=got, want=want, size=size)


class Block(NamedTuple):
    """A block of points, or all copies of a sum: what is compared, and what a finite step is allowed on top,
    (points,)."""

    start: int
    named: Any
    comparisons: list[EntryComparison]
    extra: np.ndarray
    words: str = ""


class Comparisons:
    """The errors of the blocks so far, and what failed, kept to be evaluated again."""

    def __init__(self, question: Question, allowed: float) -> None:
        self.question, self.allowed = question, allowed
        self.worst, self.worst_allowed, self.words = 0.0, allowed, ""
        self.first: int | None = None  # the first point that is wrong
        self.entries = self.left_out = 0
        self.again: list[tuple[Block, EntryComparison]] = []
        self.later: list[tuple[Block, np.ndarray]] = []

    def add(self, block: Block) -> None:
        """Compare a block of points."""
        for whole in block.comparisons:
            comparison = dataclasses.replace(
                whole, size=np.maximum(whole.size, least_size(self.question.case))
            )
            error = relative_error(np.abs(comparison.got - comparison.want), comparison.size)
            self.entries += error.size
            flat = error.reshape(len(error), -1).max(axis=1)
            wrong = ~(flat <= self.allowed + block.extra)
            if not wrong.any() or comparison.measure is None:
                self.count(block, flat, wrong)
            elif sum(each.want.size for _, each in self.again) < _NUMBERS_AGAIN:
                self.again.append((block, comparison))
            else:
                self.later.append((block, flat))

    def count(self, block: Block, error: np.ndarray, wrong: Any) -> None:
        """Note the errors of some points, (points,), and the first that is wrong."""
        if wrong.any() and (self.first is None or block.start + int(np.argmax(wrong)) < self.first):
            self.first, self.words = block.start + int(np.argmax(wrong)), block.words
        self.worst = max(self.worst, float(np.max(error, initial=0.0)))
        extra = float(np.max(np.broadcast_to(block.extra, error.shape), where=error > 0, initial=0.0))
        self.worst_allowed = max(self.worst_allowed, self.allowed + extra)

    def verdict(self, each: str) -> Verdict:
        """Return what the errors come to."""
        question = self.question
        if question.stepping and self.worst_allowed > question.most:
            text = "a finite difference with this step and dtype has no correct digit"
            return Verdict(self.worst, self.worst_allowed, "no_digits", text)
        if self.first is not None:
            text = f"{each} {self.first} is wrong; the largest error is {self.worst:.3g}{self.words}"
            return Verdict(self.worst, self.worst_allowed, "wrong_answer", text)
        if self.left_out > _INCOMPARABLE * self.entries:
            text = f"rounding in {question.case.dtype} decides {self.left_out} of {self.entries} entries of the result"
            return Verdict(self.worst, self.worst_allowed, "no_digits", text)
        return Verdict(
            self.worst,
            self.worst_allowed,
            checked=_checked(question, 1 - self.left_out / max(1, self.entries)),
        )


def _checked(question: Question, kept: float) -> dict[str, float]:
    """Return the share of entries that were compared one by one, and of points all of whose entries were."""
    if not question.sampled:
        return {"entries": kept, "points": 1.0 if kept == 1 else 0.0}
    shares: dict[str, float] = extensions.load("computed_reference").compared_shares(question, kept)
    return shares
