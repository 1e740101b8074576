"""The derivative of a batch of points as one function of its inputs: what one device computes.

Linear maps are applied to its part of the seeds (slices.py), at its part of the points; collect.py puts the
parts together. Does not know meshes, devices or apis.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from scaling.core import extensions, seeds, slices
from scaling.core.case import Case
from scaling.core.reductions import REDUCTIONS
from scaling.core.shape import DerivativeShape
from scaling.core.slices import DevicePosition
from scaling.core.workload import Workload

Named = Mapping[str, Any]


def local_derivative(
    case: Case, workload: Workload, sizes: DerivativeShape
) -> Callable[[Named, Named, Named, DevicePosition], Any]:
    """Return the function (per-point inputs, shared inputs, coloring, position) -> part of this device.

    A seeded derivative is a tuple with an entry for each part; with coloured seeds, of the entries that this
    device reads.
    """

    def compute(points: Named, shared: Named, coloring: Named, here: DevicePosition) -> Any:
        with jax.default_matmul_precision(case.precision):
            if workload.reduction.sums_points:
                return _sum_over_points(case, workload, sizes, points, shared, here)
            return _derivatives(case, workload, sizes, points, shared, coloring, here)

    return compute


def _sum_over_points(
    case: Case, workload: Workload, sizes: DerivativeShape, points: Named, shared: Named, here: DevicePosition
) -> Any:
    """Return the value or the derivative of a sum over points."""
    if case.mode in workload.whole_modes:
        return here.over_all(workload.whole_modes[case.mode](**points, **shared))
    return extensions.load("data_parallel").sum_derivative(case, workload, sizes, points, shared, here)


def _derivatives(
    case: Case,
    workload: Workload,
    sizes: DerivativeShape,
    points: Named,
    shared: Named,
    coloring: Named,
    here: DevicePosition,
) -> Any:
    """Return the values or the derivatives of each point."""
    everything = {**points, **shared}
    if case.mode in workload.whole_modes:
        by_hand = workload.whole_modes[case.mode](**everything)
        return _reduce_whole(workload, sizes, by_hand, everything) if workload.left else by_hand
    if case.batch == "whole":
        assert workload.whole is not None
        if case.ad_mode.is_value:
            return workload.whole(**everything)
        return _jacobian(case, workload, sizes, workload.whole, everything, coloring, here)
    if case.ad_mode.is_value:
        return jax.vmap(lambda one: workload.function(**one, **shared))(points)

    def of_one(one: Named) -> tuple[Any, ...]:
        return _jacobian(case, workload, sizes, workload.function, {**one, **shared}, coloring, here)

    return (
        jax.vmap(of_one)(points) if case.block is None else jax.lax.map(of_one, points, batch_size=case.block)
    )


def _jacobian(
    case: Case,
    workload: Workload,
    sizes: DerivativeShape,
    function: Callable[..., Any],
    named: Named,
    coloring: Named,
    here: DevicePosition,
) -> tuple[Any, ...]:
    """Return this device's slices of one Jacobian, reduced, one entry for each part."""
    batch = case.points if case.batch == "whole" and not sizes.summed else None
    made = []
    for number, part in enumerate(sizes.parts):
        colors = coloring.get("columns" if part.columns else "rows")
        of = slices.linear_map(case, part, function, named, colors, here)
        if colors is not None:
            made.append(_entries(of, colors, coloring[f"entries {number}"]))
        elif part.columns:
            made.append(slices.reduce_columns(of, workload.reduction, batch, sizes.inputs))
        else:
            made.append(slices.reduce_rows(of, workload.reduction, batch, sizes.outputs))
    return tuple(made)


def _entries(of: slices.SeedMap, colors: Any, at: Any) -> Any:
    """Return the entries that this device reads off its slices: (entries,)."""
    compute = lambda: jax.tree.leaves(seeds.map_seeds(of.at, of.some))  # noqa: E731
    # XLA would compute the slices anew for each entry that is read off them; it does not see through a choice
    # that is none. On a
    # CPU, at 1e6 unknowns, four times the time of a derivative written by hand becomes two.
    nothing = [jnp.full(a.shape, jnp.nan, a.dtype) for a in jax.eval_shape(compute)]
    made = jax.lax.cond(colors[0] >= -1, compute, lambda: nothing)
    flat = (
        made[0] if len(made) == 1 else jnp.concatenate([a.reshape(of.some.count, -1) for a in made], axis=1)
    )
    return jnp.take(flat.reshape(-1), at, mode="clip")


def _reduce_whole(workload: Workload, sizes: DerivativeShape, by_hand: Any, named: Named) -> Any:
    """Return the reduction of Jacobians that the workload computes as a whole: (points, ...)."""
    assert workload.left is not None
    points = next(named[name].shape[0] for name in workload.points)
    leading = {name: named[name] if name in workload.points else named[name][None] for name in workload.names}
    rows = [jnp.broadcast_to(a.reshape(a.shape[0], -1), (points, a[0].size)) for a in leading.values()]
    J = by_hand.reshape(points, sizes.outputs, sizes.inputs)
    return REDUCTIONS[workload.left].of_jacobians(J, jnp.concatenate(rows, axis=1))
