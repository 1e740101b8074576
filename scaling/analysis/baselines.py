"""Compare times with peak rates and handwritten code (`Baseline`).

The work of a program (bytes and operations) is counted, and the peak rates of the machine are measured.
Only the inputs and the result count as memory traffic. The fraction of the peak is thus a lower bound.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from scaling.analysis.environments import OF_THE_CASE
from scaling.analysis.estimate import Estimate
from scaling.analysis.timings import Timing, least_time, time_ratio
from scaling.core.case import CEILING
from scaling.core.grouping import group_by, least_by
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
    """The peak rate that limits a program most, and the fraction of this rate that the program reaches."""

    name: str  # "memory", "arithmetic", "transcendentals" or "communication"
    fraction: float  # (lower bound on the time) / (measured time)


class Baseline(NamedTuple):
    """A measured time, compared with handwritten code, with the fastest JAX method and with a peak rate."""

    timing: Timing
    by_hand: Estimate | None  # time divided by the time of the fastest handwritten derivative, if measured
    bound: Bound | None  # None if no peak was measured or no work was counted
    jax: Timing | None  # the timing of the fastest JAX method, if `timing` is from another AD system
    over_jax: Estimate | None  # time divided by the time of `jax`, if measured


def find_baselines(timings: Sequence[Timing]) -> list[Baseline]:
    """Compare each time with handwritten code, with the fastest JAX method and with the peak rates.

    Measurements of peak rates and latencies are omitted. Function values (mode=value) are not compared with
    handwritten code.
    """
    derivative_timings = (timing for timing in timings if timing.case.workload != CEILING)
    groups = group_by(derivative_timings, lambda timing: timing.comparison_key)
    rates, baselines = _measured_rates(timings), []
    for problem_timings in groups.values():
        jax_timings = [timing for timing in problem_timings if timing.case.engine == "jax"]
        fastest = least_time(timing for timing in jax_timings if not timing.case.ad_mode.closed_form)
        handwritten = (timing for timing in jax_timings if timing.case.ad_mode.closed_form)
        # With colored seeds, a handwritten derivative computes only the nonzeros.
        fastest_by_hand = least_by(handwritten, lambda other: other.case.seeds, lambda other: other.median)
        for timing in problem_timings:
            by_hand = None if timing.case.ad_mode.is_value else fastest_by_hand.get(timing.case.seeds)
            jax = fastest if timing.case.engine != "jax" else None
            over_hand, over_jax = (time_ratio(timing, other) if other else None for other in (by_hand, jax))
            baselines.append(Baseline(timing, over_hand, _limiting_peak(timing, rates), jax, over_jax))
    return baselines


def _limiting_peak(timing: Timing, rates: Rates) -> Bound | None:
    bounds = []
    for target, (name, field) in _PEAKS.items():
        if least := _least_seconds(target, getattr(timing.record, field), timing, rates):
            bounds.append(Bound(name, least / timing.median))
    return max(bounds, key=lambda bound: bound.fraction, default=None)


def _measured_rates(timings: Iterable[Timing]) -> Rates:
    """Return {(target, dtype, precision, machine): list of (work, work per second)} for peak benchmarks.

    `target` is the name of a benchmark, such as "matmul". `machine_peaks.peak_work` defines its unit of work,
    such as bytes or floating-point operations.
    """
    rates: dict[tuple, list[tuple[int, float]]] = {}
    for timing in timings:
        if timing.case.kind == "ceiling":
            case, work = timing.case, machine_peaks.peak_work(timing.case)
            key = (case.target, case.dtype, case.precision, _machine_key(timing))
            rates.setdefault(key, []).append((work, work / timing.median))
    return rates


def _least_seconds(target: str, amount: float | None, timing: Timing, rates: Rates) -> float | None:
    """Return the shortest time in seconds for an amount of work, at a measured peak rate of the machine.

    `target` is the benchmark of the peak rate, such as "matmul". `amount` has the unit of
    `machine_peaks.peak_work`. `timing` determines the machine, dtype and precision. `rates` is the result of
    `_measured_rates`. Return None if the amount or the rate is unknown.
    """
    if not amount:
        return amount  # no work takes no time, even if the rate is unknown
    dtype_and_precision = machine_peaks.peak_dtype_and_precision(target, timing.case)
    peak_rates = rates.get((target, *dtype_and_precision, _machine_key(timing)))
    if not peak_rates:
        return None
    # Prefer the largest benchmark up to this amount, because more data may not fit into the same cache.
    _, rate = max([pair for pair in peak_rates if pair[0] <= amount] or [min(peak_rates)])
    return amount / rate


def _machine_key(timing: Timing) -> tuple:
    """Return a key that is equal for timings on the same machine with the same number of devices."""
    other_facts = (*OF_THE_CASE, "workload_digest", "engine", "hosts", "governor")
    facts = {name: value for name, value in timing.record.environment.items() if name not in other_facts}
    return json.dumps(facts, sort_keys=True), timing.honest, timing.case.devices
