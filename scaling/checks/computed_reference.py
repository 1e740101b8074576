"""Compute the expected derivative of a workload without a closed form (`ComputedReference`) by JAX.

JAX computes a reference in the first of these three ways that is valid:

1. Differentiate the function in float64. This is invalid if the function cannot be evaluated in float64, or
   if its values in float64 and in the dtype of the case differ by more than rounding errors.
2. The same, but the constants that the function computes, such as random numbers, are computed in the dtype
   of the case. Values can still differ because of a cast, or a loop carry with a fixed dtype.
3. Differentiate the function in the dtype of the case.

Each reference is verified by finite differences (verification.py), once for each function and size.
"""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from scaling.checks import evaluations, verification
from scaling.checks.evaluations import Evaluation
from scaling.core import inputs, modes
from scaling.core import reference as references
from scaling.core.case import SECOND, Case
from scaling.core.inputs import InputArrays, point_structs
from scaling.core.reference import ROUNDOFF, ReferenceSpec, flatten_inputs
from scaling.core.timing import time_once
from scaling.core.workload import Workload, cached
from scaling.programs import jaxpr_interpreter
from scaling.programs.jaxpr_properties import jvp_properties

_NATIVE_EVALUATIONS = 2  # the number of evaluations from which the rounding error of values is estimated
_MAX_UNOPTIMIZED = 2**18  # the largest number of inputs times elements for which LLVM optimizes no program
_MAX_RANGES = 64  # the largest number of ranges of points at which a closed form is compared with JVPs
_MAX_DTYPE_DIFFERENCE = 2.0  # relative to the rounding error; a larger difference has another cause


