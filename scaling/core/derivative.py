"""Describe a `Derivative` (seeds, linear maps, shape), and compute its columns or rows on a device.

A slice is a column or row of the Jacobian of f at x. An AD mode with seeds provides a linear map from a seed
(a tangent or cotangent) to a slice. The seeds are the rows of the identity matrix. If seeds=colored, a seed
is the sum of all rows with the same color. A device computes the slices in chunks of seeds, and reduces them.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from scaling.core import load_option
from scaling.core.case import LAPLACIAN, POINTS, SECOND, Case, Refusal
from scaling.core.inputs import input_structs, point_structs
from scaling.core.modes import BOTH, MODES, TANGENT
from scaling.core.reductions import TRACE, WHOLE, Reduction
from scaling.core.workload import Workload, evaluate_shape, join_blocks, select_leaves

NamedArrays = Mapping[str, Any]  # arrays or abstract arrays by name


@dataclass(frozen=True)
class LinearMapPart:
    """A linear map from seeds (tangents or cotangents) to columns or rows of the Jacobian."""

    mode: str  # the name of an AD mode, a key of `MODES`
    names: tuple[str, ...]  # the names of the differentiated inputs
    seeds: int  # the number of seeds (tangents or cotangents)
    along: tuple[str, ...] = ()  # the inputs that form v if the derivative is J v, otherwise ()

    @property
    def computes_columns(self) -> bool:
        """Return whether the map computes columns of the Jacobian instead of rows."""
        return MODES[self.mode].seed == TANGENT


@dataclass(frozen=True)
class Pattern:
    """The positions of the possible nonzeros of a Jacobian, sorted by row, then by column."""

    rows: np.ndarray  # integers, of shape (nonzeros,)
    cols: np.ndarray  # integers, of shape (nonzeros,)
    outputs: int  # the number of rows of the Jacobian
    inputs: int  # the number of columns of the Jacobian


@dataclass(frozen=True)
class Derivative:
    """The derivative that a case computes: its shape, and the linear maps that compute it."""

    case: Case
    workload: Workload  # the workload of the case
    outputs: int  # the number of outputs per point (batch element), or of gradient elements for a Hessian
    inputs: int  # the number of differentiated inputs per point, or 1 for a Hessian-vector product
    summed: bool  # whether the function of the batch returns a scalar, the sum over the points
    values: int  # the number of values that the function returns per point
    parts: tuple[LinearMapPart, ...] = ()  # empty for a mode without seeds, or before a coloring is known
    coloring: Any = None  # with seeds=colored, the `Coloring` (options/coloring.py) of the Jacobian

    @property
    def seeds(self) -> int:
        """Return the total number of seeds of the linear maps."""
        return sum(part.seeds for part in self.parts)

    @property
    def passes(self) -> int:
        """Return the number of JVPs and VJPs that are evaluated to compute the derivative."""
        if self.case.ad_mode.pass_per_output:
            return self.seeds * (1 if self.case.target == LAPLACIAN else self.outputs)
        has_columns = any(part.computes_columns for part in self.parts)
        if self.workload.reduction.columns.products and has_columns:
            return int(load_option("gram").count_passes(self))
        return self.seeds

    @property
    def result_shape(self) -> tuple[int, int, int]:
        """Return the shape of the result on the host. An axis that a reduction removes has length 1.

        Jacobians: (points, outputs, inputs)
        Function values: (points, outputs, 1)
        Derivative of the sum over the points: (1, 1, inputs), or (devices, 1, inputs) with split=data
        Nonzeros of Jacobians with seeds=colored: (points, 1, nonzeros)
        """
        case, is_value = self.case, self.case.ad_mode.is_value
        if self.workload.reduction.sums_points:
            return case.devices if case.split == "data" else 1, 1, 1 if is_value else self.inputs
        if is_value:
            return (1, 1, 1) if self.summed else (case.points, self.outputs, 1)
        if case.seeds == "colored":
            if self.coloring is not None:
                return case.points, 1, int(self.coloring.pattern.rows.size)
            assert self.workload.pattern is not None
            return case.points, 1, len(self.workload.pattern()[0])
        outputs = 1 if self.summed else self.outputs
        return case.points, *self.workload.reduction.shape(outputs, self.inputs)


def describe_derivative(case: Case, workload: Workload, coloring: Any = None) -> Derivative:
    """Return the `Derivative` of a case. `coloring` is a `Coloring` of the Jacobian, or None."""
    one_point = point_structs(case, workload)
    output = evaluate_shape(case, workload.function, one_point)
    inputs = sum(one_point[name].size for name in workload.names)
    if not output.size or not inputs:
        text = f"has nothing to differentiate: {inputs} inputs, {output.size} outputs"
        raise Refusal(f"workload {case.workload!r} {text}")
    arguments, result = one_point, output
    if case.batch == "whole" and workload.whole is not None:
        points, shared = input_structs(case, workload)
        arguments, batch = {**points, **shared}, (case.points, *output.shape)
        result = evaluate_shape(case, workload.whole, arguments)
        if result.shape not in ((), batch):
            raise Refusal(f"`whole` of {case.workload} must return shape {batch} or (), not {result.shape}")
    summed, outputs = case.batch == "whole" and result.shape == (), output.size
    if case.target in SECOND:
        outputs, inputs = inputs, 1 if case.target == "hvp" else inputs
    parts: tuple[LinearMapPart, ...] = ()
    if case.ad_mode.has_seeds and (case.seeds != "colored" or coloring is not None):
        input_sizes = {name: arguments[name].size for name in workload.names}
        parts = _linear_maps(case, workload, coloring, input_sizes, result.size)
    return Derivative(case, workload, outputs, inputs, summed, output.size, parts, coloring)


def _linear_maps(
    case: Case, workload: Workload, coloring: Any, input_sizes: Mapping[str, int], result_size: int
) -> tuple[LinearMapPart, ...]:
    names, mode = workload.names, case.ad_mode
    forward_mode, reverse_mode = mode.parts or (mode.name, mode.name)
    if coloring is not None:
        counts = ((forward_mode, coloring.column_count), (reverse_mode, coloring.row_count))
        return tuple(LinearMapPart(name, names, count) for name, count in counts if count)
    forward_names: tuple[str, ...] = ()
    if mode.seed == TANGENT or (mode.seed == BOTH and len(names) == 1):
        forward_names = names
    elif mode.seed == BOTH:
        forward_names = _forward_inputs(case, input_sizes)
    reverse_names = tuple(name for name in names if name not in forward_names)
    parts = []
    if forward_names:
        is_product = case.target == "hvp" or workload.reduction.along_point
        pairs = zip(names, workload.direction_names, strict=True) if is_product else ()
        along = tuple(vector for name, vector in pairs if name in forward_names)
        seeds = 1 if along else sum(input_sizes[name] for name in forward_names)
        parts.append(LinearMapPart(forward_mode, forward_names, seeds, along))
    if reverse_names:
        is_scalar = workload.reduction.sums_points or mode.single_seed
        parts.append(LinearMapPart(reverse_mode, reverse_names, 1 if is_scalar else result_size))
    return tuple(parts)


def _forward_inputs(case: Case, input_sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the names of the inputs that mode=mixed differentiates in forward mode."""
    if case.forward is None:  # by default, all inputs but the largest
        largest = max(input_sizes, key=lambda name: input_sizes[name])
        return tuple(name for name in input_sizes if name != largest)
    what = f"input to differentiate in forward mode (forward), of wrt={case.wrt},"
    forward = select_leaves("forward", what, case.forward, input_sizes)
    if len(forward) == len(input_sizes):
        text = f"names all inputs of wrt={case.wrt}: leave some to reverse mode"
        raise Refusal(f"forward={case.forward} {text}")
    return tuple(forward)


