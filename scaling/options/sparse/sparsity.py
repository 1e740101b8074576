"""Detect the sparsity pattern of a Jacobian or Hessian with asdex, and validate and cache its coloring.

asdex propagates dependencies through the jaxpr of a function, so that the pattern is valid for all inputs. A
pattern is matched with the one that the workload knows. The coloring algorithms are in color_graph.py.
Patterns and colorings are cached in this process.
"""

import dataclasses
import functools
import gc
import importlib.util
import time
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from scaling.core.case import SECOND, Case, Refusal, unknown_name
from scaling.core.modes import BOTH, TANGENT, ravel
from scaling.core.process_cache import cached
from scaling.core.reductions import WHOLE, Reduction
from scaling.core.shape import Coloring, DerivativeShape, Pattern, point_structs
from scaling.core.workload import Workload
from scaling.options.sparse.nonzero_gather import gather_entries, gather_indices, read_entries

__all__ = [
    "detect_coloring", "find_coloring", "gather_entries", "gather_indices", "read_entries",
    "validate_coloring", "why_unavailable",
]  # fmt: skip

COMPRESSIONS = ("columns", "rows", "both")
_INSTALL = "pip install 'ad-scaling[sparse]'"
_CACHE_SIZE = 4  # the most values in each cache; a pattern or coloring may have millions of entries


def why_unavailable() -> str | None:
    """Return an error message if the Python package asdex is not installed, otherwise None."""
    return None if importlib.util.find_spec("asdex") else f"asdex is not installed; {_INSTALL}"


def detect_coloring(case: Case, workload: Workload) -> Coloring:
    """Return the coloring of the Jacobian or Hessian of a case.

    The coloring holds at every point (batch element). Columns are colored in forward mode, rows in reverse
    mode, and both for the combination of these modes (`mode=mixed`).
    """
    mode = case.ad_mode
    structs = point_structs(case, workload)
    others = [name for name in structs if name not in workload.names]  # inputs of any value
    names = [*workload.names, *others]

    def function(*x: Any) -> Any:
        return workload.function(**dict(zip(names, x, strict=True)))

    def gradient(*x: Any) -> Any:
        argnums = tuple(range(len(workload.names)))
        return ravel(jax.grad(lambda *z: jnp.sum(function(*z)), argnums)(*x))

    is_hessian = mode.order == 2
    problem = (case.workload, case.target, case.variant, case.formulation, *case.sizes.items(), case.wrt)
    compress = {BOTH: "both", TANGENT: "columns"}.get(mode.seed or "", "rows")
    x, y = (tuple(structs[name] for name in group) for group in (workload.names, others))
    key = (*problem, case.dtype, is_hessian)
    return find_coloring(key, gradient if is_hessian else function, x, compress, y)


def find_coloring(
    key: Hashable, function: Callable[..., Any], x: tuple[Any, ...], compress: str, y: tuple[Any, ...] = ()
) -> Coloring:
    """Return a coloring of the Jacobian of `function(*x, *y)` with respect to the flattened arguments x.

    Raise `Refusal` if asdex is not installed or cannot analyze the function, or if the Jacobian has no
    nonzeros.

    Args:
        key: the cache key, which must identify the function and the shapes of the arguments.
        x: the differentiated arguments as abstract arrays with shape and dtype.
        compress: "columns" or "rows" to color only these, or "both" to color columns, rows or both with as
            few colors as possible.
        y: further arguments as abstract arrays. The coloring holds for all values of x and y.
    """
    if compress not in COMPRESSIONS:
        raise unknown_name("compression", compress, COMPRESSIONS)

    def detect() -> tuple[Pattern, float]:
        start = time.perf_counter()
        return _detect_pattern(function, x, y), time.perf_counter() - start

    def detect_and_color() -> Coloring:
        color_graph = _import_color_graph()
        pattern, detect_seconds = cached("pattern", key, detect, _CACHE_SIZE)
        start = time.perf_counter()
        coloring: Coloring = color_graph.color(pattern, compress)
        color_seconds = time.perf_counter() - start
        validate_coloring(coloring)
        return dataclasses.replace(coloring, detect_seconds=detect_seconds, color_seconds=color_seconds)

    return cached("coloring", (key, compress), detect_and_color, _CACHE_SIZE)


@functools.cache
def _import_color_graph() -> Any:
    """Import asdex, compile the loops of color_graph.py, and return that module.

    Times that are measured later then include neither imports nor compilation. Raise `Refusal` if asdex or
    numba cannot be imported.
    """
    try:
        import asdex  # noqa: F401

        from scaling.options.sparse import color_graph
    except ImportError as error:
        raise Refusal(f"seeds=colored needs asdex, which cannot be imported ({error}): {_INSTALL}") from None
    color_graph.compile_loops()
    return color_graph


def _detect_pattern(function: Callable[..., Any], x: tuple[Any, ...], y: tuple[Any, ...]) -> Pattern:
    import asdex

    samples = [np.zeros(a.shape, a.dtype) for a in (*x, *y)]
    gc_was_enabled = gc.isenabled()
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
    return Pattern(rows.astype(np.int32), cols.astype(np.int32), outputs, inputs)


def validate_coloring(coloring: Coloring) -> None:
    """Raise `ValueError` if an entry of the pattern cannot be read from its compressed column or row.

    An entry can be read if its column (or row) has a color, and if the compressed column (or row) adds no
    other entry to it.
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

    An entry cannot be read if its column has no color, or if another column of the same color has an entry in
    the same row. With the name "row", exchange columns and rows here and below.

    Args:
        lines, positions: the column and the row of each entry.
        read: whether each entry is read from its compressed column.
    """
    of_entry = np.full(len(lines), -1) if colors is None else colors[lines]
    is_in_range = count == 0 if colors is None else -1 <= colors.min() <= colors.max() < count
    if not is_in_range:
        raise ValueError(f"the {name} colors are not in the range of {count} colors")
    wrong = read & ((of_entry < 0) | _collides(of_entry, positions, count))
    if wrong.any():
        entry = int(np.argmax(wrong))
        row, column = (lines, positions) if name == "row" else (positions, lines)
        where = f"entry ({row[entry]}, {column[entry]})"
        words = f"cannot be read from the color of its {name}: it has none, or collides with another entry"
        raise ValueError(f"{where} {words}")


def _collides(colors: np.ndarray, positions: np.ndarray, count: int) -> np.ndarray:
    """Return a boolean array: whether each entry has the same color and position as another entry."""
    slots = positions.astype(np.int64) * (count + 1) + colors + 1
    _, slot_of_entry, occupants = np.unique(slots, return_inverse=True, return_counts=True)
    return occupants[slot_of_entry] > 1


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
