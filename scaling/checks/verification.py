"""Verify the derivative of a computed reference by finite differences of the function (`find_objection`).

Derivatives along random directions are compared at a few points, and at those where a coarse comparison finds
a deviation. A wrong derivative rule of the function (`jax.custom_jvp`, `jax.custom_vjp`, `stop_gradient`)
yields the same wrong derivative in every dtype and AD mode. Only the function values can reveal the error.
"""

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from scaling.checks import evaluations
from scaling.checks.evaluations import (
    VALUE_ROUNDINGS,
    Evaluation,
    rounding_range,
    values,
    values_along,
)
from scaling.checks.finite_differences import (
    CONFIRMING_ERROR,
    DerivativeComparison,
    compare_along,
    find_suspicious_points,
)
from scaling.core.case import Case
from scaling.core.formatting import list_first
from scaling.core.inputs import InputArrays, point_structs
from scaling.core.reference import ROUNDOFF, flatten_inputs, relative_error
from scaling.core.workload import Workload
from scaling.programs.jaxpr_properties import has_custom_rule

_MIN_CONFIRMED = 0.1  # the minimum fraction of confirmed derivatives; tiny ones are not confirmed
_MAX_VERIFIED_ELEMENTS = 2**18  # limit on the size of an intermediate result at the less suspicious points
_DIRECTIONS = 4  # the number of random directions
_MEAN_COLUMNS = 32  # the mean number of columns of a Jacobian that are confirmed
_NOISE_RUNS = 3  # evaluations with random rounding errors; a single one may change nothing by chance
_VALUE_RUNS = 8  # the same for values, which are cheap, and may be equal by chance at one of many points
_HIDING_ERROR = 0.01  # relative to the largest value at a point; a larger error may hide a derivative
# An output with at least this number of nonzero derivatives has a confirmed share of its own.
_LEAST_NONZEROS = 10
_SHIFT = 2.0**-19  # the distance to a nearby point, relative to the size of an input
_SHIFTS = 6  # the number of nearby points; where three elements tie, some may have the same slopes by chance


@dataclass(frozen=True)
class _Confirmation:
    """Whether finite differences confirm or refute a derivative at several points."""

    is_wrong: np.ndarray  # shape (points,): whether an output differs by more than rounding errors
    # The fraction of the nonzero derivatives that are confirmed within 5 %, for all outputs or for the worst
    # output, whichever is smaller. At least 0.5 if most derivatives of refuted outputs are confirmed.
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
    """Compare a derivative with finite differences, and return an objection to it.

    The objection is a dict {"wrong": message} or {"unsure": message}. The keys are fields of
    `ComputedReference`. If there is no objection, the dict is empty. A derivative is trusted if it is
    computed in float64 and the function has no custom derivative rules, such as `jax.custom_jvp`.

    result of the comparison        trusted derivative     other derivative
    confirmed                       no objection           no objection
    neither confirmed nor refuted   no objection           "unsure"
    refuted                         "unsure"               "wrong"

    `sampled` contains the inputs at the sampled points. `output_name` names the differentiated quantity in
    the message, such as "output". `float64_obstacle` is the reason why the dtype is not float64, or None.
    """
    result = _confirm(evaluation, case, workload, sampled, output_name)
    is_wrong = result.is_wrong.any()
    is_unsure = result.confirmed_share < _MIN_CONFIRMED or (result.unresolved is not None and not is_wrong)
    if not (is_unsure or is_wrong):
        return {}
    # In low precision, rounding can make finite differences wrong at some points.
    max_wrong_share = 0.0 if evaluation.roundoff <= ROUNDOFF["float64"] else 0.5
    is_refuted = not is_unsure and np.mean(result.is_wrong) > max_wrong_share
    structs = point_structs(dataclasses.replace(case, dtype=evaluation.dtype), workload)
    may_be_wrong = evaluation.dtype != "float64" or has_custom_rule(workload.function, structs)
    if is_refuted and may_be_wrong:
        rule = "a derivative rule of the function (custom_jvp, custom_vjp, stop_gradient, primitive) is wrong"
        others = "it uses more than its inputs (such as a counter), or a solver in it stops at a tolerance"
        return {"wrong": f"{rule}, {others}: {result.worst}"}
    if not (is_refuted or may_be_wrong):  # only a custom rule can be wrong, and the function has none
        return {}
    unresolved = None if is_refuted else result.unresolved
    return {"unsure": _describe_doubt(evaluation.dtype, is_refuted, unresolved, float64_obstacle)}


