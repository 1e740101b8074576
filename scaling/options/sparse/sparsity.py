"""Detect the sparsity pattern of a Jacobian or Hessian with asdex, color it, and gather its nonzeros.

asdex propagates dependencies through the jaxpr of a function, so that the pattern is valid for all inputs. If
the workload defines a pattern, the positions of its entries in the detected pattern are determined. The
coloring algorithm is in color_graph.py. Patterns and colorings are cached in this process.

A compressed slice is the sum of the columns, or of the rows, of one color. The colors are divided among the
devices. Each device computes the slices of its colors and reads the nonzeros that they contain, so that no
communication is needed. The nonzeros are gathered on the host.
"""

import dataclasses
import functools
import gc
import importlib.util
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from scaling.core.case import SECOND, Case, Refusal
from scaling.core.check import EntryComparison
from scaling.core.jacobian import Slices, map_seeds
from scaling.core.layout import COLORS, POSITIONS
from scaling.core.modes import BOTH, TANGENT, ravel
from scaling.core.process_cache import cached
from scaling.core.reductions import WHOLE, Reduction
from scaling.core.shape import DerivativeShape, LinearMapPart, Pattern, ceil_div, point_structs
from scaling.core.workload import Workload
from scaling.options.sparse.coloring import Coloring

_INSTALL = "pip install 'ad-scaling[sparse]'"
_CACHE_SIZE = 4  # the most values in each cache; a pattern or coloring may have millions of entries


def why_unavailable() -> str | None:
    """Return an error message if the Python package asdex is not installed, otherwise None."""
    return None if importlib.util.find_spec("asdex") else f"asdex is not installed; {_INSTALL}"


def detect_coloring(case: Case, workload: Workload) -> Coloring:
    """Return a coloring of the Jacobian or Hessian of a benchmark case.

    The coloring is valid for every point of the batch. Columns are colored in forward mode, rows in reverse
    mode, and both for the combination of these modes (`mode=mixed`).
    """
    mode = case.ad_mode
    structs = point_structs(case, workload)
    undifferentiated = [name for name in structs if name not in workload.names]
    names = [*workload.names, *undifferentiated]

    def function(*x: Any) -> Any:
        return workload.function(**dict(zip(names, x, strict=True)))

    def gradient(*x: Any) -> Any:
        argnums = tuple(range(len(workload.names)))
        return ravel(jax.grad(lambda *z: jnp.sum(function(*z)), argnums)(*x))

    is_hessian = mode.order == 2
    problem = (case.workload, case.target, case.variant, case.formulation, *case.sizes.items(), case.wrt)
    compress = {BOTH: "both", TANGENT: "columns"}.get(mode.seed or "", "rows")
    x, y = (tuple(structs[name] for name in group) for group in (workload.names, undifferentiated))
    key = (*problem, case.dtype, is_hessian)
    return find_coloring(key, gradient if is_hessian else function, x, compress, y)


def find_coloring(
    key: Hashable, function: Callable[..., Any], x: tuple[Any, ...], compress: str, y: tuple[Any, ...] = ()
) -> Coloring:
    """Return a coloring of the Jacobian of `function(*x, *y)` with respect to all elements of x.

    The coloring holds for all values of x and y. Colorings and sparsity patterns are cached.
    Raise `Refusal` if asdex is not installed or cannot analyze the function, or if the Jacobian has no
    nonzeros.

    Args:
        key: the cache key, which must identify the function and the shapes of the arguments.
        x: the differentiated arguments as abstract arrays with shape and dtype.
        compress: "columns" or "rows" to color only these, or "both" to color columns, rows or both with as
            few colors as possible.
        y: the arguments that are not differentiated, as abstract arrays.
    """

    def detect_and_color() -> Coloring:
        color_graph = _import_color_graph()
        detect = functools.partial(_detect_pattern, function, x, y)
        pattern, detect_seconds = cached("pattern", key, detect, _CACHE_SIZE)
        start = time.perf_counter()
        coloring: Coloring = color_graph.color(pattern, compress)
        color_seconds = time.perf_counter() - start
        validate_coloring(coloring)
        return dataclasses.replace(coloring, detect_seconds=detect_seconds, color_seconds=color_seconds)

    return cached("coloring", (key, compress), detect_and_color, _CACHE_SIZE)


