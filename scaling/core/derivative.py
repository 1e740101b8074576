"""Describe the derivative of a case (`Derivative`): count its outputs, inputs, seeds and linear maps.

The derivative is not computed: functions are evaluated with abstract arrays, without devices.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scaling.core import load_option
from scaling.core.case import LAPLACIAN, SECOND, Case, Refusal
from scaling.core.formatting import innermost_location
from scaling.core.modes import BOTH, MODES, TANGENT
from scaling.core.workload import InputSpec, Workload

NamedArrays = Mapping[str, Any]  # arrays or abstract arrays by name


class TooLarge(Exception):
    """An exception for a case that needs too much memory. `needs` is a dict from record field to bytes."""

    def __init__(self, text: str, needs: Mapping[str, int | None] | None = None) -> None:
        super().__init__(text)
        self.needs = dict(needs or {})


@dataclass(frozen=True)
class LinearMapPart:
    """One of the linear maps, in forward or reverse mode, that compute a derivative."""

    mode: str  # the name of an AD mode, a key of `MODES`
    names: tuple[str, ...]  # the names of the differentiated inputs
    seeds: int  # the number of seeds (tangents or cotangents)
    along: tuple[str, ...] = ()  # the inputs that form the only seed v of a product J v, or () for all seeds

    @property
    def computes_columns(self) -> bool:
        """Return whether the map computes columns from tangents, not rows from cotangents."""
        return MODES[self.mode].seed == TANGENT


@dataclass(frozen=True)
class Pattern:
    """A sparsity pattern: the positions of possible nonzeros of a Jacobian, sorted by row, then column."""

    rows: np.ndarray  # integers, of shape (nonzeros,)
    cols: np.ndarray  # integers, of shape (nonzeros,)
    outputs: int  # the number of rows of the Jacobian
    inputs: int  # the number of columns of the Jacobian


@dataclass(frozen=True)
class Derivative:
    """The derivative that a case computes: its shape, and the linear maps and seeds that compute it."""

    case: Case
    workload: Workload  # the workload of the case
    outputs: int  # the number of outputs per point (batch element), or of gradient elements for a Hessian
    inputs: int  # the number of differentiated inputs per point, or 1 for a Hessian-vector product
    summed: bool  # whether the function of the batch returns a scalar, the sum over the points
    values: int  # the number of values that the function returns per point
    parts: tuple[LinearMapPart, ...] = ()  # empty for a mode without seeds, or before a coloring is known
    coloring: Any = None  # the `Coloring` (options/sparse) of the Jacobian with seeds=colored, otherwise None

    @property
    def seeds(self) -> int:
        """Return the total number of seeds of the linear maps."""
        return sum(part.seeds for part in self.parts)

    @property
    def passes(self) -> int:
        """Return the total number of JVPs and VJPs that the linear maps need."""
        if self.case.ad_mode.pass_per_output:
            return self.seeds * (1 if self.case.target == LAPLACIAN else self.outputs)
        has_columns = any(part.computes_columns for part in self.parts)
        if self.workload.reduction.columns.products and has_columns:
            return int(load_option("gram").count_passes(self))
        return self.seeds

    @property
    def padding_share(self) -> float | None:
        """Return the share of padded (point, seed) pairs, or None unless split=both or seeds=colored."""
        if self.case.split != "both" and self.coloring is None:
            return None
        point_devices, seed_devices = self.case.mesh_shape
        points = point_devices * ceil_div(self.case.points, point_devices)  # with padding, as the seeds
        seeds = seed_devices * max(1, sum(ceil_div(part.seeds, seed_devices) for part in self.parts))
        return 1 - self.case.points * max(self.seeds, 1) / (points * seeds)

    @property
    def result_shape(self) -> tuple[int, int, int]:
        """Return the shape of the result on the host. An axis that a reduction removes has length 1.

        Jacobians              (points, outputs, inputs)
        function values        (points, outputs, 1), or (1, 1, 1) for their sum over a batch
        sum over the points    (copies, 1, inputs): one copy per device with split=data, otherwise one
        seeds=colored          (points, 1, nonzeros)
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
            return case.points, 1, int(self.workload.pattern()[0].size)
        outputs = 1 if self.summed else self.outputs
        return case.points, *self.workload.reduction.shape(outputs, self.inputs)


