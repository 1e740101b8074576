"""Verify the derivative of a computed reference (not a result) by finite differences (`find_objection`).

Derivatives along random directions are compared at a few points, including those that screening.py finds
suspicious. The function may have rounding errors and kinks. A wrong derivative rule of the function
(`jax.custom_jvp`, `jax.custom_vjp`, `stop_gradient`) yields the same wrong derivative in every dtype and AD
mode. Only the function values can reveal the error. core/check.py compares the results of cases instead.
"""

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from scaling.core.case import Case
from scaling.core.formatting import list_first
from scaling.core.inputs import InputArrays, point_structs
from scaling.core.reference import ROUNDOFF, flatten_inputs
from scaling.core.workload import Workload
from scaling.options.jaxpr_properties import has_custom_rules
from scaling.options.reference import evaluations, screening
from scaling.options.reference.evaluations import (
    VALUE_ROUNDINGS,
    Evaluation,
    Groups,
    rounding_range,
    values,
    values_along,
)
from scaling.options.reference.finite_differences import (
    CONFIRMING_ERROR,
    DerivativeComparison,
    MeasuredValues,
    compare_along,
)

_MIN_CONFIRMED_SHARE = 0.1  # the minimum fraction of confirmed derivatives; tiny ones are not confirmed
_MAX_VERIFIED_ELEMENTS = 2**18  # limit on the size of an intermediate result at the less suspicious points
_DIRECTIONS = 4  # the number of random directions
_MAX_COLUMNS = 32  # limit on the number of columns of a Jacobian whose columns are confirmed
_NOISE_RUNS = 3  # evaluations with random rounding errors; a single one may change nothing by chance
_VALUE_RUNS = 8  # the same for values, which are cheap, and may be equal by chance at one of many points
_NOISE_STEPS = tuple(2.0**-k for k in range(26, 4, -2))  # in increasing order
_USED_NOISE_STEPS = 3  # only this number of noise steps is used: the shortest that change the value
_HIDING_ERROR = 0.01  # relative to the largest value at a point; a larger error may hide a derivative
# An output with at least this number of nonzero derivatives has a confirmed share of its own.
_LEAST_NONZEROS = 10
_SHIFT = 2.0**-19  # the distance to a nearby point, relative to the size of an input
_SHIFTS = 3  # the number of nearby points; where three elements tie, two points may have the same slopes


@dataclass(frozen=True)
class _Confirmation:
    """The result of comparing a derivative with finite differences at several points."""

    is_wrong: np.ndarray  # shape (points,): whether an output differs by more than rounding errors
    # The fraction of the nonzero derivatives that are confirmed within 5 %, for all outputs or for the worst
    # output, whichever is smaller. At least 0.5 if those of refuted outputs are.
    confirmed_share: float
    worst: str  # a description of the wrong derivative with the largest relative error, or ""
    unresolved: int | None  # the first point at which finite differences contradict each other, as at a kink


