"""Define `Estimate` (a number with its confidence interval), and format ratios, exponents and fractions."""

from typing import NamedTuple

from scaling.core.formatting import format_number

UNDETERMINED = "not determined"
_WIDEST_RATIO = 10.0  # largest high / low of the interval of a ratio
_WIDEST_EXPONENT = 1.0  # largest width of the interval of an exponent
_WIDEST_FRACTION = 0.5  # largest width of the interval of a fraction


class Estimate(NamedTuple):
    """A number with the limits of its 95 % confidence interval. The limits are None if they are unknown."""

    value: float
    low: float | None
    high: float | None

    @property
    def above_one(self) -> bool:
        """Return whether a ratio is significantly above 1: its whole confidence interval is above 1."""
        return self.low is not None and self.low > 1

    @property
    def is_determined(self) -> bool:
        """Return whether the confidence interval of a ratio is narrow enough to report the ratio.

        The upper limit must be at most ten times the lower one, and the interval may not contain both 1/2 and
        2. Return True if the limits are unknown.
        """
        if self.low is None or self.high is None:
            return True
        return self.high <= _WIDEST_RATIO * self.low and not (self.low < 1 / 2 and self.high > 2)

    def scaled(self, factor: float) -> "Estimate":
        """Return an estimate whose value and limits are multiplied by `factor`."""
        low, high = (None if limit is None else limit * factor for limit in self[1:])
        return Estimate(self.value * factor, low, high)


def format_ratio(value: float, low: float | None = None, high: float | None = None, suffix: str = "x") -> str:
    """Return a ratio and its interval as text, such as '1.77x (1.70 to 1.81)'. `suffix` replaces the x.

    The text is 'not determined (0.40 to 43.0)' if the interval is too wide. If the interval excludes 1, a
    number near 1 has up to five decimals, so that it is not rounded to 1.
    """
    if low is None or high is None:
        return f"{format_number(value)}{suffix}"
    form = format_number if low <= 1 <= high else _format_near_one
    text = f"{form(value)}{suffix}" if Estimate(value, low, high).is_determined else UNDETERMINED
    return f"{text} ({form(low)} to {form(high)})"


def _format_near_one(value: float) -> str:
    """Return a number as text. A number near 1 has up to five decimals, so that it is not rounded to 1."""
    texts = [format_number(value), *(f"{value:.{decimals}f}" for decimals in (3, 4, 5))]
    return next((text for text in texts if text.strip("0") != "1."), texts[0])


def format_exponent(value: float, low: float | None, high: float | None) -> str:
    """Return an exponent and its interval as text with three digits, such as '1.30 (1.28 to 1.32)'.

    The text is 'not determined (-2.65 to 8.48)' if the interval is wider than 1.
    """
    return format_fraction(value, low, high, _WIDEST_EXPONENT)


def format_fraction(
    value: float, low: float | None, high: float | None, widest: float = _WIDEST_FRACTION
) -> str:
    """Return a fraction and its interval as text with three digits, such as '0.120 (0.100 to 0.150)'.

    The text is 'not determined (0.100 to 0.900)' if the interval is wider than `widest`. An interval without
    limits is omitted.
    """
    if low is None or high is None:
        return _three_digits(value)
    text = _three_digits(value) if high - low <= widest else UNDETERMINED
    return f"{text} ({_three_digits(low)} to {_three_digits(high)})"


def _three_digits(value: float) -> str:
    return f"{value:#.3g}".removesuffix(".") if value else "0"


def format_percentage(value: float) -> str:
    """Return a fraction as a percentage, such as '83 %', '-12 %', 'under 1 %' or '0 %'."""
    return "under 1 %" if 0 < abs(value) < 0.01 else f"{100 * value:.0f} %"