def sum_over_devices(case: Case, tree: Any) -> Any:
    """Return the sum of a pytree over all devices if split=data. Otherwise, return the pytree unchanged."""
    return jax.lax.psum(tree, POINTS) if case.split == "data" and case.devices > 1 else tree


def ceil_div(count: int, divisor: int) -> int:
    """Return count / divisor, rounded up to an integer."""
    return -(-count // divisor)


def to_dense(pattern: Pattern, nonzeros: np.ndarray) -> np.ndarray:
    """Return dense Jacobians (points, outputs, inputs) with the given nonzeros (points, nonzeros)."""
    dense: np.ndarray = np.zeros((len(nonzeros), pattern.outputs, pattern.inputs))
    dense[:, pattern.rows, pattern.cols] = nonzeros
    return dense


class DevicePosition(NamedTuple):
    """The position of a device in the mesh, and the seeds and colors that the device uses."""

    point_index: Any = 0  # the index of the device along the axis of the points
    seed_index: Any = 0  # the index of the device along the axis of the seeds
    first_seed: Any = 0  # the index of the first seed of this step, if storage=host computes seeds in steps
    # With seeds=colored, two arrays for each linear map: the color of each column or row of the Jacobian, and
    # the flat index of each nonzero in the compressed Jacobian, which has one slice per color.
    colorings: Sequence[tuple[Any, Any]] = ()


@dataclass(frozen=True)
class SeedRange:
    """A range of consecutive seeds (tangents or cotangents), computed in chunks."""

    first: Any  # the index of the first seed
    count: int
    chunk: int | None = None  # the number of seeds computed at a time, or None for all

    @property
    def indices(self) -> Any:
        """Return the indices of the seeds as an array of shape (count,)."""
        return self.first + jnp.arange(self.count)

    @property
    def is_one_chunk(self) -> bool:
        """Return whether all seeds are computed at once, without a loop over chunks."""
        return self.chunk is None or self.chunk >= self.count


class Slices(NamedTuple):
    """What a device needs to compute its rows or columns of the Jacobian with one linear map."""

    part: LinearMapPart
    # Maps the index of a seed to a row or column. For the Laplacian, maps an array of seed indices to the sum
    # of v^T H v over these seeds v, where H is the Hessian.
    compute: Callable[[Any], Any]
    seed_range: SeedRange
    x: tuple[Any, ...]  # the differentiated inputs


def local_derivative(derivative: Derivative) -> Callable[[NamedArrays, NamedArrays, DevicePosition], Any]:
    """Return a function f(points, shared, position) that computes one device's part of a derivative.

    `points` and `shared` map the names of per-point and of shared inputs to arrays. For a mode with seeds, f
    returns a tuple with one pytree of arrays for each linear map. For any other mode, f returns an array or a
    pytree of arrays.
    """
    case, workload = derivative.case, derivative.workload
    if case.target == LAPLACIAN:
        load_option("laplacian")  # imported here, so that the time of tracing does not include the import

    def compute_on_device(points: NamedArrays, shared: NamedArrays, position: DevicePosition) -> Any:
        with jax.default_matmul_precision(case.precision):
            if case.mode in workload.whole_modes:
                return _workload_derivative(derivative, {**points, **shared}, position)
            if workload.reduction.sums_points:
                return load_option("data_parallel").sum_derivative(derivative, points, shared, position)
            evaluate = functools.partial(_value_or_slices, derivative, position)
            if case.batch == "whole":
                assert workload.whole is not None
                return evaluate(workload.whole, {**points, **shared})
            evaluate_point = lambda point: evaluate(workload.function, {**point, **shared})  # noqa: E731
            if case.block is None:
                return jax.vmap(evaluate_point)(points)
            return jax.lax.map(evaluate_point, points, batch_size=case.block)

    return compute_on_device


def _value_or_slices(
    derivative: Derivative, position: DevicePosition, function: Callable[..., Any], inputs: NamedArrays
) -> Any:
    case = derivative.case
    if case.ad_mode.is_value:
        return function(**inputs)
    if position.colorings:
        nonzeros = []
        for part, (colors, positions) in zip(derivative.parts, position.colorings, strict=True):
            slices = make_slices(case, part, function, inputs, position, colors)
            nonzeros.append(load_option("sparse_jacobians").read_nonzeros(slices, colors, positions))
        return tuple(nonzeros)
    batch = case.points if case.batch == "whole" and not derivative.summed else None
    slices_of_parts = (make_slices(case, part, function, inputs, position) for part in derivative.parts)
    arguments = derivative.workload.reduction, derivative.outputs, derivative.inputs, batch
    return tuple(reduce_slices(slices, *arguments) for slices in slices_of_parts)


def _workload_derivative(derivative: Derivative, inputs: NamedArrays, position: DevicePosition) -> Any:
    workload = derivative.workload
    result = workload.whole_modes[derivative.case.mode](**inputs)
    if workload.reduction.sums_points:
        return sum_over_devices(derivative.case, result)
    if derivative.case.reduce is None or workload.reduction in (WHOLE, TRACE):
        return result
    points = next(inputs[name].shape[0] for name in workload.points)
    batched = [inputs[name] if name in workload.points else inputs[name][None] for name in workload.names]
    x = [jnp.broadcast_to(a.reshape(a.shape[0], -1), (points, a[0].size)) for a in batched]
    J = join_blocks(derivative.case, workload, result).reshape(points, derivative.outputs, derivative.inputs)
    return workload.reduction.of_jacobians(J, jnp.concatenate(x, axis=1))


def make_slices(
    case: Case,
    part: LinearMapPart,
    function: Callable[..., Any],
    inputs: NamedArrays,
    position: DevicePosition,
    colors: Any = None,
) -> Slices:
    """Return the `Slices` of the Jacobian that the device at `position` computes with the linear map `part`.

    `colors` contains the color of each column or row, or is None without a coloring.
    """
    x, mode = tuple(inputs[name] for name in part.names), MODES[part.mode]

    def f(*z: Any) -> Any:
        y = function(**{**inputs, **dict(zip(part.names, z, strict=True))})
        return jnp.sum(y) if mode.differentiates_sum else y

    if case.remat and mode.uses_reverse:
        f = jax.checkpoint(f, policy=getattr(jax.checkpoint_policies, case.remat))
    count = ceil_div(part.seeds, case.mesh_shape[1])
    chunk = case.chunk if isinstance(case.chunk, int) else None
    seeds = SeedRange(position.first_seed + position.seed_index * count, count, chunk)
    if case.target == LAPLACIAN:
        sum_forms = load_option("laplacian").sum_quadratic_forms(mode, f, x)
        return Slices(part, lambda indices: sum_forms(jax.vmap(lambda n: make_seed(x, n))(indices)), seeds, x)
    assert mode.linear_map is not None
    linear_map = mode.linear_map(f, x)
    if part.along:
        direction = tuple(inputs[name] for name in part.along)
        return Slices(part, lambda _: linear_map(direction), SeedRange(0, 1), x)
    like = x if part.computes_columns else (jax.eval_shape(f, *x),)
    is_scalar = case.mesh_shape[1] == 1 and sum(a.size for a in like) == 1

    def compute_slice(seed_index: Any) -> Any:
        # A constant seed saves XLA a multiplication.
        seed = make_seed(like, 0 if is_scalar else seed_index, colors)
        return linear_map(seed) if part.computes_columns else linear_map(*seed)

    return Slices(part, compute_slice, seeds, x)


def make_seed(like: tuple[Any, ...], index: Any, colors: Any = None) -> tuple[Any, ...]:
    """Return the unit vector with a 1 at `index`, split into arrays with the shapes and dtypes of `like`.

    If `colors` contains the color of each element, the vector is 1 at all elements with the color `index`.
    """
    seed, start = [], 0
    for a in like:
        stop = start + a.size
        nonzero = index == start + jnp.arange(a.size) if colors is None else colors[start:stop] == index
        seed.append(nonzero.astype(a.dtype).reshape(a.shape))
        start = stop
    return tuple(seed)


def map_seeds(function: Callable[[Any], Any], seeds: SeedRange, axis: int = 0) -> Any:
    """Apply a function to the index of each seed, and stack the results along `axis`."""
    if seeds.is_one_chunk:
        return jax.vmap(function, out_axes=axis)(seeds.indices)
    stacked = jax.lax.map(function, seeds.indices, batch_size=seeds.chunk)
    return jax.tree.map(lambda a: jnp.moveaxis(a, 0, axis), stacked)


def sum_over_seeds(sum_chunk: Callable[[Any], Any], seeds: SeedRange) -> Any:
    """Return the sum of `sum_chunk(indices)` over all chunks of seeds, added in float32 or a wider dtype."""
    if seeds.is_one_chunk:
        return sum_chunk(seeds.indices)
    chunk = seeds.chunk or seeds.count
    chunks, remainder = divmod(seeds.count, chunk)

    def sum_range(start: Any, length: int) -> Any:
        total = sum_chunk(seeds.first + start + jnp.arange(length))
        return jax.tree.map(lambda a: a.astype(jnp.promote_types(a.dtype, jnp.float32)), total)

    add = lambda a, b: jax.tree.map(jnp.add, a, b)  # noqa: E731
    total = sum_range(0, chunk)
    if chunks > 1:
        total = jax.lax.fori_loop(1, chunks, lambda k, total: add(total, sum_range(k * chunk, chunk)), total)
    total = add(total, sum_range(chunks * chunk, remainder)) if remainder else total
    like = jax.eval_shape(lambda: sum_chunk(seeds.first + jnp.arange(chunk)))
    return jax.tree.map(lambda a, b: a.astype(b.dtype), total, like)


def reduce_slices(
    slices: Slices, reduction: Reduction = WHOLE, outputs: int = 1, inputs: int = 0, batch: int | None = None
) -> Any:
    """Compute the columns or rows that `slices` describes, and reduce them, for example to their sum.

    A Jacobian has the shape (outputs, inputs). `batch` is the number of Jacobians, or None for a single one.
    """
    if slices.part.computes_columns:
        return _reduce_columns(slices, reduction, inputs, batch)
    return _reduce_rows(slices, reduction, outputs, batch)


def _reduce_columns(slices: Slices, reduction: Reduction, inputs: int, batch: int | None) -> Any:
    if reduction is TRACE:
        return sum_over_seeds(slices.compute, slices.seed_range)
    shape = (-1,) if batch is None else (batch, -1)
    column = lambda seed_index: slices.compute(seed_index).reshape(shape)  # noqa: E731
    step, function, seeds = reduction.columns, reduction.columns.function, slices.seed_range
    if step.products:
        return load_option("gram").gram_from_columns(column, seeds, inputs)
    reduced = slices.compute if function is None else lambda seed_index: function(column(seed_index))
    if seeds.count == 1:  # jax.vmap over one seed takes up to four times as long
        return reduced(seeds.first)
    if step.sums_seeds:
        return sum_over_seeds(lambda indices: jnp.sum(jax.vmap(reduced)(indices), axis=0), seeds)
    return map_seeds(reduced, seeds, axis=-1)


def _reduce_rows(slices: Slices, reduction: Reduction, outputs: int, batch: int | None) -> Any:
    step, seeds = reduction.rows, slices.seed_range
    if step.products:
        return load_option("gram").gram_from_rows(slices.compute, seeds)
    function, row = step.function, slices.compute
    reduced = row if function is None else lambda seed_index: function(row(seed_index), slices.x)
    if not step.sums_seeds:
        return reduced(seeds.first) if seeds.count == 1 else map_seeds(reduced, seeds)
    leaves = lambda seed_index: jax.tree.leaves(reduced(seed_index))  # noqa: E731
    if batch is not None:
        return _sum_rows_by_point(leaves, seeds, batch, outputs)
    if seeds.count == 1:
        return leaves(seeds.first)
    return sum_over_seeds(lambda indices: [jnp.sum(a, axis=0) for a in jax.vmap(leaves)(indices)], seeds)


def _sum_rows_by_point(rows: Callable[..., Any], seeds: SeedRange, batch: int, outputs: int) -> Any:
    """Return the sum of the Jacobian's rows at each point, as one array of shape (batch, ...) per input."""
    if seeds.is_one_chunk and seeds.count == batch * outputs:
        by_seed = jax.vmap(rows)(seeds.indices)
        return [jnp.sum(a.reshape(batch, outputs, *a.shape[1:]), axis=1) for a in by_seed]

    def sum_chunk_by_point(indices: Any) -> list[Any]:
        zeros = lambda a: jnp.zeros((batch, *a.shape[1:]), a.dtype)  # noqa: E731
        return [zeros(a).at[indices // outputs].add(a, mode="drop") for a in jax.vmap(rows)(indices)]

    return sum_over_seeds(sum_chunk_by_point, seeds)
