"""The shape of a derivative: its sizes, the linear maps that compute it, and the shape of the result.

Everything here is known before anything is built, by abstract evaluation. Does not know meshes beyond how
many devices an axis is cut over.
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
from scaling.core.modes import COTANGENT, MODES, TANGENT
from scaling.core.pattern import Coloring
from scaling.core.workload import InputSpec, Workload

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
    """The sizes of a derivative. A Hessian has as many outputs as inputs: it is the derivative of the
    gradient."""

    outputs: int  # of one point
    inputs: int  # of one point, those that the derivative is by; 1 for a Hessian times a vector
    seeds: int  # that its linear maps take; 0 for a whole mode
    passes: int  # JVPs and VJPs that these take
    summed: bool  # the batch is one number, the sum over points
    values: int  # numbers that the function itself gives at one point
    parts: tuple[LinearMapPart, ...] = ()
    coloring: Coloring | None = None


def input_structs(case: Case, workload: Workload) -> tuple[Named, Named]:
    """Return the shapes and dtypes of the per-point inputs, points leading, and of the shared ones."""

    def struct(draw: InputSpec, *leading: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(
            (*leading, *draw.shape), jnp.int32 if draw.integer else jnp.dtype(case.dtype)
        )

    points = {name: struct(draw, case.points) for name, draw in workload.points.items()}
    return points, {name: struct(draw) for name, draw in workload.shared.items()}


def point_structs(case: Case, workload: Workload) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes and dtypes of the inputs of one point."""
    points, shared = input_structs(case, workload)
    return {name: jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for name, x in points.items()} | dict(shared)


def derivative_shape(case: Case, workload: Workload, coloring: Coloring | None = None) -> DerivativeShape:
    """Return the sizes of the derivative of a case; refuse a function that cannot be evaluated.

    coloring: of a case whose seeds are coloured; without it, how many they are is not known, and said to be
    none.
    """
    one = point_structs(case, workload)
    out = _abstract(case, workload.function, one)
    columns = sum(one[name].size for name in workload.names)
    if not out.size or not columns:
        raise Refusal(
            f"workload {case.workload!r} has nothing to differentiate: {columns} inputs, {out.size} outputs"
        )
    differentiated, by = out, one
    if case.batch == "whole" and workload.whole is not None:
        points, shared = input_structs(case, workload)
        by = {**points, **shared}
        differentiated = _abstract(case, workload.whole, by)
        if differentiated.shape not in ((), (case.points, *out.shape)):
            raise Refusal(
                f"whole of {case.workload} must return {(case.points, *out.shape)} or one number, not {differentiated.shape}"
            )
    summed = case.batch == "whole" and differentiated.shape == () != (case.points, *out.shape)
    found = DerivativeShape(out.size, columns, 0, 0, summed, out.size, (), coloring)
    if case.target in SECOND:
        found = dataclasses.replace(found, outputs=columns, inputs=columns if case.target == "hessian" else 1)
    if not case.ad_mode.has_seeds or (case.seeds == "colored" and coloring is None):
        return found
    parts = _parts(
        case, workload, found, {name: by[name].size for name in workload.names}, differentiated.size
    )
    found = dataclasses.replace(found, parts=parts, seeds=sum(part.seeds for part in parts))
    return dataclasses.replace(found, passes=count_passes(case, workload, found))


def _parts(
    case: Case, workload: Workload, sizes: DerivativeShape, by: Mapping[str, int], outputs: int
) -> tuple[LinearMapPart, ...]:
    """Return the linear maps of a seeded mode. by: the size of each input; outputs: how many numbers are
    differentiated.
    """
    names, mode = workload.names, case.ad_mode
    if sizes.coloring is not None:
        column_mode, row_mode = mode.parts or (case.mode, case.mode)
        parts = (
            LinearMapPart(column_mode, names, sizes.coloring.column_count),
            LinearMapPart(row_mode, names, sizes.coloring.row_count),
        )
        return tuple(part for part in parts if part.seeds)
    if mode.parts and len(names) > 1:
        ahead = forward_inputs(case, by)
        back = tuple(name for name in names if name not in ahead)
        halves: tuple[LinearMapPart, ...] = (
            LinearMapPart(mode.parts[0], ahead, sum(by[name] for name in ahead)),
            LinearMapPart(mode.parts[1], back, outputs),
        )
    else:
        columns = mode.seed != COTANGENT
        single = mode.parts[0] if mode.parts else case.mode
        halves = (LinearMapPart(single, names, sum(by.values()) if columns else outputs),)
    if case.target == "hvp" or workload.reduction.along_point:
        halves = tuple(
            dataclasses.replace(part, seeds=1, along=True) if part.columns else part for part in halves
        )
    if workload.reduction.sums_points or mode.single_seed:  # of one number
        halves = tuple(part if part.columns else dataclasses.replace(part, seeds=1) for part in halves)
    return halves


