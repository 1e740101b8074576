"""A number with its confidence interval."""

from typing import NamedTuple


class Estimate(NamedTuple):
    """A number with the limits of its 95 % confidence interval, which are None if the interval is unknown."""

    value: float
    low: float | None
    high: float | None
