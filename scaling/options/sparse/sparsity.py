"""Detect where the Jacobian of one point may be other than zero, and colour it so that it can be compressed.

asdex reads the pattern off the function's jaxpr, so that it holds for all inputs; color_graph.py colours it.
Both are done once a process. Does not know cases, programs, or how entries are read off slices.
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


def find_coloring(key: Hashable, function: Callable[..., Any], x: tuple[Any, ...], how: str) -> Coloring:
    """Return the colouring of the Jacobian of `function(*x)`, one array, by all of x in order, flat.

    key: of the function and the shapes. x: shapes and dtypes. how: compress columns, rows, or both, whichever
    takes the fewest colours. Refuse where asdex is not installed, or cannot analyse the function.
    """
    if how not in HOW:
        raise unknown_name("way to colour", how, HOW)

    def color() -> Coloring:
        _import_asdex()
        detect = functools.partial(_measure_seconds, _detect, function, x)
        pattern, detect_seconds = cached("pattern", key, detect, _KEPT)
        found, color_seconds = _measure_seconds(_color, pattern, how)
        return _make_coloring(pattern, found, detect_seconds, color_seconds)

    return cached("coloring", (key, how), color, _KEPT)


def _make_coloring(
    pattern: Pattern, found: color_graph.TwoSidedColors, detect_seconds: float, color_seconds: float
) -> Coloring:
    """Return a colouring, with None for the colours of what is not compressed."""
    columns, rows = found.columns, found.rows
    of_columns, of_rows = columns.of if columns.count else None, rows.of if rows.count else None
    return Coloring(
        pattern, of_columns, of_rows, columns.count, rows.count, found.by_row, detect_seconds, color_seconds
    )


@functools.cache
def _import_asdex() -> None:
    """Import asdex and compile the loops that colour, so that their time does not count."""
    try:
        import asdex  # noqa: F401
    except ImportError as error:
        raise Refusal(f"seeds=colored needs asdex, which cannot be imported ({error}): {_INSTALL}") from None
    color_graph.ready()


def _measure_seconds(make: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    """Return the result of a call, and the seconds that it took."""
    start = time.perf_counter()
    made = make(*args)
    return made, time.perf_counter() - start


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Switch the garbage collector off, which would visit a set for each number of the function."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _detect(function: Callable[..., Any], x: tuple[Any, ...]) -> Pattern:
    """Return the pattern of a function's Jacobian, whatever its inputs."""
    import asdex

    samples = [np.zeros(a.shape, a.dtype) for a in x]
    try:
        with _without_garbage_collection():
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
            "the function does not depend on the inputs to differentiate by: "
            "seeds=colored has nothing to colour"
        )
    rows, cols = np.divmod(number, inputs)
    return Pattern(rows.astype(np.int32), cols.astype(np.int32), outputs, inputs)


def _color(pattern: Pattern, how: str) -> color_graph.TwoSidedColors:
    """Return the colours of a pattern's columns, rows, or both."""
    matrix = Matrix(pattern.rows, pattern.cols, (pattern.outputs, pattern.inputs))
    if how == "both":
        return color_graph.color_both(matrix)
    return color_graph.divide_entries(matrix, np.full(len(pattern.rows), how == "rows"))


def validate_coloring(coloring: Coloring) -> None:
    """Raise `ValueError` for an entry without a colour, or one that shares its place in a slice."""
    pattern = coloring.pattern
    sides = (
        ("column", coloring.columns, coloring.column_count, pattern.cols, pattern.rows, ~coloring.by_row),
        ("row", coloring.rows, coloring.row_count, pattern.rows, pattern.cols, coloring.by_row),
    )
    for name, colors, count, line, place, read in sides:
        if colors is None:
            if count or read.any():
                words = f"there are entries to be read off {name}s, or {count} colours, and no {name} has one"
                raise ValueError(words)
            continue
        if colors.min() < -1 or colors.max() >= count:
            raise ValueError(f"{name}s have colours from {colors.min()} to {colors.max()} of {count} colours")
        wrong = read & ((colors[line] < 0) | _meets_another(colors[line], place, count))
        if wrong.any():
            entry = int(np.argmax(wrong))
            where = f"entry ({pattern.rows[entry]}, {pattern.cols[entry]})"
            words = f"cannot be read off its {name}'s colour: it has none, or is not alone with it"
            raise ValueError(f"{where} {words}")


def _meets_another(color: np.ndarray, place: np.ndarray, count: int) -> np.ndarray:
    """Return whether an entry meets another of its colour in its place: (entries,)."""
    number = place.astype(np.int64) * (count + 1) + color + 1
    if (int(place.max()) + 1) * (count + 1) <= 16 * len(place):
        return np.bincount(number)[number] > 1
    order = np.argsort(number, kind="stable")
    equal = np.diff(number[order]) == 0
    shared = np.empty(len(number), bool)
    shared[order] = np.append(equal, False) | np.insert(equal, 0, False)
    return shared
