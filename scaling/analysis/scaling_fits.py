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
_GRID, _ROUNDS, _BISECTIONS = 33, 5, 24  # of the searches for an interval, and for the other part


@dataclass(frozen=True)
class ScalingFit:
    """A law fitted to one curve. Its speed-up is relative to its own time on one device."""

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
    def peak(self) -> float | None:
        """Return the number of devices beyond which more devices are slower; None where there is none."""
        if self.name != UNIVERSAL or not self.parts["coherency"].value:
            return None
        return max(1.0, math.sqrt((1 - self.parts["contention"].value) / self.parts["coherency"].value))

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


class _LinearForm(NamedTuple):
    """A law as log(time) = log(seconds on one device) + sign log(1 + sum of parts times columns) + shift."""

    name: str
    parts: tuple[str, ...]
    columns: Any  # (device counts, parts)
    sign: int
    shift: Any


def fit_laws(curve: Curve) -> tuple[ScalingFit, ...]:
    """Fit the laws of a curve's kind: Amdahl's or, if weak, Gustafson's, and universal scalability.

    A law needs one device count more than it has parameters (the time on one device among them): three for
    the first two, four for universal scalability. Each part lies between 0 and 1. The best law is the one
    with the least AICc; with too few device counts for that, the simpler one unless an F test at 5 % rejects
    it.
    """
    devices = np.array([point.devices for point in curve.points], float)
    logs = np.log([point.seconds for point in curve.points])
    forms = [form for form in _linear_forms(devices, curve.kind) if len(devices) > len(form.parts) + 1]
    laws = [_fit_law(form, logs) for form in forms]
    best = _best_law(laws, len(devices))
    return tuple(replace(law, best=law is best) for law in laws)


def karp_flatt(point: CurvePoint) -> Estimate | None:
    """Return the experimentally determined serial fraction of a point of a strong curve.

    None where the speed-up is not relative to one device. Negative for super-linear speed-up. Source: Karp
    and Flatt 1990, Measuring parallel processor performance.
    """
    if point.devices == 1 or point.baseline_devices > 1:
        return None
    ends = (point.speedup_high, point.speedup_low)
    value, low, high = (
        None if speedup is None else (1 / speedup - 1 / point.devices) / (1 - 1 / point.devices)
        for speedup in (point.speedup, *ends)
    )
    assert value is not None
    return Estimate(value, low, high)


def _linear_forms(devices: Any, kind: str) -> list[_LinearForm]:
    contention, coherency = devices - 1, devices * (devices - 1)
    shift = 0.0 if kind == "weak" else -np.log(devices)
    both = np.stack([contention, coherency], 1)
    simple = _LinearForm(AMDAHL, ("serial",), contention[:, None], 1, shift)
    if kind == "weak":
        simple = _LinearForm(GUSTAFSON, ("serial",), -(contention / devices)[:, None], -1, shift)
    return [simple, _LinearForm(UNIVERSAL, ("contention", "coherency"), both, 1, shift)]


def _best_law(laws: Sequence[ScalingFit], count: int) -> ScalingFit | None:
    """Return the law with the least AICc, or what an F test prefers where that is not defined."""
    if len(laws) < 2:
        return next(iter(laws), None)
    squares = [law.spread**2 * (count - len(law.parts) - 1) for law in laws]
    known = [len(law.parts) + 2 for law in laws]  # the time on one device and the spread are estimated too
    if count > known[-1] + 1:
        criteria = [
            count * math.log(max(s / count, LEAST_VARIANCE)) + 2 * k * count / (count - k - 1)
            for s, k in zip(squares, known, strict=True)
        ]
        return laws[int(np.argmin(criteria))]
    freedom = count - len(laws[-1].parts) - 1
    return laws[-1] if squares[0] > _largest_squares(squares[-1], freedom) else laws[0]


def _largest_squares(squares: float, freedom: int) -> float:
    """Return the sum of squares up to which an F test at 5 % does not reject other parts."""
    return squares + float(stdtrit(freedom, 0.975)) ** 2 * max(squares / freedom, LEAST_VARIANCE)