@np.errstate(invalid="ignore", over="ignore")  # at infinite values
def find_refuted(
    evaluation: Evaluation,
    arrays: InputArrays,
    direction: InputArrays,
    derivative: np.ndarray,
    tolerance: np.ndarray,
) -> np.ndarray:
    """Return whether finite differences refute `derivative`, the derivative along a direction.

    The derivative may have errors up to `tolerance`. At a kink, it may be between the slopes on both sides.
    All arrays have the shape (points, outputs).
    """
    center, noise = _measure_values(evaluation, arrays)
    value_rounding = VALUE_ROUNDINGS * evaluation.roundoff * np.abs(center)
    values_at = functools.partial(values_along, evaluation, arrays, direction)
    size, rounding = np.abs(derivative), tolerance / 4  # `compare_along` allows four times the rounding error
    return compare_along(values_at, derivative, size, center, noise, value_rounding, rounding).is_wrong


def _describe_doubt(
    dtype: str, is_refuted: bool, unresolved: int | None, float64_obstacle: str | None
) -> str:
    """Return an error message for a derivative that is not confirmed, although it may be correct."""
    outcome = "refute" if is_refuted else "do not confirm"
    differences = f"finite differences in {dtype} {outcome} the derivative that JAX computes"
    if unresolved is not None:
        cause = "as at a kink or a jump, or because of rounding errors"
        differences += f" at point {unresolved}, where they depend on the step, {cause}"
    obstacle = f"{float64_obstacle}, and " if float64_obstacle else ""
    return f"{obstacle}{differences}; add a reference to the workload"


