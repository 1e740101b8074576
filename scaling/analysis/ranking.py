"""Rank AD modes by time (`Ranking`), recommend device counts, compare with handwritten code (`Baseline`).

A `Baseline` also has the fraction of the peak rate of the machine that a program reaches. This fraction is a
lower bound, because only the inputs and the result count as memory traffic.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from scaling.analysis.cases import CASE_DEPENDENT_FIELDS, MEMORY_FIELDS, Subject, is_candidate, with_fields
from scaling.analysis.estimate import Estimate
from scaling.analysis.timings import Timing, describe_slower, is_empty_call, reasons_for_doubt, time_ratio
from scaling.core.case import CEILING, default_values
from scaling.core.grouping import group_by, least_by
from scaling.options import machine_peaks

_SETTINGS = (*MEMORY_FIELDS, "seeds", "mesh", "forward", "overlap")  # fields of a case
_PEAKS = {  # target -> (name in the output, record field with the counted work)
    "copy": ("memory", "compulsory"),
    "matmul": ("arithmetic", "flops"),
    "transcendental": ("transcendentals", "transcendentals"),
    "all_reduce": ("communication", "collective_bytes"),
}


@dataclass(frozen=True)
class Ranking(Subject):
    """The fastest timing of a problem, its runner-up, and the ratio of their times."""

    fastest: Timing
    others: tuple[Timing, ...]  # with another method, or else another memory setting
    runner_up: Timing | None  # the fastest of `others`; one that is not significantly slower is preferred
    ratio: Estimate | None  # time of `runner_up` divided by the time of `fastest`
    # `recommend_ranking` sets these. Without a recommended device count, `device_certainty` is ''.
    device_certainty: str = ""  # how certain the device count is, in the words of `certainty`
    device_doubt: str = ""  # why no device count is recommended, or ''
    # Handwritten derivatives, other AD systems and mode=auto, with the same entries of the Jacobian.
    unranked: tuple[Timing, ...] = ()

    @property
    def is_empty_call(self) -> bool:
        """Return whether the shortest time is too short to be distinguished from an empty call."""
        return is_empty_call(self.fastest)

    @property
    def distinguished(self) -> bool:
        """Return whether the fastest timing is significantly faster than the runner-up.

        Return False if there is no runner-up, or if the time is about as short as an empty call.
        """
        return self.ratio is not None and self.ratio.above_one and not self.is_empty_call

    @property
    def fastest_mode(self) -> str:
        """Return the name of the AD mode that is significantly faster than all others, or '' if none is."""
        if not self.distinguished or not self.runner_up or self.runner_up.method.base == self.method.base:
            return ""
        return self.method.base.name

    @property
    def doubts(self) -> tuple[str, ...]:
        """Return the reasons why the ranking may be wrong, such as 'measured in one process'."""
        if self.runner_up is None or self.ratio is None:
            return ()
        wide = () if self.ratio.is_determined else ("the ratio is not determined",)
        return (*reasons_for_doubt(self.fastest, self.runner_up), *wide)

    @property
    def certainty(self) -> str:
        """Return how certain the fastest method is, as text such as 'sure' or 'not distinguished'."""
        if self.is_empty_call:
            return "not distinguished from an empty call"
        if self.runner_up is None:
            return "no other mode measured"
        if not self.distinguished:
            return "not distinguished"
        return f"not sure: {', '.join(self.doubts)}" if self.doubts else "sure"

    @property
    def certainties(self) -> str:
        """Return how certain the fastest method and the recommended number of devices are, as text.

        An example is 'sure; device count not sure: measured in one process'. Equal certainties are stated
        once.
        """
        if self.device_certainty in ("", self.certainty):
            return self.certainty
        return f"{self.certainty}; device count {self.device_certainty}"


def fastest_methods(timings: Iterable[Timing]) -> list[Ranking]:
    """Return a `Ranking` of the AD methods for each problem, number of devices and environment."""
    derivatives = (timing for timing in timings if not timing.case.ad_mode.is_value)
    rankings = []
    for problem_timings in group_by(derivatives, lambda timing: timing.comparison_key).values():
        candidates = [timing for timing in problem_timings if is_candidate(timing.case)]
        if not candidates:
            continue
        fastest = min(candidates, key=lambda timing: timing.median)
        other_modes = [timing for timing in candidates if timing.method.base != fastest.method.base]
        other_settings = [timing for timing in candidates if timing.method != fastest.method]
        unranked = [
            timing
            for timing in problem_timings
            if not is_candidate(timing.case) and timing.case.seeds == fastest.case.seeds
        ]
        ranking = _make_ranking(fastest, other_modes or other_settings)
        rankings.append(replace(ranking, unranked=tuple(unranked)))
    return rankings


def _make_ranking(fastest: Timing, others: Sequence[Timing]) -> Ranking:
    """Return a `Ranking` of the timing `fastest` and the timings `others`.

    The runner-up is the fastest of `others` that is not significantly slower than `fastest`. If all are
    significantly slower, it is the fastest of them.
    """
    ratios = ((timing, time_ratio(timing, fastest)) for timing in others)
    next_and_ratio = min(ratios, key=lambda pair: (pair[1].above_one, pair[0].median), default=(None, None))
    subject = (fastest.case, fastest.environment, fastest.honest)
    return Ranking(*subject, fastest, tuple(others), *next_and_ratio)


def recommend_devices(timings: Sequence[Timing]) -> tuple[Timing, str]:
    """Return the timing on the recommended number of devices, and ''.

    The recommended number is the smallest whose time is not significantly longer than the shortest time. If
    no number can be recommended, return the fastest timing and the reason, such as too few samples.
    """
    fastest = min(timings, key=lambda timing: timing.median)
    not_slower = (timing for timing in timings if not time_ratio(timing, fastest).above_one)
    fewest = min(not_slower, key=lambda timing: timing.case.devices)
    ratio = time_ratio(fewest, fastest)
    if is_empty_call(fastest):
        return fastest, f"{fastest.devices_text} may take only the time of an empty call"
    if ratio.low is None:
        return fastest, f"too few samples to compare {fastest.devices_text} with {fewest.devices_text}"
    if not ratio.is_determined:
        return fastest, describe_slower(fewest, fastest)
    return fewest, ""


def recommend_ranking(rankings: Sequence[Ranking]) -> Ranking:
    """Return the ranking on the recommended number of devices.

    `rankings` contains one ranking for each number of devices. Return the ranking with the shortest time if
    no number can be recommended. This is so if only one number was measured, if CPU cores were shared or
    unbound, or if the times are too uncertain or as short as an empty call.
    """
    fastest = min(rankings, key=lambda ranking: ranking.fastest.median)
    if not fastest.honest or len(rankings) == 1:
        return fastest
    timings = [ranking.fastest for ranking in rankings]
    timing, doubt = recommend_devices(timings)
    recommended = next(ranking for ranking in rankings if ranking.fastest is timing)
    across_counts = _make_ranking(timing, [other for other in timings if other is not timing])
    certainty = "" if doubt else across_counts.certainty
    return replace(recommended, device_certainty=certainty, device_doubt=doubt)


def group_settings(timings: Iterable[Timing]) -> list[list[Timing]]:
    """Return the timings of each program that was measured with several settings, as lists.

    Each list begins with the shortest time. Settings are fields such as `chunk`, `mesh` and `seeds`. Function
    values (mode=value) are omitted.
    """
    derivatives = (timing for timing in timings if not timing.case.ad_mode.is_value)
    groups = group_by(
        derivatives, lambda t: (t.environment, t.honest, with_fields(t.case, **default_values(_SETTINGS)))
    )
    return [sorted(group, key=lambda t: t.median) for group in groups.values() if len(group) > 1]


class Baseline(NamedTuple):
    """A measured time, compared with handwritten code, with the fastest JAX method and with a peak rate."""

    timing: Timing
    by_hand: Estimate | None  # time divided by the time of the fastest handwritten derivative, if measured
    # the peak rate that limits the program most, such as "memory", and the fraction of it that is reached:
    # (lower bound on the time) / (measured time); None if no peak was measured or no work was counted
    bound: tuple[str, float] | None
    jax: Timing | None  # the timing of the fastest JAX method, if `timing` is from another AD system
    over_jax: Estimate | None  # time divided by the time of `jax`, if measured


def find_baselines(timings: Sequence[Timing]) -> list[Baseline]:
    """Return a `Baseline` for each timing of a workload.

    Function values (mode=value) are not compared with handwritten code.
    """
    derivative_timings = (timing for timing in timings if timing.case.workload != CEILING)
    groups = group_by(derivative_timings, lambda timing: timing.comparison_key)
    rates, baselines = _find_peak_rates(timings), []
    for problem_timings in groups.values():
        jax_timings = [timing for timing in problem_timings if timing.case.engine == "jax"]
        modes = (timing for timing in jax_timings if not timing.case.ad_mode.closed_form)
        fastest = min(modes, key=lambda timing: timing.median, default=None)
        handwritten = (timing for timing in jax_timings if timing.case.ad_mode.closed_form)
        # With colored seeds, a handwritten derivative computes only the nonzeros.
        fastest_by_hand = least_by(handwritten, lambda other: other.case.seeds, lambda other: other.median)
        for timing in problem_timings:
            by_hand = None if timing.case.ad_mode.is_value else fastest_by_hand.get(timing.case.seeds)
            jax = fastest if timing.case.engine != "jax" else None
            over_hand, over_jax = (time_ratio(timing, other) if other else None for other in (by_hand, jax))
            baselines.append(Baseline(timing, over_hand, _limiting_peak(timing, rates), jax, over_jax))
    return baselines


def _limiting_peak(
    timing: Timing, rates: Mapping[tuple, Sequence[tuple[int, float]]]
) -> tuple[str, float] | None:
    """Return the name of the peak rate that limits a program most, and the fraction of it that is reached.

    The name is, for example, "memory". `rates` is the result of `_find_peak_rates`. Return None if no rate
    was measured on the machine of `timing`, or if no work of the program was counted.
    """
    bounds = []
    for target, (name, field) in _PEAKS.items():
        work = getattr(timing.record, field)
        dtype_and_precision = machine_peaks.peak_dtype_and_precision(target, timing.case)
        peak_rates = rates.get((target, *dtype_and_precision, _machine_key(timing)))
        if work and peak_rates:
            # Prefer the largest benchmark up to this work, because more data may not fit into the same cache.
            _, rate = max([pair for pair in peak_rates if pair[0] <= work] or [min(peak_rates)])
            bounds.append((name, work / rate / timing.median))
    return max(bounds, key=lambda bound: bound[1], default=None)


def _find_peak_rates(timings: Iterable[Timing]) -> dict[tuple, list[tuple[int, float]]]:
    """Return pairs of work and work per second from the benchmarks of peak rates, as a dict of lists.

    A key consists of the target of a benchmark (such as "matmul"), its dtype, its precision and the machine.
    The unit of the work depends on the target (`machine_peaks.peak_work`).
    """
    rates: dict[tuple, list[tuple[int, float]]] = {}
    for timing in timings:
        if timing.case.kind == "ceiling":
            case, work = timing.case, machine_peaks.peak_work(timing.case)
            key = (case.target, case.dtype, case.precision, _machine_key(timing))
            rates.setdefault(key, []).append((work, work / timing.median))
    return rates


def _machine_key(timing: Timing) -> tuple:
    """Return a key that is equal for timings on the same machine with the same number of devices."""
    other_facts = (*CASE_DEPENDENT_FIELDS, "workload_digest", "engine", "hosts", "governor")
    facts = {name: value for name, value in timing.record.environment.items() if name not in other_facts}
    return json.dumps(facts, sort_keys=True), timing.honest, timing.case.devices
