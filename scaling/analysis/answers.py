"""Describe results in sentences: fastest AD modes (`FastestAnswer`), crossovers, growth, plans, failures."""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from scaling.analysis.cases import (
    OUT_OF_MEMORY_REASONS,
    Subject,
    largest_problems,
    method_of,
    size_name,
)
from scaling.analysis.curves import Curve, CurvePoint, fastest_curves
from scaling.analysis.estimate import UNDETERMINED, format_exponent, format_percentage, format_ratio
from scaling.analysis.findings import Findings
from scaling.analysis.forecast import Forecast, PlanScore
from scaling.analysis.lint import lint_findings
from scaling.analysis.ranking import Ranking, recommend_ranking
from scaling.analysis.timings import (
    ONE_PROCESS,
    Timing,
    describe_slower,
    format_time,
    is_empty_call,
    name_with_blocks,
    reasons_for_doubt,
    time_ratio,
)
from scaling.core.case import label, problem_fields
from scaling.core.formatting import format_bytes, format_count, list_first
from scaling.core.grouping import group_by, least_by
from scaling.core.record import REASONS

_HALF_EFFICIENCY = 0.5  # parallel efficiency below which more devices are not worthwhile
# The largest numbers of names in a sentence.
_MOST_NAMES = 3  # modes that could not be timed
_MOST_COUNTS = 2  # device counts
_MOST_UNRANKED = 2  # handwritten derivatives and other AD systems
_MOST_SIZE_RANGES = 6  # ranges of sizes with one fastest mode
_MOST_METHODS = 4  # methods with an exponent


def answer_sentences(findings: Findings) -> list[str]:
    """Return the sentences that summarize a results folder."""
    topics = (
        _describe_fastest, describe_crossovers, _describe_weak_scaling, describe_growth,
        _describe_plans, _describe_defects,
    )  # fmt: skip
    return [sentence for describe_topic in topics for sentence in describe_topic(findings)]


def _describe_fastest(findings: Findings) -> list[str]:
    if answers := measured_answers(findings):
        return [f"{'. '.join([answer.headline, *answer.details])}." for answer in answers]
    if findings.timings:
        unranked = "mode=auto, values, handwritten derivatives and other AD systems are not ranked"
        return [f"No mode that is ranked was measured: {unranked}."]
    nothing = (
        "Nothing has been measured: no record in the folder has a time. `scaling status` lists each case."
    )
    return [] if findings.forecasts else [nothing]


class FastestAnswer(NamedTuple):
    """The fastest AD mode and the recommended device count for the largest problem of a function."""

    problem: str  # the result of `Findings.problem_name`, such as 'mlp width=8 points=64'
    ranking: Ranking  # on the recommended device count
    modes: tuple[str, ...]  # the fastest method, and the runner-up if it is not significantly slower
    time: str  # the time of one call with its 95 % interval, and of two methods the one that takes it
    ratio: str  # a clause on the ratio of the runner-up's time to `time`, or ''
    details: tuple[str, ...]  # sentences, without a period, such as 'Speed-up: ...' or 'Efficiency: ...'

    @property
    def headline(self) -> str:
        """Return the fastest mode and its time as one sentence, without the period."""
        modes = f"{' or '.join(self.modes)}{' is fastest' if self.ranking.distinguished else ''}"
        time = f"{modes}, {self.time} on {self.ranking.devices_text}, {self.ranking.call}"
        clauses = filter(None, [time, self.ratio, self.ranking.certainties])
        return f"{self.problem}: {'; '.join(clauses)}"


def measured_answers(findings: Findings) -> list[FastestAnswer]:
    """Return a `FastestAnswer` for the largest measured problem of each function in each environment."""
    problems = largest_problems(findings.fastest, lambda ranking: ranking.family_key, len)
    return [_describe_problem(findings, rankings) for rankings in problems]


