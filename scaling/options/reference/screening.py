"""Find points where a derivative seems to be wrong, for verification.py (`find_suspicious_points`).

The derivative at many points is compared with second-order finite differences. They are less accurate than
those of finite_differences.py, but need few function values.
"""

import numpy as np

from scaling.core import inputs
from scaling.core.case import Case
from scaling.core.inputs import InputArrays
from scaling.core.workload import Workload
from scaling.options.reference import evaluations
from scaling.options.reference.evaluations import VALUE_ROUNDINGS, Evaluation, Groups, values, values_along

_MAX_ELEMENTS_PER_CALL = 2**20  # limit on the size of an intermediate result at all points of a call
_MAX_SCREENED_ELEMENTS = 2**26  # limit on the sum of these sizes over all calls
_THRESHOLD = 1e-5  # a derivative with a larger relative error is suspicious
_STEPS = (2.0**-9, 2.0**-15, 2.0**-21)


def find_suspicious_points(
    evaluation: Evaluation,
    case: Case,
    workload: Workload,
    sampled: InputArrays,
    generator: np.random.Generator,
) -> np.ndarray:
    """Return the indices of the points where the derivative seems to be wrong, worst first.

    At these points, its relative difference from finite differences exceeds `_THRESHOLD`. `sampled` contains
    the inputs at some points.
    """
    count = min(case.points, max(1, _MAX_SCREENED_ELEMENTS // (evaluation.width * len(evaluation.names))))
    block_size = max(1, min(count, _MAX_ELEMENTS_PER_CALL // evaluation.width))
    starts = np.linspace(0, case.points - block_size, -(-count // block_size)).astype(int)
    blocks = (inputs.exact_inputs(case, workload, int(start), int(start) + block_size) for start in starts)
    groups = evaluations.group_inputs(evaluation, sampled, generator)
    by_block = [_estimate_errors(evaluation, generator, arrays, groups) for arrays in blocks]
    difference, points = np.concatenate(by_block, axis=1), (starts[:, None] + np.arange(block_size)).ravel()
    order = np.argsort(-difference, axis=1, kind="stable")
    is_suspicious = np.take_along_axis(difference, order, axis=1) > _THRESHOLD
    return np.array(list(dict.fromkeys(points[order].T[is_suspicious.T])), int)


def _estimate_errors(
    evaluation: Evaluation, generator: np.random.Generator, arrays: InputArrays, groups: Groups
) -> np.ndarray:
    """Return estimates of the relative errors of directional derivatives, of shape (groups + 2, points).

    Row k is for a direction that changes only the inputs in `groups[k]`. The next row is for a direction that
    changes only small elements. The last row is for a direction that changes all inputs, each element in
    proportion to its magnitude. The error at a point is the largest error of all outputs.
    """
    center = values(evaluation, arrays)
    random = evaluations.random_direction(evaluation, arrays, generator)
    directions = [
        *evaluations.split_direction(random, groups),
        evaluations.keep_small_elements(random, arrays),
        evaluations.random_direction(evaluation, arrays, generator, is_relative=True),
    ]
    errors = [_estimate_error_along(evaluation, arrays, direction, center) for direction in directions]
    # An output without a precise step is ignored.
    return np.array([np.max(error, axis=1, initial=0.0, where=np.isfinite(error)) for error in errors])


def _estimate_error_along(
    evaluation: Evaluation, arrays: InputArrays, direction: InputArrays, center: np.ndarray
) -> np.ndarray:
    """Return an estimate of the relative error of the derivative along a direction, or infinity.

    The relative error of a derivative d is max(0, |d - f| - rounding error) / (|d| + |f|), where f is a
    finite difference. The step size with the smallest error is used. At a kink, the error is 0 if d is
    between the one-sided slopes. `center` contains the function values at the inputs `arrays`. It has the
    shape (points, outputs), like the result.
    """
    noise = VALUE_ROUNDINGS * evaluation.roundoff * np.abs(center)
    derivative = evaluations.directional_derivative(evaluation, arrays, direction)
    smallest_error, error_at_kink, distance = np.full((3, *derivative.shape), np.inf)
    for step in _STEPS:
        near, far = (values_along(evaluation, arrays, direction, k) for k in (step, -step))
        with np.errstate(all="ignore"):
            slopes, previous = np.sort([(near - center) / step, (center - far) / step], axis=0), distance
            distance = slopes[1] - slopes[0]
            mean, nearest = np.mean(slopes, axis=0), np.clip(derivative, *slopes)
            size = np.abs(mean) + np.abs(derivative)
            excess = np.abs([mean - derivative, nearest - derivative]) - noise / step
            errors = excess / np.where(size > 0, size, 1.0)  # of two zeros, the error is 0
            error, error_to_slopes = np.where(np.isfinite(errors), errors, np.inf)
            # At a kink, the distance between the one-sided slopes hardly depends on the step.
            is_kink = (distance > previous / 2) & (distance < 2 * previous)
            is_precise = (step == _STEPS[0]) | (noise / step <= _THRESHOLD * size)
        smallest_error = np.where(is_precise, np.minimum(smallest_error, error), smallest_error)
        error_at_kink = np.where(is_precise, np.where(is_kink, error_to_slopes, np.inf), error_at_kink)
    return np.minimum(smallest_error, error_at_kink)
