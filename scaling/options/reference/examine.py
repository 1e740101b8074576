"""Prepare the reference of a function that has no closed form, and find out how far it can be trusted.

The reference is the derivative of the same function in float64 on the CPU. Where the values of the function
differ between float64 and the dtype of the case (random bits, a cast, a carry of a fixed dtype), it is the
derivative in the dtype of the case. Either is confirmed by finite differences, once for each function and
size. Does not know results.
"""

import contextlib
import dataclasses
import functools
import time
from typing import Any

import jax
import numpy as np

from scaling.core import inputs
from scaling.core.case import SECOND, Case
from scaling.core.reference import ComputedReference
from scaling.core.tolerances import ROUNDOFF
from scaling.core.workload import Workload
from scaling.options.reference import fd_check, finite_differences, float64
from scaling.options.reference.float64 import Evaluation, Named
from scaling.options.reference.rounding import Rounded, rounded

_POINTS = 16  # at which a function is examined
_LEAST_SURE = (
    0.1  # the share of outputs that differences must confirm; small ones drown in their output's value
)
_REPEATS = 2  # nudges that show the noise of the values
_FAR = 2.0  # times what rounding explains: then the values differ


class Computed:
    """A reference at a block of points, like `workload.Reference`, evaluated when it is needed."""

    value_terms = None
    derivative_terms = None

    def __init__(self, of: Evaluation, function: Evaluation, named: Named) -> None:
        self._of, self._function, self._named = of, function, named

    @functools.cached_property
    def value(self) -> np.ndarray:
        """Return the values of the function: (points, outputs)."""
        return float64.values(self._function, self._named)

    @functools.cached_property
    def derivative(self) -> np.ndarray:
        """Return the Jacobians: (points, outputs, inputs)."""
        return float64.jacobian(self._of, self._named)


def with_reference(workload: Workload, computed: ComputedReference) -> Workload:
    """Return the workload with the computed reference in the place of a closed form."""
    of: Evaluation = computed.evaluation
    function = dataclasses.replace(of, function=workload.function)
    closed: Any = functools.partial(Computed, of, function)
    return dataclasses.replace(workload, reference=closed, terms=max(workload.terms, computed.terms))


def session(computed: ComputedReference) -> contextlib.AbstractContextManager[None]:
    """Return the context in which JAX is set up for the reference."""
    return float64.evaluating(computed.evaluation.dtype)


def examine(case: Case, workload: Workload) -> ComputedReference:
    """Choose how the reference is evaluated, and confirm it; a case of mode `value` needs no derivative."""
    named = _some_points(case, workload)
    with float64.evaluating(case.dtype):
        plain = _prepare(_evaluation(case, workload, case.dtype), case, named)
        if case.dtype == "float64":
            return _confirm(plain, case, workload, named)
        here, noise = _values(plain.native, named, ROUNDOFF[case.dtype])
    with float64.evaluating("float64"):
        exact, why = _in_float64(case, workload, named, plain, here, noise)
        if exact is not None:
            return _confirm(exact, case, workload, named)
    with float64.evaluating(case.dtype):
        return _confirm(plain, case, workload, named, why)


def native(case: Case, workload: Workload, named: Named) -> Evaluation:
    """Return how the function of a workload with a closed form is evaluated in the dtype of the case."""
    with float64.evaluating(case.dtype):
        evaluation: Evaluation = _prepare(_evaluation(case, workload, case.dtype), case, named).evaluation
        return evaluation


def _some_points(case: Case, workload: Workload) -> dict[str, np.ndarray]:
    """Return the inputs of some points, the first and the last among them."""
    picked = np.unique(np.linspace(0, case.points - 1, min(case.points, _POINTS)).astype(int))
    each = [inputs.exact_inputs(case, workload, int(i), int(i) + 1) for i in picked]
    return {
        name: np.concatenate([one[name] for one in each]) if name in workload.points else each[0][name]
        for name in each[0]
    }


def _evaluation(case: Case, workload: Workload, dtype: str) -> Evaluation:
    """Return how what is differentiated is evaluated in a dtype: the function, or its gradient."""
    specs = {**workload.points, **workload.shared}
    integers = frozenset(name for name, spec in specs.items() if spec.integer)
    function = finite_differences.gradient(workload) if case.target in SECOND else workload.function
    return Evaluation(function, workload.names, frozenset(workload.points), integers, dtype)


