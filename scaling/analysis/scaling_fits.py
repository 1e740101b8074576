"""Fit Amdahl's, Gustafson's and Gunther's (universal scalability) laws to a scaling curve (`ScalingFit`).

The logarithm of the time is fitted by unweighted least squares. A good fit does not prove that a law holds.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtrit

from scaling.analysis.curves import Curve
from scaling.analysis.estimate import Estimate
from scaling.analysis.ratios import LEAST_VARIANCE
from scaling.analysis.timings import is_empty_call

AMDAHL, GUSTAFSON, UNIVERSAL = "Amdahl", "Gustafson", "universal scalability"
_ROUNDING = 1e-10  # a `descent` at 0 of at most this size is attributed to rounding


@dataclass(frozen=True)
class ScalingFit:
    """A scaling law fitted to one scaling curve."""

    curve: Curve
    name: str  # AMDAHL, GUSTAFSON or UNIVERSAL
    parameters: Mapping[str, Estimate]  # "serial", or "contention" (sigma) and "coherency" (kappa)
    seconds: float  # fitted time on one device
    residual: float  # standard deviation of the residuals of log(time)
    best: bool  # whether `fit_laws` selects this law as the best for the curve
    general: "ScalingFit | None" = None  # for a simple law: the fit of the universal law to the same curve

    def speedup(self, devices: float) -> float:
        """Return the predicted speed-up over one device. For weak scaling, this is the scaled speed-up."""
        serial, *coherency = (parameter.value for parameter in self.parameters.values())
        if self.name == GUSTAFSON:
            return devices - serial * (devices - 1)
        return devices / (1 + serial * (devices - 1) + sum(coherency) * devices * (devices - 1))

    @property
    def limit(self) -> float | None:
        """Return the largest speed-up that the law predicts for any device count, or None if unbounded."""
        serial = next(iter(self.parameters.values())).value
        if self.peak:
            return self.speedup(self.peak)
        return 1 / serial if serial and self.name != GUSTAFSON else None

    @property
    def limit_estimate(self) -> Estimate | None:
        """Return the largest speed-up (`limit`), with an interval from the intervals of the parameters.

        Return None if the speed-up is unbounded, or if the curve has too few device counts for the universal
        law. The interval of a simpler law includes that of the universal law, because either may hold.
        """
        if self.limit is None or (self.name != UNIVERSAL and self.general is None):
            return None
        fits = (self, self.general) if self.general else (self,)
        ends = [fit._limit_at(index) for fit in fits for index in (1, 2)]
        return Estimate(self.limit, min(ends), max(ends))

    def _limit_at(self, index: int) -> float:
        """Return `limit` at the lower (index 1) or upper (index 2) end of all intervals, inf if unbounded."""
        parameters = {
            name: Estimate(ends[index] or 0.0, None, None) for name, ends in self.parameters.items()
        }
        return replace(self, parameters=parameters).limit or math.inf

    @property
    def peak(self) -> float | None:
        """Return the device count with the largest speed-up, or None if there is no maximum."""
        if self.name != UNIVERSAL or not self.parameters["coherency"].value:
            return None
        contention, coherency = (self.parameters[name].value for name in ("contention", "coherency"))
        return max(1.0, math.sqrt((1 - contention) / coherency))

    @property
    def determined(self) -> bool:
        """Return whether the 95 % interval of each parameter is narrow enough to report the law."""
        return all(parameter.is_determined_share for parameter in self.parameters.values())


class _LinearLaw(NamedTuple):
    """A scaling law that predicts the time on n devices, and the measured times to which it is fitted.

    Let F = 1 + `columns` @ (parameter values), and T the time on one device. For strong scaling, the
    predicted time is T * F / n. For weak scaling, it is T * F if `sign` is 1, and T / F if `sign` is -1.
    """

    name: str
    parameters: tuple[str, ...]  # the names of the fitted parameters
    columns: Any  # functions of the device count, an array of shape (device counts, parameters)
    sign: int  # -1 if the time is divided by (1 + columns @ parameters), or 1 if it is multiplied
    target: Any  # `sign` * log(measured time, times the device count for strong scaling), an array


def fit_laws(curve: Curve) -> tuple[ScalingFit, ...]:
    """Fit Amdahl's or Gustafson's law and the universal scalability law to a scaling curve.

    The attribute `best` is true for the simpler law, unless an F test at the 5 % level rejects it. A law with
    p parameters needs at least p + 2 device counts. Times that may be those of an empty call are omitted; see
    `is_empty_call`.
    """
    points = [point for point in curve.points if not is_empty_call(point.timing)]
    devices = np.array([point.devices for point in points], float)
    log_times = np.log([point.seconds for point in points])
    if curve.kind == "strong":
        log_times += np.log(devices)  # the time of all devices, which is constant without losses
    laws = _applicable_laws(devices, log_times, curve.kind)
    fits = [_fit_law(curve, law) for law in laws if len(devices) > len(law.parameters) + 1]
    if len(fits) < 2:
        return tuple(replace(fit, best=True) for fit in fits)
    simple, general = fits
    freedom = len(devices) - 3  # of the universal law, which has two parameters and the time on one device
    limit = _acceptance_limit(general.residual**2 * freedom, freedom)
    is_rejected = simple.residual**2 * (freedom + 1) > limit
    return replace(simple, best=not is_rejected, general=general), replace(general, best=is_rejected)


def _applicable_laws(devices: Any, log_times: Any, kind: str) -> list[_LinearLaw]:
    contention, coherency = devices - 1, devices * (devices - 1)
    both = np.stack([contention, coherency], 1)
    simple = _LinearLaw(AMDAHL, ("serial",), contention[:, None], 1, log_times)
    if kind == "weak":
        simple = _LinearLaw(GUSTAFSON, ("serial",), -(contention / devices)[:, None], -1, -log_times)
    return [simple, _LinearLaw(UNIVERSAL, ("contention", "coherency"), both, 1, log_times)]


def _acceptance_limit(squares: float, freedom: int) -> float:
    """Return the largest sum of squared residuals that an F test at the 5 % level accepts.

    `squares` is the sum of squared residuals of the best fit, which has `freedom` degrees of freedom.
    """
    return squares + float(stdtrit(freedom, 0.975)) ** 2 * max(squares / freedom, LEAST_VARIANCE)


def _fit_law(curve: Curve, law: _LinearLaw) -> ScalingFit:
    """Return the fit of a law, with a 95 % profile-likelihood interval of each parameter."""
    best, freedom = _least_squares(law, {}), len(law.target) - len(law.parameters) - 1
    squares = _sum_of_squares(law, best)
    limit = _acceptance_limit(squares, freedom)
    parameters = {}
    for index, (name, value) in enumerate(zip(law.parameters, map(float, best), strict=True)):
        low, high = (_profile_end(law, index, value, end, limit) for end in (0.0, 1.0))
        parameters[name] = Estimate(value, low, high)
    seconds = math.exp(law.sign * float(np.mean(law.target - np.log1p(law.columns @ best))))
    return ScalingFit(curve, law.name, parameters, seconds, math.sqrt(squares / freedom), best=False)


def _residuals(law: _LinearLaw, parameters: Any) -> Any:
    residuals = law.target - np.log1p(law.columns @ parameters)
    return residuals - residuals.mean()  # the mean is `law.sign` * log(time on one device)


def _sum_of_squares(law: _LinearLaw, parameters: Any) -> float:
    residuals = _residuals(law, parameters)
    return float(residuals @ residuals)


def _least_squares(law: _LinearLaw, fixed: Mapping[int, float]) -> Any:
    """Return the array of parameters between 0 and 1 that minimizes the sum of squared residuals.

    `fixed` maps the indices of constant parameters to their values.
    """
    free = [index for index in range(len(law.parameters)) if index not in fixed]
    if not free:
        return np.array([fixed[index] for index in range(len(law.parameters))])

    def descent(value: float) -> float:
        """Return -1/2 times the derivative of the sum of squares with respect to the first free parameter.

        This parameter has the given value. The sum of squared residuals is minimized over the others.
        """
        parameters = _least_squares(law, {**fixed, free[0]: value})
        slopes = law.columns[:, free[0]] / (1 + law.columns @ parameters)
        return float(_residuals(law, parameters) @ slopes)

    best = 1.0
    if descent(0.0) <= _ROUNDING:
        best = 0.0
    elif descent(1.0) < 0:
        best = _find_root(descent, 0.0, 1.0)
    return _least_squares(law, {**fixed, free[0]: best})


def _profile_end(law: _LinearLaw, index: int, best: float, end: float, limit: float) -> float:
    """Return one end of the profile-likelihood interval of the parameter with the given index.

    `best` is the fitted value, and `end` is the smallest or the largest allowed value. The result is the
    value between them at which the sum of squared residuals, minimized over the other parameters, reaches
    `limit`. It is `end` if the sum stays below `limit`.
    """

    def distance(value: float) -> float:
        return limit - _sum_of_squares(law, _least_squares(law, {index: value}))

    return end if distance(end) >= 0 else _find_root(distance, best, end)


def _find_root(function: Callable[[float], float], first: float, last: float) -> float:
    """Return a root of `function` between two values at which `function` has different signs."""
    from scipy.optimize import brentq  # a slow import, which is needed only for three or more device counts

    # Search for the cube root, because roots as small as 1e-7 matter on thousands of devices.
    return float(brentq(lambda root: function(root**3), math.cbrt(first), math.cbrt(last))) ** 3