def find_objection(
    evaluation: Evaluation,
    case: Case,
    workload: Workload,
    sampled: InputArrays,
    output_name: str,
    float64_obstacle: str | None,
) -> dict[str, Any]:
    """Return {"wrong": message} or {"unsure": message} if a derivative is or may be wrong, else {}.

    The derivative is compared with finite differences at some points of a case. It is trusted if it is
    computed in float64 and the function has no custom derivative rules, such as `jax.custom_jvp`.

    result                          trusted derivative     other derivative
    confirmed                       {}                     {}
    neither confirmed nor refuted   {}                     {"unsure": message}
    refuted                         {"unsure": message}    {"wrong": message}

    `sampled` contains the inputs at the sampled points. `output_name` names the differentiated quantity in
    the message, such as "output". `float64_obstacle` is the reason why the dtype is not float64, or None.
    """
    result = _confirm(evaluation, case, workload, sampled, output_name)
    is_wrong = result.is_wrong.any()
    is_unsure = result.confirmed_share < _MIN_CONFIRMED_SHARE or (
        result.unresolved is not None and not is_wrong
    )
    if not (is_unsure or is_wrong):
        return {}
    # In low precision, rounding can make finite differences wrong at some points.
    max_wrong_share = 0.0 if evaluation.roundoff <= ROUNDOFF["float64"] else 0.5
    is_refuted = not is_unsure and np.mean(result.is_wrong) > max_wrong_share
    structs = point_structs(dataclasses.replace(case, dtype=evaluation.dtype), workload)
    may_be_wrong = evaluation.dtype != "float64" or has_custom_rules(workload.function, structs)
    if is_refuted and may_be_wrong:
        rule = "a derivative rule of the function (custom_jvp, custom_vjp, stop_gradient, primitive) is wrong"
        others = "it uses more than its inputs (such as a counter), or a solver in it stops at a tolerance"
        return {"wrong": f"{rule}, {others}: {result.worst}"}
    if not (is_refuted or may_be_wrong):  # only a custom rule can be wrong, and the function has none
        return {}
    unresolved = None if is_refuted else result.unresolved
    return {"unsure": _describe_doubt(evaluation.dtype, is_refuted, unresolved, float64_obstacle)}


def _describe_doubt(
    dtype: str, is_refuted: bool, unresolved: int | None, float64_obstacle: str | None
) -> str:
    """Return an error message for a derivative that is not confirmed, although it may be right."""
    outcome = "refute" if is_refuted else "do not confirm"
    differences = f"finite differences in {dtype} {outcome} the derivative that JAX computes"
    if unresolved is not None:
        cause = "as at a kink or a jump, or because of rounding errors"
        differences += f" at point {unresolved}, where they depend on the step, {cause}"
    obstacle = f"{float64_obstacle}, and " if float64_obstacle else ""
    return f"{obstacle}{differences}; add a reference to the workload"


