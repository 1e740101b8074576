"""The shape of a derivative: its sizes, the linear maps that compute it, and the shape of the result.

All of it is found by abstract evaluation, before anything is compiled. Of meshes it knows only over how many
devices an axis is divided.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from scaling.core import user_frames
from scaling.core.case import SECOND, Case, Refusal, unknown_name
from scaling.core.modes import MODES, TANGENT
from scaling.core.pattern import Coloring
from scaling.core.workload import Workload

Named = Mapping[str, Any]


class TooLarge(Exception):
    """A case needs more memory than there is. needs: the bytes of a device, as a record has them."""

    def __init__(self, words: str, needs: Mapping[str, int | None] | None = None) -> None:
        super().__init__(words)
        self.needs = dict(needs or {})


@dataclass(frozen=True)
class LinearMapPart:
    """One linear map of a derivative: the inputs it differentiates by, and its number of seeds.

    along: its only seed is the point itself.
    """

    mode: str
    names: tuple[str, ...]
    seeds: int
    along: bool = False

    @property
    def columns(self) -> bool:
        """Whether seeds are tangents and slices columns; otherwise they are cotangents and rows."""
        return MODES[self.mode].seed == TANGENT


@dataclass(frozen=True)
class DerivativeShape:
    """The sizes of a derivative. A Hessian, the derivative of the gradient, has as many outputs as inputs.

    outputs, inputs: of one point, inputs those to differentiate by; 1 input for a Hessian times a vector.
    seeds: that the linear maps take; 0 for a whole mode. passes: JVPs and VJPs that these take.
    summed: whether the batch is one number, the sum over points.
    values: numbers that the function itself returns at one point.
    """

    outputs: int
    inputs: int
    seeds: int
    passes: int
    summed: bool
    values: int
    parts: tuple[LinearMapPart, ...] = ()
    coloring: Coloring | None = None


def input_structs(case: Case, workload: Workload) -> tuple[Named, Named]:
    """Return the shapes and dtypes of the per-point inputs, points leading, and of the shared ones."""
    dtype = lambda spec: jnp.dtype(jnp.int32 if spec.integer else case.dtype)  # noqa: E731
    points, shared = (
        {name: jax.ShapeDtypeStruct((*leading, *spec.shape), dtype(spec)) for name, spec in specs.items()}
        for specs, leading in ((workload.points, (case.points,)), (workload.shared, ()))
    )
    return points, shared


def point_structs(case: Case, workload: Workload) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes and dtypes of the inputs of one point."""
    points, shared = input_structs(case, workload)
    return {name: jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for name, x in points.items()} | dict(shared)


def derivative_shape(case: Case, workload: Workload, coloring: Coloring | None = None) -> DerivativeShape:
    """Return the sizes of the derivative of a case; refuse a function that cannot be evaluated.

    coloring: of a case whose seeds are coloured; without it the number of seeds is not known, and given as 0.
    """
    one = point_structs(case, workload)
    out = _evaluate_shape(case, workload.function, one)
    inputs = sum(one[name].size for name in workload.names)
    if not out.size or not inputs:
        words = f"has nothing to differentiate: {inputs} inputs, {out.size} outputs"
        raise Refusal(f"workload {case.workload!r} {words}")
    by, differentiated = one, out
    if case.batch == "whole" and workload.whole is not None:
        points, shared = input_structs(case, workload)
        by, batch = {**points, **shared}, (case.points, *out.shape)
        differentiated = _evaluate_shape(case, workload.whole, by)
        if differentiated.shape not in ((), batch):
            words = f"must return {batch} or one number, not {differentiated.shape}"
            raise Refusal(f"whole of {case.workload} {words}")
    summed = case.batch == "whole" and differentiated.shape == ()
    shape = DerivativeShape(out.size, inputs, 0, 0, summed, out.size, (), coloring)
    if case.target in SECOND:
        shape = dataclasses.replace(shape, outputs=inputs, inputs=inputs if case.target == "hessian" else 1)
    if not case.ad_mode.has_seeds or (case.seeds == "colored" and coloring is None):
        return shape
    parts = _linear_maps(
        case, workload, shape, {name: by[name].size for name in workload.names}, differentiated.size
    )
    shape = dataclasses.replace(shape, parts=parts, seeds=sum(part.seeds for part in parts))
    return dataclasses.replace(shape, passes=count_passes(case, workload, shape))


def _linear_maps(
    case: Case, workload: Workload, shape: DerivativeShape, by: Mapping[str, int], numbers: int
) -> tuple[LinearMapPart, ...]:
    """Return the linear maps of a seeded mode.

    by: the size of each input. numbers: the number of values of the function's result.
    """
    names, mode = workload.names, case.ad_mode
    forward, reverse = mode.parts or (mode.name, mode.name)
    if (coloring := shape.coloring) is not None:
        counts = ((forward, coloring.column_count), (reverse, coloring.row_count))
        return tuple(LinearMapPart(name, names, count) for name, count in counts if count)
    ahead = names if mode.seed == TANGENT or (mode.parts and len(names) == 1) else ()
    if mode.parts and len(names) > 1:
        ahead = forward_inputs(case, by)
    behind = tuple(name for name in names if name not in ahead)
    along = case.target == "hvp" or workload.reduction.along_point
    parts = []
    if ahead:
        parts.append(LinearMapPart(forward, ahead, 1 if along else sum(by[name] for name in ahead), along))
    if behind:
        single = workload.reduction.sums_points or mode.single_seed  # the derivative of one number
        parts.append(LinearMapPart(reverse, behind, 1 if single else numbers))
    return tuple(parts)


