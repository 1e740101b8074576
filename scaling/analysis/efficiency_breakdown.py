"""Losses: where the efficiency of a curve goes: asking the devices, their talk, waiting for the slowest, and all the rest.

Takes what was measured or counted for itself, and leaves the rest to serial work and contention. Knows curves and ceilings; not
whether parts overlap: what is sent while something is computed is counted as if it were waited for, so that the rest may be
less than nothing. The rest is below 0, too, where devices gain, as when the share of each fits into its cache.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scaling.analysis.baselines import machine, speed_of, speeds
from scaling.analysis.curves import Curve, Timing
from scaling.options import machine_peaks


@dataclass(frozen=True)
class EfficiencyBreakdown:
    """Where the efficiency of one point of a curve goes, as shares of its device-seconds: they add up to 1 - efficiency."""

    devices: int
    communication: float | None  # None where what is sent was not counted, or no sum over as many devices was timed beside it
    imbalance: float | None  # None of one process: what its devices wait for each other cannot be seen
    dispatch: float | None  # None where no empty call was timed
    serial: float  # what is left: serial work, contention, and whatever is None


def efficiency_breakdowns(curve: Curve, timings: Sequence[Timing]) -> tuple[EfficiencyBreakdown, ...]:
    """The losses of each point beyond one device; none without the same program on it. Timings: where ceilings are among them.

    A point is left out where an empty call took as long as the case or longer, there or on one device: see `refused`.
    """
    if curve.timings[0].case.devices > 1:
        return ()
    measured = speeds(timings)
    base, *rest = zip(curve.points, curve.timings, strict=True)
    kept = [] if _exceeded(base[1]) else [each for each in rest if not _exceeded(each[1])]
    return tuple(_loss(timing, base[1], point.efficiency, measured) for point, timing in kept)


def refused(curve: Curve) -> int:
    """Return how many points have no losses because an empty call took as long as the case or longer."""
    base, *rest = curve.timings
    if base.case.devices > 1:
        return 0
    return len(rest) if _exceeded(base) else sum(map(_exceeded, rest))


def _exceeded(timing: Timing) -> bool:
    """Return whether an empty call took as long as the timing or longer, so that its share would be 100 % and more."""
    asked = _asking(timing)
    return asked is not None and asked >= timing.median


def _loss(
    timing: Timing, base: Timing, efficiency: float, measured: Mapping[tuple, list[tuple[int, float]]]
) -> EfficiencyBreakdown:
    sent, waited = _sending(timing, measured), _waiting(timing)
    asked, alone = _asking(timing), _asking(base)
    known = {
        "communication": None if sent is None else sent / timing.median,
        "imbalance": None if waited is None else waited / timing.median,
        # Of what one device asks, the ideal keeps its share.
        "dispatch": None if asked is None or alone is None else asked / timing.median - efficiency * alone / base.median,
    }
    return EfficiencyBreakdown(timing.case.devices, **known, serial=1 - efficiency - sum(part or 0.0 for part in known.values()))


def _sending(timing: Timing, measured: Mapping[tuple, list[tuple[int, float]]]) -> float | None:
    """Seconds that what a device sends would take in a sum over all of them, by itself."""
    amount = timing.records[0].collective_bytes
    if not amount:
        return amount
    found = measured.get(("all_reduce", *machine_peaks.peak_like("all_reduce", timing.case), machine(timing)))
    return amount / speed_of(amount, found) if found else None


def _waiting(timing: Timing) -> float | None:
    """Seconds that a device waits for the slowest in the mean; taken as half of what the fastest process waits.

    So it is with two processes; with more it is where they are spread evenly between the fastest and the slowest.
    """
    waited = [
        statistics.median(slow - fast for slow, fast in zip(record.seconds, record.seconds_min, strict=True)) / 2
        for record in timing.records
        if len(record.seconds) == len(record.seconds_min) and record.seconds != record.seconds_min
    ]
    return statistics.median(waited) if waited else None


def _asking(timing: Timing) -> float | None:
    """Seconds of an empty call on as many devices."""
    known = [record.floor_seconds for record in timing.records if record.floor_seconds is not None]
    return statistics.median(known) if known else None
