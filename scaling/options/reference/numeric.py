"""Prepare the reference of a function that has no closed form, and find out how far it can be trusted.

The reference is the derivative of the same function in float64 on the CPU. Where the values of the function
differ between float64 and the dtype of the case (random bits, a cast, a carry of a fixed dtype), it is the
derivative in the dtype of the case. Either is confirmed by finite differences, once for each function and
size. Does not know results.
"""

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from scaling.core import inputs
from scaling.core.case import SECOND, Case
from scaling.core.shape import DerivativeShape
from scaling.core.tolerances import ROUNDOFF
from scaling.core.workload import Workload
from scaling.options.reference import fd_check, finite_differences, float64
from scaling.options.reference.float64 import Evaluation, Named
from scaling.options.reference.rounding import Rounded, rounded

_POINTS = 16  # at which a function is examined
_LEAST_SURE = 0.1  # the share of outputs that finite differences must confirm; small ones drown in the value of their output
_REPEATS = 2  # nudges that show the noise of the values
_FAR = 2.0  # times what rounding explains: then the values differ


@dataclass(frozen=True)
class Numeric:
    """The reference of a function without a closed form.

    evaluation: how it is evaluated; native: the same function in the dtype of the case. terms: how many
    numbers a derivative adds up. inside: the unit roundoff of the narrowest dtype in the function. wrong: why
    the function's own rule is wrong. unsure: why the reference proves nothing. seconds: an estimate for all
    entries of all points. backward: whether reverse mode is defined.
    """

    evaluation: Evaluation
    native: Evaluation
    terms: int
    inside: float
    wrong: str | None = None
    unsure: str | None = None
    seconds: float = 0.0
    backward: bool = False


class Computed:
    """A reference at a block of points, like `workload.Reference`; each part is evaluated when it is asked
    for."""

    value_terms = None
    derivative_terms = None

    def __init__(self, of: Evaluation, function: Evaluation, named: Named) -> None:
        self._of, self._function, self._named = of, function, named

    @property
    def value(self) -> np.ndarray:
        """Return the values of the function: (points, outputs)."""
        return float64.values(self._function, self._named)

    @property
    def derivative(self) -> np.ndarray:
        """Return the Jacobians: (points, outputs, inputs)."""
        return float64.jacobian(self._of, self._named)


def with_reference(workload: Workload, found: Numeric) -> Workload:
    """Return the workload with the numeric reference in the place of a closed form."""
    function = dataclasses.replace(found.evaluation, function=workload.function)
    closed: Callable[..., Any] = lambda named: Computed(found.evaluation, function, named)  # noqa: E731
    return dataclasses.replace(workload, reference=closed, terms=max(workload.terms, found.terms))


def examine(case: Case, workload: Workload, sizes: DerivativeShape) -> Numeric:
    """Choose how the reference is evaluated, and confirm it.

    A case whose mode is `value` needs no derivative, and none is looked at.
    """
    named = _some_points(case, workload)
    native = _evaluation(case, workload, case.dtype)
    with float64.evaluating(case.dtype):
        here, noise = _values(native, named, ROUNDOFF[case.dtype])
        plain = _prepared(native, case, named)
        if case.dtype == "float64":
            return _confirmed(plain, case, workload, named, None)
    with float64.evaluating("float64"):
        exact, why = _in_float64(case, workload, named, plain, here, noise)
        if exact is not None:
            return _confirmed(exact, case, workload, named, None)
    with float64.evaluating(case.dtype):
        return _confirmed(plain, case, workload, named, why)


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
    draws = {**workload.points, **workload.shared}
    integers = frozenset(name for name, draw in draws.items() if draw.integer)
    function = finite_differences.gradient(workload) if case.target in SECOND else workload.function
    return Evaluation(function, workload.names, frozenset(workload.points), integers, dtype)


