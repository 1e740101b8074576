"""The reference of a case: the result that is expected, in float64, block of points by block of points.

It is evaluated at the inputs as the dtype rounded them, and knows nothing of the mode under test: a
closed form in NumPy, or for a function without one its own derivative in float64 (options/reference).
With coloured seeds the result is the entries of a pattern, and so is the reference where the workload
gives its nonzeros.
"""

import dataclasses
import math
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling.core import extensions, inputs
from scaling.core.case import SECOND, VIEWS, Case, Refusal, defaults
from scaling.core.pattern import CommonEntries, Pattern, common_entries, to_dense, validated_pattern
from scaling.core.process_cache import cached, fingerprint
from scaling.core.reductions import REDUCTIONS, WHOLE, Reduction
from scaling.core.shape import DerivativeShape
from scaling.core.tolerances import (
    ROUNDOFF,
    Jacobians,
    Rounding,
    at_least,
    count_entries,
    reduce_jacobians,
    tolerance,
    unit_roundoff,
)
from scaling.core.workload import Inputs, Reference, Workload

BUDGET_SECONDS = 10.0  # for all entries of a computed reference; beyond it a sample of them is compared
_MOST, _MOST_IN_FEW_BITS = 0.05, 0.2  # the largest tolerance with which a result proves anything
_BLOCK_NUMBERS = (
    2**16
)  # of a block: its arrays stay in the cache, and their memory is not given back each time
_KEPT_BYTES = 2**26
# How a problem is computed, not what: the reference is the same for every method, layout and memory.
_SETTLED = {*VIEWS["method"], *VIEWS["layout"], *VIEWS["memory"]} - {"formulation"}
PLAIN: dict[str, Any] = defaults(_SETTLED) | {"api": "jit", "precision": "highest"}

Arrays = Mapping[str, np.ndarray]
Ranges = Iterator[tuple[int, int]]


@dataclass(frozen=True)
class ComputedReference:
    """The reference of a function without a closed form; see options/reference.

    evaluation: how the function is evaluated; native: the same in the dtype of the case. terms: the
    numbers that a derivative adds up. inside: the unit roundoff of the narrowest dtype in the function.
    wrong: why the function's own rule is wrong. unsure: why the reference proves nothing. seconds: an
    estimate for all entries of all points. backward: whether reverse mode is defined.
    """

    evaluation: Any
    native: Any
    terms: int
    inside: float
    wrong: str | None = None
    unsure: str | None = None
    seconds: float = 0.0
    backward: bool = False


@dataclass(frozen=True)
class ReferenceSpec:
    """What the reference of a case is, and how far a result may be off.

    pattern: of the entries that the result has; None for one that is written out. known: the workload's
    own pattern, where it gives its derivative at these entries and no Jacobian has to be written out.
    common: how the entries of both correspond, where there are both. roundoff: of the least exact
    operation. rounding: what the result adds up. identity: of the function and its closed form, in a
    cache.
    """

    case: Case
    workload: Workload
    sizes: DerivativeShape
    reduction: Reduction
    pattern: Pattern | None
    known: Pattern | None
    common: CommonEntries | None
    computed: ComputedReference | None
    roundoff: float
    rounding: Rounding
    identity: Hashable

    @property
    def tolerance(self) -> float:
        """The tolerance of the result."""
        return tolerance(self.roundoff, self.rounding.total)

    @property
    def most(self) -> float:
        """The largest tolerance with which a result proves anything."""
        return _MOST_IN_FEW_BITS if self.roundoff > ROUNDOFF["float32"] else _MOST

    @property
    def sampled(self) -> bool:
        """Whether all entries would take too long, and some can be compared alone."""
        seconds = self.computed.seconds if self.computed is not None else 0.0
        return seconds > BUDGET_SECONDS and self.reduction.sampling is not None

    @property
    def repeatable(self) -> bool:
        """Whether entries can be evaluated again at other inputs."""
        sum_of_values = self.case.ad_mode.is_value and self.reduction.sums_points
        return self.known is None and not self.case.ad_mode.finite_step and not sum_of_values


