"""Baselines: each timing compared with the derivative written by hand, the machine's measured peaks, and JAX.

Compares within one environment and on the same number of devices.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scaling.analysis.curves import Timing, problem, time_ratio
from scaling.analysis.grouping import group_by
from scaling.analysis.ratios import Estimate
from scaling.core.case import CEILING
from scaling.core.environment import OF_THE_CASE
from scaling.core.record import Record
from scaling.options import machine_peaks

Rates = Mapping[
    tuple, Sequence[tuple[int, float]]
]  # by kind of work and machine: (amount of work, amount per second)
_NAMES = {
    "copy": "memory",
    "matmul": "arithmetic",
    "transcendental": "transcendentals",
    "all_reduce": "communication",
}


class Bound(NamedTuple):
    """The machine peak that binds a timing: the one that needs the longest time for the counted work.

    fraction: that time over the measured time; above 1 where the counted work was not all done, such as bytes
    that stay in a cache.
    """

    name: str
    fraction: float


@dataclass(frozen=True)
class Baseline:
    """A timing compared with others of the same problem on as many devices; None for what was not
    measured.
    """

    timing: Timing
    by_hand: Estimate | None  # its time over the fastest that is written by hand
    bound: Bound | None
    jax: Timing | None = None  # for a peer: the fastest method of JAX
    over_jax: Estimate | None = None  # its time over that


def find_baselines(timings: Sequence[Timing]) -> list[Baseline]:
    """Return the baselines of each timing of a derivative."""
    derivatives = (timing for timing in timings if timing.case.workload != CEILING)
    groups = group_by(derivatives, lambda t: (t.environment, t.honest, t.case.devices, problem(t.case)))
    rates = measured_rates(timings)
    return [_baseline(timing, group, rates) for group in groups.values() for timing in group]


def machine_key(timing: Timing) -> tuple:
    """Return what identifies the machine of a timing, whatever its function and engine."""
    of_program = (*OF_THE_CASE, "workload_digest", "engine", "hosts", "governor")
    facts = {name: value for name, value in timing.records[0].environment.items() if name not in of_program}
    return json.dumps(facts, sort_keys=True), timing.honest, timing.case.devices


def _baseline(timing: Timing, group: Sequence[Timing], rates: Rates) -> Baseline:
    ours = [t for t in group if t.case.engine == "jax"]
    by_hand = _fastest(t for t in ours if t.case.ad_mode.closed_form and t.case.seeds == timing.case.seeds)
    jax = _fastest(t for t in ours if not t.case.ad_mode.closed_form) if timing.case.engine != "jax" else None
    return Baseline(
        timing,
        by_hand=time_ratio(timing, by_hand) if by_hand and not timing.case.ad_mode.is_value else None,
        bound=_bound(timing, rates),
        jax=jax,
        over_jax=time_ratio(timing, jax) if jax else None,
    )


def _fastest(timings: Iterable[Timing]) -> Timing | None:
    return min(timings, key=lambda t: t.median, default=None)


def _bound(timing: Timing, rates: Rates) -> Bound | None:
    """Return the bound among the peaks that were measured on the same machine and whose work was counted."""
    bounds, machine = [], machine_key(timing)
    for target, amount in _counted_work(timing.records[0]).items():
        measured = rates.get((target, *machine_peaks.peak_like(target, timing.case), machine))
        if amount and measured:
            bounds.append(Bound(_NAMES[target], amount / rate_at(amount, measured) / timing.median))
    return max(bounds, key=lambda bound: bound.fraction, default=None)


def rate_at(amount: float, measured: Sequence[tuple[int, float]]) -> float:
    """Return the rate measured at the largest size that is no more work: what fits a cache there may fit
    it here.
    """
    return max([size for size in measured if size[0] <= amount] or [min(measured)])[1]


def _counted_work(record: Record) -> dict[str, float | None]:
    """Return what one device must do whatever the program: bytes, operations, transcendental functions,
    messages.
    """
    return {
        "copy": record.compulsory,
        "matmul": record.flops,
        "transcendental": record.transcendentals,
        "all_reduce": record.collective_bytes,
    }


def measured_rates(timings: Iterable[Timing]) -> Rates:
    """Return the measured rates by target, dtype, precision and machine."""
    peaks = group_by(
        (timing for timing in timings if timing.case.kind == "ceiling"),
        lambda t: (t.case.target, t.case.dtype, t.case.precision, machine_key(t)),
    )

    def rate(timing: Timing) -> tuple[int, float]:
        work = machine_peaks.peak_work(timing.case)
        return work, work / timing.median

    return {key: [rate(timing) for timing in group] for key, group in peaks.items()}
