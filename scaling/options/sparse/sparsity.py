"""Detect sparsity patterns with asdex, cache their colorings, and gather the nonzeros from compressed slices.

asdex propagates dependencies through the jaxpr of a function, so that the pattern is valid for all inputs.
Patterns and colorings are cached in this process. The colors are divided among the devices. Each device
computes the compressed slices of its colors, which are sums of columns or of rows, and reads the nonzeros
that they contain. The host gathers the nonzeros of all devices, which do not communicate.
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
from scaling.core.modes import BOTH, TANGENT, gradient_in_any_mode
from scaling.core.process_cache import cached, fingerprint
from scaling.core.reductions import WHOLE, Reduction
from scaling.core.shape import DerivativeShape, LinearMapPart, Pattern, ceil_div, point_structs
from scaling.core.workload import Workload
from scaling.options.sparse.coloring import Coloring

_INSTALL = "pip install 'ad-scaling[sparse]'"
_CACHE_SIZE = 4  # the maximum number of values in each cache; a coloring may have millions of entries


def why_unavailable() -> str | None:
    """Return an error message if the Python package asdex is not installed, otherwise None."""
    return None if importlib.util.find_spec("asdex") else f"asdex is not installed; {_INSTALL}"


def detect_coloring(case: Case, workload: Workload) -> Coloring:
    """Return a coloring of the Jacobian or Hessian of a case that is valid at every point.

    Columns are colored in forward mode, rows in reverse mode, and both with `mode=mixed`.
    """
    mode, structs = case.ad_mode, point_structs(case, workload)
    undifferentiated = [name for name in structs if name not in workload.names]
    names = [*workload.names, *undifferentiated]

    def function(*x: Any) -> Any:
        return workload.function(**dict(zip(names, x, strict=True)))

    def gradient(*x: Any) -> Any:
        count = len(workload.names)
        return gradient_in_any_mode(lambda *z: jnp.sum(function(*z, *x[count:])))(*x[:count])

    problem = (case.workload, case.target, case.variant, case.formulation, *case.sizes.items(), case.wrt)
    compress = {BOTH: "both", TANGENT: "columns"}.get(mode.seed or "", "rows")
    x, y = (tuple(structs[name] for name in group) for group in (workload.names, undifferentiated))
    key = (*problem, case.dtype, mode.order, fingerprint(workload.function))
    return find_coloring(key, gradient if mode.order == 2 else function, x, compress, y)


def find_coloring(
    key: Hashable, function: Callable[..., Any], x: tuple[Any, ...], compress: str, y: tuple[Any, ...] = ()
) -> Coloring:
    """Return a coloring of the Jacobian of `function(*x, *y)` with respect to all elements of x.

    x and y are abstract arrays. `compress` is "columns" or "rows" to color only these, or "both" to color
    either or both with as few colors as possible. The coloring is cached under `key`, which must identify the
    function and the shapes of its arguments.
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
    """Import asdex, and return the module color_graph with its numba functions compiled.

    Raise `Refusal` if asdex or numba cannot be imported, or if numba has no folder for its cache.
    """
    try:
        import asdex  # noqa: F401

        from scaling.options.sparse import color_graph
    except ImportError as error:
        raise Refusal(f"seeds=colored needs asdex, which cannot be imported ({error}): {_INSTALL}") from None
    except RuntimeError as error:
        fix = "set NUMBA_CACHE_DIR to a folder that can be written"
        raise Refusal(f"seeds=colored needs numba, which cannot start ({error}): {fix}") from None
    color_graph.compile_numba_functions()
    return color_graph