@functools.cache
def _import_color_graph() -> Any:
    """Import asdex and the module color_graph, compile its numba functions, and return the module.

    Measured times then include neither imports nor compilation. Raise `Refusal` if asdex or numba cannot be
    imported.
    """
    try:
        import asdex  # noqa: F401

        from scaling.options.sparse import color_graph
    except ImportError as error:
        raise Refusal(f"seeds=colored needs asdex, which cannot be imported ({error}): {_INSTALL}") from None
    color_graph.compile_numba_functions()
    return color_graph


def _detect_pattern(
    function: Callable[..., Any], x: tuple[Any, ...], y: tuple[Any, ...]
) -> tuple[Pattern, float]:
    """Return the sparsity pattern of the Jacobian of `function(*x, *y)` with respect to x, and the seconds.

    The seconds are the time that the detection takes. Raise `Refusal` if asdex cannot analyze the function,
    or if the Jacobian has no nonzeros.
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


def validate_coloring(coloring: Coloring) -> None:
    """Raise `ValueError` if a nonzero of the pattern cannot be read from its compressed column or row.

    A nonzero can be read if its column (or row) has a color, and if the compressed column (or row) adds no
    other nonzero to it.
    """
    pattern, by_row = coloring.pattern, coloring.by_row
    for name, colors, count, lines, positions, is_read in (
        ("column", coloring.columns, coloring.column_count, pattern.cols, pattern.rows, ~by_row),
        ("row", coloring.rows, coloring.row_count, pattern.rows, pattern.cols, by_row),
    ):
        of_entry = np.full(len(lines), -1) if colors is None else colors[lines]
        is_in_range = count == 0 if colors is None else -1 <= colors.min() <= colors.max() < count
        if not is_in_range:
            raise ValueError(f"the {name} colors are not in the range of {count} colors")
        slots = positions.astype(np.int64) * (count + 1) + of_entry + 1
        _, slot_of_entry, occupants = np.unique(slots, return_inverse=True, return_counts=True)
        wrong = np.flatnonzero(is_read & ((of_entry < 0) | (occupants[slot_of_entry] > 1)))
        if wrong.size:
            raise ValueError(
                f"entry ({pattern.rows[wrong[0]]}, {pattern.cols[wrong[0]]}) cannot be read from the color "
                f"of its {name}: it has none, or collides with another entry"
            )


@dataclass(frozen=True)
class GatherIndices:
    """The positions of nonzeros in the compressed slices of each device, and their indices in the pattern.

    Attributes:
        arguments: a dict from name to value of additional arguments of the compiled program: the colors, and
            the positions that each device reads.
        entries: for each linear map and each device, the indices of these nonzeros in the sparsity pattern.
    """

    arguments: dict[str, np.ndarray]
    entries: tuple[tuple[np.ndarray, ...], ...]


def gather_indices(sizes: DerivativeShape, devices: int) -> GatherIndices:
    """Return the indices with which each device reads nonzeros of a Jacobian from its compressed slices.

    Args:
        sizes: the shape of the derivative, which contains its coloring.
        devices: the number of devices among which the colors are divided.
    """
    coloring = sizes.coloring
    assert coloring is not None
    indices = [_indices_of_part(coloring, part, devices) for part in sizes.parts]
    colors = [coloring.columns if part.computes_columns else coloring.rows for part in sizes.parts]
    arguments = {f"{COLORS} {number}": np.asarray(x, np.int32) for number, x in enumerate(colors)}
    arguments |= {f"{POSITIONS} {number}": positions for number, (positions, _) in enumerate(indices)}
    return GatherIndices(arguments, tuple(entries for _, entries in indices))


def _indices_of_part(
    coloring: Coloring, part: LinearMapPart, devices: int
) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Return the indices with which each device reads nonzeros from the slices of one linear map.

    Returns:
        An array of shape (devices, nonzeros): the positions of the nonzeros that each device reads, padded
            with zeros. A position is a flat index into the slices of the device, an array of shape (seeds,
            outputs) in forward mode or (seeds, inputs) in reverse mode.
        For each device, an array of the indices of these nonzeros in the sparsity pattern.
    """
    pattern, seeds_per_device = coloring.pattern, ceil_div(part.seeds, devices)
    entries = np.flatnonzero(coloring.by_row != part.computes_columns)
    rows, cols = pattern.rows[entries], pattern.cols[entries]
    if part.computes_columns:
        colors, line, position, length = coloring.columns, cols, rows, pattern.outputs
    else:
        colors, line, position, length = coloring.rows, rows, cols, pattern.inputs
    assert colors is not None
    device, seed = np.divmod(colors[line], seeds_per_device)
    flat = seed.astype(np.int64) * length + position
    by_device = [np.flatnonzero(device == number) for number in range(devices)]
    dtype = np.int32 if flat.max(initial=0) < 2**31 else np.int64
    positions = np.zeros((devices, max(map(len, by_device))), dtype)
    for number, selected in enumerate(by_device):
        positions[number, : len(selected)] = flat[selected]
    return positions, tuple(entries[selected] for selected in by_device)


