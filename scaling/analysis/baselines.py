"""Compare times with handwritten derivatives, machine peaks and JAX; break down lost parallel efficiency.

Only times in the same environment and on the same device count are compared. Operations are counted in the
traced program. The memory traffic includes only the inputs and the result, so that the fraction of the peak
memory bandwidth is underestimated.

Lost parallel efficiency is divided into communication, load imbalance, dispatch latency and a remainder. The
remainder is called "serial": serial work, contention, and every loss that was neither measured nor counted.
All communication counts as a loss, because its overlap with computation is unknown. Therefore, and for
super-linear speed-up, the remainder may be negative.
"""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from scaling.analysis.cases import group_by
from scaling.analysis.curves import Curve
from scaling.analysis.estimate import Estimate
from scaling.analysis.fastest import compare_with_handwritten
from scaling.analysis.timings import Timing, dispatch_floor, least_time, time_ratio
from scaling.core.case import CEILING
from scaling.core.environment import OF_THE_CASE
from scaling.options import machine_peaks

# (target, dtype, precision, machine) -> (work, work per second) pairs
Rates = Mapping[tuple, Sequence[tuple[int, float]]]
_PEAKS = {  # target -> (name in the output, record field with the counted work)
    "copy": ("memory", "compulsory"),
    "matmul": ("arithmetic", "flops"),
    "transcendental": ("transcendentals", "transcendentals"),
    "all_reduce": ("communication", "collective_bytes"),
}


class Bound(NamedTuple):
    """The machine peak that limits the time of a program, such as the memory bandwidth (roofline model).

    The counted work divided by a peak rate is a lower bound on the time of the program. The limiting peak has
    the largest lower bound. `fraction` exceeds 1 if the program does less work than was counted, for example
    because data stay in a cache.
    """

    name: str  # "memory", "arithmetic", "transcendentals" or "communication"
    fraction: float  # lower bound on the time divided by the measured time


class Baseline(NamedTuple):
    """A measured time, and its ratios to a handwritten derivative, a machine peak and the fastest JAX method.

    A ratio is None if its reference was not measured.
    """

    timing: Timing
    by_hand: Estimate | None  # time divided by that of the fastest handwritten derivative
    bound: Bound | None  # None if no peak was measured or no work was counted
    jax: Timing | None  # the fastest JAX method, if `timing` is of another AD system
    over_jax: Estimate | None  # time divided by that of `jax`


def find_baselines(timings: Sequence[Timing]) -> list[Baseline]:
    """Return a `Baseline` for each timing, except for the timings of the machine peaks themselves.

    Only the timings of AD systems other than JAX are compared with JAX.
    """
    derivatives = (timing for timing in timings if timing.case.workload != CEILING)
    groups = group_by(derivatives, lambda t: t.comparison_key)
    rates, baselines = measured_rates(timings), []
    for group in groups.values():
        fastest = least_time(t for t in group if t.case.engine == "jax" and not t.case.ad_mode.closed_form)
        for timing in group:
            by_hand, bound = compare_with_handwritten(timing, group), _limiting_peak(timing, rates)
            jax = fastest if timing.case.engine != "jax" else None
            baselines.append(Baseline(timing, by_hand, bound, jax, time_ratio(timing, jax) if jax else None))
    return baselines


def _limiting_peak(timing: Timing, rates: Rates) -> Bound | None:
    bounds = []
    for target, (name, field) in _PEAKS.items():
        if least := _least_seconds(target, getattr(timing.record, field), timing, rates):
            bounds.append(Bound(name, least / timing.median))
    return max(bounds, key=lambda bound: bound.fraction, default=None)


def measured_rates(timings: Iterable[Timing]) -> Rates:
    """Return a dict from (target, dtype, precision, machine) to the measured (work, rate) pairs of a peak.

    `target` is the name of the peak, such as "copy". `work` is in bytes or operations per call and device,
    and `rate` is work per second.
    """
    rates: dict[tuple, list[tuple[int, float]]] = {}
    for timing in (timing for timing in timings if timing.case.kind == "ceiling"):
        case, work = timing.case, machine_peaks.peak_work(timing.case)
        key = (case.target, case.dtype, case.precision, _machine_key(timing))
        rates.setdefault(key, []).append((work, work / timing.median))
    return rates


