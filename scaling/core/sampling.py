"""When sampling stops, and the samples: values that the launcher, which has no JAX, the worker and the peers
share.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sampling:
    """When sampling stops: at an interval of the median within `width` on either side, or at a limit."""

    width: float = 0.02
    least: int = 7  # samples; seven are needed for the interval of a speed-up
    most: int = 200  # samples
    seconds: float = 1.0  # of sampling, once there are `least`
    warm_up: float = 0.05  # seconds, at least; at most ten times that
    turns: int = 3  # at least, in which cases that are to be compared take their samples by blocks
    compilations: int = 1  # fresh ones, each sampled like this


@dataclass(frozen=True)
class Samples:
    """All samples in order, per call, and how they were taken. Of several processes, the slowest counts."""

    seconds: list[float]
    calls_per_sample: int
    stop_reason: str | None  # width | most | seconds; None: not yet
    seconds_min: list[float] = field(default_factory=list)  # that of the fastest process
    slowest: list[int] = field(default_factory=list)  # the rank of the slowest process
    turns: list[int] = field(default_factory=list)  # samples in each turn
    marked: dict[str, list[int]] = field(
        default_factory=dict
    )  # why not to trust a turn -> turns, by their place
