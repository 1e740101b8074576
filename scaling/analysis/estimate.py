"""Class Estimate: a number with its 95 % confidence interval."""

from typing import NamedTuple


class Estimate(NamedTuple):
    """A number with the limits of its 95 % confidence interval. Unknown limits are None."""

    value: float
    low: float | None
    high: float | None