def _values(of: Evaluation, named: Named, roundoff: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the values, and how far a nudge of the inputs by a rounding moves them: two (points,
    outputs)."""
    here, generator = float64.values(of, named), np.random.default_rng(0)
    moved = [float64.values(of, fd_check.nudged(of, named, 4 * roundoff, generator)) for _ in range(_REPEATS)]
    return here, np.max(np.abs(np.array(moved) - here), axis=0)


def _prepared(of: Evaluation, case: Case, named: Named) -> Numeric:
    """Return the reference with what is read off the function's program."""
    found = _rounded(of, named)
    of = dataclasses.replace(of, width=max(found.width, float64.number_of_inputs(of, named)))
    if not case.ad_mode.is_value:
        forward = float64.differentiable(of, named)
        if forward is None:
            why = "the function can be differentiated neither forwards nor backwards, so that there is no reference; give one"
            return Numeric(of, of, found.terms, 2.0**-found.bits, unsure=why)
        of = forward
    backward = not case.ad_mode.is_value and float64.can_pull_back(of, named)
    return Numeric(of, of, found.terms, 2.0**-found.bits, backward=backward)


def _rounded(of: Evaluation, named: Named) -> Rounded:
    """Return what rounding meets in the function and its pushforward, at one point."""
    one = {name: array[0] if name in of.own else array for name, array in named.items()}
    structs = {
        name: jax.ShapeDtypeStruct(
            np.shape(array), np.int32 if name in of.integers else jax.numpy.dtype(of.dtype)
        )
        for name, array in one.items()
    }

    def pushed(named: dict[str, Any], tangents: dict[str, Any]) -> Any:
        rest = {name: array for name, array in named.items() if name not in of.names}
        x = {name: named[name] for name in of.names}
        return jax.jvp(lambda z: of.function(**rest, **z), (x,), (tangents,))

    try:
        return rounded(pushed, structs, {name: structs[name] for name in of.names})
    except Exception:  # no rule for forward mode
        once = rounded(lambda named: of.function(**named), structs)
        return dataclasses.replace(once, terms=2 * once.terms)


def _in_float64(
    case: Case, workload: Workload, named: Named, plain: Numeric, here: np.ndarray, noise: np.ndarray
) -> tuple[Numeric | None, str | None]:
    """Return the reference in float64; or none and why, where the function is another one there."""
    try:
        exact = dataclasses.replace(
            _prepared(_evaluation(case, workload, "float64"), case, named), native=plain.native
        )
        there = float64.values(exact.evaluation, named)
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0][:120]
        return None, f"it cannot be evaluated in float64 ({type(error).__name__}: {first})"
    roundoff = max(ROUNDOFF[case.dtype], exact.inside)
    scale = np.maximum(np.max(np.abs(there), axis=0), np.sqrt(np.mean(there**2)))
    allowed = _FAR * 16 * roundoff * np.sqrt(exact.terms) * scale + 4 * noise
    far = ~(np.abs(here - there) <= allowed)
    if far.any():
        p, o = (int(i[0]) for i in np.nonzero(far))
        return (
            None,
            f"its values differ between {case.dtype} and float64 ({here[p, o]:.6g} and {there[p, o]:.6g})",
        )
    return exact, None


def _confirmed(found: Numeric, case: Case, workload: Workload, named: Named, why: str | None) -> Numeric:
    """Confirm the derivative by finite differences and estimate what all of it takes; in the dtype of the
    evaluation.

    why: what forbids float64.
    """
    if case.ad_mode.is_value or found.unsure:
        return found
    roundoff = max(ROUNDOFF[found.evaluation.dtype], found.inside)
    levels = [found.evaluation]
    if case.target in SECOND:  # the gradient itself, and then its derivative
        first = dataclasses.replace(found.evaluation, function=workload.function)
        levels = [float64.differentiable(first, named) or first, found.evaluation]
    for of in levels:
        said = fd_check.confirm(of, named, roundoff, np.random.default_rng(case.data_seed))
        unsure = said.sure < _LEAST_SURE
        if said.wrong.any() and not (unsure and why):
            words = f"the function's own derivative differs from finite differences of its values by {said.off:.3g}"
            rule = "a rule of its own (custom_jvp, custom_vjp, stop_gradient) is wrong"
            return dataclasses.replace(found, wrong=f"{words}: {rule}")
        if unsure or said.wrong.any():
            reason = f"finite differences in {found.evaluation.dtype} confirm {said.sure:.0%} of its outputs"
            return dataclasses.replace(
                found, unsure=f"{why}, and {reason}" if why else f"{reason}; give a reference"
            )
    return dataclasses.replace(found, seconds=_seconds(found.evaluation, case, named))


def _seconds(of: Evaluation, case: Case, named: Named) -> float:
    """Estimate the seconds that the Jacobians of all points take, from one block of seeds."""
    columns = float64.number_of_inputs(of, named)
    points = len(named[next(iter(of.own))])
    some = np.arange(min(columns, float64.seeds_at_once(of, points)))
    float64.columns(of, named, some)
    began = time.perf_counter()
    float64.columns(of, named, some)
    return (time.perf_counter() - began) / (points * len(some)) * case.points * columns


def picked(count: int, of: int, generator: np.random.Generator) -> np.ndarray:
    """Return so many different numbers below `of`, in order; all of them where there are no more."""
    return np.sort(generator.choice(of, min(count, of), replace=False))


def native(case: Case, workload: Workload, named: Named) -> Evaluation:
    """Return how the function of a workload with a closed form is evaluated in the dtype of the case."""
    of = _evaluation(case, workload, case.dtype)
    with float64.evaluating(case.dtype):
        return _prepared(of, case, named).evaluation