def _describe_problem(findings: Findings, rankings: Sequence[Ranking]) -> FastestAnswer:
    """Return the `FastestAnswer` for one problem. `rankings` has a `Ranking` for each number of devices."""
    ranking = recommend_ranking(rankings)
    fastest = ranking.fastest
    mode, time, ratio = name_with_blocks(fastest), format_time(fastest), ""
    modes: tuple[str, ...] = (mode,)
    if ranking.runner_up is not None and not ranking.is_empty_call:
        runner_up, ratio = ranking.runner_up.method.name, describe_slower(ranking.runner_up, fastest)
        if not ranking.distinguished and runner_up != mode:
            modes, time = (mode, runner_up), f"{time} by {mode}"
    details = []
    if fastest.honest and not ranking.is_empty_call:
        details = _describe_devices(findings, rankings, ranking)
    details += _list_faster_unranked(ranking) + _list_untimed(findings, ranking)
    name = findings.problem_name(ranking)
    return FastestAnswer(name, ranking, modes, time, ratio, tuple(details))


def _list_faster_unranked(ranking: Ranking) -> list[str]:
    """Return a sentence on unranked derivatives that are faster than every AD mode, as a list, or [].

    Handwritten JAX code, other AD systems and mode=auto are not ranked. The sentence names the fastest
    derivative of each system.
    """
    unranked = least_by(ranking.unranked, lambda timing: timing.case.engine, lambda timing: timing.median)
    faster = [timing for timing in unranked.values() if time_ratio(ranking.fastest, timing).above_one]
    texts = []
    for timing in faster:
        doubts = reasons_for_doubt(timing, ranking.fastest)
        not_sure = f", not sure: {', '.join(doubts)}" if doubts else ""
        texts.append(describe_slower(timing, ranking.fastest) + not_sure)
    return [f"Faster, but not ranked: {list_first(texts, _MOST_UNRANKED, '; ')}"] if texts else []


def _list_untimed(findings: Findings, ranking: Ranking) -> list[str]:
    """Return a sentence that names the AD modes without a time, as a list, or [].

    These modes failed or ran out of memory for the problem and the number of devices of `ranking`.
    """
    key = ranking.environment, problem_fields(ranking.case), ranking.case.devices
    records = findings.untimed_records.get(key, [])
    reasons = {method_of(record.case): record.reason or "no reason given" for record in records}
    untimed = sorted(f"{method.name} ({reason})" for method, reason in reasons.items())
    return [f"Not timed on {ranking.devices_text}: {list_first(untimed, _MOST_NAMES)}"] if untimed else []


def _describe_devices(findings: Findings, rankings: Sequence[Ranking], ranking: Ranking) -> list[str]:
    """Return sentences that compare the numbers of devices, and state the speed-up and the efficiency.

    `rankings` has a `Ranking` for each number of devices. `ranking` is the one for the recommended number.
    """
    recommended = ranking.fastest
    if len(rankings) == 1:
        return [f"Measured on {recommended.devices_text} only"]
    curves = findings.curves_by_case.get((recommended.environment, recommended.honest, recommended.case), {})
    curve, point = curves.get("strong", (None, None))
    speedup, efficiency, stated = "", "", {recommended}
    if curve and point and not point.is_baseline:
        speedup, efficiency = _describe_speedup(findings, curve, point)
        # The speed-ups are over the baseline of the curve and, if measured, the best time on one device.
        one_device = [each.fastest for each in rankings if each.case.devices == 1 and point.against_jit]
        stated.update([curve.timings[0], *one_device])
    others = [each.fastest for each in rankings if each.fastest not in stated]
    others.sort(key=lambda timing: timing.median)
    times = [describe_slower(timing, recommended) for timing in others]
    other_counts = f"Other device counts: {list_first(times, _MOST_COUNTS, '; ')}" if times else ""
    doubt = ranking.device_doubt and f"No number of devices can be recommended: {ranking.device_doubt}"
    sentences = [speedup, other_counts, doubt, efficiency]
    if curve and len(curve.points) > 1:
        efficient = _describe_efficiency(findings, curve, ranking.device_certainty)
        relative = curve.points[0].relative
        sentences.append(f"Efficiency{relative} of at least {findings.efficiency:g}: {efficient}")
    return list(filter(None, sentences))


def _describe_speedup(findings: Findings, curve: Curve, point: CurvePoint) -> tuple[str, str]:
    """Return two sentences on a point of a scaling curve: on its speed-up, and on its efficiency."""
    too_large = findings.too_large_on(curve)
    same = f"{format_ratio(*point.speedup)} over the same program on {curve.baseline}"
    if too_large and too_large < point.baseline_devices:
        same += f", as it did not fit on {format_count(too_large, 'device')}"
    efficiency = f"Efficiency: {format_ratio(*point.efficiency, suffix='')}"
    if point.against_jit is None:
        return f"Speed-up: {same}", efficiency
    over_jit = f"{format_ratio(*point.against_jit)} over the best plain jit program on one device"
    return f"Speed-up: {over_jit}", f"{efficiency}, from a speed-up of {same}"


