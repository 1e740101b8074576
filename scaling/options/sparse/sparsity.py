"""Detect a function's sparsity pattern with asdex, cache patterns and colorings, and validate a coloring.

The coloring algorithms are in color_graph.py. asdex propagates dependencies through the jaxpr of a
function, so that the pattern is valid for all inputs. The caches exist as long as the process.
"""

import contextlib
import functools
import gc
import time
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np

from scaling.core.case import Refusal, unknown_name
from scaling.core.pattern import Coloring, Pattern
from scaling.core.process_cache import cached
from scaling.options.sparse import color_graph
from scaling.options.sparse.color_graph import Matrix

COMPRESSIONS = ("columns", "rows", "both")
_INSTALL = "pip install 'ad-scaling[sparse]'"
_CACHE_SIZE = 4  # of each cache; a pattern or coloring may have millions of entries


def find_coloring(
    key: Hashable, function: Callable[..., Any], x: tuple[Any, ...], compress: str, y: tuple[Any, ...] = ()
) -> Coloring:
    """Return a coloring of the Jacobian of `function(*x, *y)` with respect to the flattened arguments x.

    Raise `Refusal` if asdex is not installed or cannot analyze the function, or if the Jacobian has no
    nonzeros.

    Args:
        key: the cache key, which must identify the function and the shapes of the arguments.
        x: the arguments as abstract arrays with shape and dtype.
        compress: "columns" or "rows" to color only these, or "both" to color columns, rows or both with as
            few colors as possible.
        y: further arguments as abstract arrays. The coloring holds for all values of x and y.
    """
    if compress not in COMPRESSIONS:
        raise unknown_name("compression", compress, COMPRESSIONS)

    def detect_and_color() -> Coloring:
        _import_asdex()
        detect = functools.partial(_call_and_time, _detect_pattern, function, x, y)
        pattern, detect_seconds = cached("pattern", key, detect, _CACHE_SIZE)
        colors, color_seconds = _call_and_time(_color, pattern, compress)
        return _make_coloring(pattern, colors, detect_seconds, color_seconds)

    return cached("coloring", (key, compress), detect_and_color, _CACHE_SIZE)


def _make_coloring(
    pattern: Pattern, colors: color_graph.TwoSidedColors, detect_seconds: float, color_seconds: float
) -> Coloring:
    columns, rows = colors.columns, colors.rows
    return Coloring(
        pattern,
        columns.color_of if columns.count else None,
        rows.color_of if rows.count else None,
        columns.count,
        rows.count,
        colors.by_row,
        detect_seconds,
        color_seconds,
    )


@functools.cache
def _import_asdex() -> None:
    """Import asdex and compile the coloring loops, so that measured times include neither.

    Raise `Refusal` if asdex cannot be imported.
    """
    try:
        import asdex  # noqa: F401
    except ImportError as error:
        raise Refusal(f"seeds=colored needs asdex, which cannot be imported ({error}): {_INSTALL}") from None
    color_graph.compile_loops()


def _call_and_time(function: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    result = function(*args)
    return result, time.perf_counter() - start


@contextlib.contextmanager
def _garbage_collection_disabled() -> Iterator[None]:
    """Context manager that disables the garbage collector, which would slow down asdex.

    asdex creates many index sets, and the garbage collector repeatedly traverses them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _detect_pattern(function: Callable[..., Any], x: tuple[Any, ...], y: tuple[Any, ...]) -> Pattern:
    import asdex

    samples = [np.zeros(a.shape, a.dtype) for a in (*x, *y)]
    try:
        with _garbage_collection_disabled():
            detected = asdex.jacobian_sparsity(function, *samples, argnums=tuple(range(len(x))))
    except MemoryError:
        raise
    except Exception as error:
        message = " ".join(str(error).split())
        raise Refusal(
            "asdex cannot determine the sparsity pattern of this function, "
            f"which seeds=identity does not need: {message}"
        ) from None
    outputs, inputs = detected.shape
    indices = np.unique(np.asarray(detected.rows, np.int64) * inputs + np.asarray(detected.cols))
    if not indices.size:
        raise Refusal(
            "the function does not depend on the inputs of wrt, so that its Jacobian has no nonzeros "
            "to color; use seeds=identity"
        )
    rows, cols = np.divmod(indices, inputs)
    return Pattern(rows.astype(np.int32), cols.astype(np.int32), outputs, inputs)


def _color(pattern: Pattern, compress: str) -> color_graph.TwoSidedColors:
    matrix = Matrix(pattern.rows, pattern.cols, (pattern.outputs, pattern.inputs))
    if compress == "both":
        return color_graph.color_both(matrix)
    return color_graph.color_partition(matrix, np.full(len(pattern.rows), compress == "rows"))


def validate_coloring(coloring: Coloring) -> None:
    """Raise `ValueError` if a coloring is invalid.

    In a valid coloring, each entry of the pattern can be read from its compressed column or row, without
    other entries added to it.
    """
    pattern, by_row = coloring.pattern, coloring.by_row
    _validate_side("column", coloring.columns, coloring.column_count, pattern.cols, pattern.rows, ~by_row)
    _validate_side("row", coloring.rows, coloring.row_count, pattern.rows, pattern.cols, by_row)


def _validate_side(
    name: str,
    colors: np.ndarray | None,
    count: int,
    lines: np.ndarray,
    positions: np.ndarray,
    read: np.ndarray,
) -> None:
    """Raise `ValueError` if an entry cannot be read from its compressed column (or row).

    This is the case if its column has no color, or if another column of the same color has an entry in the
    same row. A color outside the range -1 to count - 1 is also invalid. For rows, exchange columns and rows.

    Args:
        name: "column" or "row".
        colors: the color of each column (or row), -1 without a color. None if none has a color.
        lines, positions: the column and the row of each entry (for rows, the row and the column).
        read: whether each entry is read from its compressed column (or row).
    """
    if colors is None:
        if count or read.any():
            raise ValueError(
                f"no {name} has a color, but {count} colors or entries to read from {name}s exist"
            )
        return
    if colors.min() < -1 or colors.max() >= count:
        raise ValueError(
            f"{name} colors range from {colors.min()} to {colors.max()}, but there are {count} colors"
        )
    wrong = read & ((colors[lines] < 0) | _collides(colors[lines], positions, count))
    if wrong.any():
        entry = int(np.argmax(wrong))
        row, column = (lines, positions) if name == "row" else (positions, lines)
        where = f"entry ({row[entry]}, {column[entry]})"
        words = f"cannot be read from the color of its {name}: it has none, or collides with another entry"
        raise ValueError(f"{where} {words}")


def _collides(colors: np.ndarray, positions: np.ndarray, count: int) -> np.ndarray:
    """Return whether each entry has the same color and position as another entry: (entries,) bool."""
    slots = positions.astype(np.int64) * (count + 1) + colors + 1
    if (int(positions.max()) + 1) * (count + 1) <= 16 * len(positions):
        return np.bincount(slots)[slots] > 1
    order = np.argsort(slots, kind="stable")
    equals_next = np.diff(slots[order]) == 0
    collides = np.empty(len(slots), bool)
    collides[order] = np.append(equals_next, False) | np.insert(equals_next, 0, False)
    return collides
