"""Format numbers, durations, bytes, ratios and counts as text."""

import math
from collections.abc import Sequence

UNDETERMINED = "not determined"
_WIDEST_RATIO = 10.0  # the upper end of an interval divided by its lower end
_BOTH_WAYS = 2.0  # an interval from below 1 / 2 to above 2 does not show which of two times is larger
_WIDEST_EXPONENT = 1.0  # width of the interval of an exponent
_WIDEST_SHARE = 0.5  # width of the interval of a share, which lies between 0 and 1


def format_number(value: float) -> str:
    """Format a number with three digits but at most two decimals, such as '12.3' or '0.07'.

    Numbers below 0.01 or from a million have an exponent and three digits.
    """
    if value == 0 or not 0.01 <= abs(value) < 1e6:
        return f"{value:.3g}"
    exponent = math.floor(math.log10(abs(float(f"{value:.3g}"))))
    return f"{value:.{max(0, min(2, 2 - exponent))}f}"


def format_duration(seconds: float, low: float | None = None, high: float | None = None) -> str:
    """Format seconds in a suitable unit, with the interval if it is known: '12.3 µs (12.1 to 12.6)'."""
    units = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
    unit, size = next(((unit, size) for unit, size in units if seconds >= 0.9995 * size), units[-1])
    scaled = (low, high) if low is None or high is None else (low / size, high / size)
    return f"{format_number(seconds / size)} {unit}{_format_interval(*scaled)}"


def format_bytes(value: float) -> str:
    """Format bytes in a suitable decimal unit: '3.20 GB', '512 B'."""
    units = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
    unit, size = next(((unit, size) for unit, size in units if value >= 0.9995 * size), ("B", 1))
    return f"{format_number(value / size)} {unit}"


def _format_interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" ({format_number(low)} to {format_number(high)})"


def is_ratio_determined(low: float | None, high: float | None) -> bool:
    """Return whether a ratio may be reported, because its interval (low, high) is narrow or unknown."""
    if low is None or high is None:
        return True
    return high <= _WIDEST_RATIO * low and not low < 1 / _BOTH_WAYS < _BOTH_WAYS < high


def is_exponent_determined(low: float | None, high: float | None) -> bool:
    """Return whether an exponent may be reported, because its interval (low, high) is narrow or unknown."""
    return low is None or high is None or high - low <= _WIDEST_EXPONENT


def is_share_determined(low: float | None, high: float | None) -> bool:
    """Return whether a fraction may be reported, because its interval (low, high) is narrow or unknown."""
    return low is None or high is None or high - low <= _WIDEST_SHARE


def format_ratio(
    value: float | None, low: float | None = None, high: float | None = None, sign: str = "x"
) -> str:
    """Format a ratio with its interval: '1.77x (1.70 to 1.81)', or if wide 'not determined (0.6 to 37)'."""
    if value is None:
        return ""
    text = f"{format_number(value)}{sign}" if is_ratio_determined(low, high) else UNDETERMINED
    return text + _format_interval(low, high)


def format_seconds(
    name: str, value: float | None, low: float | None = None, high: float | None = None
) -> str:
    """Format the ratio of the time of a method to another time as a clause: 'jacfwd takes 1.77x as long'."""
    text = format_ratio(value, low, high)
    is_determined = is_ratio_determined(low, high)
    return f"{name} takes {text} as long" if is_determined else f"the ratio to {name} is {text}"


def format_exponent(value: float, low: float | None, high: float | None) -> str:
    """Format an exponent with its interval: '1.02 (0.98 to 1.05)', or 'not determined (-2.65 to 8.48)'."""
    return _format_estimate(value, low, high, is_exponent_determined(low, high))


def format_share(value: float, low: float | None, high: float | None) -> str:
    """Format a fraction with its interval: '0.12 (0.1 to 0.15)', or 'not determined (0.1 to 0.9)'."""
    return _format_estimate(value, low, high, is_share_determined(low, high))


def _format_estimate(value: float, low: float | None, high: float | None, is_determined: bool) -> str:
    interval = "" if low is None or high is None else f" ({low:.3g} to {high:.3g})"
    return f"{value:.3g}{interval}" if is_determined else f"{UNDETERMINED}{interval}"


def format_percentage(value: float) -> str:
    """Format a fraction as a percentage: '83 %', 'under 1 %'."""
    return "under 1 %" if value < 0.01 else f"{100 * value:.0f} %"


def format_wait(seconds: float) -> str:
    """Format a waiting time in seconds: '45 s', '3 min', '2 h 05 min'."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"


def count_of(count: int, noun: str) -> str:
    """Format a count with its noun: '1 case', '2 cases', '1,000 cases'."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def list_first(names: Sequence[str], most: int) -> str:
    """Join the first `most` names and the number of the remaining ones: 'a, b and 3 more'."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def format_cell(text: str) -> str:
    """Escape text for a cell of a Markdown table."""
    for plain, escaped in (("\\", "\\\\"), ("&", "&amp;"), ("<", "&lt;"), ("|", "\\|")):
        text = text.replace(plain, escaped)
    return " ".join(text.split())