@np.errstate(invalid="ignore", over="ignore")  # at infinite values
def _confirm(
    evaluation: Evaluation, case: Case, workload: Workload, sampled: InputArrays, output_name: str
) -> _Confirmation:
    """Compare a derivative with finite differences along random directions at some points.

    The points are the sampled points, whose inputs `sampled` contains, and the points where the derivative
    seems to be wrong. `output_name` names the differentiated quantity in messages, such as "output".
    """
    generator, points = np.random.default_rng(case.data_seed), evaluations.sample_points(case)
    groups, suspicious = evaluations.group_inputs(evaluation, sampled, generator), points[:0]
    if case.points > len(points):
        # Cancellation also makes points suspicious, so that many points may rank before a wrong derivative.
        limit = max(evaluations.SAMPLED_POINTS, _MAX_VERIFIED_ELEMENTS // evaluation.width)
        suspicious = find_suspicious_points(evaluation, case, workload, groups, generator)[:limit]
    is_sampled = np.isin(all_points := np.union1d(points, suspicious), points)
    arrays = evaluations.inputs_at(case, workload, all_points)
    directions = [evaluations.random_direction(evaluation, arrays, generator) for _ in range(_DIRECTIONS)]
    others = evaluations.choose_directions(evaluation, arrays, generator, groups)
    others = others[1:] if len(groups) == 1 else others  # a single group contains all inputs
    directions += [x for x in others if any(element.any() for element in x.values())]
    for name, v in directions[0].items():
        shape = v.shape[1:] if name in evaluation.per_point else v.shape
        directions[0][name] = v * (generator.random(shape) < _MEAN_COLUMNS / evaluation.inputs)
    derivatives, comparison, is_nonzero = _compare_along_all(evaluation, directions, arrays)
    if comparison.is_wrong.any():
        comparison = _exempt_ties(evaluation, generator, directions, arrays, comparison)
    # The suspicious points are not a random sample, so that only the sampled points have a share.
    of_sampled = DerivativeComparison(*(x[:, is_sampled] for x in comparison))
    share = _confirmed_share(of_sampled, is_nonzero[is_sampled])
    is_wrong = np.asarray(comparison.is_wrong.any(axis=(0, 2)))
    worst = ""
    if is_wrong.any():
        worst = _describe_worst(output_name, directions, all_points, derivatives, comparison)
    # Rounding errors at a few points must not hide a wrong derivative there.
    is_bounded = comparison.is_bounded.any(axis=0) | ~is_nonzero
    is_unresolved = comparison.is_unresolved.any(axis=(0, 2)) | ~is_bounded.all(axis=1)
    is_unresolved &= is_sampled | np.isin(all_points, suspicious[: evaluations.SAMPLED_POINTS])
    unresolved = int(all_points[np.argmax(is_unresolved)]) if is_unresolved.any() else None
    return _Confirmation(is_wrong, share, worst, unresolved)


def _confirmed_share(comparison: DerivativeComparison, is_nonzero: np.ndarray) -> float:
    """Return the confirmed fraction of the nonzero derivatives (`_Confirmation.confirmed_share`).

    `is_nonzero` has the shape (points, outputs).
    """
    is_confirmed = np.asarray(comparison.is_confirmed.any(axis=0))
    share = float(np.mean(is_confirmed[is_nonzero])) if is_nonzero.any() else 1.0
    # An output with enough points has a share of its own, because other outputs must not hide it.
    nonzeros = is_nonzero.sum(axis=0)
    shares = (is_nonzero & is_confirmed).sum(axis=0) / np.maximum(nonzeros, 1)
    share = float(np.min(shares, where=nonzeros >= min(_LEAST_NONZEROS, len(is_nonzero)), initial=share))
    # Outputs that rounding hides must not protect a refuted output. A chaotic output is rarely confirmed.
    refuted = is_nonzero & comparison.is_wrong.any(axis=(0, 1))
    return max(share, 0.5) if refuted.any() and np.mean(is_confirmed[refuted]) > 0.5 else share


def _exempt_ties(
    evaluation: Evaluation,
    generator: np.random.Generator,
    directions: Sequence[InputArrays],
    arrays: InputArrays,
    comparison: DerivativeComparison,
) -> DerivativeComparison:
    """Return a copy of `comparison` in which wrong derivatives at a tie are marked as unresolved.

    At a tie, input elements are equal, and a function such as the median is not differentiable. A tie is
    assumed if the derivative changes between nearby points, and is not wrong at one or more of them.
    """
    jumps, is_wrong = np.zeros(comparison.is_wrong.shape[1:], bool), comparison.is_wrong
    is_wrong_nearby = np.ones_like(jumps)
    for _ in range(_SHIFTS):
        shift = evaluations.random_direction(evaluation, arrays, generator, is_relative=True)
        nearby = {**arrays, **{name: arrays[name] + _SHIFT * x for name, x in shift.items()}}
        slopes, compared, _ = _compare_along_all(evaluation, directions, nearby)
        changes = np.abs(slopes - comparison.expected) > CONFIRMING_ERROR * comparison.size
        jumps, is_wrong_nearby = jumps | changes.any(axis=0), is_wrong_nearby & compared.is_wrong.any(axis=0)
    is_tie = is_wrong & jumps & ~is_wrong_nearby
    return comparison._replace(is_wrong=is_wrong & ~is_tie, is_unresolved=comparison.is_unresolved | is_tie)


def _compare_along_all(
    evaluation: Evaluation, directions: Sequence[InputArrays], arrays: InputArrays
) -> tuple[np.ndarray, DerivativeComparison, np.ndarray]:
    """Compare the derivatives along each direction with finite differences.

    Return three results:

    derivatives    the derivatives, of shape (directions, points, outputs)
    comparison     the comparison of each derivative, in arrays of the same shape
    is_nonzero     where a derivative is nonzero, or may be hidden by rounding errors, of shape
                   (points, outputs)

    At points where the function is not finite, `is_nonzero` is false, unless the function is finite nowhere.
    The first `_DIRECTIONS` directions must be random: the root mean square of their derivatives is the
    typical size of a derivative. The last direction must be from `random_direction` with `is_relative=True`.
    """
    differentiate = functools.partial(_differentiate_along, directions)
    derivatives = differentiate(evaluation, arrays)
    # The range excludes the derivatives themselves, because a rule that is wrong only at 1 would increase it.
    noise = rounding_range(differentiate, evaluation, arrays, 4 * evaluation.roundoff, _NOISE_RUNS)
    # Along the last direction, the derivative and its error may be much smaller (inputs of all magnitudes).
    rounding = [noise[:-1].max(axis=0)] * (len(directions) - 1) + [noise[-1]]
    rms = np.sqrt(np.mean(derivatives[:_DIRECTIONS] ** 2, axis=0))
    typical_sizes = [rms] * _DIRECTIONS + list(np.abs(derivatives[_DIRECTIONS:]))
    center, value_noise = _measure_values(evaluation, arrays)
    # A derivative may contain the value of the function, for example for exp.
    value_rounding = VALUE_ROUNDINGS * evaluation.roundoff * np.abs(center)
    comparisons = []
    for direction, derivative, size, error in zip(
        directions, derivatives, typical_sizes, rounding, strict=True
    ):
        values_at = functools.partial(values_along, evaluation, arrays, direction)
        comparisons.append(
            compare_along(values_at, derivative, size, center, value_noise, value_rounding, error)
        )
    stacked = DerivativeComparison(*map(np.array, zip(*comparisons, strict=True)))
    is_nonzero = (
        (rms > 8 * rounding[0]) | stacked.is_nonzero.any(axis=0) | _is_hidden(evaluation, center, value_noise)
    )
    is_finite = np.isfinite(center)
    return derivatives, stacked, is_nonzero & (is_finite | ~is_finite.any())


def _differentiate_along(
    directions: Sequence[InputArrays], evaluation: Evaluation, arrays: InputArrays
) -> np.ndarray:
    """Return the derivatives along each direction, of shape (directions, points, outputs).

    The first derivative is a weighted sum of columns of the Jacobian, because the first direction has few
    nonzero elements. All other derivatives are JVPs. A column reveals a derivative rule that is wrong only
    for unit vectors.
    """
    derivatives = [
        evaluations.directional_derivative(evaluation, arrays, direction) for direction in directions
    ]
    if not evaluation.rounding_key:
        v = flatten_inputs(evaluation.names, evaluation.per_point, directions[0], len(derivatives[0]))
        columns = np.flatnonzero(v.any(axis=0))
        J = evaluations.slices(evaluation, arrays, "columns", columns)
        derivatives[0] = (J @ v[:, columns, None])[:, :, 0]
    return np.array(derivatives)


def _describe_worst(
    output_name: str,
    directions: Sequence[InputArrays],
    points: np.ndarray,
    derivatives: np.ndarray,
    comparison: DerivativeComparison,
) -> str:
    """Return text for an error message about the wrong derivative with the largest relative error.

    A derivative along a direction that changes a single group of inputs is preferred, because the text then
    names the wrong input. The last direction is used only if no other derivative is wrong. `points` contains
    the indices of the points. The other arrays have the shape (directions, points, outputs).
    """
    is_wrong, expected = comparison.is_wrong.copy(), comparison.expected
    if is_wrong[:-1].any():
        is_wrong[-1] = False
    if is_wrong[_DIRECTIONS:].any():
        is_wrong[:_DIRECTIONS] = False
    errors = np.nan_to_num(relative_error(np.abs(derivatives - expected), comparison.size), nan=np.inf)
    k, point, output = index = np.unravel_index(np.argmax(np.where(is_wrong, errors, -1.0)), errors.shape)
    names = [name for name, x in directions[int(k)].items() if x.any()]
    return (
        f"at point {points[point]}, the derivative of {output_name} {output} with respect to "
        f"{list_first(names, 3)} in a random direction is {derivatives[index]:.7g}, but finite differences "
        f"give {expected[index]:.7g} (relative error {errors[index]:.3g}, "
        f"tolerance {comparison.allowed[index] / comparison.size[index]:.2g})"
    )


def _measure_values(evaluation: Evaluation, arrays: InputArrays) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of a function at the inputs `arrays`, and an estimate of their rounding errors."""
    center = values(evaluation, arrays)
    # Half the range of nine values is about the range of three, which is 0 by chance at some points.
    change = rounding_range(values, evaluation, arrays, 2 * evaluation.roundoff, _VALUE_RUNS, center) / 2
    underflow = float(jax.numpy.finfo(evaluation.dtype).tiny)
    return center, evaluation.roundoff * np.abs(center) + change + underflow


def _is_hidden(evaluation: Evaluation, center: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Return where rounding may hide changes of an output, as a boolean array of shape (points, outputs).

    Changes may be hidden if the rounding error exceeds a small fraction of the largest |output| at the point,
    or if this fraction of the output itself underflows. `center` contains the outputs, and `noise` their
    rounding errors.
    """
    fraction = max(_HIDING_ERROR, VALUE_ROUNDINGS * evaluation.roundoff)
    size, underflow = np.abs(center), float(jax.numpy.finfo(evaluation.dtype).tiny)
    largest = np.max(size, axis=1, keepdims=True, initial=0.0)
    is_tiny = (size > 0) & (fraction * size < underflow)
    return is_tiny | (noise > np.maximum(fraction * largest, 2 * underflow))
