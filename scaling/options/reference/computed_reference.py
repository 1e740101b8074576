"""Choose the dtype of a reference (expected result) that JAX computes on the CPU, and verify the reference.

If a workload does not provide a closed form of its derivative, the reference is the derivative by JAX in
float64. If the values of the function in float64 differ from the values in the dtype of the case (because of
random bits, a cast, or a loop carry with a fixed dtype), the reference is computed in the dtype of the case
instead. Each reference is verified by finite differences, once for each function and size.
"""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from scaling.core import inputs, modes
from scaling.core.case import SECOND, Case
from scaling.core.process_cache import cached
from scaling.core.shape import point_structs
from scaling.core.tolerances import ROUNDOFF
from scaling.core.workload import Workload
from scaling.options.reference import evaluation as evaluations
from scaling.options.reference import fd_check
from scaling.options.reference.evaluation import Arrays, Evaluation
from scaling.options.reference.rounding import RoundingProperties, rounding_properties

_POINTS = 16  # the most points at which the function is examined, and the most suspects of the others
_SCREENED_TOGETHER = 2**22  # the most elements of intermediate results of all points of a call
_MOST_SCREENED = 2**26  # the most of these elements in all calls; further points are not screened
_LEAST_CONFIRMED_SHARE = 0.1  # of the outputs; the others may have a derivative too small for a difference
_EVALUATIONS = 2  # the number of evaluations from which the rounding error of values is estimated
_MOST_RELATIVE_TO_ROUNDING = 2.0  # a larger difference between dtypes is not explained by rounding


@dataclass(frozen=True)
class ComputedReference:
    """The reference of a function without a closed form, computed by automatic differentiation."""

    # The function as an `Evaluation` in float64, or in the dtype of the case if its values in float64 differ.
    evaluation: Evaluation
    native: Evaluation  # the function as an `Evaluation` in the dtype of the case
    terms: int  # the number of terms whose sum is one entry of the derivative
    inside: float  # the unit roundoff of the narrowest dtype inside the function
    # An error message if a custom differentiation rule of the function is wrong, otherwise None.
    wrong: str | None = None
    # An error message if the reference cannot prove a result correct, otherwise None.
    unsure: str | None = None
    seconds: float = 0.0  # the estimated time to compute all entries of all points, in seconds
    backward: bool = False  # whether the function can be differentiated in reverse mode


class LazyReference:
    """A `scaling.core.workload.Reference` at a block of points, computed on first access."""

    value_terms = None
    derivative_terms = None

    def __init__(self, differentiated: Evaluation, function: Evaluation, arrays: Arrays) -> None:
        self._differentiated, self._function, self._arrays = differentiated, function, arrays

    @functools.cached_property
    def value(self) -> np.ndarray:
        """Return the values of the function, an array of shape (points, outputs)."""
        return evaluations.values(self._function, self._arrays)

    @functools.cached_property
    def derivative(self) -> np.ndarray:
        """Return the Jacobian at each point, an array of shape (points, outputs, inputs)."""
        return evaluations.jacobian(self._differentiated, self._arrays)


def add_reference(
    case: Case, workload: Workload, workload_key: Hashable
) -> tuple[Workload, ComputedReference]:
    """Return a copy of a workload whose `reference` computes values and Jacobians with JAX, and how.

    `workload_key` is a cache key that is equal for equal workloads.
    """
    key = (case, workload_key)
    computed: ComputedReference = cached("computed reference", key, lambda: examine(case, workload), 8)
    differentiated: Evaluation = computed.evaluation
    function = dataclasses.replace(differentiated, function=workload.function)
    reference: Any = functools.partial(LazyReference, differentiated, function)
    terms = max(workload.terms, computed.terms)
    return dataclasses.replace(workload, reference=reference, terms=terms), computed


def session(computed: ComputedReference) -> contextlib.AbstractContextManager[None]:
    """Return a context manager that configures JAX for the evaluation of the reference."""
    return evaluations.evaluation_context(computed.evaluation.dtype)


def examine(case: Case, workload: Workload) -> ComputedReference:
    """Return the reference that JAX computes for a case, after verifying its derivative.

    The reference is computed in float64 if possible, otherwise in the dtype of the case. If the verification
    fails, the field `wrong` or `unsure` of the reference contains an error message.
    """
    arrays = _inputs_at(case, workload, _sample_numbers(case))
    with evaluations.evaluation_context(case.dtype):
        native = _make_unverified_reference(case, workload, case.dtype, arrays)
        if case.dtype == "float64":
            return _verify(native, case, workload, arrays)
        native_values, noise = _values_and_noise(native.native, arrays, ROUNDOFF[case.dtype])
    with evaluations.evaluation_context("float64"):
        exact, obstacle = _make_float64_reference(case, workload, arrays, native, native_values, noise)
        if exact is not None:
            return _verify(exact, case, workload, arrays)
    with evaluations.evaluation_context(case.dtype):
        return _verify(native, case, workload, arrays, obstacle)


