"""Lay out a derivative over devices with `jit`, `shard_map` or `pmap`.

Devices are a mesh of two axes, one over points and one over seeds, either of which may be one. Distribution
is only the question of which is cut, so the three apis differ in how the same local function is wrapped.
Returns what to compile, with the shapes and shardings of its arguments; never places or allocates anything.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from scaling.core import extensions, jacobian
from scaling.core.case import Case, Refusal
from scaling.core.gather import gather_pieces, gather_result
from scaling.core.pattern import GatherIndices
from scaling.core.shape import DerivativeShape, ceil_div, derivative_shape, input_structs
from scaling.core.slices import DevicePosition
from scaling.core.workload import Workload

POINTS, SEEDS = (
    "points",
    "seeds",
)  # the axes of the mesh; pmap has the first alone, along which devices over seeds follow each other
# Arguments that are no inputs, whose names have no "+": the entries that are read, one array a part; the
# first seed.
ENTRIES, START = "+entries", "+start"
Named = Mapping[str, Any]


@dataclass(frozen=True)
class Program:
    """A function to compile, the shapes, dtypes and shardings of its arguments by name, and how to gather its
    result.

    collect: result -> (points, outputs, inputs) on the host, as `shape.due` says; pieces: the same in arrays
    that follow each other along the inputs. given: the arguments that are no inputs, by
    name: what a colouring needs, and the first seed of a step.
    """

    function: Callable[..., Any]
    arguments: Mapping[str, jax.ShapeDtypeStruct]
    collect: Callable[[Any], np.ndarray]
    pieces: Callable[[Any], list[np.ndarray]]
    sizes: DerivativeShape
    given: Mapping[str, np.ndarray] = field(default_factory=dict)


def lay_out(
    case: Case,
    workload: Workload,
    devices: Sequence[Any],
    sizes: DerivativeShape | None = None,
    stepped: bool = False,
) -> Program:
    """Return the program of a case on these devices, as many as the case has.

    stepped: with the number of its first seed as an argument, for a program that takes one step after
    another.
    """
    if len(devices) != case.devices:
        raise Refusal(f"the case wants {case.devices} devices and was given {len(devices)}")
    sizes = sizes or derivative_shape(case, workload)
    colored = sizes.coloring is not None
    entries = extensions.load("sparse").gather_indices(sizes, case.axes[1]) if colored else None
    given = _given(sizes, entries) | ({START: np.zeros((), np.int32)} if stepped else {})
    points, shared = input_structs(case, workload)
    each = ceil_div(case.points, case.axes[0])
    points = {name: jax.ShapeDtypeStruct((each, *x.shape[1:]), x.dtype) for name, x in points.items()}
    arguments = _Arguments(points, shared, given)
    on_device = _device_function(jacobian.local_derivative(case, workload, sizes), arguments)
    wrap = {"jit": _jit, "shard_map": _shard_map, "pmap": _pmap}[case.api]
    wrapped, structs = wrap(case, on_device, arguments, devices)
    leading = {"jit": 0, "pmap": 1, "shard_map": 2}[case.api]

    def meshed(result: Any) -> Any:
        return jax.tree.map(lambda x: np.asarray(x).reshape(*case.axes, *x.shape[leading:]), result)

    return Program(
        wrapped,
        structs,
        lambda result: gather_result(case, workload, sizes, entries, meshed(result)),
        lambda result: gather_pieces(case, workload, sizes, entries, meshed(result)),
        sizes,
        given,
    )


@dataclass(frozen=True)
class _Arguments:
    """The arguments of one device by name: its points, the shared inputs, and what a colouring or a step
    needs.
    """

    points: Named
    shared: Named
    given: Named

    @property
    def local(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        """The shape and dtype of each argument on one device."""
        own = {
            name: (1, *x.shape[1:]) if name.startswith(ENTRIES) else x.shape for name, x in self.given.items()
        }
        everything = {**self.points, **self.shared, **self.given}
        return {name: (own.get(name, x.shape), x.dtype) for name, x in everything.items()}

    def spec(self, name: str) -> P:
        """Return how an argument is partitioned over the mesh."""
        return P(POINTS) if name in self.points else P(SEEDS) if name.startswith(ENTRIES) else P()


def _device_function(
    local: Callable[..., Any], arguments: _Arguments
) -> Callable[[DevicePosition, Sequence[Any]], Any]:
    """Return the function (position, arrays in order) -> part of one device."""
    names = [*arguments.points, *arguments.shared, *arguments.given]

    def on_device(here: DevicePosition, arrays: Sequence[Any]) -> Any:
        named = dict(zip(names, arrays, strict=True))
        coloring = {
            name.removeprefix("+"): named[name][0] if name.startswith(ENTRIES) else named[name]
            for name in arguments.given
            if name != START
        }
        points, shared = (
            {name: named[name] for name in group} for group in (arguments.points, arguments.shared)
        )
        return local(points, shared, coloring, here._replace(start=named.get(START, 0)))

    return on_device


def _given(sizes: DerivativeShape, entries: GatherIndices | None) -> dict[str, np.ndarray]:
    """Return the colours of columns and rows, and for each part the entries that each device over seeds
    reads.
    """
    if entries is None:
        return {}
    assert sizes.coloring is not None
    colors = {"columns": sizes.coloring.columns, "rows": sizes.coloring.rows}
    needed = {"columns" if part.columns else "rows" for part in sizes.parts}
    found = {
        f"+{name}": array.astype(np.int32)
        for name, array in colors.items()
        if name in needed and array is not None
    }
    return found | {f"{ENTRIES} {k}": at for k, at in enumerate(entries.at)}


def _jit(
    case: Case, on_device: Callable[..., Any], given: _Arguments, devices: Sequence[Any]
) -> tuple[Callable[..., Any], Named]:
    """Return the program on one device; it is not compiled with jit=false."""
    one = SingleDeviceSharding(devices[0])
    arguments = {
        name: jax.ShapeDtypeStruct(shape, dtype, sharding=one) for name, (shape, dtype) in given.local.items()
    }
    plain = lambda *arrays: on_device(DevicePosition(), arrays)  # noqa: E731
    return jax.jit(plain) if case.jit else plain, arguments


def _shard_map(
    case: Case, on_device: Callable[..., Any], given: _Arguments, devices: Sequence[Any]
) -> tuple[Callable[..., Any], Named]:
    """Return the program that runs the same function on every device of the mesh."""
    mesh = Mesh(np.array(devices).reshape(case.axes), (POINTS, SEEDS))

    def on_mesh(*arrays: Any) -> Any:
        here = DevicePosition(jax.lax.axis_index(POINTS), jax.lax.axis_index(SEEDS), 0, _over_all(case))
        return jax.tree.map(lambda x: x[None, None], on_device(here, arrays))

    # Every part of the result is its device's own. Were JAX to check what is replicated, it would also
    # all-reduce the derivative
    # by a replicated input, which is the whole Jacobian.
    specs = tuple(given.spec(name) for name in given.local)
    mapped = jax.shard_map(on_mesh, mesh=mesh, in_specs=specs, out_specs=P(POINTS, SEEDS), check_vma=False)
    many = {P(POINTS): case.axes[0], P(SEEDS): case.axes[1], P(): 1}
    arguments = {}
    for name, (own, dtype) in given.local.items():
        spec = given.spec(name)
        whole = (many[spec] * own[0], *own[1:]) if own else own
        arguments[name] = jax.ShapeDtypeStruct(whole, dtype, sharding=NamedSharding(mesh, spec))
    return jax.jit(mapped), arguments


def _over_all(case: Case) -> Callable[[Any], Any]:
    """Return the sum over all devices with split=data, otherwise the identity."""
    if case.split == "data" and case.devices > 1:
        return lambda tree: jax.lax.psum(tree, POINTS)
    return lambda tree: tree


def _pmap(
    case: Case, on_device: Callable[..., Any], given: _Arguments, devices: Sequence[Any]
) -> tuple[Callable[..., Any], Named]:
    """Return the same program by pmap: devices are one axis, and shared inputs are repeated along it."""

    def on_axis(*arrays: Any) -> Any:
        device = jax.lax.axis_index(POINTS)
        return on_device(
            DevicePosition(device // case.axes[1], device % case.axes[1], 0, _over_all(case)), arrays
        )

    sharding = NamedSharding(Mesh(np.array(devices), (POINTS,)), P(POINTS))
    stacked = {
        name: jax.ShapeDtypeStruct((case.devices, *shape), dtype, sharding=sharding)
        for name, (shape, dtype) in given.local.items()
    }
    return jax.pmap(on_axis, POINTS, devices=list(devices)), stacked
