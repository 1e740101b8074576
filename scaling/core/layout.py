"""Partition a case over a device mesh with `jit` or `shard_map` (`Program`), place arrays, gather results.

The devices form a mesh with two axes, points (batch elements) and seeds (tangents or cotangents). Each device
runs the same function. Before a result is gathered, its arrays have the two mesh axes as leading axes.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import jit  # bound here, because a user's module may replace it
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from scaling.core import load_option
from scaling.core.case import POINTS, SEEDS, Case, Refusal
from scaling.core.derivative import Derivative, DevicePosition, LinearMapPart, ceil_div, local_derivative
from scaling.core.inputs import input_structs, point_rows, shared_input
from scaling.core.workload import Workload, join_blocks

# The names of the arguments that are not inputs: the colors and the positions of each linear map
# (`DevicePosition.colorings`), and the index of the first seed. The name of an input contains no "+".
COLORS, POSITIONS, START = "+colors", "+positions", "+start"
OnDevice = Callable[[DevicePosition, Sequence[Any]], Any]
Pieces = list[np.ndarray]  # arrays on the host, to concatenate along the last axis


@dataclass(frozen=True)
class Program:
    """A JAX function to compile, with its abstract arguments and functions that gather its result."""

    derivative: Derivative  # the derivative that the function computes
    function: Callable[..., Any]  # the function to compile, which runs on all devices of the case
    arguments: Mapping[str, jax.ShapeDtypeStruct]  # the abstract arguments by name, in order
    collect: Callable[[Any], np.ndarray]  # the function that copies a result to the host as one array
    pieces: Callable[[Any], Pieces]  # the function that copies a result to the host as several arrays
    seed_arguments: Mapping[str, np.ndarray]  # the values of the arguments that are not inputs


class Argument(NamedTuple):
    """The shape, dtype and partitioning of an array argument of the function that each device runs."""

    shape: tuple[int, ...]  # the shape on one device
    dtype: Any
    spec: P = P()  # the mesh axis that partitions the array, or P() for a copy on each device


def lay_out(derivative: Derivative, devices: Sequence[Any], has_start: bool = False) -> Program:
    """Return the `Program` that computes a derivative on `devices`.

    If `has_start` is true, the last argument of the program is the index of the first seed.
    """
    case = derivative.case
    if len(devices) != case.devices:
        raise Refusal(f"the case needs {case.devices} devices, not {len(devices)}")
    seed_arguments: dict[str, np.ndarray] = {START: np.zeros((), np.int32)} if has_start else {}
    nonzero_indices = None
    if derivative.coloring is not None:
        nonzero_indices = load_option("sparse_jacobians").compute_nonzero_indices(derivative)
        seed_arguments = nonzero_indices.arguments | seed_arguments
    arguments = _program_arguments(derivative, seed_arguments)
    on_device = _device_function(derivative, list(arguments))
    wrappers = {"jit": (_wrap_jit, 0), "shard_map": (_wrap_shard_map, 2)}  # 0, 2: the mesh axes of a result
    wrap, mesh_axes = wrappers.get(case.api) or (load_option("pmap").wrap_in_pmap, 1)
    function, structs = wrap(case, on_device, arguments, devices)
    host_shape = derivative.result_shape

    def pieces(result: Any) -> Pieces:
        split_axes = lambda x: np.asarray(x).reshape(*case.mesh_shape, *x.shape[mesh_axes:])  # noqa: E731
        on_mesh = jax.tree.map(split_axes, result)
        if nonzero_indices is not None:
            return [load_option("sparse_jacobians").gather_nonzeros(nonzero_indices, host_shape, on_mesh)]
        return _gather_pieces(derivative, on_mesh)

    def collect(result: Any) -> np.ndarray:
        arrays = pieces(result)
        return (arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=2)).reshape(host_shape)

    return Program(derivative, function, structs, collect, pieces, seed_arguments)


def _program_arguments(derivative: Derivative, seed_arguments: Mapping[str, Any]) -> dict[str, Argument]:
    case = derivative.case
    points, shared = input_structs(case, derivative.workload)
    per_device = ceil_div(case.points, case.mesh_shape[0])
    arguments = {name: Argument((per_device, *x.shape[1:]), x.dtype, P(POINTS)) for name, x in points.items()}
    arguments |= {name: Argument(x.shape, x.dtype) for name, x in shared.items()}
    for name, x in seed_arguments.items():
        arguments[name] = Argument(x.shape, x.dtype)
        if name.startswith(POSITIONS):
            arguments[name] = Argument((1, *x.shape[1:]), x.dtype, P(SEEDS))  # each device has one row
    return arguments


def _device_function(derivative: Derivative, names: list[str]) -> OnDevice:
    """Return a function f(position, arrays) that computes one device's part of the derivative."""
    compute, workload = local_derivative(derivative), derivative.workload

    def on_device(position: DevicePosition, arrays: Sequence[Any]) -> Any:
        named = dict(zip(names, arrays, strict=True))
        points = {name: named[name] for name in workload.points}
        shared = {name: named[name] for name in workload.shared}
        colorings = [
            (named[f"{COLORS} {number}"], named[f"{POSITIONS} {number}"][0])  # a device has one row
            for number in range(len(derivative.parts) if derivative.coloring is not None else 0)
        ]
        first_seed = named.get(START, 0)
        return compute(points, shared, position._replace(first_seed=first_seed, colorings=colorings))

    return on_device


