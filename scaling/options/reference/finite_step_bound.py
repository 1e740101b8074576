"""Bound the errors of results of `mode=finite_difference`: the truncation error and the rounding error.

A forward difference (f(x + h) - f(x)) / h has the truncation error h / 2 times the second derivative. It is
estimated from the second difference f(x + h) - 2 f(x) + f(x - h) of values in float64, which also bounds the
error at a kink. The rounding error is that of both function values and of x + h, divided by h.
"""

import math

import numpy as np

from scaling.core import inputs
from scaling.core import reference as references
from scaling.core.inputs import InputArrays
from scaling.core.modes import STEPS
from scaling.core.reductions import Jacobians
from scaling.core.reference import ROUNDOFF, ReferenceSpec, flatten_inputs
from scaling.core.workload import Reference
from scaling.options.reference import evaluations
from scaling.options.reference.computed_reference import native_evaluation

_LEAST_SAMPLED_INPUTS = 64  # the number of inputs whose truncation error is estimated at least
_MAX_VALUES = 2**24  # limit on the product of the numbers of sampled inputs, points and function values
_RUNS = 8  # the number of evaluations with random rounding errors
_SAFETY = 1.5  # the bound of the rounding error, as a multiple of its estimate


def result_bounds(spec: ReferenceSpec, start: int, stop: int) -> np.ndarray:
    """Return an upper bound on the errors of a forward-difference result at each of the points [start, stop).

    The bound holds for all entries of the result at the point.
    """
    bounds = input_bounds(spec, start, stop, spec.rounding.terms)
    J = Jacobians(np.zeros((stop - start, 1, 1)))
    if spec.reduction.degree > 1:  # otherwise the bound does not depend on the Jacobian
        J, _ = references.reference_jacobians(spec, start, stop)
    return np.asarray(spec.reduction.step_bound(J, bounds))


@np.errstate(invalid="ignore", divide="ignore")  # x - h may be outside of the domain
def input_bounds(spec: ReferenceSpec, start: int, stop: int, terms: int) -> np.ndarray:
    """Return upper bounds on the errors of forward differences at the points [start, stop).

    The bounds have the shape (points, inputs). If the result is the product J x of the Jacobian and the point
    x, there is only one difference for each point, and the shape is (points, 1). Each bound holds for all
    outputs. If the outputs are summed, it holds for the sum. With very many inputs, the truncation error is
    estimated for evenly spread ones, and all inputs have the largest bound.

    `terms` is the number of terms that are summed to compute a function value.
    """
    workload, points, step = spec.workload, stop - start, STEPS[spec.case.dtype]
    arrays = inputs.exact_inputs(spec.case, workload, start, stop)
    x = flatten_inputs(workload.names, workload.points, arrays, points)
    elements = x.shape[1]
    reference = _evaluate_reference(spec, arrays)

    def truncation_error(direction: np.ndarray) -> np.ndarray:
        left, right = (_values_at(spec, arrays, x + shift * direction) for shift in (-step, step))
        return _output_magnitude(spec, left + right - 2 * reference.value) / step

    rounding = _SAFETY * _value_rounding(spec, arrays, reference, terms) / step
    if workload.reduction.along_point:
        return np.nan_to_num(truncation_error(x) + rounding, nan=np.inf)[:, None]
    count = max(_LEAST_SAMPLED_INPUTS, _MAX_VALUES // (points * spec.derivative.values))
    sampled_inputs = np.unique(np.linspace(0, elements - 1, min(count, elements)).astype(int))
    truncation = np.stack([truncation_error(np.eye(1, elements, k)) for k in sampled_inputs], axis=1)
    bounds = np.nan_to_num(truncation + rounding[:, None], nan=np.inf)
    if len(sampled_inputs) < elements:
        bounds = np.broadcast_to(bounds.max(axis=1, keepdims=True), (points, elements))
    return bounds


def _evaluate_reference(spec: ReferenceSpec, arrays: InputArrays) -> Reference:
    closed_form = references.closed_form(spec.case, spec.workload)
    assert closed_form is not None
    return closed_form(arrays)


def _values_at(spec: ReferenceSpec, arrays: InputArrays, flat_inputs: np.ndarray) -> np.ndarray:
    """Return the function values, of shape (points, outputs), with other differentiated inputs.

    `flat_inputs` contains these inputs, in the shape (points, elements).
    """
    workload, changed_inputs = spec.workload, dict(arrays)
    ends = np.cumsum([math.prod(workload.inputs[name].shape) for name in workload.names])
    for name, flat in zip(workload.names, np.split(flat_inputs, ends[:-1], axis=1), strict=True):
        # The values of a shared input are equal at all points.
        changed_inputs[name] = (flat[0] if name in workload.shared else flat).reshape(arrays[name].shape)
    return _evaluate_reference(spec, changed_inputs).value


def _value_rounding(spec: ReferenceSpec, arrays: InputArrays, reference: Reference, terms: int) -> np.ndarray:
    """Return the rounding error of the function values and of the inputs at each point, of shape (points,).

    It is the larger of two estimates: that of a sum of `terms` numbers, and the range of the values in
    several evaluations with random rounding errors. The magnitude of a sum depends on the function:

    sum over all points        sum of |output| over all points
    sum over the outputs       sum of |output| at the point
    no sum                     largest |output| at the point

    In the last two cases, |output| is at least `Reference.value_terms`, the sum of the absolute values of the
    terms of an output, because large terms may cancel.
    """
    magnitude, reduction = _output_magnitude(spec, reference.value), spec.workload.reduction
    if spec.derivative.summed and not reduction.sums_points:  # the value is the sum over all points
        all_points = inputs.exact_inputs(spec.case, spec.workload, 0, spec.case.points)
        magnitude = np.full(len(magnitude), np.abs(_evaluate_reference(spec, all_points).value).sum())
    elif reference.value_terms is not None:
        outputs = spec.derivative.values if reduction.sums_outputs else 1
        magnitude = np.maximum(magnitude, reference.value_terms * outputs)
    native = spec.computed.native if spec.computed else native_evaluation(spec.case, spec.workload)
    roundoff = ROUNDOFF[spec.case.dtype]
    with evaluations.evaluation_context(native.dtype):
        ranges = evaluations.rounding_range(evaluations.values, native, arrays, roundoff, _RUNS)
    return np.maximum(4 * roundoff * np.sqrt(terms) * magnitude, _output_magnitude(spec, ranges))


def _output_magnitude(spec: ReferenceSpec, outputs: np.ndarray) -> np.ndarray:
    """Return the largest |output| at each point, or the sum of |output| if the outputs are summed."""
    is_summed = spec.workload.reduction.sums_outputs or spec.derivative.summed
    return np.abs(outputs).sum(axis=1) if is_summed else np.abs(outputs).max(axis=1)