def _describe_efficiency(findings: Findings, curve: Curve, known_doubts: str = "") -> str:
    """Return the largest number of devices on which a curve is efficient, such as 'on up to 8 devices'.

    Up to this number, the efficiency is at least `findings.efficiency`. If this is not sure, the text states
    the reasons that `known_doubts` does not contain.
    """
    required = findings.efficiency
    if not all(point.efficiency.is_determined for point in curve.points):
        return "not determined"
    efficient = list(itertools.takewhile(lambda point: point.efficiency.value >= required, curve.points))
    decisive = curve.points[: len(efficient) + 1]  # those that are efficient, and the first that is not
    doubts = [
        f"{format_ratio(*point.efficiency, suffix='')} on {point.timing.devices_text}"
        if point.efficiency.low is not None
        else "too few samples"
        for point in decisive
        if (point.efficiency.low or 0.0) < required <= (point.efficiency.high or math.inf)
    ]
    doubts += [ONE_PROCESS for point in decisive if len(point.timing.records) < 2]
    new_doubts = ", ".join(doubt for doubt in dict.fromkeys(doubts) if doubt not in known_doubts)
    all_efficient = ", the most that were measured" if len(efficient) == len(curve.points) else ""
    devices = f"{efficient[-1].timing.devices_text}{all_efficient}"
    return f"on up to {devices}" + (f"; not sure: {new_doubts}" if new_doubts else "")


def describe_crossovers(findings: Findings) -> list[str]:
    """Return a sentence for each function whose fastest AD mode changes with a problem size.

    The sentence states the fastest mode for each range of this size. If the mode changes in several series of
    problems, the sentence is about the largest problems on the fewest devices.
    """
    crossover_texts = []
    for mode_map, devices in ((m, devices) for m in findings.fastest_mode_maps for devices in m.devices):
        runs = mode_map.size_ranges(devices)
        if len({mode for mode, *_ in runs} - {""}) > 1:
            names = [
                f"{mode or UNDETERMINED} at {' to '.join(dict.fromkeys(f'{size:,}' for size in ends))}"
                for mode, *ends in runs
            ]
            with_sizes = f" with {mode_map.fixed_sizes}" if mode_map.fixed_sizes else ""
            count = format_count(devices, "device")
            text = f"Fastest mode of {mode_map.family}{with_sizes} against {mode_map.swept} on {count}: "
            text += list_first(names, _MOST_SIZE_RANGES, "; ")
            doubts = ", ".join(mode_map.doubts(devices))
            text += f"; not sure: {doubts}" if doubts else ""
            crossover_texts.append((mode_map, mode_map.swept, devices, text))
    return _select_largest(findings, crossover_texts)


def _describe_weak_scaling(findings: Findings) -> list[str]:
    """Return a sentence on the best weak scaling curve of each function that was measured with JAX.

    `fastest_curves` selects the curve. There is no sentence if the time on the most devices is about as short
    as an empty call.
    """
    weak = (curve for curve in findings.curves if curve.kind == "weak" and curve.case.engine == "jax")
    return [
        f"Weak scaling of {curve.family} on {last.timing.devices_text}: scaled speed-up "
        f"{format_ratio(*last.speedup)}{last.relative}, efficiency "
        f"{format_ratio(*last.efficiency, suffix='')}, with {curve.program_name}, the curve that ranks "
        f"first, at {curve.size}; efficiency of at least {findings.efficiency:g} "
        f"{_describe_efficiency(findings, curve)}"
        f"{findings.suffix(curve.environment)}."
        for curve in fastest_curves(weak, findings.fastest)
        if not is_empty_call((last := curve.points[-1]).timing)
    ]


