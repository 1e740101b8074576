"""Format estimates with their intervals; an estimate with too wide an interval is "not determined"."""

from scaling.core.formatting import format_interval, format_number

UNDETERMINED = "not determined"
_WIDEST_RATIO = 10.0  # the upper end of an interval divided by its lower end
_BOTH_WAYS = 2.0  # an interval from below 1 / 2 to above 2 does not show which of two times is larger
_WIDEST_EXPONENT = 1.0  # width of the interval of an exponent
_WIDEST_SHARE = 0.5  # width of the interval of a share, which lies between 0 and 1


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
    return text + format_interval(low, high)


def format_time_ratio(
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