def reference_spec(
    case: Case, workload: Workload, sizes: DerivativeShape, platform: str, pattern: Pattern | None
) -> ReferenceSpec:
    """Return the specification of the reference of a case. pattern: of a coloured result, where detected."""
    is_value, identity = case.ad_mode.is_value, _identity(workload)
    reduction, own = _reduction(case, workload, sizes), _own_pattern(case, workload, sizes)
    colored = case.seeds == "colored" and not is_value
    pattern = (pattern or own) if colored else None
    if pattern is not None:
        pattern = validated_pattern(pattern.rows, pattern.cols, sizes.outputs, sizes.inputs)
    elif colored:
        raise Refusal(f"{case.workload} says no pattern, so that the places of the entries are not known")
    at_entries = colored or workload.reference is None or not (reduction is WHOLE or reduction.products)
    known = own if workload.nonzeros is not None and at_entries and not sizes.summed else None
    common = common_entries(pattern, known) if pattern is not None and known is not None else None
    computed = None
    if known is None and workload.reference is None and not (is_value and closed_form(case, workload)):
        plain = dataclasses.replace(
            case, **PLAIN | {"mode": "value" if is_value else "jacfwd", "reduce": None}
        )
        option = extensions.load("computed_reference")
        key = (plain, identity)
        computed = cached("computed reference", key, lambda: option.examine(plain, workload), 8)
        workload = option.with_reference(workload, computed)
    if is_value:
        added = 1 if reduction is WHOLE else case.points * max(workload.terms, sizes.values)
    elif pattern is not None:
        added = 1
    else:
        added = reduction.entries(count_entries(sizes.outputs, sizes.inputs, case.points, own))
    roundoff = unit_roundoff(case, platform, computed.inside if computed else 0.0)
    rounding = Rounding(workload.terms, added, tolerance(roundoff, workload.terms))
    return ReferenceSpec(
        case, workload, sizes, reduction, pattern, known, common, computed, roundoff, rounding, identity
    )


def _reduction(case: Case, workload: Workload, sizes: DerivativeShape) -> Reduction:
    """Return the reduction of the result; a value has none but its sum over points."""
    if case.ad_mode.is_value:
        return REDUCTIONS["points"] if workload.reduce == "points" or sizes.summed else WHOLE
    return REDUCTIONS[workload.reduce or ("outputs" if sizes.summed else WHOLE.name)]


def _own_pattern(case: Case, workload: Workload, sizes: DerivativeShape) -> Pattern | None:
    """Return the pattern that a workload knows by hand."""
    if workload.pattern is None or case.ad_mode.is_value or case.target in SECOND:
        return None
    return validated_pattern(*workload.pattern(), sizes.outputs, sizes.inputs)


def _identity(workload: Workload) -> Hashable:
    """Return what distinguishes workloads whose cases are the same."""
    functions = (workload.function, workload.reference, workload.nonzeros, workload.wrt)
    named = [*workload.points.items(), *workload.shared.items()]
    return fingerprint((*functions, [(name, each.shape, each.make) for name, each in named]))


def closed_form(case: Case, workload: Workload) -> Callable[[Inputs], Reference] | None:
    """Return what gives the values of a workload in NumPy at the least cost, if anything does."""
    if workload.nonzeros is not None and case.target not in SECOND:
        return workload.nonzeros
    return workload.reference