def describe_growth(findings: Findings) -> list[str]:
    """Return a sentence for each function and each varied size: how the time grows with this size.

    The sentence states the exponents of the AD methods. If there are several series of problems, it is about
    the largest problems on the fewest devices.
    """
    growth_texts = []
    for sweep in findings.size_sweeps:
        exponents = sorted(sweep.exponents.items(), key=lambda pair: pair[1].value)
        powers = [f"{format_exponent(*exponent)} in {method.name}" for method, exponent in exponents]
        powers.sort(key=lambda power: power.startswith(UNDETERMINED))
        with_sizes = f" with {sweep.fixed_sizes}" if sweep.fixed_sizes else ""
        where = f"{sweep.swept} on {sweep.devices_text}, {sweep.call}"
        growth = f"Time of {sweep.family}{with_sizes} grows with {where}"
        text = f"{growth}: exponent {list_first(powers, _MOST_METHODS)}"
        if powers:
            growth_texts.append((sweep, sweep.swept, sweep.case.devices, text))
    return _select_largest(findings, growth_texts)


def _select_largest(findings: Findings, texts: Iterable[tuple[Subject, str, int, str]]) -> list[str]:
    """Return the text about the largest problem, for each function and topic.

    Each item of `texts` contains a `Subject` (such as a timing), a topic (such as "points"), a number of
    devices and a text. If the sizes are equal, the text with the fewest devices is returned.
    `Findings.suffix` and a period are added to the text.
    """
    # Unlike in `cases.largest_problems`, the number of device counts is ignored: no topic compares them.
    largest = least_by(texts, lambda row: (row[0].family_key, row[1]), lambda row: (-row[0].volume, row[2]))
    return [f"{text}{findings.suffix(s.environment, s.honest)}." for s, *_, text in largest.values()]


def _describe_plans(findings: Findings) -> list[str]:
    plans = ((f"Planned for {f.title}: {describe_plan(f)}", *plan_answers(f)) for f in findings.forecasts)
    return [*itertools.chain(*plans), *map(describe_score, findings.plan_scores)]


def describe_plan(forecast: Forecast) -> str:
    """Return a sentence on a plan: the numbers of cases and devices, and the versions of the compilers."""
    count = Counter(record.status for record in forecast.records)
    others = [f"{count[status]} {status}" for status in ("skipped", "failed") if count[status]]
    devices = sorted({record.case.devices for record in forecast.records})
    span = f"{devices[0]:,} to {devices[-1]:,} devices" if devices[1:] else format_count(devices[0], "device")
    environments = [record.environment for record in forecast.records]
    kinds = " or ".join(dict.fromkeys(str(environment.get("device_kind")) for environment in environments))
    versions = " or ".join(dict.fromkeys(map(_describe_versions, environments)))
    planned = f"{format_count(count['planned'], 'case')} on {span} of {kinds}, compiled with {versions}"
    return "; ".join([planned, *others, "times are predicted and not measured."])


def _describe_versions(environment: Mapping[str, Any]) -> str:
    jax = (environment.get("versions") or {}).get("jax", "of an unknown version")
    versions = environment["hardware"] | {"JAX": jax}
    return ", ".join(f"{tool} {versions[tool]}" for tool in versions if tool not in ("name", "digest", "jax"))


def plan_answers(forecast: Forecast) -> list[str]:
    """Return sentences on the fastest planned method of each problem, and on the memory that cases need."""
    modes = (curve for curve in forecast.curves if not curve.case.ad_mode.closed_form)
    groups = group_by(modes, lambda curve: (curve.kind, problem_fields(curve.program[1]))).values()
    return [*map(_describe_planned_problem, groups), *_describe_planned_memory(forecast)]


def _describe_planned_problem(curves: Sequence[Curve]) -> str:
    timings = [timing for curve in curves for timing in curve.timings]
    fastest_on_most = min(timings, key=lambda timing: (-timing.case.devices, timing.median))
    curve = next(curve for curve in curves if fastest_on_most in curve.timings)
    size = size_name(curve.program[1])
    name = f"{curve.family} {size.replace('points=', 'points/device=') if curve.kind == 'weak' else size}"
    fastest = _describe_planned_fastest(timings, fastest_on_most, curve.kind)
    return f"{name}: {fastest}; {_describe_half_efficiency(curve)}."


