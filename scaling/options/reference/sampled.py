"""Compare a result with a part of its reference, where all of it would take too long.

Every point is multiplied with random directions and compared relative to the 2-norm of its rows; random
columns and rows of every point, and some points whole, are compared entry by entry. Does not know what is
allowed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from scaling.core.comparison import EntryComparison, Measure, SampledPart
from scaling.core.reduction_reference import Jacobians
from scaling.options.reference import fd_check, float64
from scaling.options.reference.float64 import Evaluation, Named
from scaling.options.reference.numeric import picked

_DIRECTIONS = 2
_COLUMNS, _ROWS = 8, 4
_SIGNS = 3  # random signs that show the size of a sum that cancels


@dataclass(frozen=True)
class Sample:
    """What of a Jacobian is looked at, the same for all points of a case: columns and rows by number."""

    columns: np.ndarray
    rows: np.ndarray


def sample(backward: bool, outputs: int, inputs: int, generator: np.random.Generator) -> Sample:
    """Return the columns and rows to compare; no rows unless reverse mode is defined (backward)."""
    rows = picked(_ROWS, outputs, generator) if backward else np.arange(0)
    return Sample(picked(_COLUMNS, inputs, generator), rows)


def compared_share(chosen: Sample, outputs: int, inputs: int) -> float:
    """Return the share of the entries of a Jacobian that a sample compares one by one."""
    rows, columns = len(chosen.rows) / outputs, len(chosen.columns) / inputs
    return rows + columns - rows * columns


def jacobians(
    of: Evaluation, named: Named, J: Jacobians, chosen: Sample, generator: np.random.Generator
) -> Iterator[EntryComparison]:
    """Compare Jacobians, written out or the entries of a pattern, at a block of points.

    What a pattern lacks counts as zero.
    """
    points, pattern = len(J.values), J.pattern
    flat_inputs = float64.number_of_inputs(of, named)
    for _ in range(_DIRECTIONS):
        direction = fd_check.random_direction(of, named, generator)
        flat = flatten(of, direction, points)
        want = float64.along(of, named, direction)
        size = np.maximum(np.sqrt(J.by_output(J.values**2, flat**2)), np.abs(want))
        yield EntryComparison(J.by_output(J.values, flat), want, size, _along(direction))
    largest = np.sqrt(J.by_output(J.values**2, None))  # no less than the largest entry of a row
    if pattern is None:
        largest = np.abs(J.values).max(axis=2)
    want = float64.columns(of, named, chosen.columns)
    got = _columns(J, chosen.columns)
    yield EntryComparison(
        got, want, largest[:, :, None], lambda of, named, part: float64.columns(of, named, chosen.columns)
    )
    if len(chosen.rows):
        want = float64.rows(of, named, chosen.rows)
        got = _rows(J, chosen.rows, flat_inputs)
        size = np.abs(want).max(axis=2, keepdims=True)
        yield EntryComparison(got, want, size, lambda of, named, part: float64.rows(of, named, chosen.rows))


def products(
    of: Evaluation, named: Named, got: np.ndarray, direction: Named, generator: np.random.Generator
) -> EntryComparison:
    """Compare Jacobians that are multiplied with a vector already: (points, outputs)."""
    want = float64.along(of, named, direction)
    size = np.abs(want)
    for _ in range(_SIGNS):
        signed = {name: x * generator.choice([-1.0, 1.0], np.shape(x)) for name, x in direction.items()}
        size = np.maximum(size, np.abs(float64.along(of, named, signed)))
    return EntryComparison(got, want, size, _along(direction))


def grams(
    of: Evaluation, named: Named, got: np.ndarray, chosen: Sample, generator: np.random.Generator
) -> Iterator[EntryComparison]:
    """Compare J^T J, written out: (points, inputs, inputs)."""
    for _ in range(_DIRECTIONS):
        flat = generator.choice([-1.0, 1.0], got.shape[2])
        want = float64.gram_along(of, named, flat)
        size = np.maximum(np.sqrt((got**2).sum(axis=2)), np.abs(want))
        yield EntryComparison(got @ flat, want, size, _gram_along(flat))
    want = float64.gram_columns(of, named, chosen.columns)
    size = np.abs(got).max(axis=2, keepdims=True)
    yield EntryComparison(
        got[:, :, chosen.columns],
        want,
        size,
        lambda of, named, part: float64.gram_columns(of, named, chosen.columns),
    )


def _along(direction: Named) -> Measure:
    def measure(of: Evaluation, named: Named, part: SampledPart) -> np.ndarray:
        there = {name: x[part.points] if name in of.own else x for name, x in direction.items()}
        return float64.along(of, named, there)

    return measure


def _gram_along(direction: np.ndarray) -> Measure:
    return lambda of, named, part: float64.gram_along(of, named, direction)


def flatten(of: Evaluation, arrays: Named, points: int) -> np.ndarray:
    """Return arrays like the inputs as a matrix, one row for each point: (points, inputs)."""
    parts = []
    for name in of.names:
        x = np.asarray(arrays[name], np.float64)
        parts.append(
            x.reshape(points, -1) if name in of.own else np.broadcast_to(x.reshape(1, -1), (points, x.size))
        )
    return np.concatenate(parts, axis=1)


def _columns(J: Jacobians, which: np.ndarray) -> np.ndarray:
    """Return columns, written out: (points, outputs, columns)."""
    if J.pattern is None:
        return J.values[:, :, which]
    return _written(J.pattern.cols, J.pattern.rows, J.pattern.outputs, J.values, which).transpose(0, 2, 1)


def _rows(J: Jacobians, which: np.ndarray, inputs: int) -> np.ndarray:
    """Return rows, written out: (points, rows, inputs)."""
    if J.pattern is None:
        return J.values[:, which]
    return _written(J.pattern.rows, J.pattern.cols, inputs, J.values, which)


def _written(
    lines: np.ndarray, across: np.ndarray, length: int, values: np.ndarray, which: np.ndarray
) -> np.ndarray:
    made = np.zeros((len(values), len(which), length))
    for k, line in enumerate(which):
        at = np.flatnonzero(lines == line)
        made[:, k, across[at]] = values[:, at]
    return made
