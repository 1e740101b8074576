"""Bound the error of a forward difference (`mode=finite_difference`) by slopes and curvatures.

Slopes and curvatures are estimated from central differences of the function values in float64. The bounds
also contain the rounding errors of the inputs and of the function values.
"""

import functools
import math
from collections.abc import Callable

import numpy as np

from scaling.checks import evaluations
from scaling.core import inputs
from scaling.core import reference as references
from scaling.core.inputs import InputArrays
from scaling.core.modes import STEPS
from scaling.core.reductions import Jacobians
from scaling.core.reference import ROUNDOFF, ReferenceSpec, flatten_inputs
from scaling.core.workload import Reference, cached

_MAX_SAMPLED_INPUTS = 64  # limit on the number of input elements for which the curvature is estimated
_MAX_VALUES = 2**24  # limit on the product of the numbers of sampled inputs, points and function values
_RUNS = 8  # the number of evaluations with random rounding errors

ValuesAtShift = Callable[[np.ndarray], np.ndarray]  # shift along a direction -> values of the function


def result_bounds(spec: ReferenceSpec, start: int, stop: int, errors: np.ndarray | None = None) -> np.ndarray:
    """Return an upper bound on the errors of a forward-difference result at each point.

    The points are [start, stop), and the bound has the shape (points,). It is estimated from a sample of the
    inputs. If `errors` is given, inputs whose errors exceed the bound are added to the sample
    (`cover_errors`). `errors` contains the absolute errors minus the tolerance for rounding, in the shape
    (points, outputs, entries).
    """
    estimate_bounds = functools.partial(input_bounds, spec, start, stop, spec.rounding.terms)
    bounds = estimate_bounds()
    J = Jacobians(np.zeros((stop - start, 1, 1)))
    if spec.reduction.degree > 1:  # otherwise the bound does not depend on the Jacobian
        J = references.reference_jacobians(spec, start, stop)
    bound = np.asarray(spec.reduction.step_bound(J, bounds))
    if errors is None or not spec.reduction.linear_in_inputs:
        return bound
    pattern = None if spec.common is None else spec.pattern
    columns = np.arange(errors.shape[2]) if pattern is None else pattern.cols
    return cover_errors(bound, errors, lambda entry: estimate_bounds(int(columns[entry]))[:, 0])


def cover_errors(bound: np.ndarray, errors: np.ndarray, bound_at: Callable[[int], np.ndarray]) -> np.ndarray:
    """Return `bound`, increased so that it covers `errors` as far as bounds of single inputs allow.

    `bound`, of shape (points,), is estimated from a sample of the inputs. `bound_at(k)` returns the bound of
    the input of entry k. The bound is increased to `bound_at(k)` for the entry k with the largest excess,
    again and again, until no error exceeds it or it no longer increases. `errors` has the shape (points,
    outputs, entries).
    """
    while True:
        uncovered = (errors - bound[:, None, None]).max(axis=(0, 1))
        entry = int(np.argmax(uncovered))
        raised_bound = np.maximum(bound, bound_at(entry)) if uncovered[entry] > 0 else bound
        if not (raised_bound > bound).any():
            return bound
        bound = raised_bound