def forward_inputs(case: Case, by: Mapping[str, int]) -> tuple[str, ...]:
    """Return the inputs that mode=mixed differentiates forward: those of the case, or all but the largest."""
    if case.forward is None:
        largest = max(by, key=lambda name: by[name])
        return tuple(name for name in by if name != largest)
    named: list[str] = []
    for name in case.forward.split("+"):
        leaves = [each for each in by if each == name or each.startswith(f"{name}.")]
        if not leaves:
            raise unknown_name(f"input to take forward (forward), of wrt={case.wrt},", name, by)
        named += leaves
    if len(set(named)) == len(by) or len(set(named)) < len(named):
        words = "name some of these inputs, each once, and leave some to reverse mode"
        raise Refusal(f"forward={case.forward} of wrt={case.wrt}: {words}")
    return tuple(named)


def count_passes(case: Case, workload: Workload, sizes: DerivativeShape) -> int:
    """Return how many JVPs and VJPs a Jacobian takes.

    Products of columns that are divided over devices or chunks take every column again for each block.
    """
    if case.ad_mode.pass_per_output:
        return sizes.seeds * (sizes.outputs if case.target in SECOND else 1)
    b, here = case.axes[1], ceil_div(sizes.seeds, case.axes[1])
    chunk = case.chunk if isinstance(case.chunk, int) else here
    multiplied = workload.reduction.columns.products and sizes.parts[0].columns
    if not multiplied or (b == 1 and chunk >= here):
        return sizes.seeds
    return sizes.seeds * (1 + b * ceil_div(here, chunk))


def ceil_div(count: int, devices: int) -> int:
    """Return count / devices, rounded up."""
    return -(-count // devices)


def padding_share(case: Case, sizes: DerivativeShape) -> float | None:
    """Return the share of points x seeds that is padding; None where both divide evenly by definition."""
    if case.split != "both" and sizes.coloring is None:
        return None
    a, b = case.axes
    asked = case.points * max(sizes.seeds, 1)
    computed = a * ceil_div(case.points, a) * b * max(sum(ceil_div(part.seeds, b) for part in sizes.parts), 1)
    return 1 - asked / computed


def result_shape(case: Case, workload: Workload, sizes: DerivativeShape) -> tuple[int, int, int]:
    """Return the shape of the result on the host, after the reduction: (points, outputs, inputs).

    The sum of a value over the points is (1, 1, 1). A sum over points is one for all, or with split=data one
    copy for each device. Coloured: (points, 1, entries of the pattern).
    """
    value = case.ad_mode.is_value
    if workload.reduction.sums_points:
        return case.devices if case.split == "data" else 1, 1, 1 if value else sizes.inputs
    if value:
        return (1, 1, 1) if sizes.summed else (case.points, sizes.outputs, 1)
    if case.seeds == "colored":
        if sizes.coloring is not None:
            return case.points, 1, int(sizes.coloring.pattern.rows.size)
        assert workload.pattern is not None
        return case.points, 1, int(workload.pattern()[0].size)
    return case.points, *workload.reduction.shape(1 if sizes.summed else sizes.outputs, sizes.inputs)


def _evaluate_shape(case: Case, function: Callable[..., Any], named: Named) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of a function's result.

    Refuse a function that fails or does not return real numbers.
    """
    try:
        out = jax.eval_shape(lambda named: function(**named), dict(named))
    except Refusal:
        raise
    except (MemoryError, OverflowError) as error:
        wanted = getattr(error, "_total_size", 0)  # of an array of NumPy's
        host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if isinstance(error, MemoryError) and wanted < host:
            raise  # the host's memory ran out
        words = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise TooLarge(f"the function of {case.workload} cannot be evaluated: {words}") from None
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        place = user_frames.innermost_location(error)
        where = f" ({place})" if place else ""
        traced = (
            "fails on abstract inputs (JAX traces it with arrays that have a shape and a dtype, "
            "but no values)"
        )
        words = f"{traced}: {type(error).__name__}: {first}{where}"
        raise Refusal(f"workload {case.workload!r} {words}") from None
    if not isinstance(out, jax.ShapeDtypeStruct) or not jnp.issubdtype(out.dtype, jnp.floating):
        found = f"numbers of dtype {out.dtype}" if isinstance(out, jax.ShapeDtypeStruct) else repr(out)
        words = f"must return an array of real numbers, or a pytree of them, not {found}"
        raise Refusal(f"workload {case.workload!r} {words}")
    return out