def _wrap_jit(
    case: Case, on_device: OnDevice, arguments: Mapping[str, Argument], devices: Sequence[Any]
) -> tuple[Callable[..., Any], Mapping[str, Any]]:
    device = SingleDeviceSharding(devices[0])
    structs = {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device) for name, x in arguments.items()}
    on_single_device = lambda *arrays: on_device(DevicePosition(), arrays)  # noqa: E731
    return jit(on_single_device) if case.jit else on_single_device, structs


def _wrap_shard_map(
    case: Case, on_device: OnDevice, arguments: Mapping[str, Argument], devices: Sequence[Any]
) -> tuple[Callable[..., Any], Mapping[str, Any]]:
    mesh = Mesh(np.array(devices).reshape(case.mesh_shape), (POINTS, SEEDS))

    def on_mesh(*arrays: Any) -> Any:
        position = DevicePosition(jax.lax.axis_index(POINTS), jax.lax.axis_index(SEEDS))
        return jax.tree.map(lambda x: x[None, None], on_device(position, arrays))

    # With check_vma=True, JAX would all-reduce the whole Jacobian, a derivative with respect to a replicated
    # input. The results of the devices are independent.
    specs = tuple(x.spec for x in arguments.values())
    mapped = jax.shard_map(on_mesh, mesh=mesh, in_specs=specs, out_specs=P(POINTS, SEEDS), check_vma=False)
    shards = {P(POINTS): case.mesh_shape[0], P(SEEDS): case.mesh_shape[1], P(): 1}
    structs = {}
    for name, x in arguments.items():
        shape = (shards[x.spec] * x.shape[0], *x.shape[1:]) if x.shape else ()
        structs[name] = jax.ShapeDtypeStruct(shape, x.dtype, sharding=NamedSharding(mesh, x.spec))
    return jit(mapped), structs


def place_inputs(
    program: Program, host: Mapping[str, np.ndarray] | None = None, names: Iterable[str] | None = None
) -> list[jax.Array]:
    """Copy the arguments of a program to its devices, and return them as JAX arrays.

    `names` lists the arguments to copy, by default all. `host` maps the names of per-point inputs to arrays.
    If it is None, these inputs are generated.
    """
    names = program.arguments if names is None else names
    return [_place_argument(program, name, host) for name in names]


