"""Define `Estimate` (a number with its confidence interval), and format ratios, exponents and fractions."""

import math
from collections.abc import Callable
from typing import NamedTuple

from scaling.core.formatting import format_number

UNDETERMINED = "not determined"
_WIDEST_RATIO = 10.0  # largest high / low of the interval of a ratio
_WIDEST_EXPONENT = 1.0  # largest width of the interval of an exponent
_WIDEST_SHARE = 0.5  # largest width of the interval of a fraction


class Estimate(NamedTuple):
    """A number with the limits of its 95 % confidence interval. The limits are None if they are unknown."""

    value: float
    low: float | None
    high: float | None

    @property
    def above_one(self) -> bool:
        """Return whether the whole confidence interval of a ratio is above 1."""
        return self.low is not None and self.low > 1

    @property
    def is_determined(self) -> bool:
        """Return whether the interval of a ratio is narrow enough to report the ratio.

        An interval is too wide if high / low exceeds 10, or if low < 1/2 and high > 2. Return True if the
        interval is unknown.
        """
        if self.low is None or self.high is None:
            return True
        return self.high <= _WIDEST_RATIO * self.low and not (self.low < 1 / 2 and self.high > 2)

    @property
    def is_determined_share(self) -> bool:
        """Return whether the interval of a fraction is narrow enough to report the fraction.

        An interval is too wide if high - low exceeds 0.5. A fraction without an interval is reported.
        """
        return self.low is None or self.high is None or self.high - self.low <= _WIDEST_SHARE

    def scaled(self, factor: float) -> "Estimate":
        """Return the estimate with its value and limits multiplied by `factor`."""
        low, high = (None if end is None else end * factor for end in self[1:])
        return Estimate(self.value * factor, low, high)


def format_ratio(value: float, low: float | None = None, high: float | None = None, sign: str = "x") -> str:
    """Return text such as '1.77x (1.70 to 1.81)', or 'not determined (43 or more)' for a wide interval.

    If the interval excludes 1, no number is rounded to '1.00' that differs from 1 in the fifth decimal.
    """
    if low is None or high is None:
        return f"{format_number(value)}{sign}"
    form = format_number if low <= 1 <= high else _format_near_one
    text = f"{form(value)}{sign}" if Estimate(value, low, high).is_determined else UNDETERMINED
    return f"{text} ({form(low)} {'or more' if high == math.inf else f'to {form(high)}'})"


def _format_near_one(value: float) -> str:
    """Return a number as text, with as many decimals, up to five, as show that it is not 1."""
    texts = [format_number(value), *(f"{value:.{decimals}f}" for decimals in (3, 4, 5))]
    return next((text for text in texts if text.strip("0") != "1."), texts[0])


def format_exponent(value: float, low: float | None, high: float | None) -> str:
    """Return text such as '1.30 (1.28 to 1.32)', or 'not determined (-2.65 to 8.48)' for a wide interval.

    Each number except 0 has three digits.
    """
    return format_share(value, low, high, _WIDEST_EXPONENT, _three_digits)


def format_share(
    value: float,
    low: float | None,
    high: float | None,
    widest: float = _WIDEST_SHARE,
    format_end: Callable[[float], str] = "{:.3g}".format,
) -> str:
    """Return text such as '0.12 (0.1 to 0.15)', or 'not determined (0.1 to 0.9)' for a wide interval.

    An interval is wide if `high` - `low` exceeds `widest`. `format_end` formats the value and each limit.
    """
    if low is None or high is None:
        return format_end(value)
    text = format_end(value) if high - low <= widest else UNDETERMINED
    return f"{text} ({format_end(low)} to {format_end(high)})"


def _three_digits(value: float) -> str:
    return f"{value:#.3g}".removesuffix(".") if value else "0"


def format_percentage(value: float) -> str:
    """Return a fraction as a percentage, such as '83 %' or 'under 1 %'."""
    return "under 1 %" if value < 0.01 else f"{100 * value:.0f} %"
