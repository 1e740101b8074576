"""Detect the sparsity pattern of a Jacobian with asdex, and find a `Coloring` of its columns and rows.

The package asdex propagates dependencies through the jaxpr of a function. The detected pattern is therefore
valid for all inputs. One seed (tangent or cotangent) computes a compressed slice: the sum of all columns, or
of all rows, that have the same color. Each nonzero is read from one compressed slice. Two columns must have
different colors if both have nonzeros in the same row that are read from columns. The same applies to rows.

With `mode=mixed`, both columns and rows have colors. The nonzeros are divided in one of two ways:

- The nonzeros of the fullest rows are read from compressed rows, and all others from compressed columns.
- The nonzeros of the fullest columns are read from compressed columns, and all others from compressed rows.

Finding the fewest colors is NP-hard.

Source: T. F. Coleman, A. Verma, "The efficient computation of sparse Jacobian matrices using automatic
differentiation", SIAM J. Sci. Comput. 19(4), 1998. The division is a special case of their bicoloring.
"""

import dataclasses
import functools
import gc
import importlib.util
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling.checks.computed_reference import gradient_of_sum
from scaling.core.case import Case, NotOffered, Refusal
from scaling.core.derivative import Pattern
from scaling.core.environment import is_out_of_memory
from scaling.core.inputs import point_structs
from scaling.core.modes import BOTH, TANGENT
from scaling.core.timing import time_once
from scaling.core.workload import Workload, cached, fingerprint

_INSTALL = "pip install 'ad-scaling[sparse]'"
_CACHE_SIZE = 4  # the maximum number of values in each cache; a coloring may have millions of entries
_MAX_THRESHOLDS = 20  # the maximum number of thresholds for rows, and for columns, in `_divide_nonzeros`
_MAX_SATURATION_SIZE = 2**28  # the maximum number of columns times colors for which DSATUR is used
_MAX_COLOR_RATIO = 4  # the maximum number of DSATUR colors, divided by the nonzeros of the fullest row
_MAX_CONFLICTS = 5 * 10**10  # the maximum number of pairs of conflicting entries; coloring more takes minutes


@dataclass(frozen=True)
class Coloring:
    """The colors of the columns and rows of a sparsity pattern, and the times to detect and to color it."""

    pattern: Pattern
    columns: np.ndarray  # the int32 color of each column, or -1 (no color)
    rows: np.ndarray  # the int32 color of each row, or -1 (no color)
    column_count: int  # the number of colors of columns
    row_count: int  # the number of colors of rows
    by_row: np.ndarray  # shape (nonzeros,): whether a nonzero is read from a compressed row, not a column
    detect_seconds: float = 0.0  # the time to detect the pattern, without imports
    color_seconds: float = 0.0  # the time to color the pattern, without imports


def coloring_fields(coloring: Coloring) -> dict[str, Any]:
    """Return the fields of `Record` that describe a coloring: times, numbers of colors and of nonzeros."""
    return {
        "detect_seconds": coloring.detect_seconds,
        "color_seconds": coloring.color_seconds,
        "colors": {"columns": coloring.column_count, "rows": coloring.row_count},
        "nonzeros": int(coloring.pattern.rows.size),
    }


def why_unavailable() -> str | None:
    """Return an error message if the Python package asdex is not installed, otherwise None."""
    return None if importlib.util.find_spec("asdex") else f"asdex is not installed; {_INSTALL}"


def detect_coloring(case: Case, workload: Workload) -> Coloring:
    """Detect the sparsity pattern of the Jacobian or Hessian of a case, and return a coloring of it."""
    mode, structs, function = case.ad_mode, point_structs(case, workload), workload.function
    if mode.order == 2:
        function = gradient_of_sum(function, workload.names)
    undifferentiated = [name for name in structs if name not in workload.names]
    names = [*workload.names, *undifferentiated]
    positional_function = lambda *x: function(**dict(zip(names, x, strict=True)))  # noqa: E731
    problem = (case.workload, case.target, case.variant, case.formulation, *case.sizes.items(), case.wrt)
    compress = {BOTH: "both", TANGENT: "columns"}.get(mode.seed or "", "rows")
    x, y = (tuple(structs[name] for name in group) for group in (workload.names, undifferentiated))
    pattern_key = (*problem, case.dtype, mode.order, fingerprint(workload.function))
    return find_coloring(pattern_key, positional_function, x, compress, y)


def find_coloring(
    key: Hashable, function: Callable[..., Any], x: tuple[Any, ...], compress: str, y: tuple[Any, ...] = ()
) -> Coloring:
    """Return a coloring of the Jacobian of `function(*x, *y)` with respect to x, from a cache if possible.

    `x` and `y` are tuples of abstract arrays. `compress` says what is colored: "columns", "rows" or "both".
    `key` is the key of the cache. It must identify the function and the shapes of its arguments.
    """

    def detect_and_color() -> Coloring:
        _prepare_libraries()
        detect = functools.partial(time_once, lambda: detect_pattern(function, x, y))
        detect_seconds, pattern = cached("pattern", key, detect, _CACHE_SIZE)
        color_seconds, coloring = time_once(lambda: color_pattern(pattern, compress))
        return dataclasses.replace(coloring, detect_seconds=detect_seconds, color_seconds=color_seconds)

    return cached("coloring", (key, compress), detect_and_color, _CACHE_SIZE)


