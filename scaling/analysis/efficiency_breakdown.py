"""Efficiency breakdown: how much of the lost efficiency is communication, imbalance and dispatch latency.

What is neither measured nor counted is left to "serial", with serial work and contention. Overlap is not
known: communication hidden behind computation is counted as if it were waited for. So the rest may be
negative, as it is for super-linear speed-up.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scaling.analysis.baselines import Rates, measured_rates, rate_at, rates_like
from scaling.analysis.curves import Curve, Timing


@dataclass(frozen=True)
class EfficiencyBreakdown:
    """The lost efficiency of one point of a curve, as fractions of its device-seconds.

    They add up to 1 - efficiency.
    """

    devices: int
    communication: float | None  # None: bytes not counted, or no all-reduce timed on as many devices
    imbalance: float | None  # None for one process: waiting between its devices cannot be seen
    dispatch: float | None  # None where no empty call was timed
    serial: float  # the rest: serial work, contention, and whatever is None


def efficiency_breakdowns(curve: Curve, peaks: Sequence[Timing]) -> tuple[EfficiencyBreakdown, ...]:
    """Return the breakdown of each point beyond one device; () without the same program on one device.

    peaks: the timings of the machine peaks. Points are left out where an empty call takes as long as the case
    or longer, there or on one device; `count_refused` counts them.
    """
    if curve.timings[0].case.devices > 1 or _is_floor_bound(curve.timings[0]):
        return ()
    rates, base = measured_rates(peaks), curve.timings[0]
    rest = list(zip(curve.points, curve.timings, strict=True))[1:]
    return tuple(
        _break_down(timing, base, point.efficiency, rates)
        for point, timing in rest
        if not _is_floor_bound(timing)
    )


def count_refused(curve: Curve) -> int:
    """Return how many points have no breakdown because an empty call takes as long as the case or longer."""
    base, *rest = curve.timings
    if base.case.devices > 1:
        return 0
    return len(rest) if _is_floor_bound(base) else sum(map(_is_floor_bound, rest))


def _is_floor_bound(timing: Timing) -> bool:
    """Return whether an empty call takes as long as the timing or longer."""
    dispatch = _dispatch_seconds(timing)
    return dispatch is not None and dispatch >= timing.median


def _break_down(timing: Timing, base: Timing, efficiency: float, rates: Rates) -> EfficiencyBreakdown:
    seconds = (_communication_seconds(timing, rates), _waiting_seconds(timing), _dispatch_seconds(timing))
    communication, imbalance, dispatch = (None if s is None else s / timing.median for s in seconds)
    ideal = _dispatch_seconds(base)  # the dispatch latency on one device is part of the ideal
    if dispatch is not None:
        dispatch = None if ideal is None else dispatch - efficiency * ideal / base.median
    serial = 1 - efficiency - sum(share or 0.0 for share in (communication, imbalance, dispatch))
    return EfficiencyBreakdown(timing.case.devices, communication, imbalance, dispatch, serial)


def _communication_seconds(timing: Timing, rates: Rates) -> float | None:
    """Return the seconds that an all-reduce of as many bytes takes by itself."""
    amount, measured = timing.records[0].collective_bytes, rates_like("all_reduce", timing, rates)
    if not amount:
        return amount
    return amount / rate_at(amount, measured) if measured else None


def _waiting_seconds(timing: Timing) -> float | None:
    """Return the mean seconds that a device waits for the slowest process.

    Taken as half of what the fastest process waits: exact for two processes, and for more if they are spread
    evenly.
    """
    waits = [
        statistics.median(slow - fast for slow, fast in zip(record.seconds, record.seconds_min, strict=True))
        for record in timing.records
        if len(record.seconds) == len(record.seconds_min) and record.seconds != record.seconds_min
    ]
    return statistics.median(waits) / 2 if waits else None


def _dispatch_seconds(timing: Timing) -> float | None:
    """Return the seconds of an empty call on as many devices."""
    known = [record.floor_seconds for record in timing.records if record.floor_seconds is not None]
    return statistics.median(known) if known else None
