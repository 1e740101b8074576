"""Efficiency breakdown: how much of the lost efficiency is communication, imbalance and dispatch latency.

What is neither measured nor counted is left to "serial", with serial work and contention. Overlap is not
known: communication hidden behind computation is counted as if it were waited for. So the rest may be
negative, as it is for super-linear speed-up.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scaling.analysis.baselines import Rates, machine_key, measured_rates, rate_at
from scaling.analysis.curves import Curve, Timing
from scaling.options import machine_peaks


@dataclass(frozen=True)
class EfficiencyBreakdown:
    """The lost efficiency of one point of a curve, as fractions of its device-seconds; they add up to 1 -
    efficiency.
    """

    devices: int
    communication: (
        float | None
    )  # None where bytes were not counted, or no all-reduce was timed on as many devices
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
    rates = measured_rates(peaks)
    base, *rest = zip(curve.points, curve.timings, strict=True)
    return tuple(
        _break_down(t, base[1], point.efficiency, rates) for point, t in rest if not _is_floor_bound(t)
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
    communication, waiting = _communication_seconds(timing, rates), _waiting_seconds(timing)
    dispatch, base_dispatch = _dispatch_seconds(timing), _dispatch_seconds(base)
    shares = {
        "communication": None if communication is None else communication / timing.median,
        "imbalance": None if waiting is None else waiting / timing.median,
        # The dispatch latency on one device is part of the ideal.
        "dispatch": None
        if dispatch is None or base_dispatch is None
        else dispatch / timing.median - efficiency * base_dispatch / base.median,
    }
    serial = 1 - efficiency - sum(share or 0.0 for share in shares.values())
    return EfficiencyBreakdown(timing.case.devices, **shares, serial=serial)


def _communication_seconds(timing: Timing, rates: Rates) -> float | None:
    """Return the seconds that an all-reduce of as many bytes takes by itself."""
    amount = timing.records[0].collective_bytes
    if not amount:
        return amount
    key = ("all_reduce", *machine_peaks.peak_like("all_reduce", timing.case), machine_key(timing))
    return amount / rate_at(amount, rates[key]) if key in rates else None


def _waiting_seconds(timing: Timing) -> float | None:
    """Return the mean seconds that a device waits for the slowest process.

    Taken as half of what the fastest process waits: exact for two processes, and for more if they are spread
    evenly.
    """
    waits = [
        statistics.median(slow - fast for slow, fast in zip(record.seconds, record.seconds_min, strict=True))
        / 2
        for record in timing.records
        if len(record.seconds) == len(record.seconds_min) and record.seconds != record.seconds_min
    ]
    return statistics.median(waits) if waits else None


def _dispatch_seconds(timing: Timing) -> float | None:
    """Return the seconds of an empty call on as many devices."""
    known = [record.floor_seconds for record in timing.records if record.floor_seconds is not None]
    return statistics.median(known) if known else None
