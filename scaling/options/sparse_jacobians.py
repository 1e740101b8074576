"""Implement `seeds=colored`: read nonzeros of sparse Jacobians on devices, gather them, compare patterns.

With seeds=colored, the colors are divided among the devices. Each device computes the compressed slices (sums
of columns or rows) of its colors, and reads the nonzeros from these slices. The devices do not communicate:
the host gathers the nonzeros of all devices. If the workload defines a closed form of the nonzeros, the check
compares the result with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from scaling.core.case import SECOND, Refusal
from scaling.core.derivative import Derivative, Pattern, Slices, ceil_div, map_seeds
from scaling.core.layout import COLORS, POSITIONS
from scaling.core.reductions import WHOLE, Jacobians, Reduction


@dataclass(frozen=True)
class NonzeroIndices:
    """The places of the nonzeros in the compressed columns or rows, and in the sparsity pattern."""

    # Arguments of the program by name. For linear map number k: "COLORS k" is the color of each column or row
    # of the Jacobian, and "POSITIONS k" contains the places of the nonzeros in the slices of each device.
    arguments: dict[str, np.ndarray]
    # entries[k][d] contains the indices in the pattern of the nonzeros that device d reads with linear map k.
    entries: list[list[np.ndarray]]


def compute_nonzero_indices(derivative: Derivative) -> NonzeroIndices:
    """Return the indices of the nonzeros in the compressed columns or rows that each device computes.

    A compressed column is the sum of all columns with one color. It contains each nonzero of these columns
    separately. An index refers to the flattened compressed columns or rows of a device. The index arrays are
    padded with zeros to the same length for all devices.
    """
    coloring, devices = derivative.coloring, derivative.case.mesh_shape[1]
    pattern, indices = coloring.pattern, NonzeroIndices({}, [])
    for number, part in enumerate(derivative.parts):
        nonzeros = np.flatnonzero(coloring.by_row != part.computes_columns)
        rows, cols = pattern.rows[nonzeros], pattern.cols[nonzeros]
        if part.computes_columns:
            colors, line, position, length = coloring.columns, cols, rows, pattern.outputs
        else:
            colors, line, position, length = coloring.rows, rows, cols, pattern.inputs
        device, seed = np.divmod(colors[line], ceil_div(part.seeds, devices))
        flat_positions = seed.astype(np.int64) * length + position
        by_device = [np.flatnonzero(device == index) for index in range(devices)]
        dtype = np.int32 if flat_positions.max(initial=0) < 2**31 else np.int64
        positions = np.zeros((devices, max(map(len, by_device))), dtype)
        for index, selected in enumerate(by_device):
            positions[index, : len(selected)] = flat_positions[selected]
        indices.arguments[f"{COLORS} {number}"] = np.asarray(colors, np.int32)
        indices.arguments[f"{POSITIONS} {number}"] = positions
        indices.entries.append([nonzeros[selected] for selected in by_device])
    return indices


def read_nonzeros(slices: Slices, colors: Any, positions: Any) -> Any:
    """Compute the compressed columns or rows of one device, and return the nonzeros at `positions` in them.

    `positions` are indices into the flattened columns or rows. `colors`, the color of each column or row of
    the Jacobian, does not affect the result, but prevents XLA from computing `slices` repeatedly.
    """
    compute = lambda: jax.tree.leaves(map_seeds(slices.compute, slices.seed_range))  # noqa: E731
    # The condition is always true, but XLA cannot know that and does not fuse across a conditional. Without a
    # conditional, XLA fuses the slices into the gather and recomputes them for each entry. The conditional
    # reduces the time on a CPU with 1e6 unknowns from four times to twice the time of handwritten code.
    unused = [jnp.full(a.shape, jnp.nan, a.dtype) for a in jax.eval_shape(compute)]
    computed = jax.lax.cond(colors[0] >= -1, compute, lambda: unused)
    count = slices.seed_range.count
    flat_slices = computed[0] if len(computed) == 1 else jnp.hstack([a.reshape(count, -1) for a in computed])
    return jnp.take(flat_slices.reshape(-1), positions, mode="clip")


def gather_nonzeros(
    indices: NonzeroIndices, shape: tuple[int, int, int], result: Sequence[Any]
) -> np.ndarray:
    """Return the nonzeros of all devices as one array of shape `shape`, in the order of the sparsity pattern.

    `result` contains one array for each `LinearMapPart`, with the axes (point devices, seed devices, points
    of a device, nonzeros of a device).
    """
    arrays = [np.asarray(array) for array in result]
    join_points = lambda a: a.reshape(a.shape[0] * a.shape[1], -1)[: shape[0]]  # noqa: E731
    if len(arrays) == 1 and len(indices.entries[0]) == 1:
        return join_points(arrays[0][:, 0]).reshape(shape)
    gathered = np.zeros((shape[0], shape[2]), arrays[0].dtype)
    for array, entries_by_device in zip(arrays, indices.entries, strict=True):
        for device, nonzeros in enumerate(entries_by_device):
            gathered[:, nonzeros] = join_points(array[:, device])[:, : len(nonzeros)]
    return gathered.reshape(shape)


class CommonNonzeros(NamedTuple):
    """The positions of the nonzeros of a result in the sparsity pattern of its reference."""

    is_common: np.ndarray  # for each nonzero of the result, whether the pattern of the reference contains it
    positions: np.ndarray  # its index in the pattern of the reference; arbitrary where `is_common` is false
    missing: np.ndarray  # the indices of the nonzeros of the reference that the pattern of the result lacks


def match_patterns(
    derivative: Derivative, reduction: Reduction
) -> tuple[Pattern | None, Pattern | None, Pattern | None, CommonNonzeros | None]:
    """Return the sparsity patterns of a workload, its result and its reference, and how they are related.

    The result is a tuple of four items. An item that does not exist is None:

    1. the `Pattern` that the workload declares
    2. the `Pattern` of the result, with seeds=colored
    3. the `Pattern` of the reference, if it is the closed form `Workload.nonzeros`
    4. the `CommonNonzeros` of patterns 2 and 3

    Raise `Refusal` if a result with seeds=colored has no pattern.
    """
    case, workload, coloring = derivative.case, derivative.workload, derivative.coloring
    workload_pattern = result_pattern = None
    if workload.pattern is not None and case.target not in SECOND:
        workload_pattern = validated_pattern(*workload.pattern(), derivative.outputs, derivative.inputs)
    if case.seeds == "colored":
        result_pattern = workload_pattern if coloring is None else coloring.pattern
        if result_pattern is None:
            raise Refusal(f"{case.workload} has no pattern, so the positions of its entries are not known")
    needs_dense = result_pattern is None and (reduction is WHOLE or reduction.products)
    reference_pattern = common = None
    if workload.nonzeros is not None and not derivative.summed and not (workload.reference and needs_dense):
        reference_pattern = workload_pattern
    if result_pattern and reference_pattern:
        common = common_nonzeros(result_pattern, reference_pattern)
    return workload_pattern, result_pattern, reference_pattern, common


def validated_pattern(rows: np.ndarray, cols: np.ndarray, outputs: int, inputs: int) -> Pattern:
    """Return the `Pattern` of a matrix of shape (outputs, inputs) with nonzeros at (rows, cols).

    Raise `Refusal` if `rows` and `cols` are empty, or are not integer vectors of equal length. Also raise it
    if a position is outside the matrix or repeated, or if the positions are not sorted by row and then by
    column.
    """
    rows, cols = np.asarray(rows), np.asarray(cols)
    pattern, is_integer = Pattern(rows, cols, outputs, inputs), {rows.dtype.kind, cols.dtype.kind} <= {*"iu"}
    is_valid = is_integer and rows.shape == cols.shape == (rows.size,)
    if is_valid and rows.size and min(rows.min(), cols.min()) >= 0:
        is_in_range = rows.max() < outputs and cols.max() < inputs
        if is_in_range and np.all(np.diff(_flat_indices(pattern)) > 0):
            return pattern
    raise Refusal(
        f"a pattern must be two integer arrays of equal length, the rows and the columns of the nonzeros of "
        f"the {outputs} x {inputs} Jacobian, each once, sorted by row and then by column; these are "
        f"{rows.dtype} {rows.shape} and {cols.dtype} {cols.shape}"
    )


def common_nonzeros(pattern: Pattern, reference: Pattern) -> CommonNonzeros:
    """Return the positions of the nonzeros of `pattern` in the sparsity pattern `reference`."""
    indices, reference_indices = _flat_indices(pattern), _flat_indices(reference)
    positions = np.minimum(np.searchsorted(reference_indices, indices), len(reference_indices) - 1)
    is_common = reference_indices[positions] == indices
    all_positions = np.arange(len(reference_indices))
    missing = np.setdiff1d(all_positions, positions[is_common], assume_unique=True)
    return CommonNonzeros(is_common, positions, missing)


def _flat_indices(pattern: Pattern) -> np.ndarray:
    return np.asarray(pattern.rows.astype(np.int64) * pattern.inputs + pattern.cols)


@dataclass(frozen=True)
class SparseJacobians(Jacobians):
    """Sparse Jacobians at several points (batch elements), which share a sparsity pattern."""

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
    """Sum the columns k of `values` with equal `index[k]`, and return an array with `count` columns."""
    return np.stack([np.bincount(index, weights=entries, minlength=count) for entries in values])