def _least_seconds(target: str, amount: float | None, timing: Timing, rates: Rates) -> float | None:
    """Return the seconds that an amount of work takes at the measured peak rate, or None if it is unknown.

    `target` is the name of the peak, such as "copy", and `amount` is in bytes or operations. The rate is that
    of the largest measurement whose work is at most `amount`, because a larger one may exceed a cache into
    which `amount` fits. If all measurements are larger, the smallest one is used.
    """
    if not amount:
        return amount  # no work takes no time, even if the rate is unknown
    dtype_and_precision = machine_peaks.peak_dtype_and_precision(target, timing.case)
    measured = rates.get((target, *dtype_and_precision, _machine_key(timing)))
    if not measured:
        return None
    _, rate = max([pair for pair in measured if pair[0] <= amount] or [min(measured)])
    return amount / rate


def _machine_key(timing: Timing) -> tuple:
    """Return a hashable key for the machine and the device count of a timing, independent of its program."""
    of_program = (*OF_THE_CASE, "workload_digest", "engine", "hosts", "governor")
    facts = {name: value for name, value in timing.record.environment.items() if name not in of_program}
    return json.dumps(facts, sort_keys=True), timing.honest, timing.case.devices


class EfficiencyBreakdown(NamedTuple):
    """The causes of lost efficiency on one device count, as fractions that add up to 1 - efficiency."""

    devices: int
    communication: float | None  # None if the bytes were not counted or no all-reduce was timed
    imbalance: float | None  # None if one process drives all devices, because it times them together
    dispatch: float | None  # None if no empty call was timed
    serial: float  # the remainder: serial work, contention, and the losses that are None


def efficiency_breakdowns(curve: Curve, peaks: Sequence[Timing]) -> tuple[EfficiencyBreakdown, ...]:
    """Divide the lost efficiency of a scaling curve among its causes, for each device count above one.

    Device counts at which the program is not slower than an empty call are omitted. The result is empty if
    this holds for one device, or if one device was not measured. Of the timings of machine peaks, `peaks`,
    only those of the all-reduce are used.
    """
    base, *others = curve.timings
    if base.case.devices > 1 or dispatch_floor(base) >= base.median:
        return ()
    rates, efficiency = measured_rates(peaks), [point.efficiency.value for point in curve.points[1:]]
    return tuple(
        _break_down(timing, base, value, rates)
        for timing, value in zip(others, efficiency, strict=True)
        if dispatch_floor(timing) < timing.median
    )


def _break_down(timing: Timing, base: Timing, efficiency: float, rates: Rates) -> EfficiencyBreakdown:
    seconds = _least_seconds("all_reduce", timing.record.collective_bytes, timing, rates)
    communication = None if seconds is None else seconds / timing.median
    waiting = _waiting_seconds(timing)
    imbalance = None if waiting is None else waiting / timing.median
    floor, ideal = dispatch_floor(timing), dispatch_floor(base)
    # The dispatch latency on one device is part of the ideal time.
    dispatch = floor / timing.median - efficiency * ideal / base.median if floor and ideal else None
    serial = 1 - efficiency - sum(share or 0.0 for share in (communication, imbalance, dispatch))
    return EfficiencyBreakdown(timing.case.devices, communication, imbalance, dispatch, serial)


def _waiting_seconds(timing: Timing) -> float | None:
    """Return the estimated mean time in seconds that a process waits for the slowest one, or None if unknown.

    The estimate is half of the time that the fastest process waits, which is exact for two processes.
    """
    waits = [
        statistics.median(slow - fast for slow, fast in zip(record.seconds, record.seconds_min, strict=True))
        for record in timing.records
        if len(record.seconds) == len(record.seconds_min) and record.seconds != record.seconds_min
    ]
    return statistics.median(waits) / 2 if waits else None
