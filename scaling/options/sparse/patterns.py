"""Match the sparsity pattern of a result (`seeds=colored`) with the pattern that the workload knows."""

from typing import NamedTuple

import numpy as np

from scaling.core.case import SECOND, Case, Refusal
from scaling.core.reductions import WHOLE, Reduction
from scaling.core.shape import DerivativeShape, Pattern
from scaling.core.workload import Workload


class CommonEntries(NamedTuple):
    """The correspondence between the entries of two sparsity patterns, `ours` and `theirs`."""

    # For each entry of `ours`, its index in `theirs`, or an arbitrary index if `theirs` does not contain it.
    at: np.ndarray
    has: np.ndarray  # for each entry of `ours`, whether `theirs` contains it
    lacking: np.ndarray  # the indices in `theirs` of the entries that `ours` does not contain


def match_patterns(
    case: Case, workload: Workload, sizes: DerivativeShape, reduction: Reduction, detected: Pattern | None
) -> tuple[Pattern | None, Pattern | None, Pattern | None, CommonEntries | None]:
    """Return the patterns (own, result, nonzeros, common) of a case, each None if there is none.

    `own` is the pattern of the workload, `result` that of a result with colored seeds, and `nonzeros` that of
    the workload's closed form `nonzeros`, if this form is used. `common` is the correspondence between the
    entries of the last two. `detected` is the pattern that was detected for seeds=colored, otherwise None.
    """
    own = result = None
    if workload.pattern is not None and case.target not in SECOND:
        own = validated_pattern(*workload.pattern(), sizes.outputs, sizes.inputs)
    if case.seeds == "colored":
        pattern = detected or own
        if pattern is None:
            raise Refusal(
                f"{case.workload} has no pattern, so that the positions of the entries are not known"
            )
        result = validated_pattern(pattern.rows, pattern.cols, sizes.outputs, sizes.inputs)
    needs_dense = result is None and (reduction is WHOLE or reduction.products)
    is_used = workload.nonzeros is not None and not sizes.summed
    nonzeros = own if is_used and (workload.reference is None or not needs_dense) else None
    common = common_entries(result, nonzeros) if result and nonzeros else None
    return own, result, nonzeros, common


def validated_pattern(rows: np.ndarray, cols: np.ndarray, outputs: int, inputs: int) -> Pattern:
    """Return a `Pattern`. Raise `Refusal` unless its entries are distinct, sorted and inside the Jacobian."""
    rows, cols = np.asarray(rows), np.asarray(cols)
    if rows.shape != cols.shape or rows.ndim != 1 or not rows.size:
        raise Refusal(
            "a pattern is the rows and the columns of its entries, "
            f"not arrays of {rows.shape} and {cols.shape}"
        )
    if rows.min() < 0 or cols.min() < 0 or rows.max() >= outputs or cols.max() >= inputs:
        raise Refusal(f"a pattern has entries beyond the {outputs} x {inputs} of the Jacobian")
    pattern = Pattern(rows, cols, outputs, inputs)
    if not np.all(np.diff(_flat_indices(pattern)) > 0):
        raise Refusal("a pattern must name each of its entries once, row by row")
    return pattern


def common_entries(ours: Pattern, theirs: Pattern) -> CommonEntries:
    """Return the entries that two sparsity patterns of Jacobians of the same shape have in common."""
    our_indices, their_indices = _flat_indices(ours), _flat_indices(theirs)
    at = np.minimum(np.searchsorted(their_indices, our_indices), len(their_indices) - 1)
    has = their_indices[at] == our_indices
    return CommonEntries(at, has, np.setdiff1d(np.arange(len(their_indices)), at[has], assume_unique=True))


def _flat_indices(pattern: Pattern) -> np.ndarray:
    return np.asarray(pattern.rows.astype(np.int64) * pattern.inputs + pattern.cols)