def _describe_planned_fastest(timings: Sequence[Timing], fastest_on_most: Timing, kind: str) -> str:
    fastest = fastest_on_most if kind == "weak" else min(timings, key=lambda timing: timing.median)
    text = f"{_describe_time(fastest)}, the fastest planned method"
    not_slower = [t for t in timings if t is not fastest and not time_ratio(t, fastest).above_one]
    by_devices = sorted(not_slower, key=lambda timing: (timing.case.devices, timing.median))
    on_as_many = [t for t in by_devices if t.case.devices == fastest.case.devices]
    on_fewer = [t for t in by_devices if kind == "strong" and t.case.devices < fastest.case.devices]
    if names := [_describe_time(timing) for timing in (*on_as_many[:1], *on_fewer[:1])]:
        text += f", not distinguished from {' or '.join(names)}"
    if fastest.case.devices < fastest_on_most.case.devices:
        text += f"; {_describe_time(fastest_on_most)}, the fastest on that number of devices"
    return text


def _describe_time(timing: Timing) -> str:
    return f"{timing.method.name} {format_time(timing)} on {timing.devices_text}"


def _describe_half_efficiency(curve: Curve) -> str:
    if len(curve.points) == 1:
        return "planned on no other number of devices"
    baseline, last = f"50 % of {curve.timings[0].devices_text}", curve.points[-1]
    for before, after in itertools.pairwise(curve.points):
        if after.efficiency.value < _HALF_EFFICIENCY:
            between = f"between {before.devices:,} and {after.devices:,} devices"
            efficiency = format_ratio(*after.efficiency, suffix="")
            return f"its efficiency falls under {baseline} {between}, where it is {efficiency}"
    efficiency = f"{format_ratio(*last.efficiency, suffix='')} on {last.timing.devices_text}"
    return f"its efficiency is nowhere under {baseline}, and {efficiency}"


def _describe_planned_memory(forecast: Forecast) -> list[str]:
    if too_large := [record for record in forecast.records if record.reason in OUT_OF_MEMORY_REASONS]:
        largest = max(too_large, key=lambda record: (record.case.devices, record.peak_bytes or 0))
        more = f"; in all, {format_count(len(too_large), 'case')} do not fit" if len(too_large) > 1 else ""
        devices = format_count(largest.case.devices, "device")
        return [f"Out of memory on up to {devices}: {label(largest.case)}: {largest.text}{more}."]
    usages = [(r.peak_bytes or 0, r.capacity_bytes, r.case) for r in forecast.records if r.capacity_bytes]
    used, capacity, fullest = max(usages, key=lambda usage: usage[0] / usage[1], default=(0, 0, None))
    if not fullest or not used:
        return []
    memory_use = f"{format_bytes(used)} of {format_bytes(capacity)} ({format_percentage(used / capacity)})"
    return [f"Every compiled case fits; {label(fullest)} needs the most memory, {memory_use}."]


def describe_score(score: PlanScore) -> str:
    """Return a sentence on how well the predicted times of a plan agree with measured times."""
    worst = max(score.ratios, key=lambda ratio: abs(math.log(ratio)))
    return (
        f"Predicted against measured on {score.hardware}: the median prediction is "
        f"{format_ratio(statistics.median(score.ratios))} what was measured, over "
        f"{format_count(len(score.ratios), 'case')}; the median error is {format_percentage(score.error)}, "
        f"the worst ratio {format_ratio(worst)}, and {format_percentage(score.coverage)} of the measured "
        "times lie in their predicted 95 % interval."
    )


def _describe_defects(findings: Findings) -> list[str]:
    remarks = lint_findings(findings)
    rules = ", ".join(f"{remark.rule} ({remark.count})" for remark in remarks)
    lint = [f"Problems of the measurement, which `scaling lint` explains: {rules}."] if remarks else []
    not_weak = (f"Not weak scaling: {refusal}." for refusal in findings.weak_refusals)
    return [*describe_unmeasured(findings), *not_weak, *lint]


def describe_unmeasured(findings: Findings) -> list[str]:
    """Return up to two sentences, which count the failed and the skipped cases by reason."""
    sentences = []
    for status in ("failed", "skipped"):
        records = [record for record in findings.newest_records if record.status == status]
        reasons = Counter(
            f"{r.reason}: {REASONS[r.reason]}" if r.reason else "for no reason given" for r in records
        )
        counts = "; ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        replicated = ", each replicate counted" if any(record.replicate for record in records) else ""
        if records:
            sentences.append(f"{format_count(len(records), 'case')} {status}{replicated}: {counts}.")
    return sentences
