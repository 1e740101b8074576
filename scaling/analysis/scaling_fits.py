"""Fit Amdahl's, Gustafson's and Gunther's (universal scalability) laws to a scaling curve.

The logarithm of time is fitted by least squares, with the same variance on every device count. A good fit
does not prove that a law holds.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtrit

from scaling.analysis.curves import Curve
from scaling.analysis.estimate import Estimate
from scaling.analysis.ratios import LEAST_VARIANCE
from scaling.analysis.timings import is_empty_call

AMDAHL, GUSTAFSON, UNIVERSAL = "Amdahl", "Gustafson", "universal scalability"
_ROUNDING = 1e-10  # a smaller descent at 0 is rounding
_LAST_STEP = 1e-6  # relative size of a step after which Newton's method has converged to 1e-12


@dataclass(frozen=True)
class ScalingFit:
    """A scaling law fitted to one scaling curve. Speed-ups are relative to the fitted time on one device."""

    name: str  # AMDAHL, GUSTAFSON or UNIVERSAL
    parts: Mapping[str, Estimate]  # parameters: "serial", or "contention" (sigma) and "coherency" (kappa)
    seconds: float  # fitted time on one device
    spread: float  # standard deviation of the residuals of the logarithms
    best: bool  # whether `fit_laws` selects this law as the best for the curve

    def speedup(self, devices: float) -> float:
        """Return the predicted speed-up (for weak scaling, the scaled speed-up) on a number of devices."""
        first, *others = (part.value for part in self.parts.values())
        if self.name == GUSTAFSON:
            return devices - first * (devices - 1)
        return devices / (1 + first * (devices - 1) + sum(others) * devices * (devices - 1))

    @property
    def limit(self) -> float | None:
        """Return the largest speed-up over all device counts, or None if it is unbounded."""
        first = next(iter(self.parts.values())).value
        if self.peak:
            return self.speedup(self.peak)
        return 1 / first if first and self.name != GUSTAFSON else None

    @property
    def limit_estimate(self) -> Estimate | None:
        """Return `limit` with an interval that results from the interval ends of all parameters."""
        if self.limit is None:
            return None
        ends = (
            {name: Estimate(part[end] or 0.0, None, None) for name, part in self.parts.items()}
            for end in (2, 1)
        )
        low, high = (replace(self, parts=parts).limit or math.inf for parts in ends)
        return Estimate(self.limit, low, high)

    @property
    def peak(self) -> float | None:
        """Return the device count with the largest speed-up, or None if the speed-up has no maximum."""
        if self.name != UNIVERSAL or not self.parts["coherency"].value:
            return None
        return max(1.0, math.sqrt((1 - self.parts["contention"].value) / self.parts["coherency"].value))

    @property
    def determined(self) -> bool:
        """Return whether the 95 % interval of each parameter is narrow enough to report the law."""
        return all(part.is_determined_share for part in self.parts.values())


class _LinearLaw(NamedTuple):
    """A scaling law: log(time) = log(time on one device) + sign * log(1 + columns @ parameters) + shift."""

    name: str
    parts: tuple[str, ...]  # the names of the parameters that are fitted
    columns: Any  # the factors of the parameters, an array of shape (device counts, parameters)
    sign: int  # -1 if the time is divided by (1 + columns @ parameters), or 1 if it is multiplied
    shift: Any  # a known term, either an array of shape (device counts,) or a scalar


def fit_laws(curve: Curve) -> tuple[ScalingFit, ...]:
    """Fit the laws that apply to the kind of a scaling curve, and mark the best one.

    A law with p parameters, each between 0 and 1, needs at least p + 2 device counts. Times that are not
    distinguishable from an empty call are omitted. The simpler law is the best, unless an F test at the 5 %
    level rejects it.
    """
    points = [point for point in curve.points if not is_empty_call(point.timing)]
    devices = np.array([point.devices for point in points], float)
    logs = np.log([point.seconds for point in points])
    forms = (form for form in _linear_forms(devices, curve.kind) if len(devices) > len(form.parts) + 1)
    laws = [_fit_law(form, logs) for form in forms]
    best = _best_law(laws, len(devices))
    return tuple(replace(law, best=law is best) for law in laws)


def _linear_forms(devices: Any, kind: str) -> list[_LinearLaw]:
    contention, coherency = devices - 1, devices * (devices - 1)
    shift = 0.0 if kind == "weak" else -np.log(devices)
    both = np.stack([contention, coherency], 1)
    simple = _LinearLaw(AMDAHL, ("serial",), contention[:, None], 1, shift)
    if kind == "weak":
        simple = _LinearLaw(GUSTAFSON, ("serial",), -(contention / devices)[:, None], -1, shift)
    return [simple, _LinearLaw(UNIVERSAL, ("contention", "coherency"), both, 1, shift)]


def _best_law(laws: Sequence[ScalingFit], count: int) -> ScalingFit | None:
    """Return the simpler law, unless an F test at the 5 % level rejects it in favor of the other."""
    if len(laws) < 2:
        return next(iter(laws), None)
    freedoms = [count - len(law.parts) - 1 for law in laws]
    simple, squares = (law.spread**2 * freedom for law, freedom in zip(laws, freedoms, strict=True))
    return laws[1] if simple > _acceptance_limit(squares, freedoms[1]) else laws[0]


def _acceptance_limit(squares: float, freedom: int) -> float:
    """Return the largest sum of squared residuals that an F test at the 5 % level accepts."""
    return squares + float(stdtrit(freedom, 0.975)) ** 2 * max(squares / freedom, LEAST_VARIANCE)


def _fit_law(form: _LinearLaw, logs: Any) -> ScalingFit:
    """Fit a law to the logarithms of the times, with the 95 % profile interval of each parameter.

    The interval contains all values that an F test at the 5 % level does not reject.
    """
    target, freedom = form.sign * (logs - form.shift), len(logs) - len(form.parts) - 1
    best = _least_squares(form, target, {})
    limit = _acceptance_limit(best.squares, freedom)
    parts = {}
    for index, (name, value) in enumerate(zip(form.parts, map(float, best.parts), strict=True)):
        low, high = (_profile_end(form, target, index, value, end, limit) for end in (0.0, 1.0))
        parts[name] = Estimate(value, low, high)
    seconds = math.exp(float(np.mean(logs - form.shift - form.sign * np.log1p(form.columns @ best.parts))))
    return ScalingFit(form.name, parts, seconds, math.sqrt(best.squares / freedom), best=False)


class _Minimum(NamedTuple):
    """The parameters of a law, and the sum of squared residuals there with half its negative derivatives."""

    parts: Any  # an array of shape (parameters,)
    squares: float
    descents: Any  # positive where the sum of squares falls with the parameter
    curvatures: Any  # half the second derivatives, an array of shape (parameters, parameters)


def _least_squares(form: _LinearLaw, target: Any, fixed: Mapping[int, float]) -> _Minimum:
    """Find the least-squares parameters, each between 0 and 1.

    A parameter is 0 if this value fits equally well. `fixed` maps indices of parameters to constant values.
    """
    free = [index for index in range(len(form.parts)) if index not in fixed]
    if not free:
        return _evaluate(form, target, np.array([fixed[index] for index in range(len(form.parts))]))
    index, *others = free

    def descent(value: float) -> tuple[float, float]:
        minimum = _least_squares(form, target, {**fixed, index: value})
        curvature = minimum.curvatures[index, index]
        for other in others:  # which the search has adapted to the value, unless it is at a bound
            if 0 < minimum.parts[other] < 1:
                curvature -= minimum.curvatures[index, other] ** 2 / minimum.curvatures[other, other]
        return minimum.descents[index], -curvature

    best = 0.0 if descent(0.0)[0] <= _ROUNDING else _find_root(descent, 0.0, 1.0)
    return _least_squares(form, target, {**fixed, index: best})


def _evaluate(form: _LinearLaw, target: Any, parts: Any) -> _Minimum:
    growth = form.columns @ parts
    residuals, slopes = target - np.log1p(growth), form.columns / (1 + growth)[:, None]
    residuals, centered = (array - array.sum(axis=0) / len(target) for array in (residuals, slopes))
    curvatures = centered.T @ centered + (slopes.T * residuals) @ slopes
    return _Minimum(parts, float(residuals @ residuals), residuals @ slopes, curvatures)


def _profile_end(form: _LinearLaw, target: Any, index: int, best: float, end: float, limit: float) -> float:
    """Return a 95 % interval's lower (`end` = 0) or upper (1) end, where squared residuals sum to `limit`."""

    def distance(value: float) -> tuple[float, float]:
        minimum = _least_squares(form, target, {index: value})
        return limit - minimum.squares, 2 * minimum.descents[index]

    return end if distance(end)[0] >= 0 else _find_root(distance, best, end)


def _find_root(function: Callable[[float], tuple[float, float]], inside: float, outside: float) -> float:
    """Return a root of a function by Newton's method, safeguarded by bisection.

    `function` returns its value, which is positive at `inside`, and its derivative. Without a root, return
    `outside`. The bisection is in the cube root, because values such as 1e-7 matter on thousands of devices.
    """
    point, previous = ((math.cbrt(inside) + math.cbrt(outside)) / 2) ** 3, math.inf
    while abs(point - previous) > _LAST_STEP * point:
        value, slope = function(point)
        inside, outside = (point, outside) if value > 0 else (inside, point)
        previous, point = point, point - value / slope if slope else math.inf
        if not min(inside, outside) < point < max(inside, outside):
            point = ((math.cbrt(inside) + math.cbrt(outside)) / 2) ** 3
    return point
