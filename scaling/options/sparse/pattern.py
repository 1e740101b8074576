"""Detect sparsity patterns with asdex, compare them, and sum over the rows and columns of sparse Jacobians.

asdex propagates dependencies through the jaxpr of a function, so that a detected pattern is valid for all
inputs. A workload may also define a pattern, and a closed form of the nonzeros.
"""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from scaling.core.case import SECOND, Refusal
from scaling.core.check import EntryComparison
from scaling.core.derivative import Derivative, Pattern
from scaling.core.reductions import WHOLE, Reduction
from scaling.core.reference import Jacobians


def detect_pattern(
    function: Callable[..., Any], x: tuple[Any, ...], y: tuple[Any, ...]
) -> tuple[Pattern, float]:
    """Detect the sparsity pattern of the Jacobian of `function(*x, *y)` with respect to x.

    Return the pattern and the detection time in seconds. Raise `Refusal` if asdex cannot analyze the
    function, or if the Jacobian has no nonzeros.
    """
    import asdex

    start, gc_was_enabled = time.perf_counter(), gc.isenabled()
    samples = [np.zeros(a.shape, a.dtype) for a in (*x, *y)]
    gc.disable()  # it would traverse the many index sets of asdex again and again
    try:
        detected = asdex.jacobian_sparsity(function, *samples, argnums=tuple(range(len(x))))
    except MemoryError:
        raise
    except Exception as error:
        message = " ".join(str(error).split())
        raise Refusal(
            "asdex cannot determine the sparsity pattern of this function, "
            f"which seeds=identity does not need: {message}"
        ) from None
    finally:
        if gc_was_enabled:
            gc.enable()
    outputs, inputs = detected.shape
    indices = np.unique(np.asarray(detected.rows, np.int64) * inputs + np.asarray(detected.cols))
    if not indices.size:
        raise Refusal(
            "the function does not depend on the inputs of wrt, so that its Jacobian has no nonzeros "
            "to color; use seeds=identity"
        )
    rows, cols = np.divmod(indices, inputs)
    pattern = Pattern(rows.astype(np.int32), cols.astype(np.int32), outputs, inputs)
    return pattern, time.perf_counter() - start


class CommonEntries(NamedTuple):
    """The indices at which a reference pattern contains the entries of another sparsity pattern."""

    at: np.ndarray  # the index of each entry in the reference pattern, arbitrary where `has` is false
    has: np.ndarray  # whether the reference pattern contains each entry
    lacking: np.ndarray  # the indices of the reference entries that the other pattern lacks


def compare_lacking(
    common: CommonEntries, expected: np.ndarray, scale: np.ndarray
) -> tuple[list[EntryComparison], str]:
    """Check that the reference entries that a detected pattern lacks are zero.

    Return a list with the comparison, which is empty if no entry is lacking, and a note with the number of
    lacking entries that are not zero. `expected` and `scale` have the shape (points, 1, reference entries).
    """
    if not common.lacking.size:
        return [], ""
    lacking = expected[..., common.lacking]
    count = int(np.count_nonzero(lacking.any(axis=(0, 1))))
    note = f"; of the entries that are not zero the pattern lacks {count}" if count else ""
    return [EntryComparison(np.zeros_like(lacking), lacking, scale[..., common.lacking])], note


def match_patterns(
    derivative: Derivative, reduction: Reduction
) -> tuple[Pattern | None, Pattern | None, Pattern | None, CommonEntries | None]:
    """Return the sparsity patterns that are used to compare the result of a case with the expected Jacobian.

    The first three results are the pattern that the workload defines, the pattern of a result with colored
    seeds, and the pattern of the closed form `Workload.nonzeros`. The fourth result states where the third
    pattern contains the entries of the second. A result that does not apply is None.
    """
    case, workload, coloring = derivative.case, derivative.workload, derivative.coloring
    defined = result = None
    if workload.pattern is not None and case.target not in SECOND:
        defined = validated_pattern(*workload.pattern(), derivative.outputs, derivative.inputs)
    if case.seeds == "colored":
        result = defined if coloring is None else coloring.pattern
        if result is None:
            raise Refusal(f"{case.workload} has no pattern, so the positions of its entries are not known")
    needs_dense = result is None and (reduction is WHOLE or reduction.products)
    is_used = workload.nonzeros is not None and not derivative.summed
    nonzeros = defined if is_used and (workload.reference is None or not needs_dense) else None
    common = common_entries(result, nonzeros) if result and nonzeros else None
    return defined, result, nonzeros, common


def validated_pattern(rows: np.ndarray, cols: np.ndarray, outputs: int, inputs: int) -> Pattern:
    """Return a `Pattern`. Raise `Refusal` unless all entries are distinct, sorted and in range."""
    rows, cols = np.asarray(rows), np.asarray(cols)
    pattern, is_valid = Pattern(rows, cols, outputs, inputs), rows.shape == cols.shape == (rows.size,)
    if is_valid and rows.size and min(rows.min(), cols.min()) >= 0:
        is_in_range = rows.max() < outputs and cols.max() < inputs
        if is_in_range and np.all(np.diff(_flat_indices(pattern)) > 0):
            return pattern
    raise Refusal(
        f"a pattern is the rows and the columns of its entries in the {outputs} x {inputs} Jacobian, two "
        f"arrays of equal length that name each entry once, row by row; they have shapes {rows.shape} and "
        f"{cols.shape}"
    )


def common_entries(pattern: Pattern, reference: Pattern) -> CommonEntries:
    """Return the indices at which a reference pattern of the same shape contains the entries of a pattern."""
    indices, reference_indices = _flat_indices(pattern), _flat_indices(reference)
    at = np.minimum(np.searchsorted(reference_indices, indices), len(reference_indices) - 1)
    has = reference_indices[at] == indices
    lacking = np.setdiff1d(np.arange(len(reference_indices)), at[has], assume_unique=True)
    return CommonEntries(at, has, lacking)


def _flat_indices(pattern: Pattern) -> np.ndarray:
    return np.asarray(pattern.rows.astype(np.int64) * pattern.inputs + pattern.cols)


@dataclass(frozen=True)
class SparseJacobians(Jacobians):
    """The sparse Jacobians at some points, all with the same sparsity pattern."""

    pattern: Pattern

    def by_input(self, values: np.ndarray) -> np.ndarray:
        return _sum_by_index(self.pattern.cols, self.pattern.inputs, values)

    def by_output(self, values: np.ndarray, x: np.ndarray | None = None) -> np.ndarray:
        weighted = values if x is None else values * x[:, self.pattern.cols]
        return _sum_by_index(self.pattern.rows, self.pattern.outputs, weighted)

    def largest_by_output(self) -> np.ndarray:
        largest = np.zeros((len(self.values), self.pattern.outputs))
        np.maximum.at(largest.T, self.pattern.rows, np.abs(self.values).T)
        return largest

    def entries_by_input(self) -> np.ndarray:
        return np.bincount(self.pattern.cols, minlength=self.pattern.inputs)


def _sum_by_index(index: np.ndarray, count: int, values: np.ndarray) -> np.ndarray:
    """Return the sums of `values[:, k]` over all k with the same `index[k]`, of shape (points, count)."""
    return np.stack([np.bincount(index, weights=entries, minlength=count) for entries in values])