def _confirm(
    evaluation: Evaluation, case: Case, workload: Workload, sampled: InputArrays, output_name: str
) -> _Confirmation:
    """Return a comparison of a derivative with finite differences at some points.

    `sampled` contains the inputs at the sampled points. The points that `find_suspicious_points` returns are
    also compared. `output_name` names the differentiated quantity in error messages, such as "output".
    """
    generator = np.random.default_rng(case.data_seed)
    confirm = functools.partial(_confirm_at, evaluation, generator, output_name)
    result = confirm(evaluations.sample_points(case), sampled)
    is_settled = result.is_wrong.any() or result.confirmed_share < _MIN_CONFIRMED_SHARE
    if is_settled or case.points <= evaluations.SAMPLED_POINTS:
        return result
    suspicious = screening.find_suspicious_points(evaluation, case, workload, sampled, generator)
    if not suspicious.size:
        return result
    # The sampled points are included, because the step lengths depend on the typical size of the inputs.
    points = np.union1d(evaluations.sample_points(case), suspicious[: evaluations.SAMPLED_POINTS])
    suspicious_result = confirm(points, evaluations.inputs_at(case, workload, points))
    # Cancellation also makes points suspicious, so that many points may rank before a wrong derivative.
    other_points = suspicious[evaluations.SAMPLED_POINTS :][: _MAX_VERIFIED_ELEMENTS // evaluation.width]
    if other_points.size and not suspicious_result.is_wrong.any():
        other_result = confirm(other_points, evaluations.inputs_at(case, workload, other_points))
        suspicious_result = other_result if other_result.is_wrong.any() else suspicious_result
    # The suspicious points are not a random sample, so that the share of the sampled points is kept.
    return dataclasses.replace(suspicious_result, confirmed_share=result.confirmed_share)


@np.errstate(invalid="ignore", over="ignore")  # at infinite values
def _confirm_at(
    evaluation: Evaluation,
    generator: np.random.Generator,
    output_name: str,
    points: np.ndarray,
    arrays: InputArrays,
) -> _Confirmation:
    """Compare the derivatives along some random directions with finite differences along the same directions.

    `output_name` names the differentiated quantity in error messages, such as "output". `arrays` contains the
    inputs at some points. `points` contains the indices of these points in the batch.
    """
    directions = _choose_directions(evaluation, generator, arrays)
    compare = functools.partial(_compare_along_all, evaluation, directions)
    derivatives, comparison, is_nonzero = compare(arrays)
    if comparison.is_wrong.any():
        shifts = [
            evaluations.random_direction(evaluation, arrays, generator, is_relative=True)
            for _ in range(_SHIFTS)
        ]
        nearby = [{**arrays, **{x: arrays[x] + _SHIFT * shift[x] for x in shift}} for shift in shifts]
        comparison = _exempt_ties(comparison, [compare(shifted)[:2] for shifted in nearby])
    share = _confirmed_share(comparison, is_nonzero)
    names = [[name for name, x in direction.items() if x.any()] for direction in directions]
    is_wrong = comparison.is_wrong.max(axis=(0, 2))
    worst = _describe_worst(output_name, names, points, derivatives, comparison) if is_wrong.any() else ""
    # Rounding errors at a few points must not hide a wrong derivative there.
    is_bounded = comparison.is_bounded.any(axis=0) | ~is_nonzero
    is_unresolved = comparison.is_unresolved.any(axis=(0, 2)) | ~is_bounded.all(axis=1)
    unresolved = int(points[np.argmax(is_unresolved)]) if is_unresolved.any() else None
    return _Confirmation(is_wrong, share, worst, unresolved)


def _choose_directions(
    evaluation: Evaluation, generator: np.random.Generator, arrays: InputArrays
) -> list[dict[str, np.ndarray]]:
    """Return the directions along which `_compare_along_all` compares a derivative.

    The first `_DIRECTIONS` directions change all inputs. If there are several inputs, each of the following
    directions changes one group of them. The next one changes only small elements, if there are any. The last
    one changes each element in proportion to its magnitude.
    """
    directions = [evaluations.random_direction(evaluation, arrays, generator) for _ in range(_DIRECTIONS)]
    if len(evaluation.names) > 1:
        groups = evaluations.group_inputs(evaluation, arrays, generator)
        directions += evaluations.split_direction(directions[0], groups)
    small = evaluations.keep_small_elements(directions[0], arrays)
    directions += [small] if any(x.any() for x in small.values()) else []
    directions.append(evaluations.random_direction(evaluation, arrays, generator, is_relative=True))
    return directions


def _confirmed_share(comparison: DerivativeComparison, is_nonzero: np.ndarray) -> float:
    """Return `_Confirmation.confirmed_share`. `is_nonzero` has the shape (points, outputs)."""
    is_confirmed = np.asarray(comparison.is_confirmed.any(axis=0))
    share = float(np.mean(is_confirmed[is_nonzero])) if is_nonzero.any() else 1.0
    # An output with enough points has a share of its own, because other outputs must not hide it.
    nonzeros = is_nonzero.sum(axis=0)
    shares = (is_nonzero & is_confirmed).sum(axis=0) / np.maximum(nonzeros, 1)
    share = float(np.min(shares, where=nonzeros >= min(_LEAST_NONZEROS, len(is_nonzero)), initial=share))
    # Nor must outputs that rounding hides. The limit of one half excludes chaotic outputs.
    refuted = is_nonzero & comparison.is_wrong.any(axis=(0, 1))
    return max(share, 0.5) if refuted.any() and np.mean(is_confirmed[refuted]) > 0.5 else share


def _exempt_ties(
    comparison: DerivativeComparison, nearby: Sequence[tuple[np.ndarray, DerivativeComparison]]
) -> DerivativeComparison:
    """Return `comparison`, with wrong derivatives marked as unresolved where the slopes jump nearby.

    Where elements tie, as in a median, the function is not differentiable. `nearby` contains the derivatives
    and their comparison at several nearby points.
    """
    least_change = CONFIRMING_ERROR * comparison.size
    jumps = np.any([np.abs(slopes - comparison.expected) > least_change for slopes, _ in nearby], axis=(0, 1))
    is_wrong_nearby = np.all([compared.is_wrong.any(axis=0) for _, compared in nearby], axis=0)
    is_wrong = comparison.is_wrong & (is_wrong_nearby | ~jumps)
    is_unresolved = comparison.is_unresolved | comparison.is_wrong & ~is_wrong
    return comparison._replace(is_wrong=is_wrong, is_unresolved=is_unresolved)


def _compare_along_all(
    evaluation: Evaluation, directions: Sequence[InputArrays], arrays: InputArrays
) -> tuple[np.ndarray, DerivativeComparison, np.ndarray]:
    """Compare the derivatives along each direction with finite differences.

    Return (derivatives, comparison, is_nonzero). `derivatives` and the arrays in `comparison` have the shape
    (directions, points, outputs). `is_nonzero`, of shape (points, outputs), is true where the derivative
    along a direction is much larger than its error, or where rounding errors may hide it. It is false where
    the function is not finite, unless the function is finite nowhere.

    The first `_DIRECTIONS` directions must be random. The root mean square of the derivatives along these
    directions is used as the typical size of a derivative. The last direction must be a result of
    `random_direction` with `is_relative=True`.
    """
    differentiate = functools.partial(_differentiate_along, directions)
    derivatives = differentiate(evaluation, arrays)
    # The range excludes the derivatives themselves, because a rule that is wrong only at 1 would increase it.
    noise = rounding_range(differentiate, evaluation, arrays, 4 * evaluation.roundoff, _NOISE_RUNS)
    # Along the last direction, the derivative and its error may be much smaller (inputs of all magnitudes).
    rounding = [noise[:-1].max(axis=0)] * (len(directions) - 1) + [noise[-1]]
    rms = np.sqrt(np.mean(derivatives[:_DIRECTIONS] ** 2, axis=0))
    typical_sizes = [rms] * _DIRECTIONS + list(np.abs(derivatives[_DIRECTIONS:]))
    measured = _measure_values(evaluation, arrays, directions[0])
    # A derivative may contain the value of the function, for example for exp.
    value_rounding = VALUE_ROUNDINGS * evaluation.roundoff * np.abs(measured.center)
    comparisons = []
    for direction, derivative, size, error in zip(
        directions, derivatives, typical_sizes, rounding, strict=True
    ):
        values_at = functools.partial(values_along, evaluation, arrays, direction)
        comparisons.append(compare_along(values_at, derivative, size, measured, value_rounding, error))
    stacked = DerivativeComparison(*map(np.array, zip(*comparisons, strict=True)))
    is_nonzero = (rms > 8 * rounding[0]) | stacked.is_nonzero.any(axis=0) | _is_hidden(evaluation, measured)
    is_finite = np.isfinite(measured.center)
    return derivatives, stacked, is_nonzero & (is_finite | ~is_finite.any())


def _differentiate_along(
    directions: Sequence[InputArrays], evaluation: Evaluation, arrays: InputArrays
) -> np.ndarray:
    """Return the derivatives along each direction, of shape (directions, points, outputs).

    They are JVPs. If the Jacobian has few columns, the first one is the product of the Jacobian and the first
    direction. It reveals a rule for tangents that is wrong only for unit vectors.
    """
    derivatives = [
        evaluations.directional_derivative(evaluation, arrays, direction) for direction in directions
    ]
    if evaluation.inputs <= _MAX_COLUMNS and not evaluation.rounding_key:
        J = evaluations.jacobian(evaluation, arrays)
        flat = flatten_inputs(evaluation.names, evaluation.per_point, directions[0], len(J))
        derivatives[0] = (J @ flat[:, :, None])[:, :, 0]
    return np.array(derivatives)


def _describe_worst(
    output_name: str,
    names: Groups,
    points: np.ndarray,
    derivatives: np.ndarray,
    comparison: DerivativeComparison,
) -> str:
    """Return text for an error message about the wrong derivative with the largest relative error.

    Derivatives along a direction that changes a single group of inputs take precedence, because the text then
    names the wrong input. Derivatives along the last direction of `_compare_along_all` come last.
    `output_name` is the name of the differentiated quantity, such as "output". `names[k]` are the names of
    the inputs that direction k changes. `points` contains the indices of the points. The other arrays have
    the shape (directions, points, outputs).
    """
    is_wrong, size = comparison.is_wrong, comparison.size
    first = _DIRECTIONS if is_wrong[_DIRECTIONS:-1].any() else 0
    stop = -1 if is_wrong[:-1].any() else None
    errors, tolerances = (
        np.divide(x, size, out=np.zeros_like(size), where=size > 0)
        for x in (np.abs(derivatives - comparison.expected), comparison.allowed)
    )
    ranked = np.where(is_wrong, np.nan_to_num(errors, nan=np.inf), -1.0)[first:stop]
    k, point, output = (int(index) for index in np.unravel_index(np.argmax(ranked), ranked.shape))
    k += first
    arrays = (derivatives, comparison.expected, errors, tolerances)
    derivative, expected, error, tolerance = (float(array[k, point, output]) for array in arrays)
    return (
        f"at point {points[point]}, the derivative of {output_name} {output} with respect to "
        f"{list_first(names[k], 3)} in a random direction is {derivative:.7g}, but finite differences give "
        f"{expected:.7g} (relative error {error:.3g}, tolerance {tolerance:.2g})"
    )


def _measure_values(evaluation: Evaluation, arrays: InputArrays, direction: InputArrays) -> MeasuredValues:
    """Evaluate a function at the inputs `arrays`, and estimate the rounding errors of its values.

    The estimate includes the differences of the values at short steps along `direction`.
    """
    roundoff = evaluation.roundoff
    center = values(evaluation, arrays)
    # Half the range of nine values is about the range of three, which is 0 by chance at some points.
    change = rounding_range(values, evaluation, arrays, 2 * roundoff, _VALUE_RUNS, center) / 2
    underflow = float(jax.numpy.finfo(evaluation.dtype).tiny)
    least_noise = roundoff * np.abs(center) + change + underflow
    largest, used_steps = np.zeros(center.shape), np.zeros(center.shape, int)
    for step in _NOISE_STEPS:
        stepped = [values_along(evaluation, arrays, direction, k * step) for k in (-2, -1, 1, 2)]
        difference = 6 * center - 4 * (stepped[1] + stepped[2]) + stepped[0] + stepped[3]
        is_used = used_steps < _USED_NOISE_STEPS
        largest = np.where(is_used, np.maximum(largest, np.nan_to_num(np.abs(difference)) / 2), largest)
        # If the function rounds an intermediate result, the shortest steps may leave the value unchanged.
        used_steps += np.any(np.array(stepped) != center, axis=0)
    return MeasuredValues(center, least_noise, np.maximum(least_noise, largest))


def _is_hidden(evaluation: Evaluation, measured: MeasuredValues) -> np.ndarray:
    """Return a boolean array of shape (points, outputs), true where rounding may hide changes of an output.

    This is possible if the rounding error exceeds a fraction of the largest |output| at the point. It is also
    possible if the output is not zero, but so small that this fraction of it underflows.
    """
    fraction = max(_HIDING_ERROR, VALUE_ROUNDINGS * evaluation.roundoff)
    size, underflow = np.abs(measured.center), float(jax.numpy.finfo(evaluation.dtype).tiny)
    largest = np.max(size, axis=1, keepdims=True, initial=0.0)
    is_tiny = (size > 0) & (fraction * size < underflow)
    return is_tiny | (measured.least_noise > np.maximum(fraction * largest, 2 * underflow))