@functools.cache
def _prepare_libraries() -> None:
    """Import asdex and compile the numba functions before the coloring is timed.

    Raise `Refusal` if asdex or numba cannot be imported or initialized.
    """
    try:
        import asdex

        from scaling.options import dsatur
    except ImportError as error:
        raise Refusal(f"seeds=colored needs asdex, which cannot be imported ({error}): {_INSTALL}") from None
    except RuntimeError as error:
        fix = "set NUMBA_CACHE_DIR to a folder that can be written"
        raise Refusal(f"seeds=colored needs numba, which cannot start ({error}): {fix}") from None
    rows, cols = np.array([0, 0, 1, 1], np.int32), np.array([0, 1, 1, 2], np.int32)
    dsatur.color_columns(rows, cols, 3, 2)
    asdex.color_cols(asdex.SparsityPattern.from_coo(rows, cols, (2, 3)))


def detect_pattern(function: Callable[..., Any], x: tuple[Any, ...], y: tuple[Any, ...]) -> Pattern:
    """Return the sparsity pattern of the Jacobian of `function(*x, *y)` with respect to x.

    Raise `NotOffered` if asdex cannot analyze the function, or if all entries of the Jacobian are zero.
    """
    import asdex

    gc_was_enabled = gc.isenabled()
    samples = [np.zeros(a.shape, a.dtype) for a in (*x, *y)]
    gc.disable()  # it would traverse the many index sets of asdex again and again
    try:
        detected = asdex.jacobian_sparsity(function, *samples, argnums=tuple(range(len(x))))
    except Exception as error:
        if is_out_of_memory(f"{type(error).__name__}: {error}"):
            raise
        message = " ".join(str(error).split())
        raise NotOffered(
            "asdex cannot determine the sparsity pattern of this function; use seeds=identity, "
            f"which does not need it: {message}"
        ) from None
    finally:
        if gc_was_enabled:
            gc.enable()
    outputs, inputs = detected.shape
    indices = np.unique(np.asarray(detected.rows, np.int64) * inputs + np.asarray(detected.cols))
    if not indices.size:
        raise NotOffered(
            "the function does not depend on the inputs of wrt, so that its Jacobian has no nonzeros "
            "to color; use seeds=identity"
        )
    rows, cols = np.divmod(indices, inputs)
    return Pattern(rows.astype(np.int32), cols.astype(np.int32), outputs, inputs)


def color_pattern(pattern: Pattern, compress: str) -> Coloring:
    """Return a coloring of the columns and rows of a sparsity pattern, with few colors.

    `compress` says what is colored: "columns", "rows" or "both".
    """
    if compress != "both":
        return _color_division(pattern, np.full(len(pattern.rows), compress == "rows"))
    best_coloring, fewest_colors = None, np.inf
    for min_colors, by_row in sorted(_divide_nonzeros(pattern), key=lambda division: division[0]):
        if min_colors < fewest_colors:
            coloring = _color_division(pattern, by_row)
            color_count = coloring.column_count + coloring.row_count
            if color_count < fewest_colors:
                best_coloring, fewest_colors = coloring, color_count
    assert best_coloring is not None
    return best_coloring


def _divide_nonzeros(pattern: Pattern) -> Iterator[tuple[int, np.ndarray]]:
    """Yield ways to divide the nonzeros between compressed rows and columns: pairs (min_colors, by_row).

    The boolean array `by_row` is true for each nonzero that is read from a compressed row. The other nonzeros
    are read from compressed columns. `min_colors` is a lower bound on the number of colors.
    """
    for lines, is_row in ((pattern.rows, True), (pattern.cols, False)):
        nonzeros_in_line = np.bincount(lines)[lines]  # of the row or column that contains each nonzero
        for threshold in np.unique(nonzeros_in_line)[-_MAX_THRESHOLDS:]:
            # the nonzeros of the fullest rows, or of all but the fullest columns
            by_row = (nonzeros_in_line > threshold) == is_row
            colors_of_columns = np.bincount(pattern.rows[~by_row]).max(initial=0)
            colors_of_rows = np.bincount(pattern.cols[by_row]).max(initial=0)
            yield int(colors_of_columns + colors_of_rows), by_row


def _color_division(pattern: Pattern, by_row: np.ndarray) -> Coloring:
    columns, column_count = _color_columns(pattern.rows[~by_row], pattern.cols[~by_row], pattern.inputs)
    rows, row_count = _color_columns(pattern.cols[by_row], pattern.rows[by_row], pattern.outputs)
    return Coloring(pattern, columns, rows, column_count, row_count, by_row)


def _color_columns(rows: np.ndarray, cols: np.ndarray, inputs: int) -> tuple[np.ndarray, int]:
    """Return an array with the color of each column (-1 if it has no nonzero), and the number of colors.

    `rows` and `cols` are the positions of the nonzeros. `inputs` is the number of columns. Raise `NotOffered`
    if coloring would take minutes.
    """
    import asdex

    from scaling.options import dsatur

    has_color, row_counts = np.bincount(cols, minlength=inputs) > 0, np.bincount(rows)
    min_colors = int(row_counts.max(initial=0))  # the columns of the fullest row conflict with each other
    if np.count_nonzero(has_color) == min_colors:
        return np.where(has_color, np.cumsum(has_color) - 1, -1).astype(np.int32), min_colors
    if np.sum(np.square(row_counts, dtype=float)) > _MAX_CONFLICTS:
        fix = "use another mode, such as forward instead of reverse, or seeds=identity"
        raise NotOffered(f"seeds=colored takes minutes to find {min_colors:,} or more colors here: {fix}")
    colors, max_colors = None, _MAX_COLOR_RATIO * min_colors
    if inputs * max_colors <= _MAX_SATURATION_SIZE:
        colors = dsatur.color_columns(rows, cols, inputs, max_colors)
    if colors is None:  # a greedy algorithm, whose memory does not grow with the number of colors
        pattern = asdex.SparsityPattern.from_coo(rows, cols, (len(row_counts), inputs))
        colors = np.where(has_color, asdex.color_cols(pattern)[0], -1).astype(np.int32)
    return colors, int(colors.max()) + 1