def point_ranges(spec: ReferenceSpec) -> Ranges:
    """Yield blocks of points whose full derivative, before any sum, stays small."""
    workload, sizes = spec.workload, spec.sizes
    cells = sizes.outputs * max(sizes.inputs, 1)
    if spec.known is not None:
        cells = sizes.outputs + sizes.inputs + len(spec.known.rows)
    elif spec.sampled and spec.pattern is not None:
        cells = 16 * (sizes.outputs + sizes.inputs) + len(spec.pattern.rows)
    elif spec.reduction.products:
        cells = max(cells, sizes.inputs**2)
    drawn = (*workload.points.values(), *workload.shared.values())
    numbers = cells + sum(math.prod(each.shape) for each in drawn)
    most = _BLOCK_NUMBERS * (16 if spec.computed else 1)  # a call of JAX wants more to do
    step = max(1, most // numbers)
    return ((start, min(start + step, spec.case.points)) for start in range(0, spec.case.points, step))


def expected_result(spec: ReferenceSpec, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the expected result, (points, outputs', inputs') or (points, 1, entries), and its size.

    A small one is evaluated once for all methods that compute the same problem.
    """
    case, sizes = spec.case, spec.sizes
    numbers = spec.reduction.degree * spec.reduction.numbers(sizes.outputs, max(sizes.inputs, 1))
    if spec.common is not None and spec.known is not None:
        numbers = len(spec.known.rows)
    if 8 * case.points * numbers > _KEPT_BYTES:
        return _expected_block(spec, start, stop)

    def evaluate() -> tuple[np.ndarray, ...]:
        blocks = [_expected_block(spec, *ends) for ends in point_ranges(spec)]
        return tuple(np.concatenate(each) for each in zip(*blocks, strict=True))

    what = {
        "mode": "value" if case.ad_mode.is_value else "jacfwd",
        "batch": "whole" if sizes.summed and sizes.outputs > 1 else "vmap",  # where that sums outputs
        "seeds": "colored" if spec.common is not None else "identity",
    }
    key = (dataclasses.replace(case, **PLAIN | what), spec.rounding, spec.identity)
    want, size = cached("expected result", key, evaluate, 4)
    return want[start:stop], size[start:stop]


def _expected_block(spec: ReferenceSpec, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Evaluate the expected result of a block of points, and its size."""
    if spec.case.ad_mode.is_value:
        value, floor = reference_values(spec, start, stop)
        size = np.abs(value) if spec.computed else np.abs(value).max(axis=1, keepdims=True)
        return value[:, :, None], at_least(size, floor)[:, :, None]
    J, floor = reference_jacobians(spec, start, stop)
    if spec.common is None:
        return reduce_reference(spec, J, floor, inputs.exact_inputs(spec.case, spec.workload, start, stop))
    assert J.pattern is not None
    return J.values[:, None], at_least(J.largest_by_output(), floor)[:, None, J.pattern.rows]


def reference_values(spec: ReferenceSpec, start: int, stop: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the values of a block of points, (points, outputs), and the size of their terms, (points,)."""
    found = _evaluate(spec, closed_form(spec.case, spec.workload), start, stop)
    return found.value, found.value_terms


def reference_jacobians(spec: ReferenceSpec, start: int, stop: int) -> tuple[Jacobians, np.ndarray | None]:
    """Return the Jacobians of a block of points and the least size of an entry, (points,)."""
    workload, sizes, reduction = spec.workload, spec.sizes, spec.reduction
    if spec.known is not None:
        found = _evaluate(spec, workload.nonzeros, start, stop, (1, len(spec.known.rows)))
        entries = found.derivative[:, 0]
        if spec.common is None and (reduction is WHOLE or reduction.products):
            return Jacobians(to_dense(spec.known, entries)), found.derivative_terms
        return Jacobians(entries, spec.known), found.derivative_terms
    columns = sizes.outputs if spec.case.target in SECOND else sizes.inputs
    found = _evaluate(spec, workload.reference, start, stop, (sizes.outputs, columns))
    J, floor = found.derivative, found.derivative_terms
    if (
        sizes.summed and workload.reduce is not None
    ):  # what is reduced is the derivative of the sum over outputs
        return Jacobians(J.sum(axis=1, keepdims=True)), at_least(np.abs(J), floor).sum(axis=1).max(axis=1)
    return Jacobians(J), floor


def _evaluate(
    spec: ReferenceSpec,
    form: Callable[[Inputs], Reference] | None,
    start: int,
    stop: int,
    derivative: tuple[int, int] | None = None,
) -> Reference:
    """Evaluate a closed form at a block of points; refuse what is not finite or not of the expected shape.

    derivative: the shape of that of one point; None where only the value is asked for.
    """
    assert form is not None
    found = form(inputs.exact_inputs(spec.case, spec.workload, start, stop))
    shapes: dict[str, tuple[int, ...]] = {"value": (stop - start, spec.sizes.values)}
    if derivative is not None:
        shapes["derivative"] = (stop - start, *derivative)
    for name, shape in shapes.items():
        array = getattr(found, name)
        if np.shape(array) != shape:
            raise Refusal(f"the reference's {name} has the shape {np.shape(array)}, not {shape}")
        if not np.all(np.isfinite(array)):
            raise Refusal(f"the reference's {name} is not finite in points {start} to {stop - 1}")
    return found


def reduce_reference(
    spec: ReferenceSpec, J: Jacobians, floor: np.ndarray | None, named: Arrays
) -> tuple[np.ndarray, np.ndarray]:
    """Return what the result makes of Jacobians, (points, outputs', inputs'), and its size.

    floor: (points,), the least size of an entry. named: the inputs of the points.
    """
    if spec.case.target != "hvp" and not spec.reduction.along_point:
        return reduce_jacobians(spec.reduction, J, spec.rounding, floor)
    x = flatten_inputs(spec.workload.names, spec.workload.points, named, len(J.values))
    if spec.reduction.along_point:
        return reduce_jacobians(spec.reduction, J, spec.rounding, floor, x)
    size = np.abs(J.values) @ np.abs(x)[:, :, None]
    return J.values @ x[:, :, None], at_least(size, None if floor is None else floor * np.abs(x).max(axis=1))


def flatten_inputs(names: Iterable[str], per_point: Container[str], named: Arrays, points: int) -> np.ndarray:
    """Return inputs, or directions in them, as a matrix with a row for each point: (points, inputs)."""
    rows = [named[name].reshape(points if name in per_point else 1, -1) for name in names]
    return np.concatenate([np.broadcast_to(row, (points, row.shape[1])) for row in rows], axis=1)
