"""Numbers as people read them."""

import math


def seconds(value: float) -> str:
    """A duration to three digits in the unit that fits: '12.3 µs'."""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= unit * 0.9995:
            return f"{_three(value / unit)} {name}"
    return f"{_three(value / 1e-9)} ns"


def _three(value: float) -> str:
    digits = 2 - math.floor(math.log10(value)) if value > 0 else 0
    return f"{value:.{max(0, min(digits, 6))}f}"


def duration(value: float) -> str:
    """A span of waiting: '45 s', '3 min', '2 h 05 min'."""
    if value < 90:
        return f"{value:.0f} s"
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"
