"""Compute the expected result of a case, the scale by which its errors are divided, and the tolerance.

The inputs of the reference are rounded to the dtype of the case. The reference does not depend on the AD mode
or the devices under test. `reference_spec` selects the first method that applies:

    mode=value                         the values of `nonzeros` or `reference`, or else of the function
    `nonzeros` fits the result         NumPy, the nonzeros of the sparsity pattern of the workload
    the workload has a `reference`     NumPy, dense Jacobians
    otherwise                          JAX, the derivative of the function in float64 (checks)

`nonzeros` and `reference` are closed forms that the workload provides. `nonzeros` fits every result with
colored seeds. It also fits every other result, unless the workload has a `reference` and the reduction needs
a dense J.

A result is correct if error <= tolerance(N) * scale, where tolerance(N) is the relative error that rounding
may cause in a sum of N numbers of the magnitude `scale`. Rounding changes a reduced Jacobian J in two ways:

- Each entry of J is a sum of `terms` numbers. Its error is tolerance(terms) * s. The size s of the entry is
  |J| or, if it is known and larger, the magnitude of the terms. `influence` is the change of the result due
  to the errors of the entries, divided by tolerance(terms).
- The result is a sum of `added` entries of J. `magnitude` is the sum of the magnitudes of these entries.

If N is the larger of `terms` and `added`, the scale is the larger of influence * sqrt(terms / N) and
magnitude * sqrt(added / N). Let e be tolerance(terms), S the largest s at the point, J_a column a of J, c_a
the sum of |J_a|, and S_a the largest s for the leaf of column a. A leaf is a differentiated input.

    reduction                 influence                     magnitude                note
    whole                     largest s of the row          largest s of the row     maxima over one leaf
    outputs                   largest sum of s              largest sum of |J|       maxima over one leaf
    inputs, vector            sum of s |x|                  sum of |J| |x|           inputs: x = 1
    points                    sum of s                      largest partial sum      sums over the points
    trace                     sum of largest s of the rows  sum of |J_ii|            J is the Hessian
    norm                      2 S sum |J| + e k S^2         sum of J^2               J has k entries
    J^T J, entry (a, b)   S_a c_b + S_b c_a + e k S_a S_b   sum of |J_a| |J_b|       J has k rows

Because a maximum is over one leaf, a large derivative with respect to one leaf does not hide an error in a
small derivative with respect to another leaf. The last term covers the rounding of a column of zeros.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Container, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from scaling.core import inputs, load_option
from scaling.core.case import SECOND, VIEWS, Case, Refusal, default_values
from scaling.core.derivative import Derivative, Pattern, to_dense
from scaling.core.inputs import InputArrays
from scaling.core.reductions import REDUCTIONS, WHOLE, Jacobians, Reduction, Rounding, at_least
from scaling.core.workload import Inputs, Reference, Workload, cached, fingerprint

ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8}  # unit roundoff of one operation
# Unit roundoff of a float32 product on an accelerator, by (platform, precision).
PRODUCT_ROUNDOFF = {
    ("gpu", "default"): 2.0**-11,  # TF32
    ("gpu", "high"): 2.0**-11,
    ("tpu", "default"): 2.0**-8,  # bfloat16
    ("tpu", "high"): 2.0**-14,  # three bfloat16 products
}
ROUNDINGS = 8  # unit roundoffs allowed per term; an entry with a larger error is evaluated again
BUDGET_SECONDS = 10.0  # if a computed reference takes longer, only a sample of the entries is compared
_MAX_TOLERANCE, _MAX_TOLERANCE_IN_FEW_BITS = 0.05, 0.2  # with a larger tolerance, a comparison proves nothing
_RANGE_ELEMENTS = 2**16  # the number of array elements per range of points, which fit in processor caches
_MAX_CACHED_ELEMENTS = 2**24  # the number of elements of expected results that are cached, in all ranges
# Fields to reset for the reference, and their new values. `formulation` is kept: JAX may differentiate it.
_RESET_FIELDS: dict[str, Any] = default_values(
    {*VIEWS["method"], *VIEWS["layout"], *VIEWS["memory"]} - {"formulation"}
) | {"api": "jit", "precision": "highest"}


def unit_roundoff(case: Case, platform: str, inner_roundoff: float) -> float:
    """Return the unit roundoff of the least precise operation in the program of a case.

    `inner_roundoff` is the unit roundoff of the narrowest dtype in the function, or 0 if it is unknown.
    """
    product = PRODUCT_ROUNDOFF.get((platform, case.precision), 0.0) if case.dtype == "float32" else 0.0
    return max(ROUNDOFF[case.dtype], product, inner_roundoff)


def tolerance(roundoff: float, terms: int) -> float:
    """Return the largest relative error that rounding is expected to cause in a sum of `terms` numbers."""
    return ROUNDINGS * roundoff * float(np.sqrt(terms))  # random-walk model


def smallest_normal(case: Case) -> float:
    """Return the smallest positive normal number of the dtype of a case. Smaller numbers lose digits."""
    return float(jax.numpy.finfo(case.dtype).tiny)


def relative_error(difference: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return difference / scale for each element. 0 / 0 is 0, and any other division by 0 is infinity."""
    difference, scale = np.broadcast_arrays(difference, scale)
    without_scale = np.where(difference == 0, 0.0, np.inf)
    return np.asarray(np.divide(difference, scale, out=without_scale, where=scale > 0))