def forward_inputs(case: Case, by: Mapping[str, int]) -> tuple[str, ...]:
    """Return the inputs that mode=mixed differentiates forward: those that the case names, or all but the
    largest.
    """
    if case.forward is None:
        largest = max(by, key=lambda name: by[name])
        return tuple(name for name in by if name != largest)
    named: tuple[str, ...] = ()
    for name in case.forward.split("+"):
        leaves = tuple(each for each in by if each == name or each.startswith(f"{name}."))
        if not leaves:
            raise unknown_name(f"input to take forward (forward), of wrt={case.wrt},", name, by)
        named += leaves
    if len(set(named)) in (0, len(by)) or len(set(named)) < len(named):
        raise Refusal(
            f"forward={case.forward} of wrt={case.wrt}: name some of these inputs, each once, and leave some to reverse mode"
        )
    return named


def count_passes(case: Case, workload: Workload, sizes: DerivativeShape) -> int:
    """Return how many JVPs and VJPs a Jacobian takes. Products of columns take every column again for each
    block.
    """
    if case.ad_mode.pass_per_output:
        return sizes.seeds * (sizes.outputs if case.target in SECOND else 1)
    b, here = case.axes[1], ceil_div(sizes.seeds, case.axes[1])
    if (
        not workload.reduction.columns.products
        or not sizes.parts[0].columns
        or (b == 1 and not is_chunked(case, here))
    ):
        return sizes.seeds
    blocks = ceil_div(here, case.chunk) if isinstance(case.chunk, int) else 1
    return sizes.seeds * (1 + b * blocks)


def ceil_div(count: int, devices: int) -> int:
    """Return count / devices, rounded up."""
    return -(-count // devices)


def is_chunked(case: Case, here: int) -> bool:
    """Return whether a device takes its seeds in several chunks."""
    return isinstance(case.chunk, int) and case.chunk < here


def padding_share(case: Case, sizes: DerivativeShape) -> float | None:
    """Return the share of points x seeds that is padding; None where both divide evenly by definition."""
    if case.split != "both" and sizes.coloring is None:
        return None
    a, b = case.axes
    asked = case.points * max(sizes.seeds, 1)
    computed = a * ceil_div(case.points, a) * b * max(sum(ceil_div(part.seeds, b) for part in sizes.parts), 1)
    return 1 - asked / computed


def without_trivial_blocks(case: Case, sizes: DerivativeShape) -> Case:
    """Return the case without a `chunk` or `block` that takes all that a device has, which is the same
    program.
    """
    a, b = case.axes
    if (
        isinstance(case.chunk, int)
        and sizes.parts
        and case.chunk >= max(ceil_div(part.seeds, b) for part in sizes.parts)
    ):
        case = dataclasses.replace(case, chunk=None)
    if case.block is not None and case.block >= ceil_div(case.points, a) and case.storage != "host":
        case = dataclasses.replace(case, block=None)
    return case


def result_shape(case: Case, workload: Workload, sizes: DerivativeShape) -> tuple[int, int, int]:
    """Return the shape of the result on the host, (points, outputs, inputs), after the reduction; inputs is 1
    for a value.

    One number, the sum of a value over the points, is (1, 1, 1). A sum over points is there once, or with
    split=data once for each device. Coloured: (points, 1, entries of the pattern).
    """
    value = case.ad_mode.is_value
    if workload.reduction.sums_points:
        return case.devices if case.split == "data" else 1, 1, 1 if value else sizes.inputs
    if value:
        return (1, 1, 1) if sizes.summed else (case.points, sizes.outputs, 1)
    if case.seeds == "colored":
        return case.points, 1, result_entries(workload, sizes)
    return case.points, *workload.reduction.shape(1 if sizes.summed else sizes.outputs, sizes.inputs)


def result_entries(workload: Workload, sizes: DerivativeShape) -> int:
    """Return how many entries the pattern has, detected or known by hand."""
    if sizes.coloring is not None:
        return int(sizes.coloring.pattern.rows.size)
    assert workload.pattern is not None
    return int(workload.pattern()[0].size)


def _abstract(case: Case, function: Callable[..., Any], named: Named) -> jax.ShapeDtypeStruct:
    try:
        out = jax.eval_shape(lambda named: function(**named), dict(named))
    except Refusal:
        raise
    except (MemoryError, OverflowError) as error:
        asked = getattr(error, "_total_size", 0)  # of an array of NumPy's
        if isinstance(error, MemoryError) and asked < os.sysconf("SC_PHYS_PAGES") * os.sysconf(
            "SC_PAGE_SIZE"
        ):
            raise  # the host's memory ran out
        words = " ".join(str(error).split())
        raise TooLarge(
            f"the function of {case.workload} cannot be evaluated: {type(error).__name__}: {words}"
        ) from None
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        place = user_frames.place(error)
        where = f" ({place})" if place else ""
        traced = "fails on abstract inputs (JAX traces it with arrays that have a shape and a dtype, but no values)"
        raise Refusal(
            f"workload {case.workload!r} {traced}: {type(error).__name__}: {first}{where}"
        ) from None
    if not isinstance(out, jax.ShapeDtypeStruct) or not jnp.issubdtype(out.dtype, jnp.floating):
        found = f"numbers of dtype {out.dtype}" if isinstance(out, jax.ShapeDtypeStruct) else repr(out)
        raise Refusal(
            f"workload {case.workload!r} must return an array of real numbers, or a pytree of them, not {found}"
        )
    return out