def read_entries(slices: Slices, colors: Any, positions: Any) -> Any:
    """Compute the compressed slices of a device, and return an array of the nonzeros in them.

    Args:
        slices: the seeds of the device and the function that computes the slice of a seed.
        colors: the color of each column or row of the Jacobian.
        positions: the index of each nonzero in the flattened array of all slices.
    """
    compute = lambda: jax.tree.leaves(map_seeds(slices.compute, slices.seeds))  # noqa: E731
    # The condition is always true, but XLA cannot know that and does not fuse across a conditional. Without a
    # conditional, XLA fuses the slices into the gather and recomputes them for each entry. The conditional
    # reduces the time on a CPU with 1e6 unknowns from four times to twice that of a handwritten derivative.
    unused = [jnp.full(a.shape, jnp.nan, a.dtype) for a in jax.eval_shape(compute)]
    computed = jax.lax.cond(colors[0] >= -1, compute, lambda: unused)
    count = slices.seeds.count
    flat = computed[0] if len(computed) == 1 else jnp.hstack([a.reshape(count, -1) for a in computed])
    return jnp.take(flat.reshape(-1), positions, mode="clip")


def gather_entries(indices: GatherIndices, shape: tuple[int, int, int], result: Sequence[Any]) -> np.ndarray:
    """Return a host array of the nonzeros that all devices have read, in the order of the sparsity pattern.

    Args:
        shape: the shape of the returned array, (points, 1, entries of the pattern).
        result: for each linear map, an array of shape (devices along the point axis, devices along the seed
            axis, points per device, nonzeros per device).
    """
    parts = [np.asarray(part) for part in result]
    join_points = lambda a: a.reshape(a.shape[0] * a.shape[1], -1)[: shape[0]]  # noqa: E731
    if len(parts) == 1 and len(indices.entries[0]) == 1:
        whole: np.ndarray = join_points(parts[0][:, 0]).reshape(shape)
        return whole
    gathered = np.zeros((shape[0], shape[2]), parts[0].dtype)
    for part, entries_by_device in zip(parts, indices.entries, strict=True):
        for device, entries in enumerate(entries_by_device):
            gathered[:, entries] = join_points(part[:, device])[:, : len(entries)]
    return gathered.reshape(shape)