def _detect_pattern(
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
        _, slot_of_entry, entry_counts = np.unique(slots, return_inverse=True, return_counts=True)
        wrong = np.flatnonzero(is_read & ((of_entry < 0) | (entry_counts[slot_of_entry] > 1)))
        if wrong.size:
            raise ValueError(
                f"entry ({pattern.rows[wrong[0]]}, {pattern.cols[wrong[0]]}) cannot be read from the color "
                f"of its {name}: it has none, or collides with another entry"
            )


@dataclass(frozen=True)
class GatherIndices:
    """The positions of nonzeros in the compressed slices of each device, and their indices in the pattern."""

    arguments: dict[str, np.ndarray]  # program arguments: the colors, and the positions for each device
    entries: list[list[np.ndarray]]  # for each linear map and device, the indices of its nonzeros


def gather_indices(sizes: DerivativeShape, devices: int) -> GatherIndices:
    """Return the indices that each device uses to read nonzeros from its compressed slices."""
    indices = GatherIndices({}, [])
    for number, part in enumerate(sizes.parts):
        colors, positions, entries = _indices_of_part(sizes.coloring, part, devices)
        indices.arguments[f"{COLORS} {number}"] = colors
        indices.arguments[f"{POSITIONS} {number}"] = positions
        indices.entries.append(entries)
    return indices


def _indices_of_part(
    coloring: Coloring, part: LinearMapPart, devices: int
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Return the arrays that each device uses to read nonzeros from the slices of one linear map.

    The first array contains the color of each column or row. The second, of shape (devices, nonzeros) and
    padded with zeros, contains the flat index of each nonzero in the slices of its device, which have the
    shape (seeds, outputs) in forward mode and (seeds, inputs) in reverse mode. The third result is a list
    with one array for each device: the indices of its nonzeros in the sparsity pattern.
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
    return np.asarray(colors, np.int32), positions, [entries[selected] for selected in by_device]


def read_entries(slices: Slices, colors: Any, positions: Any) -> Any:
    """Compute the compressed slices of a device, and return the nonzeros at the given flat positions in them.

    `colors` contains the color of each column or row of the Jacobian.
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
    """Return the nonzeros of all devices as one array of the given shape, in the order of the pattern.

    `result` contains an array for each linear map, of shape (point devices, seed devices, points per device,
    nonzeros per device).
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
    """The indices at which a reference pattern contains the entries of another sparsity pattern."""

    at: np.ndarray  # the index of each entry in the reference pattern, arbitrary where `has` is false
    has: np.ndarray  # whether the reference pattern contains each entry
    lacking: np.ndarray  # the indices of the reference entries that the other pattern lacks


def compare_lacking(
    common: CommonEntries, expected: np.ndarray, scale: np.ndarray
) -> tuple[list[EntryComparison], str]:
    """Compare with zero the entries of the reference pattern that a detected pattern lacks.

    Return the comparison in a list, which is empty if no entry is lacking, and a note on the lacking entries
    that are not zero. `expected` and `scale` have the shape (points, 1, entries of the reference pattern).
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
    """Return the sparsity patterns that are used to compare the result of a case with the expected Jacobian.

    The four results are None where they do not apply. The first three are the pattern that the workload
    defines, the pattern of a result with colored seeds, and the pattern of the closed form
    `Workload.nonzeros`. The fourth is the `CommonEntries` of the second pattern in the third. `detected` is
    the detected pattern of colored seeds, or None.
    """
    defined = result = None
    if workload.pattern is not None and case.target not in SECOND:
        defined = validated_pattern(*workload.pattern(), sizes.outputs, sizes.inputs)
    if case.seeds == "colored":
        result = detected or defined
        if result is None:
            raise Refusal(f"{case.workload} has no pattern, so the positions of its entries are not known")
    needs_dense = result is None and (reduction is WHOLE or reduction.products)
    is_used = workload.nonzeros is not None and not sizes.summed
    nonzeros = defined if is_used and (workload.reference is None or not needs_dense) else None
    common = common_entries(result, nonzeros) if result and nonzeros else None
    return defined, result, nonzeros, common


def validated_pattern(rows: np.ndarray, cols: np.ndarray, outputs: int, inputs: int) -> Pattern:
    """Return a `Pattern`, or raise `Refusal` unless all entries are distinct, sorted and in range."""
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
    """Return the `CommonEntries` of a sparsity pattern in a reference pattern of the same shape."""
    indices, reference_indices = _flat_indices(pattern), _flat_indices(reference)
    at = np.minimum(np.searchsorted(reference_indices, indices), len(reference_indices) - 1)
    has = reference_indices[at] == indices
    lacking = np.setdiff1d(np.arange(len(reference_indices)), at[has], assume_unique=True)
    return CommonEntries(at, has, lacking)


def _flat_indices(pattern: Pattern) -> np.ndarray:
    return np.asarray(pattern.rows.astype(np.int64) * pattern.inputs + pattern.cols)