def _place_argument(program: Program, name: str, host: Mapping[str, np.ndarray] | None) -> Any:
    case, workload = program.derivative.case, program.derivative.workload
    struct, count = program.arguments[name], ceil_div(case.points, case.mesh_shape[0])

    def value_on(point_index: int, seed_index: int) -> np.ndarray:
        """Return the value of the argument for the device at this position in the mesh."""
        if name in workload.shared:
            return shared_input(case, workload, name)
        if name not in workload.points:
            seed_argument = program.seed_arguments[name]
            return seed_argument[seed_index, None] if name.startswith(POSITIONS) else seed_argument
        start, stop = min(point_index * count, case.points - 1), min((point_index + 1) * count, case.points)
        rows = point_rows(case, workload, name, start, stop) if host is None else host[name][start:stop]
        padding = count - len(rows)
        return np.concatenate([rows, np.repeat(rows[-1:], padding, axis=0)]) if padding else rows

    def shard(index: Any) -> np.ndarray:
        start = (index[0].start or 0) if index else 0  # of the part of the array that one device has
        if case.api == "pmap":  # all devices form the first axis
            return value_on(*divmod(start, case.mesh_shape[1]))[None]
        return value_on(start // count, start)

    if case.api == "jit":
        return jax.device_put(value_on(0, 0), struct.sharding)
    return jax.make_array_from_callback(struct.shape, struct.sharding, shard)


def _gather_pieces(derivative: Derivative, result: Any) -> Pieces:
    """Return a result without padding, as a list of NumPy arrays to concatenate along the last axis."""
    workload = derivative.workload
    if not derivative.case.ad_mode.has_seeds or derivative.case.mode in workload.whole_modes:
        return [_gather_unseeded(derivative, result)]
    gathered: Pieces = []
    for part, arrays in zip(derivative.parts, result, strict=True):
        gathered += _gather_part(derivative, part, jax.tree.leaves(arrays))
    if len(derivative.parts) == 1:
        return gathered
    if not workload.reduction.linear_in_inputs:  # such as a norm: all parts contribute to each element
        return [np.sum(gathered, axis=0)]
    names = [name for part in derivative.parts for name in part.names]  # not in the order of the workload
    by_name = dict(zip(names, gathered, strict=True))
    return [by_name[name] for name in workload.names]


def _gather_unseeded(derivative: Derivative, result: Any) -> np.ndarray:
    case, shape = derivative.case, derivative.result_shape

    def gather(x: np.ndarray) -> Any:
        if derivative.workload.reduction.sums_points:
            return load_option("data_parallel").sum_over_point_devices(case, x)
        if case.ad_mode.is_value and shape == (1, 1, 1):
            return x.reshape(-1)[:1]
        return x.reshape(x.shape[0] * x.shape[2], -1)[: shape[0]]

    x: np.ndarray = join_blocks(case, derivative.workload, jax.tree.map(gather, result))
    if x.size != math.prod(shape):
        raise Refusal(f"{case.mode} of {case.workload} returns {x.shape}, where {shape} is expected")
    return x.reshape(shape)


def _gather_part(derivative: Derivative, part: LinearMapPart, arrays: Pieces) -> Pieces:
    """Return the columns or rows that one linear map computes, without padding, as a list of arrays."""
    case, workload, reduction = derivative.case, derivative.workload, derivative.workload.reduction
    if reduction.sums_points:
        return list(load_option("data_parallel").gather_sums(case, workload, part, arrays))
    if part.along or is_summed_on_host(workload, part):
        return _gather_sums(case, workload, part, arrays)
    if derivative.summed:  # the gradient of a scalar function of the batch
        if part.computes_columns:  # the seeds are sorted by input, then by point
            arrays = split_inputs(workload, part, arrays[0].reshape(-1)[: part.seeds], case.points)
        else:  # the first device has the only seed
            arrays = [x[:, 0] for x in arrays]
        return [x.reshape(case.points, 1, -1) for x in arrays]
    seeds = case.mesh_shape[1] * ceil_div(part.seeds, case.mesh_shape[1])  # with padding
    if not part.computes_columns and case.batch == "whole":  # one seed for each output of each point
        rows = [x.reshape(seeds, -1)[: part.seeds] for x in arrays]
        return [x.reshape(case.points, derivative.outputs, -1) for x in rows]
    if not part.computes_columns or reduction.columns.products:
        rows = [_merge_point_axes(case, np.moveaxis(x, 1, 2)) for x in arrays]
        return [x.reshape(case.points, seeds, -1)[:, : part.seeds] for x in rows]
    x = arrays[0].reshape(*arrays[0].shape[:3], -1, seeds // case.mesh_shape[1])
    columns = _merge_point_axes(case, np.moveaxis(x, 1, 3)).reshape(case.points, -1, seeds)
    columns = columns[:, :, : part.seeds]
    if reduction.linear_in_inputs and part.names != workload.names:
        return split_inputs(workload, part, columns)
    return [columns]


def _gather_sums(case: Case, workload: Workload, part: LinearMapPart, arrays: Pieces) -> Pieces:
    """Add the partial results of the devices, and return arrays with a leading axis of points."""
    is_total = part.along or case.mesh_shape[1] == 1
    sums = [x[:, 0] if is_total else x.astype(np.float64).sum(axis=1) for x in arrays]
    sums = [_merge_point_axes(case, x) for x in sums]
    if part.computes_columns or not workload.reduction.linear_in_inputs:
        return [sums[0].reshape(case.points, -1, 1)]
    return [x.reshape(case.points, 1, -1) for x in sums]  # one array for each input


def is_summed_on_host(workload: Workload, part: LinearMapPart) -> bool:
    """Return whether the host adds the results of the devices, which sum over their own seeds only."""
    step = workload.reduction.columns if part.computes_columns else workload.reduction.rows
    return not part.along and step.sums_seeds


def _merge_point_axes(case: Case, x: np.ndarray) -> np.ndarray:
    """Merge the first two axes of `x`, (devices, points per device), and remove the padding points."""
    return x.reshape(-1, *x.shape[2:])[: case.points]


def split_inputs(workload: Workload, part: LinearMapPart, columns: np.ndarray, points: int = 1) -> Pieces:
    """Split `columns` along its last axis into one array for each input of `part`.

    An input has `points` columns for each of its elements.
    """
    ends = np.cumsum([points * math.prod(workload.inputs[name].shape) for name in part.names])
    return np.split(columns, ends[:-1], axis=-1)