class CommonEntries(NamedTuple):
    """The positions of the entries of a sparsity pattern in another pattern, the reference pattern.

    Attributes:
        at: for each entry of the pattern, its index in the reference pattern, or an arbitrary index if the
            reference pattern does not contain the entry.
        has: for each entry of the pattern, whether the reference pattern contains it.
        lacking: the indices in the reference pattern of the entries that the pattern does not contain.
    """

    at: np.ndarray
    has: np.ndarray
    lacking: np.ndarray


def compare_lacking(
    common: CommonEntries, expected: np.ndarray, scale: np.ndarray
) -> tuple[list[EntryComparison], str]:
    """Compare the entries of the reference pattern that a detected pattern lacks with zero.

    Args:
        expected: the expected entries, of shape (points, 1, entries of the reference pattern).
        scale: the values by which the errors of these entries are divided, of the same shape.
    Returns:
        The comparison, in a list that is empty if the pattern lacks no entry.
        A note on the number of lacking entries that are not zero, or "".
    """
    if not common.lacking.size:
        return [], ""
    lacking = expected[..., common.lacking]
    count = int(np.count_nonzero(lacking.any(axis=(0, 1))))
    note = f"; of the entries that are not zero the pattern lacks {count}" if count else ""
    return [EntryComparison(np.zeros_like(lacking), lacking, scale[..., common.lacking])], note


def match_patterns(
    case: Case, workload: Workload, sizes: DerivativeShape, reduction: Reduction, detected: Pattern | None
) -> tuple[Pattern | None, Pattern | None, Pattern | None, CommonEntries | None]:
    """Return the sparsity patterns with which the result of a case is compared with the expected Jacobian.

    Args:
        detected: the pattern that was detected for seeds=colored, or None.
    Returns:
        The pattern that the workload defines, or None.
        The positions of the entries of the result if the case has seeds=colored, otherwise None.
        The positions of the entries of the closed form `Workload.nonzeros`, or None if it is not used.
        The positions of the entries of the second of these patterns in the third, or None if one is missing.
    """
    defined = result = None
    if workload.pattern is not None and case.target not in SECOND:
        defined = validated_pattern(*workload.pattern(), sizes.outputs, sizes.inputs)
    if case.seeds == "colored":
        pattern = detected or defined
        if pattern is None:
            raise Refusal(
                f"{case.workload} has no pattern, so that the positions of the entries are not known"
            )
        result = validated_pattern(pattern.rows, pattern.cols, sizes.outputs, sizes.inputs)
    needs_dense = result is None and (reduction is WHOLE or reduction.products)
    is_used = workload.nonzeros is not None and not sizes.summed
    nonzeros = defined if is_used and (workload.reference is None or not needs_dense) else None
    common = common_entries(result, nonzeros) if result and nonzeros else None
    return defined, result, nonzeros, common


def validated_pattern(rows: np.ndarray, cols: np.ndarray, outputs: int, inputs: int) -> Pattern:
    """Return a `Pattern`. Raise `Refusal` unless its entries are distinct, sorted and inside the Jacobian.

    Args:
        rows, cols: the row and the column of each entry, sorted by row and then by column.
        outputs, inputs: the numbers of rows and columns of the Jacobian.
    """
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


def common_entries(pattern: Pattern, reference: Pattern) -> CommonEntries:
    """Return the positions of the entries of a sparsity pattern in a reference pattern of the same shape."""
    indices, reference_indices = _flat_indices(pattern), _flat_indices(reference)
    at = np.minimum(np.searchsorted(reference_indices, indices), len(reference_indices) - 1)
    has = reference_indices[at] == indices
    lacking = np.setdiff1d(np.arange(len(reference_indices)), at[has], assume_unique=True)
    return CommonEntries(at, has, lacking)


def _flat_indices(pattern: Pattern) -> np.ndarray:
    """Return the index of each entry in the flattened Jacobian as an int64 array."""
    return np.asarray(pattern.rows.astype(np.int64) * pattern.inputs + pattern.cols)
