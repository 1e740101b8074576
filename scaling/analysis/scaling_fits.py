"""Laws: what is said of speed-up by Amdahl, Gustafson and Gunther, fitted to a curve, with the interval of every part.

Works on the logarithm of time, and takes what the law leaves for the noise: as large on every number of devices, and independent
between them. Knows curves; not whether a law has a reason to hold there: that a fit is good makes no cause of it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares
from scipy.special import stdtrit

from scaling.analysis.curves import Curve, CurvePoint
from scaling.analysis.ratios import LEAST_VARIANCE
from scaling.analysis.resampling import ResampledEstimate
from scaling.core.formatting import is_share_determined

AMDAHL, GUSTAFSON, UNIVERSAL = "Amdahl", "Gustafson", "universal scalability"
_HALVINGS, _ROUNDS, _STEPS = 20, 3, 32  # of the search for the other part, and for the ends of an interval


@dataclass(frozen=True)
class ScalingFit:
    """A law fitted to one curve. Its speed-up stands against its own time on one device, not against the one measured."""

    name: str  # AMDAHL, GUSTAFSON or UNIVERSAL
    parts: Mapping[str, ResampledEstimate]  # "serial"; of the last "contention" (sigma) and "coherency" (kappa)
    seconds: float  # on one device
    spread: float  # standard deviation of what the logarithms of the times are off by
    best: bool  # of those fitted to this curve: see fits

    def speedup(self, devices: float) -> float:
        """What the law says; the scaled speed-up where it is of a weak curve."""
        first, *others = (part.value for part in self.parts.values())
        if self.name == GUSTAFSON:
            return devices - first * (devices - 1)
        return devices / (1 + first * (devices - 1) + sum(others) * devices * (devices - 1))

    @property
    def limit(self) -> float | None:
        """The largest speed-up that there can be, on whatever number of devices; None where there is no end to it."""
        first = next(iter(self.parts.values())).value
        if self.peak:
            return self.speedup(self.peak)
        return 1 / first if first and self.name != GUSTAFSON else None

    @property
    def determined(self) -> bool:
        """Return whether the interval of every part says anything."""
        return all(is_share_determined(part.low, part.high) for part in self.parts.values())

    @property
    def doubt(self) -> str:
        """To be said beside a limit whose part might be 0: that there may be none. Nothing where its interval excludes 0."""
        if self.limit is None or list(self.parts.values())[-1].low:
            return ""
        return f", if there is a {'peak' if self.peak else 'limit'} at all"

    @property
    def peak(self) -> float | None:
        """The number of devices beyond which more of them are slower; None where there is no such number."""
        if self.name != UNIVERSAL or not self.parts["coherency"].value:
            return None
        return max(1.0, math.sqrt((1 - self.parts["contention"].value) / self.parts["coherency"].value))


class _Form(NamedTuple):
    """A law as log(time) = log(seconds on one device) + sign log(1 + sum of parts times columns) + shift."""

    name: str
    parts: tuple[str, ...]
    columns: Any  # (device counts, parts)
    sign: int
    shift: Any


def fits(curve: Curve) -> tuple[ScalingFit, ...]:
    """The laws that suit the kind of a curve: of a strong one Amdahl's, of a weak one Gustafson's, and Gunther's of both.

    Each takes one number of devices more than it has parameters, the time on one device among them, as that is noisy too: three
    for the first two, four for the universal one. A law without them is left out. Each part is held between 0 and 1.

    The best is the one that AICc prefers; on device counts too few for it, the simpler one unless F's test at 5 % rejects that.
    """
    devices = np.array([point.devices for point in curve.points], float)
    logs = np.log([point.seconds for point in curve.points])
    forms = [form for form in _forms(devices, curve.kind) if len(devices) > len(form.parts) + 1]
    fitted = [_fit(form, logs) for form in forms]
    found = [law for law, _ in fitted]
    told = bool(fitted) and all(math.isfinite(criterion) for _, criterion in fitted)
    best = min(fitted, key=lambda each: each[1])[0] if told else _unrejected(found, len(devices))
    return tuple(replace(law, best=law is best) for law in found)


def _unrejected(found: Sequence[ScalingFit], count: int) -> ScalingFit | None:
    """The first law, or the last where that leaves so much less that F's test at 5 % rejects the first."""
    if len(found) < 2:
        return next(iter(found), None)
    (simple, squares), (general, least) = ((law, law.spread**2 * (count - len(law.parts) - 1)) for law in (found[0], found[-1]))
    freedom = count - len(general.parts) - 1
    rejected = squares - least > float(stdtrit(freedom, 0.975)) ** 2 * max(least / freedom, LEAST_VARIANCE)
    return general if rejected else simple


def karp_flatt(point: CurvePoint) -> ResampledEstimate | None:
    """The experimentally determined serial fraction of a point of a strong curve; None where its speed-up is not over one device.

    Source: Karp and Flatt 1990, Measuring parallel processor performance. Below 0 where the speed-up is more than ideal.
    """
    if point.devices == 1 or point.baseline_devices > 1:
        return None
    value, low, high = (
        None if speedup is None else (1 / speedup - 1 / point.devices) / (1 - 1 / point.devices)
        for speedup in (point.speedup, point.speedup_high, point.speedup_low)
    )
    assert value is not None
    return ResampledEstimate(value, low, high)


