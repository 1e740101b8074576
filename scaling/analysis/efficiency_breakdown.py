"""Breakdown of lost parallel efficiency into communication, load imbalance, dispatch latency and the rest.

The rest, called "serial", contains serial work, contention, and every loss that was neither measured nor
counted. It is unknown how much communication overlaps with computation, so that all communication counts as a
loss. The rest may therefore be negative; it is also negative for super-linear speed-up.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scaling.analysis.baselines import Rates, measured_rates, rate_at, rates_like
from scaling.analysis.curves import Curve
from scaling.analysis.timings import Timing


@dataclass(frozen=True)
class EfficiencyBreakdown:
    """The causes of lost efficiency on one device count, as fractions that add up to 1 - efficiency."""

    devices: int
    communication: float | None  # None if the bytes were not counted or no all-reduce was timed
    imbalance: float | None  # None if one process drives all devices, because it times them together
    dispatch: float | None  # None if no empty call was timed
    serial: float  # the rest: serial work, contention, and the losses that are None


def efficiency_breakdowns(curve: Curve, peaks: Sequence[Timing]) -> tuple[EfficiencyBreakdown, ...]:
    """Attribute the lost efficiency of a scaling curve to its causes, for each device count above one.

    A device count is omitted if the program takes no longer than an empty call on it. Return () if this is
    the case on one device, or if the program was not measured on one device.

    Args:
        peaks: the timings of machine peaks. Those of the all-reduce are used.
    """
    if curve.timings[0].case.devices > 1 or _is_floor_bound(curve.timings[0]):
        return ()
    rates, base = measured_rates(peaks), curve.timings[0]
    rest = list(zip(curve.points, curve.timings, strict=True))[1:]
    return tuple(
        _break_down(timing, base, point.efficiency.value, rates)
        for point, timing in rest
        if not _is_floor_bound(timing)
    )


def count_refused(curve: Curve) -> int:
    """Return the number of device counts that have no breakdown because a time is too short.

    A time is too short if an empty call takes as long. If the time on one device is too short, no device
    count has a breakdown.
    """
    base, *rest = curve.timings
    if base.case.devices > 1:
        return 0
    return len(rest) if _is_floor_bound(base) else sum(map(_is_floor_bound, rest))


def _is_floor_bound(timing: Timing) -> bool:
    dispatch = _dispatch_seconds(timing)
    return dispatch is not None and dispatch >= timing.median


def _break_down(timing: Timing, base: Timing, efficiency: float, rates: Rates) -> EfficiencyBreakdown:
    seconds = (_communication_seconds(timing, rates), _waiting_seconds(timing), _dispatch_seconds(timing))
    communication, imbalance, dispatch = (None if s is None else s / timing.median for s in seconds)
    ideal = _dispatch_seconds(base)  # the dispatch latency on one device is part of the ideal time
    if dispatch is not None:
        dispatch = None if ideal is None else dispatch - efficiency * ideal / base.median
    serial = 1 - efficiency - sum(share or 0.0 for share in (communication, imbalance, dispatch))
    return EfficiencyBreakdown(timing.case.devices, communication, imbalance, dispatch, serial)


def _communication_seconds(timing: Timing, rates: Rates) -> float | None:
    """Return the time in seconds of an isolated all-reduce of the same number of bytes, or None.

    Return None if the number of bytes or the rate of the all-reduce is unknown.
    """
    amount, measured = timing.records[0].collective_bytes, rates_like("all_reduce", timing, rates)
    if not amount:
        return amount
    return amount / rate_at(amount, measured) if measured else None


def _waiting_seconds(timing: Timing) -> float | None:
    """Return the mean time in seconds that a process waits for the slowest process, or None if it is unknown.

    It is estimated as half of the time that the fastest process waits. This is exact for two processes, and
    for more processes if their times are evenly spaced.
    """
    waits = [
        statistics.median(slow - fast for slow, fast in zip(record.seconds, record.seconds_min, strict=True))
        for record in timing.records
        if len(record.seconds) == len(record.seconds_min) and record.seconds != record.seconds_min
    ]
    return statistics.median(waits) / 2 if waits else None


def _dispatch_seconds(timing: Timing) -> float | None:
    """Return the time in seconds of an empty call on the same device count, or None if not measured."""
    known = [record.floor_seconds for record in timing.records if record.floor_seconds is not None]
    return statistics.median(known) if known else None
