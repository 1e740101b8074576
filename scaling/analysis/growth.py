"""Collect times by problem size (`SizeSweep`), and fit the exponents of their growth (`SizeExponent`).

The exponent is the slope of a straight line that is fitted to the logarithms of the measured times against
those of the sizes. It is not an asymptotic limit. With four sizes or more, a fitted parabola shows whether
the slope changes. If it does, the interval of the exponent is extended to the slopes at the smallest and the
largest size. With three sizes the interval is wide.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

from scaling.analysis.cases import Method, Subject, find_size_series, group_by, join_words, size_values
from scaling.analysis.curves import keep_fastest_meshes
from scaling.analysis.estimate import Estimate
from scaling.analysis.timings import Timing, near_floor

_LEAST_SIZES = 3  # a line through two sizes has no residuals
_ROUNDING = 1e-6  # a quadratic coefficient up to this size is attributed to rounding


@dataclass(frozen=True)
class SizeSweep(Subject):
    """The times of each method for several values of one problem size.

    The devices and `fixed_sizes` are constant. `case` has the largest size.
    """

    swept: str  # the varying size, such as "m", or "points = m" if both vary together
    fixed_sizes: str  # the constant sizes, such as "points=6 o=2"
    lines: Mapping[Method, tuple[tuple[int, Timing], ...]]  # method -> (size, timing) pairs, sorted by size

    @property
    def constants(self) -> str:
        """Return the constant settings as text, such as 'width=8, 4 devices, shard_map, points split'."""
        return join_words(
            self.fixed_sizes, self.devices_text, self.call, not self.honest and "oversubscribed"
        )


def size_sweeps(timings: Iterable[Timing]) -> list[SizeSweep]:
    """Return a `SizeSweep` for each function, environment, device layout and varying problem size."""
    no_method = Method("jacfwd", "vmap")._asdict() | {"points": 1, "sizes": {}, "mesh": None}
    groups = group_by(
        keep_fastest_meshes(timings),
        lambda t: (t.environment, t.honest, dataclasses.replace(t.case, **no_method)),
    )
    sweeps = []
    for (environment, honest, _), group in groups.items():
        for name, title, fixed_sizes, series in find_size_series(group, lambda timing: timing.case):
            case = dataclasses.replace(max(series, key=lambda t: t.volume).case, mesh=None)
            rows = sorted(((size_values(t.case)[name], t) for t in series), key=lambda row: row[0])
            methods = sorted(group_by(rows, lambda row: row[1].method).items(), key=lambda line: line[0].name)
            lines = {method: tuple(line) for method, line in methods}
            sweeps.append(SizeSweep(case, environment, honest, title, fixed_sizes, lines))
    return sweeps


@dataclass(frozen=True)
class SizeExponent:
    """The exponent with which the time of one method grows with a problem size: time ~ size ** exponent."""

    sweep: SizeSweep
    method: Method
    exponent: Estimate
    sizes: int  # the number of sizes in the fit
    left_out: int  # the number of sizes omitted because their times are less than ten empty calls


def size_exponents(sweeps: Iterable[SizeSweep]) -> list[SizeExponent]:
    """Return the exponent of the growth of the time with the size, for each method of each sweep.

    Times shorter than ten empty calls are not used. A method with fewer than three usable times is omitted.
    """
    exponents = []
    for sweep in sweeps:
        for method, line in sweep.lines.items():
            usable = [(size, timing) for size, timing in line if near_floor(timing) is None]
            if len(usable) >= _LEAST_SIZES:
                omitted = len(line) - len(usable)
                exponents.append(SizeExponent(sweep, method, _fit_exponent(usable), len(usable), omitted))
    return exponents


def _fit_exponent(line: Sequence[tuple[int, Timing]]) -> Estimate:
    sizes = np.array([math.log(size) for size, _ in line])  # math.log: sizes may exceed 64 bits
    sizes -= sizes.mean()
    # Relative to the first time, so that constant times have a slope of exactly 0.
    times = np.log([timing.median / line[0][1].median for _, timing in line])
    (slope, _), (half, _) = _fit_polynomial(sizes, times, 1)
    low, high = slope - half, slope + half
    if len(line) > _LEAST_SIZES:
        (second, first, _), (uncertainty, *_) = _fit_polynomial(sizes, times, 2)
        if abs(second) > uncertainty + _ROUNDING:  # the exponent changes along the sizes
            ends = [first + 2 * second * float(size) for size in (sizes[0], sizes[-1])]
            low, high = min([low, *ends]), max([high, *ends])
    return Estimate(slope, low, high)


def _fit_polynomial(sizes: Any, times: Any, degree: int) -> tuple[list[float], list[float]]:
    coefficients, covariance = np.polyfit(sizes, times, degree, cov=True)
    half = float(stdtrit(len(times) - degree - 1, 0.975)) * np.sqrt(np.diag(covariance))
    return coefficients.tolist(), half.tolist()
