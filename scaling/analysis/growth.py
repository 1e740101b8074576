"""Growth: by which power of a size the time grows, for each way to a derivative.

Knows panels; not why a time grows as it does. The exponent is the slope of a straight line through the logarithms: that of the
sizes that were measured, no limit. Where a parabola shows that there is no one slope (from four sizes on), the interval holds
those at both ends as well; of three sizes that cannot be told, and the interval is long.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

from scaling.analysis.certainty import near_floor
from scaling.analysis.curves import Panel, Timing
from scaling.analysis.methods import Method
from scaling.analysis.resampling import ResampledEstimate

_LEAST = 3  # sizes: through two a line always goes
_CHANGE = 1e-6  # of the slope over a size e times as large: less is rounding


@dataclass(frozen=True)
class SizeExponent:
    """How the time of one way grows with a size: time ~ size ** exponent."""

    panel: Panel
    way: Method
    exponent: ResampledEstimate
    sizes: int  # how many it rests on
    left_out: int  # how many more were measured, but took less than ten empty calls: they say more of the call
    bent: bool  # whether it is no power: the exponent changes along the sizes, by more than chance at 5 %


def size_exponents(panels: Iterable[Panel]) -> list[SizeExponent]:
    """The growth of every way that was measured at three sizes or more, beside those that are left out."""
    found = []
    for panel in panels:
        for way, line in panel.lines.items():
            clear = [(size, timing) for size, timing in line if near_floor(timing) is None]
            if len(clear) >= _LEAST:
                exponent, bent = _exponent(clear)
                found.append(SizeExponent(panel, way, exponent, len(clear), len(line) - len(clear), bent))
    return found


def _exponent(line: Sequence[tuple[int, Timing]]) -> tuple[ResampledEstimate, bool]:
    """The slope of the logarithms by least squares with Student's interval, and whether it changes along the sizes."""
    sizes = np.array([math.log(size) for size, _ in line])  # of NumPy's own, a size has no more than 64 bits
    times = np.log([timing.median / line[0][1].median for _, timing in line])  # so that what does not grow has the exponent 0
    (slope,), (half,) = _fit(sizes, times, 1)
    low, high = slope - half, slope + half
    if len(line) == _LEAST:
        return ResampledEstimate(slope, low, high), False
    (first, bend), (_, doubt) = _fit(sizes, times, 2)
    bent = abs(bend) > doubt + _CHANGE
    ends = [first + 2 * bend * float(size - sizes.mean()) for size in (sizes[0], sizes[-1])] if bent else []
    return ResampledEstimate(slope, min([low, *ends]), max([high, *ends])), bent


def _fit(sizes: Any, times: Any, degree: int) -> tuple[list[float], list[float]]:
    """The coefficients of a polynomial around the mean size but for its constant, and half the length of their intervals."""
    powers = np.vander(sizes - sizes.mean(), degree + 1, increasing=True)
    found, *_ = np.linalg.lstsq(powers, times)
    off, freedom = times - powers @ found, len(times) - degree - 1
    errors = np.sqrt(np.diag(np.linalg.inv(powers.T @ powers)) * float(off @ off) / freedom)
    half = float(stdtrit(freedom, 0.975)) * errors
    return found[1:].tolist(), half[1:].tolist()
