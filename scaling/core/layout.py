"""Lay out a derivative over devices with `jit`, `shard_map` or `pmap`, and place its inputs.

Devices are a mesh of two axes, one over points and one over seeds, either of which may be one. Distribution
is only the question of which axis is partitioned, so the three apis differ in how the same function of one
device is wrapped. `lay_out` returns what to compile, with the shapes and shardings of its arguments, and
places nothing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from scaling.core import extensions
from scaling.core.case import Case, Refusal
from scaling.core.gather import gather_pieces, join_pieces
from scaling.core.inputs import point_rows, shared_input
from scaling.core.jacobian import DevicePosition, local_derivative
from scaling.core.shape import DerivativeShape, ceil_div, derivative_shape, input_structs, result_shape
from scaling.core.workload import Workload

# The axes of the mesh. pmap has the first alone, along which devices over seeds follow each other.
POINTS, SEEDS = "points", "seeds"
# Arguments that are no inputs begin with "+": the colours, the entries that a device reads, the first seed.
ENTRIES, START = "+entries", "+start"
Named = Mapping[str, Any]
OnDevice = Callable[[DevicePosition, Sequence[Any]], Any]


@dataclass(frozen=True)
class Program:
    """A function to compile, its abstract arguments by name, and how to gather its result.

    collect: result -> (points, outputs, inputs) on the host, see `shape.result_shape`. pieces: the same in
    arrays that follow each other along the inputs. given: the arguments that are no inputs, by name.
    """

    function: Callable[..., Any]
    arguments: Mapping[str, jax.ShapeDtypeStruct]
    collect: Callable[[Any], np.ndarray]
    pieces: Callable[[Any], list[np.ndarray]]
    sizes: DerivativeShape
    given: Mapping[str, np.ndarray] = field(default_factory=dict)


class _Argument(NamedTuple):
    """An argument: its shape on one device, its dtype, and how it is partitioned over the mesh."""

    shape: tuple[int, ...]
    dtype: Any
    spec: P = P()


def lay_out(
    case: Case,
    workload: Workload,
    devices: Sequence[Any],
    sizes: DerivativeShape | None = None,
    stepped: bool = False,
) -> Program:
    """Return the program of a case on these devices, as many as the case has.

    stepped: whether the number of its first seed is an argument, for a program that takes one step after
    another.
    """
    if len(devices) != case.devices:
        raise Refusal(f"the case wants {case.devices} devices and was given {len(devices)}")
    sizes = sizes or derivative_shape(case, workload)
    given: dict[str, np.ndarray] = {START: np.zeros((), np.int32)} if stepped else {}
    sparse = extensions.load("sparse") if sizes.coloring is not None else None
    if sparse is not None:
        entries = sparse.gather_indices(sizes, case.axes[1])
        given = entries.arguments | given
    arguments = _arguments(case, workload, given)
    on_device = _device_function(case, workload, sizes, list(arguments))
    wrap = {"jit": _wrap_jit, "shard_map": _wrap_shard_map, "pmap": _wrap_pmap}[case.api]
    function, structs = wrap(case, on_device, arguments, devices)
    leading = {"jit": 0, "pmap": 1, "shard_map": 2}[case.api]

    def pieces(result: Any) -> list[np.ndarray]:
        on_mesh = jax.tree.map(lambda x: np.asarray(x).reshape(*case.axes, *x.shape[leading:]), result)
        if sparse is not None:
            return [sparse.gather_entries(entries, result_shape(case, workload, sizes), on_mesh)]
        return gather_pieces(case, workload, sizes, on_mesh)

    def collect(result: Any) -> np.ndarray:
        return join_pieces(case, workload, sizes, pieces(result))

    return Program(function, structs, collect, pieces, sizes, given)


def _arguments(case: Case, workload: Workload, given: Named) -> dict[str, _Argument]:
    """Return the arguments by name: per-point inputs, shared inputs, and what a colouring or a step needs."""
    points, shared = input_structs(case, workload)
    each = ceil_div(case.points, case.axes[0])
    arguments = {name: _Argument((each, *x.shape[1:]), x.dtype, P(POINTS)) for name, x in points.items()}
    arguments |= {name: _Argument(x.shape, x.dtype) for name, x in shared.items()}
    for name, x in given.items():
        by_seeds = name.startswith(ENTRIES)
        arguments[name] = (
            _Argument((1, *x.shape[1:]), x.dtype, P(SEEDS)) if by_seeds else _Argument(x.shape, x.dtype)
        )
    return arguments


def _device_function(
    case: Case, workload: Workload, sizes: DerivativeShape, names: Sequence[str]
) -> OnDevice:
    """Return the function (position, arrays in the order of names) -> part of one device."""
    compute = local_derivative(case, workload, sizes)

    def on_device(here: DevicePosition, arrays: Sequence[Any]) -> Any:
        named = dict(zip(names, arrays, strict=True))
        here = here._replace(start=named.pop(START, 0))
        points = {name: named.pop(name) for name in workload.points}
        shared = {name: named.pop(name) for name in workload.shared}
        coloring = {
            name.removeprefix("+"): x[0] if name.startswith(ENTRIES) else x for name, x in named.items()
        }
        return compute(points, shared, coloring, here)

    return on_device


def _wrap_jit(
    case: Case, on_device: OnDevice, arguments: Mapping[str, _Argument], devices: Sequence[Any]
) -> tuple[Callable[..., Any], Named]:
    """Return the program on one device; it is not compiled with jit=false."""
    one = SingleDeviceSharding(devices[0])
    structs = {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=one) for name, x in arguments.items()}
    plain = lambda *arrays: on_device(DevicePosition(), arrays)  # noqa: E731
    return jax.jit(plain) if case.jit else plain, structs


def _wrap_shard_map(
    case: Case, on_device: OnDevice, arguments: Mapping[str, _Argument], devices: Sequence[Any]
) -> tuple[Callable[..., Any], Named]:
    """Return the program that runs the same function on every device of the mesh."""
    mesh = Mesh(np.array(devices).reshape(case.axes), (POINTS, SEEDS))

    def on_mesh(*arrays: Any) -> Any:
        here = DevicePosition(
            jax.lax.axis_index(POINTS), jax.lax.axis_index(SEEDS), 0, _sum_over_devices(case)
        )
        return jax.tree.map(lambda x: x[None, None], on_device(here, arrays))

    # The parts of the result are independent. Were JAX to check what is replicated, it would also all-reduce
    # the derivative by a replicated input, which is the whole Jacobian.
    specs = tuple(x.spec for x in arguments.values())
    mapped = jax.shard_map(on_mesh, mesh=mesh, in_specs=specs, out_specs=P(POINTS, SEEDS), check_vma=False)
    times = {P(POINTS): case.axes[0], P(SEEDS): case.axes[1], P(): 1}
    structs = {}
    for name, x in arguments.items():
        shape = (times[x.spec] * x.shape[0], *x.shape[1:]) if x.shape else ()
        structs[name] = jax.ShapeDtypeStruct(shape, x.dtype, sharding=NamedSharding(mesh, x.spec))
    return jax.jit(mapped), structs


def _wrap_pmap(
    case: Case, on_device: OnDevice, arguments: Mapping[str, _Argument], devices: Sequence[Any]
) -> tuple[Callable[..., Any], Named]:
    """Return the same program by pmap: devices are one axis, and shared inputs are repeated along it."""

    def on_axis(*arrays: Any) -> Any:
        device, b = jax.lax.axis_index(POINTS), case.axes[1]
        return on_device(DevicePosition(device // b, device % b, 0, _sum_over_devices(case)), arrays)

    sharding = NamedSharding(Mesh(np.array(devices), (POINTS,)), P(POINTS))
    structs = {
        name: jax.ShapeDtypeStruct((case.devices, *x.shape), x.dtype, sharding=sharding)
        for name, x in arguments.items()
    }
    return jax.pmap(on_axis, POINTS, devices=list(devices)), structs


def _sum_over_devices(case: Case) -> Callable[[Any], Any]:
    """Return the sum over all devices with split=data, otherwise the identity."""
    if case.split == "data" and case.devices > 1:
        return lambda tree: jax.lax.psum(tree, POINTS)
    return lambda tree: tree


def place_inputs(
    case: Case,
    workload: Workload,
    program: Program,
    host: Mapping[str, np.ndarray] | None = None,
    names: Iterable[str] | None = None,
) -> list[jax.Array]:
    """Place the arguments of a program on its devices; each device makes its own rows.

    host: per-point inputs that are on the host already, as many points as the case has.
    """
    wanted = program.arguments if names is None else names
    return [_place_one(case, workload, program, name, host) for name in wanted]


def _place_one(
    case: Case, workload: Workload, program: Program, name: str, host: Mapping[str, np.ndarray] | None
) -> jax.Array:
    """Place one argument of a program."""
    struct, b = program.arguments[name], case.axes[1]
    each = ceil_div(case.points, case.axes[0])

    def rows(start: int, stop: int) -> np.ndarray:
        """Return points; the last one is repeated as padding."""
        first, last = min(start, case.points - 1), min(stop, case.points)
        real = point_rows(case, workload, name, first, last) if host is None else host[name][first:last]
        missing = stop - start - len(real)
        return np.concatenate([real, np.repeat(real[-1:], missing, axis=0)]) if missing else real

    def whole() -> np.ndarray:
        return shared_input(case, workload, name) if name in workload.shared else program.given[name]

    def on_device(device: int) -> np.ndarray:
        if name in workload.points:
            return rows(device // b * each, (device // b + 1) * each)
        return whole()[device % b, None] if name.startswith(ENTRIES) else whole()

    def part(index: Any) -> np.ndarray:
        start, stop, _ = index[0].indices(struct.shape[0]) if index else (0, 1, 1)
        if case.api == "pmap":  # devices lead, and each has its own points, or all of a shared input
            return np.stack([on_device(device) for device in range(start, stop)])
        return rows(start, stop) if name in workload.points else np.asarray(whole()[index])

    if case.api == "jit":
        placed: jax.Array = jax.device_put(on_device(0), struct.sharding)
        return placed
    return jax.make_array_from_callback(struct.shape, struct.sharding, part)