def _values(of: Evaluation, named: Named, roundoff: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the values, and how far a rounding of the inputs moves them: two (points, outputs)."""
    here, generator = float64.values(of, named), np.random.default_rng(0)
    moved = [float64.values(of, fd_check.nudge(of, named, 4 * roundoff, generator)) for _ in range(_REPEATS)]
    return here, np.max(np.abs(np.array(moved) - here), axis=0)


def _prepare(of: Evaluation, case: Case, named: Named) -> ComputedReference:
    """Return the reference with what is read off the function's program."""
    found = _rounded(of, named)
    of = dataclasses.replace(of, width=max(found.width, float64.count_inputs(of, named)))
    computed = ComputedReference(of, of, found.terms, 2.0**-found.bits)
    if case.ad_mode.is_value:
        return computed
    pushed = float64.with_pushforward(of, named)
    if pushed is None:
        why = "the function can be differentiated neither forwards nor backwards"
        return dataclasses.replace(computed, unsure=f"{why}, so that there is no reference; give one")
    backward = float64.is_defined(pushed, named, "rows")
    return dataclasses.replace(computed, evaluation=pushed, native=pushed, backward=backward)


def _rounded(of: Evaluation, named: Named) -> Rounded:
    """Return what rounding meets in the function and its pushforward, at one point."""
    structs = {}
    for name, array in named.items():
        dtype = np.int32 if name in of.integers else jax.numpy.dtype(of.dtype)
        structs[name] = jax.ShapeDtypeStruct(array.shape[1:] if name in of.own else array.shape, dtype)
    x = {name: structs[name] for name in of.names}
    fixed = {name: struct for name, struct in structs.items() if name not in of.names}

    def pushed(fixed: dict[str, Any], x: dict[str, Any], tangents: dict[str, Any]) -> Any:
        return jax.jvp(lambda z: of.function(**fixed, **z), (x,), (tangents,))

    try:
        return rounded(pushed, fixed, x, x)
    except Exception:  # no rule for forward mode
        once = rounded(lambda named: of.function(**named), structs)
        return dataclasses.replace(once, terms=2 * once.terms)


def _in_float64(
    case: Case,
    workload: Workload,
    named: Named,
    plain: ComputedReference,
    here: np.ndarray,
    noise: np.ndarray,
) -> tuple[ComputedReference | None, str | None]:
    """Return the reference in float64; or None and why, where the function is another one there."""
    try:
        exact = _prepare(_evaluation(case, workload, "float64"), case, named)
        there = float64.values(exact.evaluation, named)
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0][:120]
        return None, f"it cannot be evaluated in float64 ({type(error).__name__}: {first})"
    roundoff = max(ROUNDOFF[case.dtype], exact.inside)
    scale = np.maximum(np.max(np.abs(there), axis=0), np.sqrt(np.mean(there**2)))
    allowed = _FAR * 16 * roundoff * np.sqrt(exact.terms) * scale + 4 * noise
    far = ~(np.abs(here - there) <= allowed)
    if far.any():
        at = tuple(np.argwhere(far)[0])
        pair = f"{here[at]:.6g} and {there[at]:.6g}"
        return None, f"its values differ between {case.dtype} and float64 ({pair})"
    return dataclasses.replace(exact, native=plain.native), None


def _confirm(
    computed: ComputedReference, case: Case, workload: Workload, named: Named, why: str | None = None
) -> ComputedReference:
    """Confirm the derivative by finite differences and estimate its seconds. why: what forbids float64."""
    if case.ad_mode.is_value or computed.unsure:
        return computed
    of: Evaluation = computed.evaluation
    roundoff, levels = max(ROUNDOFF[of.dtype], computed.inside), [of]
    if case.target in SECOND:  # the gradient itself, and then its derivative
        first = dataclasses.replace(of, function=workload.function)
        levels = [float64.with_pushforward(first, named) or first, of]
    for level in levels:
        found = fd_check.confirm(level, named, roundoff, np.random.default_rng(case.data_seed))
        unsure = found.sure < _LEAST_SURE
        if found.wrong.any() and not (unsure and why):
            own = "the function's own derivative differs from finite differences of its values by"
            rule = "a rule of its own (custom_jvp, custom_vjp, stop_gradient) is wrong"
            return dataclasses.replace(computed, wrong=f"{own} {found.off:.3g}: {rule}")
        if unsure or found.wrong.any():
            reason = f"finite differences in {of.dtype} confirm {found.sure:.0%} of its outputs"
            words = f"{why}, and {reason}" if why else f"{reason}; give a reference"
            return dataclasses.replace(computed, unsure=words)
    return dataclasses.replace(computed, seconds=_estimate_seconds(of, case, named))


def _estimate_seconds(of: Evaluation, case: Case, named: Named) -> float:
    """Estimate the seconds that the Jacobians of all points take, from one block of seeds."""
    columns, points = float64.count_inputs(of, named), len(named[next(iter(of.own))])
    some = np.arange(min(columns, float64.count_seeds(of, points)))
    float64.columns(of, named, some)
    began = time.perf_counter()
    float64.columns(of, named, some)
    return (time.perf_counter() - began) / (points * len(some)) * case.points * columns
