"""Compare a sum over the points (`reduce=points`) with the sum of the references of all points.

Each device may return a copy of the sum. All copies are compared.
"""

import numpy as np

from scaling.core import inputs
from scaling.core.check import EntryComparison, PointsComparison
from scaling.core.reference import ReferenceSpec, point_ranges, reference_jacobians, reference_values
from scaling.core.tolerances import at_least, reduce_jacobians, relative_error
from scaling.options.reference.finite_step_bound import input_bounds
from scaling.options.reference.sampled_reference import sum_over_outputs

_REEVALUATED_POINTS = 64  # number of points of a sum that are evaluated again


def compare_sum(spec: ReferenceSpec, result: np.ndarray) -> PointsComparison:
    """Return the comparison of each copy of a sum over the points and outputs with the expected sum.

    `result` has the shape (copies, 1, inputs).
    """
    expected = scale = bound = np.zeros(())
    for start, stop in point_ranges(spec):
        terms, term_scales = _terms_of_sum(spec, start, stop)
        expected, scale = expected + terms.sum(axis=0), scale + term_scales.sum(axis=0)
        if spec.case.ad_mode.finite_step:
            bound = bound + input_bounds(spec, start, stop, spec.rounding.longest_sum).sum(axis=0)
    result = result[:, 0].astype(np.float64)
    comparison = EntryComparison(
        result, np.broadcast_to(expected, result.shape), np.full(result.shape, scale.max())
    )
    points = min(_REEVALUATED_POINTS, spec.case.points)
    named = inputs.exact_inputs(spec.case, spec.workload, 0, points) if spec.repeatable else None
    step_error = np.full(len(result), relative_error(bound.max(), scale.max()))
    return PointsComparison(0, named, [comparison], step_error)


def _terms_of_sum(spec: ReferenceSpec, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the terms of a sum over points, and their scales, as arrays of shape (points, inputs)."""
    if spec.case.ad_mode.is_value:
        value, floor = reference_values(spec, start, stop)
        scale = at_least(np.abs(value), floor)
        return value.sum(axis=1, keepdims=True), scale.sum(axis=1, keepdims=True)
    if spec.sampled:
        return sum_over_outputs(spec, start, stop)
    J, floor = reference_jacobians(spec, start, stop)
    value, scale = reduce_jacobians(spec.reduction, J, spec.rounding, floor)
    return value[:, 0], scale[:, 0]