def input_bounds(
    spec: ReferenceSpec, start: int, stop: int, terms: int, single_input: int | None = None
) -> np.ndarray:
    """Return upper bounds on the errors of forward differences with respect to each input.

    The bounds have the shape (points, inputs), or (points, 1) if the result is the product J x of the
    Jacobian and the point x. A bound holds for all outputs, or for their sum if the outputs are summed. Each
    bound is a safety factor times the sum of two errors of a difference with the step h:

    truncation error    h / 2 times the largest absolute second derivative at x and at x + h
    rounding error      the rounding errors of x + h and of both function values, divided by h

    `terms` is the number of terms that are summed to compute a function value. If `single_input` is the index
    of an input, the bound of this input is returned for all inputs.
    """
    workload, points = spec.workload, stop - start
    arrays, step = inputs.exact_inputs(spec.case, workload, start, stop), STEPS[spec.case.dtype]
    flat_inputs = flatten_inputs(workload.names, workload.points, arrays, points)
    elements = flat_inputs.shape[1]
    count = min(_MAX_SAMPLED_INPUTS, max(8, _MAX_VALUES // (points * spec.derivative.values)))
    evenly_spaced = np.unique(np.linspace(0, elements - 1, count).astype(int))
    sampled_inputs = evenly_spaced if single_input is None else np.array([single_input])
    truncation, input_rounding = np.zeros((2, points, len(sampled_inputs)))
    for k, index in enumerate(sampled_inputs):
        values_at = functools.partial(_values_along, spec, arrays, flat_inputs, np.eye(1, elements, index))
        slope, curvature = _largest_slope_and_curvature(spec, flat_inputs[:, index], values_at, step)
        truncation[:, k] = step / 2 * curvature
        input_rounding[:, k] = (np.abs(flat_inputs[:, index]) + step) * slope
    largest = np.maximum(_value_magnitude(spec, arrays), input_rounding.max(axis=1))
    value_rounding, roundoff = 4 * np.sqrt(terms) * largest, ROUNDOFF[spec.case.dtype]
    if spec.computed:
        value_rounding = np.maximum(value_rounding, _value_noise(spec, arrays, start, stop) / roundoff)
    samples_all_inputs = len(sampled_inputs) == elements
    safety = 1.5 if samples_all_inputs or single_input is not None else 2.0
    if workload.reduction.along_point:
        values_at = functools.partial(_values_along, spec, arrays, flat_inputs, flat_inputs)
        _, curvature = _largest_slope_and_curvature(spec, np.ones(points), values_at, step)
        all_inputs = input_rounding.sum(axis=1) * elements / len(sampled_inputs)
        return safety * (step / 2 * curvature + roundoff * (value_rounding + all_inputs) / step)[:, None]
    bounds = safety * (truncation + roundoff * (value_rounding[:, None] + input_rounding) / step)
    if not samples_all_inputs:  # all inputs have the largest bound of the sampled inputs
        bounds = bounds.max(axis=1, keepdims=True)
    return np.broadcast_to(bounds, (points, elements))


def _evaluate_reference(spec: ReferenceSpec, arrays: InputArrays) -> Reference:
    closed_form = references.closed_form(spec.case, spec.workload)
    assert closed_form is not None
    return closed_form(arrays)


def _value_magnitude(spec: ReferenceSpec, arrays: InputArrays) -> np.ndarray:
    """Return the magnitude that determines the rounding error of the function value at each point.

    value of the function      magnitude
    sum over all points        sum of |output| over all points
    sum over the outputs       sum of |output| at the point
    no sum                     largest |output| at the point

    In the last two rows, `Reference.value_terms` replaces |output| if it is larger.
    """
    reference, reduction = _evaluate_reference(spec, arrays), spec.workload.reduction
    magnitude = _output_magnitude(spec, reference.value)
    if spec.derivative.summed and not reduction.sums_points:  # the value is the sum over all points
        all_points = inputs.exact_inputs(spec.case, spec.workload, 0, spec.case.points)
        return np.full(len(magnitude), np.abs(_evaluate_reference(spec, all_points).value).sum())
    if reference.value_terms is None:
        return magnitude
    outputs = spec.derivative.values if reduction.sums_outputs else 1
    return np.maximum(magnitude, reference.value_terms * outputs)


def _value_noise(spec: ReferenceSpec, arrays: InputArrays, start: int, stop: int) -> np.ndarray:
    key = spec.case, spec.workload_key, start, stop
    make_noise = functools.partial(_measure_noise, spec, arrays)
    return np.asarray(cached("value noise", key, make_noise, 64))


def _measure_noise(spec: ReferenceSpec, arrays: InputArrays) -> np.ndarray:
    """Return an estimate of the rounding error of the function values at each point, of shape (points,).

    The estimate is the range of the values in several evaluations with random rounding errors.
    """
    native = spec.computed.native
    with evaluations.evaluation_context(native.dtype):
        noise = evaluations.rounding_range(evaluations.values, native, arrays, 0.0, _RUNS)
    return np.nan_to_num(_output_magnitude(spec, noise), nan=np.inf)


def _output_magnitude(spec: ReferenceSpec, outputs: np.ndarray) -> np.ndarray:
    """Return the largest |output| at each point, or the sum of |output| if the outputs are summed."""
    is_summed = spec.workload.reduction.sums_outputs or spec.derivative.summed
    return np.abs(outputs).sum(axis=1) if is_summed else np.abs(outputs).max(axis=1)


def _values_along(
    spec: ReferenceSpec,
    arrays: InputArrays,
    flat_inputs: np.ndarray,
    direction: np.ndarray,
    shift: np.ndarray,
) -> np.ndarray:
    """Return the function values at `flat_inputs + shift * direction`, of shape (points, outputs).

    `flat_inputs` has the shape (points, inputs), and `shift` the shape (points,). `arrays` are the inputs by
    name.
    """
    workload, shifted_inputs = spec.workload, dict(arrays)
    ends = np.cumsum([math.prod(workload.inputs[name].shape) for name in workload.names])
    flat_by_input = np.split(flat_inputs + shift[:, None] * direction, ends[:-1], axis=1)
    for name, flat in zip(workload.names, flat_by_input, strict=True):
        # The values of a shared input, and therefore its shifts, are equal at all points.
        shifted_inputs[name] = (flat[0] if name in workload.shared else flat).reshape(arrays[name].shape)
    return _evaluate_reference(spec, shifted_inputs).value


def _largest_slope_and_curvature(
    spec: ReferenceSpec, x: np.ndarray, values_at: ValuesAtShift, step: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest absolute first and second derivatives of `values_at` at the shifts 0 and `step`.

    Both results have the shape (points,). They contain the sum over the outputs if the outputs are summed,
    otherwise the maximum over the outputs. `x`, of shape (points,), is the shifted coordinate at shift 0. The
    second derivative is also estimated with the step size `step / 2`, to detect a kink between the two
    shifts. A kink causes an error of at most 1.5 * step / 2 * (second derivative).
    """
    slope = curvature = np.zeros(())
    lengths = [(end, 1e-3 * np.where(x + end == 0, 1.0, np.abs(x + end))) for end in (0.0, step)]
    for center_shift, h in [*lengths, *((k * step / 2, np.full(len(x), step / 2)) for k in (0, 1, 2))]:
        left, center, right = (values_at(center_shift + sign * h) for sign in (-1, 0, 1))
        slope = np.maximum(slope, _output_magnitude(spec, right - left) / (2 * h))
        curvature = np.maximum(curvature, _output_magnitude(spec, right - 2 * center + left) / h**2)
    return np.nan_to_num(slope, nan=np.inf), np.nan_to_num(curvature, nan=np.inf)