def _fit_law(form: _LinearForm, logs: Any) -> ScalingFit:
    """Return a law. The interval of a part is its profile interval: what an F test at 5 % does not reject.

    An optimum on a bound counts as the best there is, so that the interval is never empty.
    """
    target, freedom = form.sign * (logs - form.shift), len(logs) - len(form.parts) - 1
    best = _best_parts(form, target)
    squares = float(_sum_of_squares(form, target, best))
    most = _largest_squares(squares, freedom)
    parts = {}
    for index, (name, value) in enumerate(zip(form.parts, map(float, best), strict=True)):
        low, high = (_profile_end(form, target, index, value, end, most) for end in (0.0, 1.0))
        parts[name] = Estimate(value, low, high)
    seconds = math.exp(float(np.mean(logs - form.shift - form.sign * np.log1p(form.columns @ best))))
    return ScalingFit(form.name, parts, seconds, math.sqrt(squares / freedom), best=False)


def _residuals(form: _LinearForm, target: Any, parts: Any) -> Any:
    """Return the residuals of the logarithms: (..., parts) -> (..., device counts).

    The time on one device is at its best.
    """
    left = target - np.log1p(parts @ form.columns.T)
    return left - left.mean(-1, keepdims=True)


def _sum_of_squares(form: _LinearForm, target: Any, parts: Any) -> Any:
    return (_residuals(form, target, parts) ** 2).sum(-1)


def _best_parts(form: _LinearForm, target: Any) -> Any:
    """Return the parts with the least squares, each between 0 and 1; a bound where it is as good."""
    tried = [np.zeros(len(form.parts))]
    for free in ([0], [1], [0, 1]) if len(form.parts) == 2 else ([0],):
        columns = form._replace(columns=form.columns[:, free])
        # The squared sine keeps a part within its bounds; the start adds a tenth on the most devices.
        start = np.arcsin(np.sqrt(0.1 / np.abs(columns.columns).max(0)))
        found = least_squares(
            lambda x, columns=columns: _residuals(columns, target, np.sin(x) ** 2),
            start,
            method="lm",
            xtol=1e-10,
        )
        parts = np.zeros(len(form.parts))
        parts[free] = np.sin(found.x) ** 2
        tried.append(parts)
    squares = np.array([_sum_of_squares(form, target, parts) for parts in tried])
    return tried[int(np.argmax(squares <= squares.min() * (1 + 1e-6)))]


def _profile_end(form: _LinearForm, target: Any, index: int, best: float, end: float, most: float) -> float:
    """Return how far a part may go from its best value towards an end, the sum of squares under `most`.

    Works on cube roots: parts of a ten-millionth matter on thousands of devices.
    """
    inside, outside = math.cbrt(best), end
    for _ in range(_ROUNDS):
        grid = np.linspace(inside, outside, _GRID)
        beyond = np.flatnonzero(_profile(form, target, index, grid**3) > most)
        if not len(beyond):
            return end
        first = max(1, int(beyond[0]))
        inside, outside = grid[first - 1], grid[first]
    return min(best, inside**3) if end < best else max(best, inside**3)


def _profile(form: _LinearForm, target: Any, index: int, values: Any) -> Any:
    """Return the sum of squares for each value of one part, the other at its best (by bisection)."""
    parts = np.zeros((len(values), len(form.parts)))
    parts[:, index] = values
    for other in {*range(len(form.parts))} - {index}:
        low, high = np.zeros(len(values)), np.ones(len(values))
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            parts[:, other] = middle**3
            slope = form.columns[:, other] / (1 + parts @ form.columns.T)
            falls = (_residuals(form, target, parts) * slope).sum(-1) > 0
            low, high = np.where(falls, middle, low), np.where(falls, high, middle)
        parts[:, other] *= low > 0  # never so small by itself
    return _sum_of_squares(form, target, parts)