def native_evaluation(case: Case, workload: Workload, arrays: Arrays) -> Evaluation:
    """Return an `Evaluation` in the dtype of the case, for a workload with a closed form."""
    with evaluations.evaluation_context(case.dtype):
        native: Evaluation = _make_unverified_reference(case, workload, case.dtype, arrays).native
        return native


def _sample_numbers(case: Case) -> np.ndarray:
    return np.unique(np.linspace(0, case.points - 1, min(case.points, _POINTS)).astype(int))


def _inputs_at(case: Case, workload: Workload, points: np.ndarray) -> dict[str, np.ndarray]:
    by_point = [inputs.exact_inputs(case, workload, int(i), int(i) + 1) for i in points]
    return {
        name: np.concatenate([point[name] for point in by_point]) if name in workload.points else first
        for name, first in by_point[0].items()
    }


@functools.lru_cache(maxsize=8)  # programs are cached by their function
def _gradient(function: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    """Return a function that computes the gradient of the sum of the outputs, an array of shape (inputs,)."""

    def gradient(**named: Any) -> Any:
        total = lambda *x: jax.numpy.sum(function(**named | dict(zip(names, x, strict=True))))  # noqa: E731
        return modes.gradient(total)(*[named[name] for name in names])

    return gradient


def _values_and_noise(
    evaluation: Evaluation, arrays: Arrays, roundoff: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the values and their largest change by random rounding, arrays of shape (points, outputs)."""
    center, generator = evaluations.values(evaluation, arrays), np.random.default_rng(0)
    pairs = evaluations.with_rounding(evaluation, arrays, 4 * roundoff, generator, _EVALUATIONS)
    perturbed = [evaluations.values(*pair) for pair in pairs]
    return center, np.max(np.abs(np.array(perturbed) - center), axis=0)


def _make_unverified_reference(
    case: Case, workload: Workload, dtype: str, arrays: Arrays
) -> ComputedReference:
    function, names = workload.function, workload.names
    if case.target in SECOND:
        function = _gradient(function, names)
    properties = _rounding_properties_with_jvp(
        function, names, point_structs(dataclasses.replace(case, dtype=dtype), workload)
    )
    integers = frozenset(name for name, spec in workload.inputs.items() if spec.integer)
    evaluation = Evaluation(function, names, frozenset(workload.points), integers, dtype)
    width = max(properties.width, evaluations.count_inputs(evaluation, arrays))
    evaluation = dataclasses.replace(evaluation, width=width)
    computed = ComputedReference(evaluation, evaluation, properties.terms, 2.0**-properties.bits)
    if case.ad_mode.is_value:
        return computed
    differentiable = evaluations.with_pushforward(evaluation, arrays)
    if differentiable is None:
        unsure = (
            "JAX can differentiate the function neither in forward mode nor in reverse mode; "
            "add a reference to the workload"
        )
        return dataclasses.replace(computed, unsure=unsure)
    backward = evaluations.is_defined(differentiable, arrays, "rows")
    return dataclasses.replace(computed, evaluation=differentiable, native=differentiable, backward=backward)


def _rounding_properties_with_jvp(
    function: Callable[..., Any], names: Sequence[str], structs: Mapping[str, Any]
) -> RoundingProperties:
    """Return the rounding properties of the Jacobian-vector product of the function at one point.

    If the function has no forward mode, return those of the function itself with twice as many terms.
    """
    x = {name: structs[name] for name in names}
    constants = {name: struct for name, struct in structs.items() if name not in names}

    def jvp(constants: dict[str, Any], x: dict[str, Any], tangents: dict[str, Any]) -> Any:
        return jax.jvp(lambda z: function(**constants, **z), (x,), (tangents,))

    try:
        return rounding_properties(jvp, constants, x, x)
    except Exception:  # no rule for forward mode
        properties = rounding_properties(lambda named: function(**named), structs)
        return dataclasses.replace(properties, terms=2 * properties.terms)


def _make_float64_reference(
    case: Case,
    workload: Workload,
    arrays: Arrays,
    native: ComputedReference,
    native_values: np.ndarray,
    noise: np.ndarray,
) -> tuple[ComputedReference | None, str | None]:
    """Return (unverified reference, None), or (None, reason) if a reference in float64 cannot be used.

    The reason is that the function fails in float64, or that its values differ by more than rounding and
    `noise` explain from `native_values`, the values in the dtype of the case.
    """
    try:
        exact = _make_unverified_reference(case, workload, "float64", arrays)
        exact_values = evaluations.values(exact.evaluation, arrays)
    except Exception as error:
        message = (str(error).strip().splitlines() or [""])[0][:120]
        return None, f"it cannot be evaluated in float64 ({type(error).__name__}: {message})"
    roundoff = max(ROUNDOFF[case.dtype], exact.inside)
    scale = np.maximum(np.max(np.abs(exact_values), axis=0), np.sqrt(np.mean(exact_values**2)))
    allowed = _MOST_RELATIVE_TO_ROUNDING * 16 * roundoff * np.sqrt(exact.terms) * scale + 4 * noise
    differs = ~(np.abs(native_values - exact_values) <= allowed)
    if differs.any():
        first = tuple(np.argwhere(differs)[0])
        pair = f"{native_values[first]:.6g} and {exact_values[first]:.6g}"
        return None, f"its values differ between {case.dtype} and float64 ({pair})"
    return dataclasses.replace(exact, native=native.native), None


def _verify(
    computed: ComputedReference, case: Case, workload: Workload, arrays: Arrays, obstacle: str | None = None
) -> ComputedReference:
    """Verify a reference by finite differences, and return a copy that contains the outcome.

    The outcome is the estimated time `seconds` if the derivative is confirmed, otherwise an error message in
    the field `wrong` or `unsure`. `obstacle` is the reason why the reference is not in float64, or None.
    """
    if case.ad_mode.is_value or computed.unsure:
        return computed
    evaluation: Evaluation = computed.evaluation
    roundoff, levels = max(ROUNDOFF[evaluation.dtype], computed.inside), [evaluation]
    if case.target in SECOND:  # verify the gradient, and then its derivative
        function = dataclasses.replace(evaluation, function=workload.function)
        levels = [evaluations.with_pushforward(function, arrays) or function, evaluation]
    for level in levels:
        generator = np.random.default_rng(case.data_seed)
        result = fd_check.confirm(level, arrays, roundoff, generator)
        is_unsure = result.confirmed_share < _LEAST_CONFIRMED_SHARE
        is_exact = roundoff <= ROUNDOFF["float64"]  # otherwise a coarse difference proves nothing
        if is_exact and case.points > _POINTS and not (is_unsure or result.is_wrong.any()):
            suspects = _find_suspects(level, case, workload, roundoff, generator)
            if suspects.size:
                points = np.union1d(_sample_numbers(case), suspects)  # whose inputs are of typical size
                examined = fd_check.confirm(level, _inputs_at(case, workload, points), roundoff, generator)
                result = examined if examined.is_wrong.any() else result
        # In few digits, rounding can make a difference wrong at some points.
        if np.mean(result.is_wrong) > (0.0 if is_exact else 0.5) and not is_unsure:
            wrong = (
                "the function's own derivative differs from finite differences of its values by "
                f"{result.largest_difference:.3g}: a rule of its own (custom_jvp, custom_vjp, stop_gradient) "
                "is wrong"
            )
            return dataclasses.replace(computed, wrong=wrong)
        if is_unsure or result.is_wrong.any():
            confirmed = f"confirm {result.confirmed_share:.0%} of its outputs"
            share = f"finite differences in {evaluation.dtype} {confirmed}"
            reason = f"{obstacle}, and {share}" if obstacle else f"{share}; add a reference to the workload"
            return dataclasses.replace(computed, unsure=reason)
    return dataclasses.replace(computed, seconds=_estimate_seconds(evaluation, case, arrays))


def _find_suspects(
    evaluation: Evaluation, case: Case, workload: Workload, roundoff: float, generator: np.random.Generator
) -> np.ndarray:
    """Return the points, at most `_POINTS`, whose derivative differs most from a coarse finite difference.

    Points at which the derivative agrees with the finite difference are left out.
    """
    most = min(case.points, max(1, _MOST_SCREENED // evaluation.width))
    size = max(1, min(most, _SCREENED_TOGETHER // evaluation.width))
    difference = np.zeros(most)
    for start in (*range(0, most - size, size), most - size):
        arrays = inputs.exact_inputs(case, workload, start, start + size)
        difference[start : start + size] = fd_check.screen(evaluation, arrays, roundoff, generator)
    worst = np.argsort(-difference, kind="stable")[:_POINTS]
    return worst[difference[worst] > fd_check.SUSPICIOUS]


def _estimate_seconds(evaluation: Evaluation, case: Case, arrays: Arrays) -> float:
    columns = evaluations.count_inputs(evaluation, arrays)
    points = len(arrays[next(iter(evaluation.per_point))])
    block = np.arange(min(columns, evaluations.seeds_per_call(evaluation, points)))
    evaluations.jacobian_columns(evaluation, arrays, block)  # compiles
    start = time.perf_counter()
    evaluations.jacobian_columns(evaluation, arrays, block)
    return (time.perf_counter() - start) / (points * len(block)) * case.points * columns