@dataclass(frozen=True)
class ComputedReference:
    """A reference (expected derivative) that JAX computes, with the result of its verification."""

    function: Callable[..., Any]  # that of the workload; its constants may have the dtype of the case
    evaluation: Evaluation  # computes the reference
    native: Evaluation  # evaluates the function in the dtype of the case
    terms: int  # the number of terms whose sum is one entry of the derivative
    float64_obstacle: str | None = None  # the reason why the reference is not computed in float64
    wrong: str | None = None  # an error message if a differentiation rule of the function is wrong
    unsure: str | None = None  # an error message if the reference cannot prove a result correct
    seconds: float = 0.0  # the estimated time to compute all entries of the derivative at all points
    has_reverse_mode: bool = False  # whether JAX can differentiate the function in reverse mode

    def session(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager in which JAX computes on the CPU in the dtype of the reference."""
        return evaluations.evaluation_context(self.evaluation.dtype)


class LazyReference:
    """A `Reference` (values and derivatives) whose arrays JAX computes when they are first accessed."""

    value_terms = derivative_terms = None

    def __init__(self, computed: ComputedReference, arrays: InputArrays) -> None:
        self._computed, self._arrays = computed, arrays

    @functools.cached_property
    def value(self) -> np.ndarray:
        """Return the function values as an array of shape (points, outputs)."""
        evaluation = dataclasses.replace(self._computed.evaluation, function=self._computed.function)
        return evaluations.values(evaluation, self._arrays)

    @functools.cached_property
    def derivative(self) -> np.ndarray:
        """Return the Jacobian at each point as an array of shape (points, outputs, inputs)."""
        return evaluations.jacobian(self._computed.evaluation, self._arrays)


def add_reference(
    case: Case, workload: Workload, workload_key: Hashable
) -> tuple[Workload, ComputedReference]:
    """Return a copy of a workload with a reference that JAX computes, and its `ComputedReference`.

    The `ComputedReference` is cached by `case` and `workload_key`. Different workloads need different keys.
    """
    make_reference = functools.partial(make_verified_reference, case, workload)
    computed: ComputedReference = cached("computed reference", (case, workload_key), make_reference, 8)
    reference: Any = functools.partial(LazyReference, computed)
    terms = max(workload.terms, computed.terms)
    return dataclasses.replace(workload, reference=reference, terms=terms), computed


def make_verified_reference(case: Case, workload: Workload) -> ComputedReference:
    """Return a reference for a case, with the result of its verification by finite differences.

    Its dtype is float64 if possible, otherwise the dtype of the case. If the verification fails, the field
    `wrong` or `unsure` of the reference contains an error message.
    """
    arrays = evaluations.sample_inputs(case, workload)
    with evaluations.evaluation_context(case.dtype):
        native = _make_unverified_reference(case, workload, case.dtype, arrays)
        if case.dtype == "float64":
            return _verify_reference(native, case, workload, arrays)
        native_values, relative = evaluations.values(native.native, arrays), 4 * ROUNDOFF[case.dtype]
        # The unrounded values are part of the range, because the others may agree by chance.
        noise = evaluations.rounding_range(
            evaluations.values, native.native, arrays, relative, _NATIVE_EVALUATIONS, native_values
        )
    obstacle: str | None
    for variant in _float64_variants(case, workload):
        with evaluations.evaluation_context("float64"):
            try:
                reference = _make_unverified_reference(case, variant, "float64", arrays)
                float64_values = evaluations.values(reference.evaluation, arrays)
            except Exception as error:
                message = (str(error).strip().splitlines() or [""])[0][:120]
                obstacle = f"it cannot be evaluated in float64 ({type(error).__name__}: {message})"
            else:
                reference = dataclasses.replace(reference, native=native.native)
                obstacle = _describe_dtype_difference(reference, float64_values, native_values, noise)
                if not obstacle:
                    return _verify_reference(reference, case, variant, arrays)
        native = dataclasses.replace(native, float64_obstacle=native.float64_obstacle or obstacle)
    with evaluations.evaluation_context(case.dtype):
        return _verify_reference(native, case, workload, arrays)


def _float64_variants(case: Case, workload: Workload) -> Iterator[Workload]:
    """Yield one or two versions of a workload to evaluate in float64.

    The first version is the workload itself. In the second version, constants are computed in the dtype of
    the case. Constants are arrays, such as random numbers, that do not depend on the inputs. If there are no
    constants, the second version is omitted.
    """
    yield workload
    with evaluations.evaluation_context(case.dtype):
        structs = point_structs(case, workload)
        function = jaxpr_interpreter.with_fixed_constants(workload.function, structs)
    if function is not None:
        yield dataclasses.replace(workload, function=function)


def native_evaluation(spec: ReferenceSpec) -> Evaluation:
    """Return an `Evaluation` of the derivative of a workload in the dtype of the case.

    It is cached. Cases with the same derivative share it, so that JAX compiles its programs only once.
    """
    problem = references.reset_fields(spec.case, reduce=None)
    make = functools.partial(_make_native_evaluation, problem, spec.workload)
    evaluation: Evaluation = cached("native evaluation", (problem, spec.workload_key), make, 8)
    return evaluation


def _make_native_evaluation(case: Case, workload: Workload) -> Evaluation:
    with evaluations.evaluation_context(case.dtype):
        arrays = evaluations.sample_inputs(case, workload)
        return _make_unverified_reference(case, workload, case.dtype, arrays).native


def describe_wrong_closed_form(spec: ReferenceSpec) -> str | None:
    """Return an error message if the closed form of a workload is wrong, otherwise None.

    The closed form computes Jacobians. They are multiplied by a random vector, and the products are compared
    with JVPs in the dtype of the case, at the points of at most `_MAX_RANGES` ranges. A derivative that the
    workload computes by hand may have the same error as its closed form. If JAX cannot evaluate the function,
    return None.
    """
    evaluation, errors = native_evaluation(spec), np.zeros(0)
    try:
        for start, stop in itertools.islice(references.point_ranges(spec), _MAX_RANGES):
            arrays, direction, expected, limit = _multiply_closed_form(spec, evaluation, start, stop)
            with evaluations.evaluation_context(evaluation.dtype):
                product = evaluations.directional_derivative(evaluation, arrays, direction)
            errors = np.append(errors, (np.abs(product - expected) / limit).max(axis=1))
        worst = np.argsort(-errors)[: evaluations.SAMPLED_POINTS]
        texts = (_describe_wrong_point(spec, evaluation, int(i)) for i in worst if errors[i] > 1)
        return next(filter(None, texts), None)
    except Exception:  # of the function, or of JAX
        return None


def _describe_wrong_point(spec: ReferenceSpec, evaluation: Evaluation, point: int) -> str | None:
    """Return an error message if the closed form is wrong at a point, otherwise None.

    The closed form is wrong if both a JVP and finite differences refute it. A JVP alone is not sufficient: a
    derivative rule of the function may be wrong, or the function may have a kink at the point.
    """
    arrays, direction, expected, limit = _multiply_closed_form(spec, evaluation, point, point + 1)
    differentiate = functools.partial(evaluations.directional_derivative, direction=direction)
    with evaluations.evaluation_context(evaluation.dtype):
        product = differentiate(evaluation, arrays)
        rounding = evaluations.rounding_range(differentiate, evaluation, arrays, 2 * spec.roundoff, 16)
    is_wrong = np.abs(product - expected) > limit + 3 * rounding
    if is_wrong.any():
        with evaluations.evaluation_context("float64"):
            exact = _make_unverified_reference(spec.case, spec.workload, "float64", arrays).evaluation
            is_wrong &= verification.find_refuted(exact, arrays, direction, expected, limit)
    if not is_wrong.any():
        return None
    output = int(np.argmax(is_wrong[0]))
    return (
        "the closed form of the workload (`reference`, or `nonzeros` with `pattern`) is wrong at point "
        f"{point}: the derivative of output {output} in a random direction is {expected[0, output]:.7g}, "
        f"but JAX computes {product[0, output]:.7g}"
    )


def _multiply_closed_form(
    spec: ReferenceSpec, evaluation: Evaluation, start: int, stop: int
) -> tuple[InputArrays, InputArrays, np.ndarray, np.ndarray]:
    """Multiply the Jacobians of the closed form at the points [start, stop) by a random vector.

    Return the inputs, the vector, the products of shape (points, outputs), and the limit of their errors.
    """
    arrays = inputs.exact_inputs(spec.case, spec.workload, start, stop)
    generator = np.random.default_rng([spec.case.data_seed, start])
    direction = evaluations.random_direction(evaluation, arrays, generator)
    J = references.reference_jacobians(spec, start, stop)
    v = flatten_inputs(evaluation.names, evaluation.per_point, direction, stop - start)
    magnitude = J.by_output(J.size, np.abs(v))
    limit = references.tolerance(spec.roundoff, max(spec.workload.terms, v.shape[1])) * magnitude
    limit = limit + 2.0**13 * references.smallest_normal(spec.case)  # intermediate results may underflow
    return arrays, direction, J.by_output(J.values, v), limit


@functools.lru_cache(maxsize=8)  # the cache of compiled programs compares functions by identity
def gradient_of_sum(function: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    """Return a function that sums the outputs of `function` and computes the gradient of the sum.

    The gradient is a vector of the derivatives with respect to the inputs `names`.
    """

    def gradient(**named: Any) -> Any:
        total = lambda *x: jax.numpy.sum(function(**named | dict(zip(names, x, strict=True))))  # noqa: E731
        inputs = [named[name] for name in names]
        try:
            return modes.gradient(total)(*inputs)
        except Exception:  # no rule for reverse mode, as of `lax.while_loop`
            return modes.gradient(total, forward=True)(*inputs)

    return gradient


def _make_unverified_reference(
    case: Case, workload: Workload, dtype: str, arrays: InputArrays
) -> ComputedReference:
    """Return a reference in `dtype` for a case, before it is compared with finite differences.

    If JAX cannot differentiate the function, the field `unsure` contains an error message. `arrays` contains
    the inputs at some points, with which JAX traces the function.
    """
    function, names = workload.function, workload.names
    if case.target in SECOND:
        function = gradient_of_sum(function, names)
    structs = point_structs(dataclasses.replace(case, dtype=dtype), workload)
    properties = jvp_properties(function, names, structs)
    elements = sum(structs[name].size for name in names)
    width = max(properties.width, elements)
    integers = frozenset(name for name, spec in workload.inputs.items() if spec.integer)
    roundoff = max(ROUNDOFF[dtype], 2.0**-properties.bits)
    per_point = frozenset(workload.points)
    evaluation = Evaluation(
        function, names, per_point, integers, dtype, elements, roundoff, width,
        one_by_one=properties.has_batching_rule,  # a rule for `vmap` may be wrong
        # Without an attempt of forward mode, which would fail: JAX may then confuse int32 with int64.
        transposed=properties.needs_transpose,
        # A program in the dtype of the case has to round like the program of the case.
        optimized=dtype == case.dtype or elements * width > _MAX_UNOPTIMIZED,
    )  # fmt: skip
    computed = ComputedReference(workload.function, evaluation, evaluation, properties.terms)
    if case.ad_mode.is_value:
        return computed
    differentiable = evaluations.with_supported_jvp(evaluation, arrays)
    if differentiable is None:
        unsure = (
            "JAX can differentiate the function neither in forward mode nor in reverse mode; "
            "add a reference to the workload"
        )
        return dataclasses.replace(computed, unsure=unsure)
    has_reverse_mode = evaluations.is_traceable(differentiable, arrays, "rows")  # by VJPs
    return dataclasses.replace(
        computed, evaluation=differentiable, native=differentiable, has_reverse_mode=has_reverse_mode
    )


@np.errstate(invalid="ignore")  # at infinite values
def _describe_dtype_difference(
    reference: ComputedReference, float64_values: np.ndarray, native_values: np.ndarray, noise: np.ndarray
) -> str | None:
    """Return a message if function values in two dtypes differ by more than rounding errors, else None.

    `native_values` are the values in the dtype of the case, and `noise` contains their rounding errors. A
    rounding error is NaN if rounding makes a value invalid, such as an argument of arccos that exceeds 1.
    """
    dtype = reference.native.dtype
    roundoff = max(ROUNDOFF[dtype], reference.evaluation.roundoff)
    output_size = np.where(np.isfinite(float64_values), np.abs(float64_values), 0.0)
    scale = np.max(output_size, axis=0)  # of each output, because a large one must not hide another
    noise = np.nan_to_num(noise, nan=np.inf, posinf=np.inf)
    typical = np.sqrt(np.mean(np.where(np.isfinite(noise), noise, 0.0) ** 2, axis=0))  # of all points
    allowed = _MAX_DTYPE_DIFFERENCE * 16 * roundoff * np.sqrt(reference.terms) * scale
    allowed = allowed + 4 * np.maximum(noise, typical)
    is_nan = np.isnan(native_values) & np.isnan(float64_values)
    is_equal = is_nan | (native_values == float64_values)  # also if both are infinite
    differs = ~(is_equal | (np.abs(native_values - float64_values) <= allowed))
    if not differs.any():
        return None
    first_index = tuple(np.argwhere(differs)[0])
    both_values = f"{native_values[first_index]:.6g} and {float64_values[first_index]:.6g}"
    return f"its values differ between {dtype} and float64 ({both_values})"


def _verify_reference(
    computed: ComputedReference, case: Case, workload: Workload, arrays: InputArrays
) -> ComputedReference:
    """Verify a reference by finite differences, and return a copy of it with the result.

    If the verification fails, the field `wrong` or `unsure` contains an error message. If it succeeds, the
    field `seconds` contains the estimated time to compute the derivative at all points. With mode=value,
    there is nothing to verify, and `computed` is returned.
    """
    if case.ad_mode.is_value or computed.unsure:
        return computed
    evaluation, differentiated = computed.evaluation, [computed.evaluation]
    if case.target in SECOND:  # verify the gradient in reverse mode if possible, and then its derivative
        function = dataclasses.replace(evaluation, function=workload.function, transposed=True)
        differentiated = [evaluations.with_supported_jvp(function, arrays) or function, evaluation]
    for differentiable, output_name in zip(differentiated, ("output", "gradient element"), strict=False):
        objection = verification.find_objection(
            differentiable, case, workload, arrays, output_name, computed.float64_obstacle
        )
        if objection:
            return dataclasses.replace(computed, **objection)
    return dataclasses.replace(computed, seconds=_estimate_seconds(evaluation, case, arrays))


def _estimate_seconds(evaluation: Evaluation, case: Case, arrays: InputArrays) -> float:
    columns, points = evaluation.inputs, len(arrays[next(iter(evaluation.per_point))])
    block = np.arange(min(columns, evaluations.seeds_per_call(evaluation, points)))
    compute_block = functools.partial(evaluations.slices, evaluation, arrays, "columns", block)
    compute_block()  # compiles
    seconds, _ = time_once(compute_block)
    return seconds / (points * len(block)) * case.points * columns
