"""Growth of the time with problem size: times by size (SizeSweep), and fitted exponents (SizeExponent).

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

from scaling.analysis.cases import Method, find_sweeps, group_by, method_of, problem_size, size_values
from scaling.analysis.curves import keep_fastest_meshes
from scaling.analysis.estimate import Estimate
from scaling.analysis.timings import Timing, near_floor
from scaling.core.case import Case

_LEAST_SIZES = 3  # a line through two sizes has no residuals
_ROUNDING = 1e-6  # a quadratic coefficient up to this size is attributed to rounding


@dataclass(frozen=True)
class SizeSweep:
    """The times of each method against one problem size. Devices and the sizes in `held` are constant."""

    case: Case  # the case with the largest size
    environment: str
    honest: bool  # whether each CPU device had its own core
    swept: str  # such as "m", or "points = m" if both vary together
    held: str  # the constant sizes, such as "points=6 o=2"
    lines: Mapping[Method, tuple[tuple[int, Timing], ...]]  # method -> (size, timing) pairs, sorted by size


def size_sweeps(timings: Iterable[Timing]) -> list[SizeSweep]:
    """Return a SizeSweep for each function, environment, device layout and sweep over a problem size."""
    no_method = Method("jacfwd", "vmap")._asdict() | {"points": 1, "sizes": {}, "mesh": None}
    groups = group_by(
        keep_fastest_meshes(timings),
        lambda t: (t.environment, t.honest, dataclasses.replace(t.case, **no_method)),
    )
    return [sweep for group in groups.values() for sweep in _sweeps_of_group(group)]


def _sweeps_of_group(group: Sequence[Timing]) -> list[SizeSweep]:
    sweeps = []
    for swept, held, timings in find_sweeps(group, lambda timing: timing.case):
        largest = max(timings, key=lambda t: problem_size(t.case))
        case = dataclasses.replace(largest.case, mesh=None)
        rows = sorted(((size_values(t.case)[swept.name], t) for t in timings), key=lambda row: row[0])
        methods = group_by(rows, lambda row: method_of(row[1].case))
        lines = {method: tuple(methods[method]) for method in sorted(methods, key=lambda method: method.name)}
        sweeps.append(SizeSweep(case, largest.environment, largest.honest, swept.title, held, lines))
    return sweeps


@dataclass(frozen=True)
class SizeExponent:
    """The exponent with which the time of one method grows with a problem size: time ~ size ** exponent."""

    sweep: SizeSweep
    method: Method
    exponent: Estimate
    sizes: int  # the number of sizes in the fit
    left_out: int  # the number of sizes omitted because their times are less than ten empty calls
    bent: bool  # whether the exponent changes along the sizes, at a significance level of 5 %


def size_exponents(sweeps: Iterable[SizeSweep]) -> list[SizeExponent]:
    """Return the growth exponent of each method in each sweep.

    Times shorter than ten empty calls are not used. A method with fewer than three usable times is omitted.
    """
    exponents = []
    for sweep in sweeps:
        for method, line in sweep.lines.items():
            kept = [(size, timing) for size, timing in line if near_floor(timing) is None]
            if len(kept) >= _LEAST_SIZES:
                exponent, bent = _fit_exponent(kept)
                left_out = len(line) - len(kept)
                exponents.append(SizeExponent(sweep, method, exponent, len(kept), left_out, bent))
    return exponents


def _fit_exponent(line: Sequence[tuple[int, Timing]]) -> tuple[Estimate, bool]:
    """Fit the exponent of time against size, and test whether it changes with the size.

    Args:
        line: pairs of size and timing, in ascending order of size.
    Returns:
        The exponent with its 95 % confidence interval, and whether the exponent changes.
    """
    sizes = np.array([math.log(size) for size, _ in line])  # math.log: sizes may exceed 64 bits
    # Relative to the first time, so that constant times have a slope of exactly 0.
    times = np.log([timing.median / line[0][1].median for _, timing in line])
    (slope,), (half,) = _fit_polynomial(sizes, times, 1)
    low, high = slope - half, slope + half
    if len(line) == _LEAST_SIZES:
        return Estimate(slope, low, high), False
    (first, second), (_, uncertainty) = _fit_polynomial(sizes, times, 2)
    bent = abs(second) > uncertainty + _ROUNDING
    ends = [first + 2 * second * float(size - sizes.mean()) for size in (sizes[0], sizes[-1])] if bent else []
    return Estimate(slope, min([low, *ends]), max([high, *ends])), bent


def _fit_polynomial(sizes: Any, times: Any, degree: int) -> tuple[list[float], list[float]]:
    """Fit a polynomial to the logarithms of the times by least squares.

    The variable of the polynomial is the logarithm of the size minus the mean of these logarithms.

    Args:
        sizes, times: arrays of shape (sizes,) with the logarithms of the sizes and of the times.
    Returns:
        coefficients: those of degree 1 and higher, in ascending order of degree.
        half_widths: half the widths of the 95 % confidence intervals of the coefficients.
    """
    powers = np.vander(sizes - sizes.mean(), degree + 1, increasing=True)
    coefficients, *_ = np.linalg.lstsq(powers, times)
    residuals, freedom = times - powers @ coefficients, len(times) - degree - 1
    errors = np.sqrt(np.diag(np.linalg.inv(powers.T @ powers)) * float(residuals @ residuals) / freedom)
    half = float(stdtrit(freedom, 0.975)) * errors
    return coefficients[1:].tolist(), half[1:].tolist()
