"""Scaling fits: the laws of Amdahl, Gustafson and Gunther (universal scalability) fitted to a curve.

Fits the logarithm of time by least squares; the residuals are taken as noise of equal variance on every
number of devices. A good fit does not prove that a law holds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares
from scipy.special import stdtrit

from scaling.analysis.curves import Curve, CurvePoint
from scaling.analysis.ratios import LEAST_VARIANCE, Estimate
from scaling.core.formatting import is_share_determined

AMDAHL, GUSTAFSON, UNIVERSAL = "Amdahl", "Gustafson", "universal scalability"
_BISECTIONS, _ROUNDS, _STEPS = 20, 3, 32  # of the searches for the other part and the interval


@dataclass(frozen=True)
class ScalingFit:
    """A law fitted to one curve. Its speed-up is relative to its own time on one device, not to the
    measured one.
    """

    name: str  # AMDAHL, GUSTAFSON or UNIVERSAL
    parts: Mapping[str, Estimate]  # "serial"; of the last "contention" (sigma) and "coherency" (kappa)
    seconds: float  # on one device
    spread: float  # standard deviation of the residuals of the logarithms
    best: bool  # of the laws fitted to this curve

    def speedup(self, devices: float) -> float:
        """Return the speed-up of the law; of a weak curve the scaled speed-up."""
        first, *others = (part.value for part in self.parts.values())
        if self.name == GUSTAFSON:
            return devices - first * (devices - 1)
        return devices / (1 + first * (devices - 1) + sum(others) * devices * (devices - 1))

    @property
    def limit(self) -> float | None:
        """Return the largest speed-up on any number of devices; None where there is no limit."""
        first = next(iter(self.parts.values())).value
        if self.peak:
            return self.speedup(self.peak)
        return 1 / first if first and self.name != GUSTAFSON else None

    @property
    def determined(self) -> bool:
        """Return whether the interval of every part is narrow enough to mean something."""
        return all(is_share_determined(part.low, part.high) for part in self.parts.values())

    @property
    def doubt(self) -> str:
        """Return the doubt to state with a limit whose part might be 0; '' where its interval excludes 0."""
        if self.limit is None or list(self.parts.values())[-1].low:
            return ""
        return f", if there is a {'peak' if self.peak else 'limit'} at all"

    @property
    def peak(self) -> float | None:
        """Return the number of devices beyond which more devices are slower; None where there is none."""
        if self.name != UNIVERSAL or not self.parts["coherency"].value:
            return None
        return max(1.0, math.sqrt((1 - self.parts["contention"].value) / self.parts["coherency"].value))


class _LinearForm(NamedTuple):
    """A law as log(time) = log(seconds on one device) + sign log(1 + sum of parts times columns) + shift."""

    name: str
    parts: tuple[str, ...]
    columns: Any  # (device counts, parts)
    sign: int
    shift: Any


def fit_laws(curve: Curve) -> tuple[ScalingFit, ...]:
    """Fit the laws of a curve's kind: Amdahl's for strong scaling, Gustafson's for weak, universal
    scalability for both.

    A law needs one device count more than it has parameters (the time on one device among them): three for
    the first two, four for universal scalability. Each part lies between 0 and 1. The best law is the one
    with the least AICc; with too few device counts for that, the simpler one unless an F test at 5 % rejects
    it.
    """
    devices = np.array([point.devices for point in curve.points], float)
    logs = np.log([point.seconds for point in curve.points])
    forms = [form for form in _linear_forms(devices, curve.kind) if len(devices) > len(form.parts) + 1]
    fitted = [_fit_law(form, logs) for form in forms]
    laws = [law for law, _ in fitted]
    known = bool(fitted) and all(math.isfinite(criterion) for _, criterion in fitted)
    best = min(fitted, key=lambda each: each[1])[0] if known else _prefer_simple(laws, len(devices))
    return tuple(replace(law, best=law is best) for law in laws)


def _prefer_simple(laws: Sequence[ScalingFit], count: int) -> ScalingFit | None:
    """Return the first law, or the last where an F test at 5 % rejects the first."""
    if len(laws) < 2:
        return next(iter(laws), None)
    (simple, squares), (general, least) = (
        (law, law.spread**2 * (count - len(law.parts) - 1)) for law in (laws[0], laws[-1])
    )
    freedom = count - len(general.parts) - 1
    rejected = squares - least > float(stdtrit(freedom, 0.975)) ** 2 * max(least / freedom, LEAST_VARIANCE)
    return general if rejected else simple


def karp_flatt(point: CurvePoint) -> Estimate | None:
    """Return the experimentally determined serial fraction of a point of a strong curve.

    None where the speed-up is not relative to one device. Negative for super-linear speed-up. Source: Karp
    and Flatt 1990, Measuring parallel processor performance.
    """
    if point.devices == 1 or point.baseline_devices > 1:
        return None
    value, low, high = (
        None if speedup is None else (1 / speedup - 1 / point.devices) / (1 - 1 / point.devices)
        for speedup in (point.speedup, point.speedup_high, point.speedup_low)
    )
    assert value is not None
    return Estimate(value, low, high)


def _linear_forms(devices: Any, kind: str) -> list[_LinearForm]:
    contention, coherency = devices - 1, devices * (devices - 1)
    universal = _LinearForm(
        UNIVERSAL, ("contention", "coherency"), np.stack([contention, coherency], 1), 1, 0.0
    )
    if kind == "weak":
        return [_LinearForm(GUSTAFSON, ("serial",), -(contention / devices)[:, None], -1, 0.0), universal]
    return [
        _LinearForm(AMDAHL, ("serial",), contention[:, None], 1, -np.log(devices)),
        universal._replace(shift=-np.log(devices)),
    ]


def _aicc(squares: float, count: int, parts: int) -> float:
    """Return Akaike's criterion, corrected for few device counts (AICc); infinite where there are too few
    for it.
    """
    known = parts + 2  # the time on one device and the spread are estimated too
    if count <= known + 1:
        return math.inf
    return count * math.log(max(squares / count, LEAST_VARIANCE)) + 2 * known * count / (count - known - 1)


def _fit_law(form: _LinearForm, logs: Any) -> tuple[ScalingFit, float]:
    """Return a law and its AICc. The interval of a part is its profile interval: what an F test at 5 %
    does not reject.

    An optimum on a bound counts as the best there is, so that the interval is never empty.
    """
    target, freedom = form.sign * (logs - form.shift), len(logs) - len(form.parts) - 1
    best, squares = _best_parts(form, target)
    most = squares + float(stdtrit(freedom, 0.975)) ** 2 * max(squares / freedom, LEAST_VARIANCE)
    parts = {
        name: Estimate(float(best[i]), *_profile_interval(form, target, i, best[i], most))
        for i, name in enumerate(form.parts)
    }
    seconds = math.exp(float(np.mean(logs - form.shift - form.sign * np.log1p(form.columns @ best))))
    law = ScalingFit(form.name, parts, seconds, math.sqrt(squares / freedom), best=False)
    return law, _aicc(squares, len(logs), len(form.parts))


def _residuals(form: _LinearForm, target: Any, parts: Any) -> Any:
    """Return the residuals of the logarithms, the time on one device at its best: (..., parts) -> (...,
    device counts).
    """
    left = target - np.log1p(parts @ form.columns.T)
    return left - left.mean(-1, keepdims=True)


def _sum_of_squares(form: _LinearForm, target: Any, parts: Any) -> Any:
    return (_residuals(form, target, parts) ** 2).sum(-1)


def _best_parts(form: _LinearForm, target: Any) -> tuple[Any, float]:
    """Return the parts with the least squares, and the sum of squares."""
    scale = np.abs(form.columns).max(0)
    # The squared sine keeps a part within its bounds. The start adds a tenth to the time on the most devices.
    laws = least_squares(
        lambda x: _residuals(form, target, np.sin(x) ** 2),
        np.arcsin(np.sqrt(0.1 / scale)),
        method="lm",
        xtol=1e-10,
    )
    edges = [_with_other_at_best(form, target, index, np.array([0.0, 1.0])) for index in range(len(scale))]
    tried = np.concatenate([*edges, np.sin(laws.x)[None] ** 2])  # a bound is approached, not reached
    squares = _sum_of_squares(form, target, tried)
    best = int(np.argmax(squares <= squares.min() * (1 + 1e-6)))
    return tried[best], float(squares[best])


def _with_other_at_best(form: _LinearForm, target: Any, index: int, values: Any) -> Any:
    """Return all parts for each value of one part, the other at its best (by bisection): (values, parts)."""
    parts = np.zeros((len(values), len(form.parts)))
    parts[:, index] = values
    for other in {*range(len(form.parts))} - {index}:
        low, high = np.zeros(len(values)), np.ones(len(values))
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            parts[:, other] = middle**3  # parts of a ten-millionth matter on thousands of devices
            slope = form.columns[:, other] / (1 + parts @ form.columns.T)
            falls = (_residuals(form, target, parts) * slope).sum(-1) > 0
            low, high = np.where(falls, middle, low), np.where(falls, high, middle)
        parts[:, other] *= low > 0  # never so small by itself
    return parts


def _profile_interval(
    form: _LinearForm, target: Any, index: int, best: float, most: float
) -> tuple[float, float]:
    """Return how small and how large a part may be for the sum of squares to stay under `most`."""
    outside, inside = np.array([0.0, 1.0]), np.array([best, best])
    scales = np.linspace(0, 1, _STEPS)
    for round_ in range(_ROUNDS):
        grid = inside + np.outer(scales, outside - inside)
        if round_ == 0:
            grid[:, 1] = np.geomspace(max(best, 1e-12), 1.0, _STEPS)
        squares = _sum_of_squares(
            form, target, _with_other_at_best(form, target, index, grid.T.ravel())
        ).reshape(2, -1)
        for end in (0, 1):
            beyond = np.flatnonzero(squares[end] > most)
            if not len(beyond):
                inside[end] = outside[end]
            elif beyond[0]:
                inside[end], outside[end] = grid[beyond[0] - 1, end], grid[beyond[0], end]
    return float(inside[0]), float(inside[1])
