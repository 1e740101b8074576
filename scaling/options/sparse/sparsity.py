"""Detect where the Jacobian of one point may be other than zero, and colour it so that it can be compressed.

The pattern is read by asdex off the function's jaxpr, and holds for all inputs; how it is coloured stands in
colors.py. Both are done once a process. Does not know cases, programs, or how entries are read off slices.
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

HOW = ("columns", "rows", "both")
_INSTALL = "pip install 'ad-scaling[sparse]'"
_KEPT = 4  # patterns, and colourings, of which each may have millions of entries


def find_coloring(key: Hashable, function: Callable[..., Any], x: tuple, how: str) -> Coloring:
    """Return the colouring of the Jacobian of `function(*x)`, one array, by all of x in order, flat.

    key: what else would make another function or other shapes. x: shapes and dtypes. how: compress columns,
    rows, or both, of which the fewest colours are taken. A `Refusal` where asdex is not installed, or does
    not know what the function does.
    """
    if how not in HOW:
        raise unknown_name("way to colour", how, HOW)

    def color() -> Coloring:
        _ready()
        pattern, detect_seconds = cached("pattern", key, lambda: _timed(_detected, function, x), _KEPT)
        found, color_seconds = _timed(_colored, pattern, how)
        return _told(pattern, found, detect_seconds, color_seconds)

    return cached("coloring", (key, how), color, _KEPT)


def _told(
    pattern: Pattern, found: color_graph.TwoSidedColors, detect_seconds: float, color_seconds: float
) -> Coloring:
    """Return a colouring, with None for what is not compressed."""
    columns, rows = found.columns, found.rows
    of_columns, of_rows = columns.of if columns.count else None, rows.of if rows.count else None
    return Coloring(
        pattern, of_columns, of_rows, columns.count, rows.count, found.by_row, detect_seconds, color_seconds
    )


@functools.cache
def _ready() -> None:
    """Import asdex and compile what colours, so that neither is counted."""
    try:
        import asdex  # noqa: F401
    except ImportError as error:
        raise Refusal(f"seeds=colored needs asdex, which cannot be imported ({error}): {_INSTALL}") from None
    color_graph.ready()


def _timed(make: Callable, *args: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    made = make(*args)
    return made, time.perf_counter() - start


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Switch the garbage collector off, which would look at a set for each number of the function."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _detected(function: Callable[..., Any], x: tuple) -> Pattern:
    """Return the pattern of a function's Jacobian, whatever its inputs."""
    import asdex

    samples = [np.zeros(a.shape, a.dtype) for a in x]
    try:
        with _uncollected():
            found = asdex.jacobian_sparsity(function, *samples, argnums=tuple(range(len(x))))
    except MemoryError:
        raise
    except Exception as error:
        words = " ".join(str(error).split())
        raise Refusal(
            f"asdex cannot tell the sparsity of this function, which seeds=identity does not need: {words}"
        ) from None
    outputs, inputs = found.shape
    number = np.unique(np.asarray(found.rows, np.int64) * inputs + np.asarray(found.cols))
    if not number.size:
        raise Refusal(
            "the function does not depend on the inputs to differentiate by: seeds=colored has nothing to colour"
        )
    rows, cols = np.divmod(number, inputs)
    return Pattern(rows.astype(np.int32), cols.astype(np.int32), outputs, inputs)


def _colored(pattern: Pattern, how: str) -> color_graph.TwoSidedColors:
    """Return the colours of a pattern's columns, rows, or both."""
    matrix = Matrix(pattern.rows, pattern.cols, (pattern.outputs, pattern.inputs))
    if how == "both":
        return color_graph.color_both(matrix)
    return color_graph.divide_entries(matrix, np.full(len(pattern.rows), how == "rows"))


def validate_coloring(coloring: Coloring) -> None:
    """Raise `ValueError` for an entry that cannot be read off: one without a colour, or one that shares its
    place.
    """
    pattern = coloring.pattern
    sides = (
        ("column", coloring.columns, coloring.column_count, pattern.cols, pattern.rows, ~coloring.by_row),
        ("row", coloring.rows, coloring.row_count, pattern.rows, pattern.cols, coloring.by_row),
    )
    for name, of, count, line, place, read in sides:
        if of is None:
            if count or read.any():
                raise ValueError(
                    f"there are entries to be read off {name}s, or {count} colours, and no {name} has one"
                )
            continue
        if of.min() < -1 or of.max() >= count:
            raise ValueError(
                f"{name}s have colours from {of.min()} to {of.max()}, where {count} are said to be"
            )
        wrong = read & ((of[line] < 0) | _shared(of[line], place, count))
        if wrong.any():
            entry = int(np.argmax(wrong))
            where = f"entry ({pattern.rows[entry]}, {pattern.cols[entry]})"
            raise ValueError(
                f"{where} cannot be read off its {name}'s colour: it has none, or is not alone with it"
            )


def _shared(color: np.ndarray, place: np.ndarray, count: int) -> np.ndarray:
    """Return whether an entry meets another of its colour in its place: (entries,)."""
    number = place.astype(np.int64) * (count + 1) + color + 1
    if (int(place.max()) + 1) * (count + 1) <= 16 * len(place):
        return np.bincount(number)[number] > 1
    order = np.argsort(number, kind="stable")
    equal = np.diff(number[order]) == 0
    shared = np.empty(len(number), bool)
    shared[order] = np.append(equal, False) | np.insert(equal, 0, False)
    return shared
