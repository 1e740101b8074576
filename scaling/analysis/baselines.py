"""Baselines: each timing compared with the derivative written by hand, the machine's measured peaks, and JAX.

Compares within one environment and on the same number of devices. Work is what is counted in the traced
program: bytes that a program moves beyond its inputs and its result show as distance from the roof.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scaling.analysis.curves import Timing, family_key, problem, problem_size, time_ratio
from scaling.analysis.grouping import group_by
from scaling.analysis.methods import Method, method_of
from scaling.analysis.ratios import Estimate
from scaling.core.case import CEILING, Case
from scaling.core.environment import OF_THE_CASE
from scaling.options import machine_peaks

# By kind of work and machine: (amount of work, amount per second).
Rates = Mapping[tuple, Sequence[tuple[int, float]]]
_PEAKS = {  # target -> its name, and the field that counts its work
    "copy": ("memory", "compulsory"),
    "matmul": ("arithmetic", "flops"),
    "transcendental": ("transcendentals", "transcendentals"),
    "all_reduce": ("communication", "collective_bytes"),
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
    """A timing compared with others of its problem on as many devices; None for what was not measured."""

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


def _baseline(timing: Timing, group: Sequence[Timing], rates: Rates) -> Baseline:
    case, ours = timing.case, [t for t in group if t.case.engine == "jax"]
    by_hand = _fastest(t for t in ours if t.case.ad_mode.closed_form and t.case.seeds == case.seeds)
    jax = _fastest(t for t in ours if not t.case.ad_mode.closed_form) if case.engine != "jax" else None
    return Baseline(
        timing,
        by_hand=time_ratio(timing, by_hand) if by_hand and not case.ad_mode.is_value else None,
        bound=_bound(timing, rates),
        jax=jax,
        over_jax=time_ratio(timing, jax) if jax else None,
    )


def _fastest(timings: Iterable[Timing]) -> Timing | None:
    return min(timings, key=lambda t: t.median, default=None)


def _bound(timing: Timing, rates: Rates) -> Bound | None:
    """Return the bound among the peaks that were measured on the same machine and whose work was counted."""
    bounds = []
    for target, (name, field) in _PEAKS.items():
        amount, measured = getattr(timing.records[0], field), rates.get(_rate_key(target, timing))
        if amount and measured:
            bounds.append(Bound(name, amount / rate_at(amount, measured) / timing.median))
    return max(bounds, key=lambda bound: bound.fraction, default=None)


def measured_rates(timings: Iterable[Timing]) -> Rates:
    """Return the measured rates by target, dtype, precision and machine."""
    rates: dict[tuple, list[tuple[int, float]]] = {}
    for timing in (timing for timing in timings if timing.case.kind == "ceiling"):
        case, work = timing.case, machine_peaks.peak_work(timing.case)
        key = (case.target, case.dtype, case.precision, _machine_key(timing))
        rates.setdefault(key, []).append((work, work / timing.median))
    return rates


def rate_at(amount: float, measured: Sequence[tuple[int, float]]) -> float:
    """Return the rate measured at the largest size that is no more work: both may fit into one cache."""
    return max([size for size in measured if size[0] <= amount] or [min(measured)])[1]


def rates_like(target: str, timing: Timing, rates: Rates) -> Sequence[tuple[int, float]]:
    """Return the rates of a target that were measured on the machine and with the numbers of a timing."""
    return rates.get(_rate_key(target, timing), ())


def _rate_key(target: str, timing: Timing) -> tuple:
    return target, *machine_peaks.peak_like(target, timing.case), _machine_key(timing)


def _machine_key(timing: Timing) -> tuple:
    """Return what identifies the machine of a timing, whatever its function and engine."""
    of_program = (*OF_THE_CASE, "workload_digest", "engine", "hosts", "governor")
    facts = {name: value for name, value in timing.records[0].environment.items() if name not in of_program}
    return json.dumps(facts, sort_keys=True), timing.honest, timing.case.devices


class RooflinePoint(NamedTuple):
    """A timing with its intensity and its rate on one device."""

    timing: Timing
    intensity: float  # operations per compulsory byte
    rate: float  # operations per second


@dataclass(frozen=True)
class Roofline:
    """The timings of a family on one number of devices of one machine, with the machine's peaks."""

    case: Case  # that of the largest size
    environment: str
    honest: bool
    memory: float  # bytes per second of the fastest copy
    arithmetic: float  # operations per second of the fastest matrix product
    points: Mapping[Method, tuple[RooflinePoint, ...]]  # by intensity


def rooflines(timings: Sequence[Timing]) -> list[Roofline]:
    """Return a roofline for each family and environment, on the fewest devices with measured peaks."""
    rates, made = measured_rates(timings), dict[tuple, Roofline]()
    cases = [timing for timing in timings if timing.case.kind == "case" and timing.case.engine == "jax"]
    families = group_by(
        sorted(cases, key=lambda t: t.case.devices),
        lambda t: ((t.environment, t.honest, family_key(t.case)), t.case.devices),
    )
    for (family, _), same in families.items():
        if family not in made and (roofline := _roofline(same, rates)):
            made[family] = roofline
    return list(made.values())


def _roofline(timings: Sequence[Timing], rates: Rates) -> Roofline | None:
    counted = ((t, t.records[0].flops, t.records[0].compulsory) for t in timings)
    points = [RooflinePoint(t, flops / b, flops / t.median) for t, flops, b in counted if flops and b]
    last = max((point.timing for point in points), key=lambda t: problem_size(t.case), default=None)
    if last is None:
        return None
    memory, arithmetic = (
        max((rate for _, rate in rates_like(target, last, rates)), default=None)
        for target in ("copy", "matmul")
    )
    if memory is None or arithmetic is None:
        return None
    lines = group_by(sorted(points, key=lambda p: p.intensity), lambda p: method_of(p.timing.case))
    by_method = {method: tuple(group) for method, group in lines.items()}
    return Roofline(last.case, last.environment, last.honest, memory, arithmetic, by_method)
