"""Implement `reduce=gram`: multiply the columns or rows of a Jacobian J to J^T J, and bound its errors."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scaling.core.derivative import Derivative, SeedRange, ceil_div, map_seeds, sum_over_seeds
from scaling.core.reductions import Jacobians, ReferenceTerms, Rounding


def count_passes(derivative: Derivative) -> int:
    """Return the number of JVPs that all devices together need to compute J^T J in forward mode."""
    case, seed_devices = derivative.case, derivative.case.mesh_shape[1]
    seeds_per_device = ceil_div(derivative.seeds, seed_devices)
    chunk = case.chunk if isinstance(case.chunk, int) else seeds_per_device
    if seed_devices == 1 and chunk >= seeds_per_device:
        return derivative.seeds
    # Each device computes its own columns, and all columns again for each chunk of its own columns.
    return derivative.seeds * (1 + seed_devices * ceil_div(seeds_per_device, chunk))


def gram_from_columns(column: Callable[[Any], Any], seeds: SeedRange, inputs: int) -> Any:
    """Return the rows of J^T J whose indices are the seeds, as an array of shape (seeds, inputs).

    `column(k)` returns column k of J. `inputs` is the number of columns.
    """
    if seeds.is_one_chunk and seeds.count >= inputs:
        chunk_columns = jax.vmap(column)(seeds.indices)
        return chunk_columns @ chunk_columns.T
    length = min(seeds.chunk or seeds.count, seeds.count)

    def multiply_chunk(chunk: Any) -> Any:
        chunk_columns = jax.vmap(column)(seeds.first + chunk * length + jnp.arange(length))
        return map_seeds(lambda k: chunk_columns @ column(k), SeedRange(0, inputs, seeds.chunk), axis=-1)

    chunks = ceil_div(seeds.count, length)
    return jax.lax.map(multiply_chunk, jnp.arange(chunks)).reshape(chunks * length, -1)[: seeds.count]


def gram_from_rows(row: Callable[[Any], Any], seeds: SeedRange) -> Any:
    """Return R^T R, of shape (inputs, inputs), where R contains the rows `seeds` of the Jacobian J.

    `row(k)` returns row k of J as a tuple with one array for each input.
    """

    def multiply(indices: Any) -> Any:
        device_rows = jnp.concatenate([a.reshape(a.shape[0], -1) for a in jax.vmap(row)(indices)], axis=1)
        return device_rows.T @ device_rows

    return sum_over_seeds(multiply, seeds)


def reference_gram(J: Jacobians, rounding: Rounding) -> ReferenceTerms:
    """Return J^T J, its influence and its magnitude (see `Rounding.scale`), as `ReferenceTerms`."""
    values, magnitude, columns = J.values, abs(J.values), J.by_input(abs(J.values))
    largest = rounding.largest_by_leaf(J.size).max(axis=1)
    crossed = largest[:, :, None] * columns[:, None, :]
    second_order = rounding.entry * values.shape[1] * largest[:, :, None] * largest[:, None, :]
    influence = crossed + crossed.transpose(0, 2, 1) + second_order
    return values.transpose(0, 2, 1) @ values, influence, magnitude.transpose(0, 2, 1) @ magnitude


def step_bound(J: Jacobians, bound: Any) -> Any:
    """Return an upper bound on the errors of all entries of J^T J at each point, in the shape (points,).

    `bound[p, i]` is an upper bound on the errors of the entries in column i of J at point p.
    """
    # With errors E of J: |E|^T |J| + |J|^T |E| + |E|^T |E|.
    column_sums, pairs = J.by_input(abs(J.values)), bound[:, :, None] * bound[:, None, :]
    crossed = bound[:, :, None] * column_sums[:, None, :]
    return (crossed + crossed.transpose(0, 2, 1) + np.max(J.entries_by_input()) * pairs).max(axis=(1, 2))