def input_structs(case: Case, workload: Workload) -> tuple[NamedArrays, NamedArrays]:
    """Return two dicts of abstract arrays by input name: the inputs of all points, and the shared inputs."""

    def struct(spec: InputSpec, *axes: int) -> jax.ShapeDtypeStruct:
        dtype = jnp.dtype(jnp.int32 if spec.integer else case.dtype)
        return jax.ShapeDtypeStruct((*axes, *spec.shape), dtype)

    points = {name: struct(spec, case.points) for name, spec in workload.points.items()}
    return points, {name: struct(spec) for name, spec in workload.shared.items()}


def point_structs(case: Case, workload: Workload) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shape and dtype of each input at one point, as a dict by input name."""
    points, shared = input_structs(case, workload)
    return {name: jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for name, x in points.items()} | dict(shared)


def describe_derivative(case: Case, workload: Workload, coloring: Any = None) -> Derivative:
    """Return the `Derivative` of a case. With seeds=colored, `coloring` determines the seeds."""
    one_point = point_structs(case, workload)
    value = _evaluate_shape(case, workload.function, one_point)
    inputs = sum(one_point[name].size for name in workload.names)
    if not value.size or not inputs:
        text = f"has nothing to differentiate: {inputs} inputs, {value.size} outputs"
        raise Refusal(f"workload {case.workload!r} {text}")
    arguments, result = one_point, value
    if case.batch == "whole" and workload.whole is not None:
        points, shared = input_structs(case, workload)
        arguments, batch = {**points, **shared}, (case.points, *value.shape)
        result = _evaluate_shape(case, workload.whole, arguments)
        if result.shape not in ((), batch):
            raise Refusal(f"whole of {case.workload} must return {batch} or one number, not {result.shape}")
    summed, outputs = case.batch == "whole" and result.shape == (), value.size
    if case.target in SECOND:
        outputs, inputs = inputs, 1 if case.target == "hvp" else inputs
    parts: tuple[LinearMapPart, ...] = ()
    if case.ad_mode.has_seeds and (case.seeds != "colored" or coloring is not None):
        input_sizes = {name: arguments[name].size for name in workload.names}
        parts = _linear_maps(case, workload, coloring, input_sizes, result.size)
    return Derivative(case, workload, outputs, inputs, summed, value.size, parts, coloring)


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
        forward_names = load_option("mixed_mode").forward_inputs(case, input_sizes)
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


def ceil_div(count: int, divisor: int) -> int:
    """Return count / divisor, rounded up to an integer."""
    return -(-count // divisor)


def _evaluate_shape(case: Case, function: Callable[..., Any], inputs: NamedArrays) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of the result of a function, or raise `Refusal` or `TooLarge`."""
    try:
        out = jax.eval_shape(lambda named: function(**named), dict(inputs))
    except Refusal:
        raise
    except (MemoryError, OverflowError) as error:
        array_bytes = getattr(error, "_total_size", 0)  # an attribute of NumPy's MemoryError
        host_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if isinstance(error, MemoryError) and array_bytes < host_bytes:
            raise  # the host has this memory, but it is in use
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise TooLarge(f"the function of {case.workload} cannot be evaluated: {text}") from None
    except Exception as error:
        first_line = (str(error).strip().splitlines() or [""])[0]
        location = innermost_location(error)
        text = f"{type(error).__name__}: {first_line}" + (f" ({location})" if location else "")
        what = "fails on abstract inputs (arrays that have a shape and a dtype, but no values)"
        raise Refusal(f"workload {case.workload!r} {what}: {text}") from None
    if not isinstance(out, jax.ShapeDtypeStruct) or not jnp.issubdtype(out.dtype, jnp.floating):
        returned = f"numbers of dtype {out.dtype}" if isinstance(out, jax.ShapeDtypeStruct) else repr(out)
        text = "must return an array of real numbers, or a pytree of them"
        raise Refusal(f"workload {case.workload!r} {text}, not {returned}")
    return out


def to_dense(pattern: Pattern, entries: np.ndarray) -> np.ndarray:
    """Return dense Jacobians of shape (points, outputs, inputs) from nonzeros of shape (points, nonzeros)."""
    dense: np.ndarray = np.zeros((len(entries), pattern.outputs, pattern.inputs))
    dense[:, pattern.rows, pattern.cols] = entries
    return dense
