"""Times relative to handwritten derivatives, machine peaks (roofline) and, for other AD systems, to JAX.

Only times in the same environment and on the same device count are compared. Work is counted in the traced
program. Of the memory traffic, only the inputs and the result are counted. This makes the fraction of the
peak memory bandwidth smaller.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scaling.analysis.cases import Method, family_key, group_by, method_of, problem_size
from scaling.analysis.ratios import Estimate
from scaling.analysis.timings import Timing, time_ratio
from scaling.core.case import CEILING, Case, problem
from scaling.core.environment import OF_THE_CASE
from scaling.options import machine_peaks

# (target, dtype, precision, machine) -> pairs of (amount of work, amount per second)
Rates = Mapping[tuple, Sequence[tuple[int, float]]]
_PEAKS = {  # target -> name in the output, record field with the counted work
    "copy": ("memory", "compulsory"),
    "matmul": ("arithmetic", "flops"),
    "transcendental": ("transcendentals", "transcendentals"),
    "all_reduce": ("communication", "collective_bytes"),
}


class Bound(NamedTuple):
    """The machine peak that limits a program, such as the memory bandwidth.

    The counted work divided by a peak rate is the least time that a program needs. The peak with the longest
    such time is the limit. `fraction` is this time divided by the measured time. It exceeds 1 if not all of
    the counted work was done, for example if bytes stay in a cache.
    """

    name: str
    fraction: float


@dataclass(frozen=True)
class Baseline:
    """A measured time compared with references for the same problem, which are None if not measured."""

    timing: Timing
    by_hand: Estimate | None  # time divided by that of the fastest handwritten derivative
    bound: Bound | None
    jax: Timing | None = None  # for another engine: the fastest JAX method
    over_jax: Estimate | None = None  # time divided by that of `jax`


def find_baselines(timings: Sequence[Timing]) -> list[Baseline]:
    """Compare each timing with handwritten derivatives, machine peaks and, for other AD systems, with JAX."""
    derivatives = (timing for timing in timings if timing.case.workload != CEILING)
    groups = group_by(derivatives, lambda t: (t.environment, t.honest, t.case.devices, problem(t.case)))
    rates = measured_rates(timings)
    return [_compare_with_references(timing, group, rates) for group in groups.values() for timing in group]


def _compare_with_references(timing: Timing, group: Sequence[Timing], rates: Rates) -> Baseline:
    case, jax_timings = timing.case, [t for t in group if t.case.engine == "jax"]
    by_hand = _fastest(t for t in jax_timings if t.case.ad_mode.closed_form and t.case.seeds == case.seeds)
    jax = _fastest(t for t in jax_timings if not t.case.ad_mode.closed_form) if case.engine != "jax" else None
    return Baseline(
        timing,
        by_hand=time_ratio(timing, by_hand) if by_hand and not case.ad_mode.is_value else None,
        bound=_limiting_peak(timing, rates),
        jax=jax,
        over_jax=time_ratio(timing, jax) if jax else None,
    )


def _fastest(timings: Iterable[Timing]) -> Timing | None:
    return min(timings, key=lambda t: t.median, default=None)


def _limiting_peak(timing: Timing, rates: Rates) -> Bound | None:
    """Return the machine peak that limits a program, or None if no peak was measured for its work."""
    bounds = []
    for target, (name, field) in _PEAKS.items():
        amount, measured = getattr(timing.records[0], field), rates.get(_rate_key(target, timing))
        if amount and measured:
            bounds.append(Bound(name, amount / rate_at(amount, measured) / timing.median))
    return max(bounds, key=lambda bound: bound.fraction, default=None)


def measured_rates(timings: Iterable[Timing]) -> Rates:
    """Return the machine peaks as a dict from (target, dtype, precision, machine) to (work, rate) pairs.

    The target is a benchmark such as "copy". Work is in bytes or operations, and the rate is work per second.
    """
    rates: dict[tuple, list[tuple[int, float]]] = {}
    for timing in (timing for timing in timings if timing.case.kind == "ceiling"):
        case, work = timing.case, machine_peaks.peak_work(timing.case)
        key = (case.target, case.dtype, case.precision, _machine_key(timing))
        rates.setdefault(key, []).append((work, work / timing.median))
    return rates


def rate_at(amount: float, measured: Sequence[tuple[int, float]]) -> float:
    """Return the measured peak rate, in work per second, that applies to an amount of work.

    This is the rate of the largest measurement whose work is at most `amount`, because a larger one may
    exceed a cache into which `amount` fits. If all measurements are larger, the smallest one is used.

    Args:
        measured: (work, rate) pairs.
    """
    return max([size for size in measured if size[0] <= amount] or [min(measured)])[1]


def rates_like(target: str, timing: Timing, rates: Rates) -> Sequence[tuple[int, float]]:
    """Return the (work, rate) pairs of a peak, such as "copy", for the machine and dtype of a timing."""
    return rates.get(_rate_key(target, timing), ())


def _rate_key(target: str, timing: Timing) -> tuple:
    return target, *machine_peaks.peak_like(target, timing.case), _machine_key(timing)


def _machine_key(timing: Timing) -> tuple:
    """Return a hashable key of the machine and the device count of a timing, which ignores its program."""
    of_program = (*OF_THE_CASE, "workload_digest", "engine", "hosts", "governor")
    facts = {name: value for name, value in timing.records[0].environment.items() if name not in of_program}
    return json.dumps(facts, sort_keys=True), timing.honest, timing.case.devices


class RooflinePoint(NamedTuple):
    """One program in a roofline plot: its arithmetic intensity and its rate."""

    timing: Timing
    intensity: float  # operations per compulsory byte
    rate: float  # operations per second


@dataclass(frozen=True)
class Roofline:
    """The data of a roofline plot: timings of one function on one device count, and the measured peaks."""

    case: Case  # the case with the largest size
    environment: str
    honest: bool
    memory: float  # bytes per second of the fastest copy
    arithmetic: float  # operations per second of the fastest matrix product
    points: Mapping[Method, tuple[RooflinePoint, ...]]  # sorted by intensity


def rooflines(timings: Sequence[Timing]) -> list[Roofline]:
    """Return one Roofline per function and environment, for the smallest device count with measured peaks."""
    rates, by_family = measured_rates(timings), dict[tuple, Roofline]()
    cases = [timing for timing in timings if timing.case.kind == "case" and timing.case.engine == "jax"]
    families = group_by(
        sorted(cases, key=lambda t: t.case.devices),
        lambda t: ((t.environment, t.honest, family_key(t.case)), t.case.devices),
    )
    for (family, _), same in families.items():
        if family not in by_family and (roofline := _build_roofline(same, rates)):
            by_family[family] = roofline
    return list(by_family.values())


def _build_roofline(timings: Sequence[Timing], rates: Rates) -> Roofline | None:
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