def first_not_finite(result: np.ndarray) -> int | None:
    """Return the index of the first point at which a result has NaN or infinity, or None if there is none."""
    # The result may fill half of the memory. Its minimum and maximum need no array of the same size.
    if np.isfinite(float(result.min(initial=0))) and np.isfinite(float(result.max(initial=0))):
        return None
    return int(np.argmin(np.isfinite(result).reshape(len(result), -1).all(axis=1)))


def added_entries(
    reduction: Reduction, outputs: int, inputs: int, points: int, pattern: Pattern | None = None
) -> int:
    """Return the largest number of Jacobian entries that are added to get one element of the result."""
    column, row, total = outputs, inputs, outputs * inputs
    if pattern is not None:
        column, row = (int(np.bincount(index).max(initial=1)) for index in (pattern.cols, pattern.rows))
        total = len(pattern.rows)
    added = {"entry": 1, "column": column, "row": row, "all": total}[reduction.entries]
    return added * (points if reduction.sums_points else 1)


def reduce_jacobians(
    reduction: Reduction, J: Jacobians, rounding: Rounding, x: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the result of reducing the Jacobians `J`, and the scale of its errors.

    The check divides errors by the scale. Both arrays broadcast to the shape of the result. If the reduction
    multiplies J by vectors, `x` contains these vectors, in the shape (points, inputs).
    """
    expected, influence, magnitude = reduction.reference(J, rounding, x)
    return expected, rounding.scale(influence, magnitude)


@dataclass(frozen=True)
class ReferenceSpec:
    """How the expected result of a case is computed, and how large the errors of a result may be."""

    derivative: Derivative  # with the workload that computes the reference
    reduction: Reduction  # maps the Jacobians of the reference to the result
    pattern: Pattern | None  # the sparsity pattern of a result with colored seeds, or None for a dense result
    nonzeros_pattern: Pattern | None  # the sparsity pattern of the closed form `nonzeros`, if it is used
    common: Any  # the `CommonNonzeros` of these two patterns, or None if one is missing
    computed: Any  # the `ComputedReference` of a function without a closed form (checks), or None
    roundoff: float  # the unit roundoff of the least precise operation
    rounding: Rounding
    workload_key: Hashable  # equal for equal workloads

    @property
    def case(self) -> Case:
        """Return the case whose result is compared with the reference."""
        return self.derivative.case

    @property
    def workload(self) -> Workload:
        """Return the workload of the case, which has a function that computes the expected result."""
        return self.derivative.workload

    @property
    def tolerance(self) -> float:
        """Return the largest relative error that rounding may cause in the result."""
        return tolerance(self.roundoff, self.rounding.longest_sum)

    @property
    def max_tolerance(self) -> float:
        """Return the largest useful tolerance. With a larger one, a comparison would prove nothing."""
        return _MAX_TOLERANCE_IN_FEW_BITS if self.roundoff > ROUNDOFF["float32"] else _MAX_TOLERANCE

    @property
    def sampled(self) -> bool:
        """Return whether the check compares only a sample of the entries, because all would take too long."""
        is_long = self.computed is not None and self.computed.seconds > BUDGET_SECONDS
        return is_long and self.reduction.sampling is not None

    @property
    def repeatable(self) -> bool:
        """Return whether the check can evaluate an entry again with random rounding errors."""
        sum_of_values = self.case.ad_mode.is_value and self.reduction.sums_points
        return self.nonzeros_pattern is None and not self.case.ad_mode.finite_step and not sum_of_values


def reference_spec(derivative: Derivative, platform: str) -> ReferenceSpec:
    """Return the `ReferenceSpec` of a case on a platform such as "gpu"."""
    case, workload = derivative.case, derivative.workload
    reduction = _result_reduction(derivative)
    input_specs = [(name, spec.shape, spec.make) for name, spec in workload.inputs.items()]
    functions = (workload.function, workload.reference, workload.nonzeros)
    workload_key = fingerprint((*functions, workload.wrt, input_specs))
    workload_pattern = pattern = nonzeros_pattern = common = None
    if not case.ad_mode.is_value and (case.seeds == "colored" or workload.pattern is not None):
        patterns = load_option("sparse_jacobians").match_patterns(derivative, reduction)
        workload_pattern, pattern, nonzeros_pattern, common = patterns
    computed = None
    has_values = case.ad_mode.is_value and closed_form(case, workload) is not None
    if nonzeros_pattern is None and workload.reference is None and not has_values:
        add_reference = load_option("computed_reference").add_reference
        workload, computed = add_reference(reset_fields(case, reduce=None), workload, workload_key)
        derivative = dataclasses.replace(derivative, workload=workload)
    added = added_entries(reduction, derivative.outputs, derivative.inputs, case.points, workload_pattern)
    if case.ad_mode.is_value and reduction is not WHOLE:
        added = case.points * max(workload.terms, derivative.values)
    roundoff = unit_roundoff(case, platform, computed.evaluation.roundoff if computed else 0.0)
    # Each leaf has its own error scale only if the entries can be evaluated again.
    leaves = () if nonzeros_pattern or case.ad_mode.is_value else workload.names
    leaf_sizes = tuple(math.prod(workload.inputs[name].shape) for name in leaves)
    rounding = Rounding(workload.terms, added, tolerance(roundoff, workload.terms), leaf_sizes)
    return ReferenceSpec(
        derivative, reduction, pattern, nonzeros_pattern, common, computed, roundoff, rounding, workload_key
    )


def reset_fields(case: Case, **fields: Any) -> Case:
    """Return the case with the given `fields`. Reset all other fields that do not change its derivative."""
    mode = "value" if case.ad_mode.is_value else "jacfwd"
    return dataclasses.replace(case, **_RESET_FIELDS | {"mode": mode} | fields)


def _result_reduction(derivative: Derivative) -> Reduction:
    workload, summed = derivative.workload, derivative.summed
    if derivative.case.ad_mode.is_value:
        return REDUCTIONS["points"] if workload.reduce == "points" or summed else WHOLE
    return REDUCTIONS["outputs"] if summed and not workload.reduce else workload.reduction


def closed_form(case: Case, workload: Workload) -> Callable[[Inputs], Reference] | None:
    """Return the NumPy function `nonzeros` or `reference` of a workload, or None if it has neither."""
    return workload.reference if workload.nonzeros is None or case.target in SECOND else workload.nonzeros


def point_ranges(spec: ReferenceSpec) -> Iterator[tuple[int, int]]:
    """Yield ranges (start, stop) that cover all points. The arrays of a range fit in the processor caches."""
    workload, derivative = spec.workload, spec.derivative
    elements = derivative.outputs * max(derivative.inputs, 1)
    if spec.reduction.products:
        elements = max(elements, derivative.inputs**2)
    elif spec.nonzeros_pattern is not None and (spec.common is not None or spec.reduction is not WHOLE):
        elements = derivative.outputs + derivative.inputs + len(spec.nonzeros_pattern.rows)
    elif spec.sampled and spec.pattern is not None:
        elements = 16 * (derivative.outputs + derivative.inputs) + len(spec.pattern.rows)
    elements += sum(math.prod(input_spec.shape) for input_spec in workload.inputs.values())
    # The ranges are longer with JAX, because a call of JAX has more overhead than a call of NumPy.
    step = max(1, _RANGE_ELEMENTS * (16 if spec.computed else 1) // elements)
    return ((start, min(start + step, spec.case.points)) for start in range(0, spec.case.points, step))


def expected_result(spec: ReferenceSpec, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the expected result at the points [start, stop), and the scale of its errors.

    Both arrays broadcast to the shape of the result. If both the result and the reference have a sparsity
    pattern, the arrays instead contain the nonzeros of the reference, in the shape (points, 1, nonzeros).
    """
    case, derivative = spec.case, spec.derivative
    elements = math.prod(spec.reduction.shape(derivative.outputs, max(derivative.inputs, 1)))
    if spec.common is not None and spec.nonzeros_pattern is not None:
        elements = len(spec.nonzeros_pattern.rows)
    evaluate = functools.partial(_evaluate_result, spec, start, stop)
    # A range of few elements counts as 256, because its key takes memory too.
    max_ranges = _MAX_CACHED_ELEMENTS // max(2**8, (stop - start) * elements)
    if not max_ranges:
        return evaluate()
    batch = "whole" if derivative.summed and derivative.outputs > 1 else "vmap"  # whole: sums outputs
    seeds = "colored" if spec.common is not None else "identity"
    key = reset_fields(case, batch=batch, seeds=seeds), spec.rounding, spec.workload_key, start, stop
    expected, scale = cached("expected result", key, evaluate, max_ranges)
    return expected, scale


def _evaluate_result(spec: ReferenceSpec, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    if spec.case.ad_mode.is_value:
        value, scale = reference_values(spec, start, stop)
        return value[:, :, None], scale[:, :, None]
    J = reference_jacobians(spec, start, stop)
    if spec.common is None:
        draw_inputs = functools.partial(inputs.exact_inputs, spec.case, spec.workload, start, stop)
        return reduce_reference(spec, J, draw_inputs)
    assert spec.nonzeros_pattern is not None
    largest = at_least(J.largest_by_output(), J.floor)
    return J.values[:, None], largest[:, None, spec.nonzeros_pattern.rows]


def reference_values(spec: ReferenceSpec, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the expected function values at the points [start, stop), and the scale of their errors."""
    reference = _evaluate_form(spec, closed_form(spec.case, spec.workload), start, stop)
    return reference.value, at_least(np.abs(reference.value), reference.value_terms)


def reference_jacobians(spec: ReferenceSpec, start: int, stop: int) -> Jacobians:
    """Return the Jacobians of the reference at the points [start, stop)."""
    workload, derivative, reduction = spec.workload, spec.derivative, spec.reduction
    if spec.nonzeros_pattern is not None:
        reference = _evaluate_form(spec, workload.nonzeros, start, stop, (1, len(spec.nonzeros_pattern.rows)))
        entries, floor = reference.derivative[:, 0], reference.derivative_terms
        if spec.common is None and (reduction is WHOLE or reduction.products):
            return Jacobians(to_dense(spec.nonzeros_pattern, entries), floor=floor)
        sparse_jacobians = load_option("sparse_jacobians").SparseJacobians
        return sparse_jacobians(entries, spec.nonzeros_pattern, floor=floor)  # type: ignore[no-any-return]
    columns = derivative.outputs if spec.case.target in SECOND else derivative.inputs
    reference = _evaluate_form(spec, workload.reference, start, stop, (derivative.outputs, columns))
    J = Jacobians(reference.derivative, floor=reference.derivative_terms)
    if derivative.summed and workload.reduce is not None:  # reduces the derivative of a sum over outputs
        return Jacobians(J.by_input(J.values)[:, None], floor=J.by_input(J.size).max(axis=1))
    return J


def _evaluate_form(
    spec: ReferenceSpec,
    form: Callable[[Inputs], Reference] | None,
    start: int,
    stop: int,
    derivative_shape: tuple[int, int] | None = None,
) -> Reference:
    """Evaluate a closed form at the points [start, stop). Raise `Refusal` if it returns invalid arrays.

    `derivative_shape` is the required shape of the derivative at one point, or None if only values are used.
    """
    assert form is not None
    evaluated = form(inputs.exact_inputs(spec.case, spec.workload, start, stop))
    if not hasattr(evaluated, "derivative_terms"):
        raise Refusal(f"the reference returns {type(evaluated).__name__}, not scaling.workload.Reference")
    compared = "value" if derivative_shape is None else "derivative"
    shapes: dict[str, tuple[int, ...]] = {"value": (stop - start, spec.derivative.values)}
    if derivative_shape is not None:
        shapes["derivative"] = (stop - start, *derivative_shape)
    if (terms := getattr(evaluated, f"{compared}_terms")) is not None:
        shapes[f"{compared}_terms"] = (stop - start,)
    for name, shape in shapes.items():
        array = np.asarray(getattr(evaluated, name))
        if array.shape != shape or not np.can_cast(array.dtype, np.float64, "same_kind"):
            raise Refusal(f"the reference's {name} is {array.dtype} {array.shape}, not float64 {shape}")
        if name.startswith(compared) and (point := first_not_finite(array)) is not None:
            raise Refusal(f"the reference's {name} is not finite at point {start + point}")
        if name.endswith("_terms") and np.min(array) < 0:
            raise Refusal(f"the reference's {name} is negative at point {start + np.argmin(array)}")
    if terms is not None:  # they do not hide an error over `max_tolerance` times the largest entry
        largest = np.abs(getattr(evaluated, compared)).reshape(stop - start, -1).max(axis=1, initial=0.0)
        limit = spec.max_tolerance / spec.tolerance * largest
        evaluated = evaluated._replace(**{f"{compared}_terms": np.minimum(terms, limit)})
    return evaluated


def reduce_reference(
    spec: ReferenceSpec, J: Jacobians, draw_inputs: Callable[[], InputArrays]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the expected result of a case with the Jacobians `J`, and the scale of its errors.

    For target=hvp, `J` contains Hessians, and the result is their products with vectors. `draw_inputs()`
    returns the inputs, which include these vectors.
    """
    if spec.case.target != "hvp" and not spec.reduction.along_point:
        return reduce_jacobians(spec.reduction, J, spec.rounding)
    x = flatten_inputs(spec.workload.direction_names, spec.workload.points, draw_inputs(), len(J.values))
    if spec.reduction.along_point:
        return reduce_jacobians(spec.reduction, J, spec.rounding, x)
    scale = np.abs(J.values) @ np.abs(x)[:, :, None]
    floor = None if J.floor is None else J.floor * np.abs(x).max(axis=1)
    return J.values @ x[:, :, None], at_least(scale, floor)


def flatten_inputs(
    names: Iterable[str], batched: Container[str], arrays: InputArrays, points: int
) -> np.ndarray:
    """Concatenate inputs to one array (points, elements). Inputs that are not in `batched` are repeated."""
    rows = [arrays[name].reshape(points if name in batched else 1, -1) for name in names]
    return np.concatenate([np.broadcast_to(row, (points, row.shape[1])) for row in rows], axis=1)