def _forms(devices: Any, kind: str) -> list[_Form]:
    queue, talk = devices - 1, devices * (devices - 1)
    universal = _Form(UNIVERSAL, ("contention", "coherency"), np.stack([queue, talk], 1), 1, 0.0)
    if kind == "weak":
        return [_Form(GUSTAFSON, ("serial",), -(queue / devices)[:, None], -1, 0.0), universal]
    return [_Form(AMDAHL, ("serial",), queue[:, None], 1, -np.log(devices)), universal._replace(shift=-np.log(devices))]


def _criterion(squares: float, count: int, parts: int) -> float:
    """Akaike's, corrected for few device counts (AICc); infinite where they are too few for it."""
    known = parts + 2  # the time on one device and the spread are estimated too
    if count <= known + 1:
        return math.inf
    return count * math.log(max(squares / count, LEAST_VARIANCE)) + 2 * known * count / (count - known - 1)


def _fit(form: _Form, logs: Any) -> tuple[ScalingFit, float]:
    """A law, and its criterion. The interval of a part is that of its profile: what F's test at 5 % does not reject.

    Within the bounds, where the optimum on a bound counts as the best that there is: so it is never empty, and never too short.
    """
    wanted, freedom = form.sign * (logs - form.shift), len(logs) - len(form.parts) - 1
    best, squares = _optimum(form, wanted)
    most = squares + float(stdtrit(freedom, 0.975)) ** 2 * max(squares / freedom, LEAST_VARIANCE)
    parts = {name: ResampledEstimate(float(best[i]), *_ends(form, wanted, i, best[i], most)) for i, name in enumerate(form.parts)}
    seconds = math.exp(float(np.mean(logs - form.shift - form.sign * np.log1p(form.columns @ best))))
    law = ScalingFit(form.name, parts, seconds, math.sqrt(squares / freedom), best=False)
    return law, _criterion(squares, len(logs), len(form.parts))


def _off(form: _Form, wanted: Any, parts: Any) -> Any:
    """What is left of the logarithms, the time on one device at its best: (..., parts) -> (..., device counts)."""
    left = wanted - np.log1p(parts @ form.columns.T)
    return left - left.mean(-1, keepdims=True)


def _squares(form: _Form, wanted: Any, parts: Any) -> Any:
    return (_off(form, wanted, parts) ** 2).sum(-1)


def _optimum(form: _Form, wanted: Any) -> tuple[Any, float]:
    """The parts with the least squares, and those."""
    scale = np.abs(form.columns).max(0)
    # The squared sine holds a part between the bounds. A start at a tenth of what would double the time on the most devices.
    found = least_squares(lambda x: _off(form, wanted, np.sin(x) ** 2), np.arcsin(np.sqrt(0.1 / scale)), method="lm", xtol=1e-10)
    edges = [_others_at_best(form, wanted, of, np.array([0.0, 1.0])) for of in range(len(scale))]
    tried = np.concatenate([*edges, np.sin(found.x)[None] ** 2])  # a bound is approached, not reached
    squares = _squares(form, wanted, tried)
    best = int(np.argmax(squares <= squares.min() * (1 + 1e-6)))
    return tried[best], float(squares[best])


def _others_at_best(form: _Form, wanted: Any, of: int, values: Any) -> Any:
    """For each value of one part all of them, the other at its best (by halving where the squares fall): (values, parts)."""
    parts = np.zeros((len(values), len(form.parts)))
    parts[:, of] = values
    for other in {*range(len(form.parts))} - {of}:
        low, high = np.zeros(len(values)), np.ones(len(values))
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            parts[:, other] = middle**3  # parts of a ten-millionth matter on thousands of devices
            slope = form.columns[:, other] / (1 + parts @ form.columns.T)
            falls = (_off(form, wanted, parts) * slope).sum(-1) > 0
            low, high = np.where(falls, middle, low), np.where(falls, high, middle)
        parts[:, other] *= low > 0  # never so small by itself
    return parts


def _ends(form: _Form, wanted: Any, of: int, best: float, most: float) -> tuple[float, float]:
    """How small and how large a part may be for the squares to stay under the most that is allowed, the others at their best."""
    outside, inside = np.array([0.0, 1.0]), np.array([best, best])
    scales = np.linspace(0, 1, _STEPS)
    for round_ in range(_ROUNDS):
        grid = inside + np.outer(scales, outside - inside)
        if round_ == 0:
            grid[:, 1] = np.geomspace(max(best, 1e-12), 1.0, _STEPS)
        squares = _squares(form, wanted, _others_at_best(form, wanted, of, grid.T.ravel())).reshape(2, -1)
        for end in (0, 1):
            beyond = np.flatnonzero(squares[end] > most)
            if not len(beyond):
                inside[end] = outside[end]
            elif beyond[0]:
                inside[end], outside[end] = grid[beyond[0] - 1, end], grid[beyond[0], end]
    return float(inside[0]), float(inside[1])
