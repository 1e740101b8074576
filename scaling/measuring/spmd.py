"""Programs: a derivative laid out over devices by `jit`, `shard_map` or `pmap`.

Distribution is only the question of which axis is cut, so the three apis differ in how the same local function is wrapped.
Returns what to compile, with the shapes and shardings of its arguments; never places or allocates anything.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from scaling.case import Case, Refusal
from scaling.measuring import derivative
from scaling.measuring.derivative import Named
from scaling.workload import Workload

AXIS = "shard"  # the one axis of the mesh


@dataclass(frozen=True)
class Program:
    """A function of positional arrays to compile, those arrays' shapes, dtypes and shardings by name, and how to read the result.

    collect: result -> (points, outputs, inputs) on the host, as `derivative.collect` says.
    """

    function: Callable[..., Any]
    arguments: Mapping[str, jax.ShapeDtypeStruct]
    collect: Callable[[Any], np.ndarray]
    sizes: derivative.Shape


def program(case: Case, workload: Workload, devices: Sequence[Any]) -> Program:
    """The program of a case on these devices, of which there must be as many as the case says."""
    if len(devices) != case.devices:
        raise Refusal(f"the case wants {case.devices} devices and was given {len(devices)}")
    sizes = derivative.shape(case, workload)
    local = derivative.local(case, workload, sizes)
    cut = derivative.cut_axis(case, workload, sizes)
    points, shared = derivative.inputs(case, workload)
    seeds_here = sizes.seeds // case.devices if case.split == "seeds" else 0

    def on_device(*arrays: Any) -> Any:
        named = dict(zip([*points, *shared], arrays, strict=True))
        first_seed = jax.lax.axis_index(AXIS) * seeds_here if seeds_here else 0
        return local({name: named[name] for name in points}, {name: named[name] for name in shared}, first_seed)

    wrapped, arguments = {"jit": _jit, "shard_map": _shard_map, "pmap": _pmap}[case.api](
        case, on_device, points, shared, cut, devices
    )

    def collect(result: Any) -> np.ndarray:
        if case.api == "pmap":
            result = [_merge(np.asarray(part), cut) for part in jax.tree.leaves(result)]
        return derivative.collect(case, workload, sizes, result)

    return Program(wrapped, arguments, collect, sizes)


def _jit(
    case: Case, on_device: Callable, points: Named, shared: Named, cut: int, devices: Sequence[Any]
) -> tuple[Callable, Named]:
    """The plain program on one device; left uncompiled where the case says so."""
    return jax.jit(on_device) if case.jit else on_device, _placed({**points, **shared}, SingleDeviceSharding(devices[0]))


def _shard_map(
    case: Case, on_device: Callable, points: Named, shared: Named, cut: int, devices: Sequence[Any]
) -> tuple[Callable, Named]:
    """The same function on every device of a mesh of one axis."""
    mesh = Mesh(np.array(devices), (AXIS,))
    spec = P(AXIS) if case.split == "points" else P()
    specs = tuple([spec] * len(points) + [P()] * len(shared))
    # Every part of the result is its device's own. Were JAX to check what is replicated, it would also all-reduce the derivative
    # by a replicated input, which is the whole Jacobian.
    mapped = jax.shard_map(on_device, mesh=mesh, in_specs=specs, out_specs=P(*[None] * cut, AXIS), check_vma=False)
    return jax.jit(mapped), _placed(points, NamedSharding(mesh, spec)) | _placed(shared, NamedSharding(mesh, P()))


def _pmap(
    case: Case, on_device: Callable, points: Named, shared: Named, cut: int, devices: Sequence[Any]
) -> tuple[Callable, Named]:
    """The same again, by the older api: devices are an axis of their own, and what they share is repeated along it."""
    rows = case.points // (case.devices if case.split == "points" else 1)
    shapes = {name: (rows, *x.shape[1:]) for name, x in points.items()} | {name: x.shape for name, x in shared.items()}
    stacked = {name: jax.ShapeDtypeStruct((case.devices, *shapes[name]), x.dtype) for name, x in {**points, **shared}.items()}
    mapped = jax.pmap(on_device, AXIS, out_axes=cut, devices=list(devices))
    return mapped, _placed(stacked, NamedSharding(Mesh(np.array(devices), (AXIS,)), P(AXIS)))


def _placed(inputs: Named, sharding: jax.sharding.Sharding) -> dict[str, jax.ShapeDtypeStruct]:
    return {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding) for name, x in inputs.items()}


def _merge(part: np.ndarray, axis: int) -> np.ndarray:
    """(..., devices, here, ...) -> (..., devices * here, ...) at `axis`."""
    return part.reshape(*part.shape[:axis], -1, *part.shape[axis + 2 :])
