"""Describe the fastest AD mode, recommended device count and speed-up of each function (`FastestAnswer`)."""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from scaling.analysis.cases import largest_problems, method_of
from scaling.analysis.curves import Curve
from scaling.analysis.estimate import format_ratio
from scaling.analysis.findings import Findings
from scaling.analysis.ranking import (
    Ranking,
    Recommendation,
    find_runner_up,
    join_certainties,
    recommend_ranking,
)
from scaling.analysis.timings import (
    ONE_PROCESS,
    Timing,
    describe_slower,
    format_time,
    name_with_blocks,
    reasons_for_doubt,
)
from scaling.core.case import problem
from scaling.core.formatting import list_first

_MOST_NAMES = 3  # the largest number of modes named in a sentence


class FastestAnswer(NamedTuple):
    """The fastest AD mode and the recommended device count for the largest problem of a function, as text."""

    problem: str  # the result of `problem_name`, such as 'mlp width=8 points=64'
    modes: tuple[str, ...]  # the fastest method, and the runner-up if it is not significantly slower
    time: str  # the time of one call with its 95 % interval, and of two methods the one that takes it
    devices: str  # such as '1 device'
    layout: str  # such as 'shard_map, points split'
    ratio: str  # a clause on the ratio of the runner-up's time to `time`, or ''
    certainty: str  # `Ranking.certainty`
    device_certainty: str  # `Recommendation.certainty`, '' if no device count is recommended
    details: tuple[str, ...]  # sentences, without a period, such as 'Speed-up: ...' or 'Efficiency: ...'
    is_fastest: bool = False  # whether the runner-up is significantly slower

    @property
    def headline(self) -> str:
        """Return the fastest mode and its time as one sentence without the final period."""
        modes = f"{' or '.join(self.modes)}{' is fastest' if self.is_fastest else ''}"
        time = f"{modes}, {self.time} on {self.devices}, {self.layout}"
        certainty = join_certainties(self.certainty, self.device_certainty)
        return f"{self.problem}: {'; '.join(filter(None, [time, self.ratio, certainty]))}"

    @property
    def sentence(self) -> str:
        """Return `headline` and the sentences in `details` as one paragraph."""
        return f"{'. '.join([self.headline, *self.details])}."


def measured_answers(findings: Findings) -> list[FastestAnswer]:
    """Return the fastest AD mode of the largest measured problem, for each function and environment."""
    problems = largest_problems(findings.fastest, lambda ranking: ranking.family_key, len)
    return [_describe_problem(findings, rankings) for rankings in problems]


def _describe_problem(findings: Findings, rankings: Sequence[Ranking]) -> FastestAnswer:
    """Return the fastest AD mode and the recommended device count of a problem as a `FastestAnswer`.

    `rankings` contains one `Ranking` per device count.
    """
    recommendation = recommend_ranking(rankings)
    ranking, fastest = recommendation.ranking, recommendation.ranking.fastest
    mode, time, ratio = name_with_blocks(fastest), format_time(fastest), ""
    modes: tuple[str, ...] = (mode,)
    if ranking.runner_up is not None and not ranking.is_empty_call:
        runner_up = ranking.runner_up.method.name
        ratio = describe_slower(runner_up, ranking.runner_up, fastest)
        if not ranking.distinguished and runner_up != mode:
            modes, time = (mode, runner_up), f"{time} by {mode}"
    details = []
    if fastest.honest and not ranking.is_empty_call:
        details = _describe_devices(findings, rankings, recommendation)
    details += _list_untimed(findings, ranking)
    return FastestAnswer(
        problem_name(findings, ranking), modes, time, fastest.devices_text, ranking.call, ratio,
        ranking.certainty, recommendation.certainty, tuple(details), ranking.distinguished,
    )  # fmt: skip


def _list_untimed(findings: Findings, ranking: Ranking) -> list[str]:
    """Return a sentence that names the AD modes that could not be timed, or [] if every mode was timed.

    Only the problem and the device count of `ranking` are considered.
    """
    case, timings = ranking.case, findings.timings_by_comparison[ranking.comparison_key]
    untimed_records = findings.lost_records.get((ranking.environment, problem(case), case.devices), [])
    methods = {timing.method for timing in timings}
    reasons = {method_of(record.case): record.reason or "no reason given" for record in untimed_records}
    untimed = sorted((method.name, reason) for method, reason in reasons.items() if method not in methods)
    untimed_modes = [f"{name} ({reason})" for name, reason in untimed]
    where = ranking.fastest.devices_text
    return [f"Not timed on {where}: {list_first(untimed_modes, _MOST_NAMES)}"] if untimed_modes else []


def problem_name(findings: Findings, timing: Timing | Ranking) -> str:
    """Return the name of a problem as text, such as 'mlp width=8 points=64 [unbound or oversubscribed]'."""
    return f"{timing.family} {timing.size}{findings.suffix(timing.environment, timing.honest)}"


def _describe_speedup(findings: Findings, timing: Timing, is_sure: bool) -> list[str]:
    curve, point = findings.curves_of(timing).get("strong", (None, None))
    if curve is None or point is None or point.is_baseline:
        return []
    too_large = findings.too_large_on(timing, "strong")
    fewest = ", the fewest that it fits on" if too_large and too_large < point.baseline_devices else ""
    pays = (point.against_jit or point.speedup).above_one
    conclusion = f"{timing.devices_text} pay{'' if is_sure else ' (not sure)'}: speed-up"
    label = conclusion if pays else "Speed-up:"
    same = f"{format_ratio(*point.speedup)} over the same program on {curve.baseline}{fewest}"
    efficiency = f"Efficiency: {format_ratio(*point.efficiency, sign='')}"
    if point.against_jit is None:
        return [f"{label} {same}", efficiency]
    over_jit = f"{format_ratio(*point.against_jit)} over the best plain jit program on one device"
    return [f"{label} {over_jit}", f"{efficiency}, from a speed-up of {same}"]


def _describe_devices(
    findings: Findings, rankings: Sequence[Ranking], recommendation: Recommendation
) -> list[str]:
    """Return sentences that state the speed-up, the efficiency and the best device count.

    `rankings` contains one `Ranking` per device count.
    """
    recommended = recommendation.ranking.fastest
    timings = (ranking.fastest for ranking in rankings)
    fastest, *other_timings = sorted(timings, key=lambda timing: timing.median)
    if not other_timings:
        return [f"Measured on {fastest.devices_text} only"]
    curve, _ = findings.curves_of(recommended).get("strong", (None, None))
    speedup = _describe_speedup(findings, recommended, recommendation.certainty == "sure")
    sentences = speedup[:1]
    if recommended is not fastest:
        shortest = f"The shortest time, {format_time(fastest)} of {fastest.method_on_devices},"
        slower = describe_slower(recommended.method_on_devices, recommended, fastest)
        sentences.append(f"{shortest} is not distinguished: {slower}")
    fewer_devices = (timing for timing in other_timings if 1 < timing.case.devices < recommended.case.devices)
    on_fewer, ratio = find_runner_up(recommended, fewer_devices)
    if on_fewer and ratio:
        conclusion = "slower" if ratio.above_one else "not distinguished"
        sentences.append(f"Fewer devices are {conclusion}: {_describe_fastest_on(on_fewer, recommended)}")
    more_devices = [timing for timing in other_timings if timing.case.devices > fastest.case.devices]
    sentences += _describe_more_devices(findings, fastest, more_devices, recommendation.certainty)
    if recommendation.doubt:
        sentences.append(f"No number of devices can be recommended: {recommendation.doubt}")
    sentences += speedup[1:]
    if curve and len(curve.points) > 1:
        efficient = describe_efficiency(findings, curve, recommendation.certainty)
        relative = curve.points[0].relative
        sentences.append(f"Efficiency{relative} of at least {findings.efficiency:g}: {efficient}")
    return sentences


def _describe_more_devices(
    findings: Findings, fastest: Timing, more_devices: Sequence[Timing], known_certainty: str
) -> list[str]:
    on_more, ratio = find_runner_up(fastest, more_devices)
    if on_more is None or ratio is None:
        return []
    conclusion = f"More devices {'do not pay' if ratio.above_one else 'are not distinguished'}"
    timed = {timing.base_method for timing in findings.timings_by_comparison[on_more.comparison_key]}
    if fastest.base_method not in timed:  # such as a case that failed
        conclusion = f"{fastest.method.name} has no time on {on_more.devices_text}"
    doubts = ", ".join(reasons_for_doubt(fastest, on_more)) if ratio.above_one else ""
    # The preceding sentence may state the same doubts.
    is_new = doubts and known_certainty != f"not sure: {doubts}"
    slower = _describe_fastest_on(on_more, fastest)
    return [f"{conclusion}: {slower}" + (f"; not sure: {doubts}" if is_new else "")]


def _describe_fastest_on(top: Timing, bottom: Timing) -> str:
    """Return text such as 'the fastest on 2 devices, jacfwd, takes 1.41x as long' (as `bottom`)."""
    return describe_slower(f"the fastest on {top.devices_text}, {top.method.name},", top, bottom)


def describe_efficiency(findings: Findings, curve: Curve, known_doubts: str = "") -> str:
    """Return the device counts on which a curve is efficient as text, such as 'on up to 8 devices'.

    The text ends with the reasons why it may be wrong. Reasons in the text `known_doubts` are omitted.
    """
    required = findings.efficiency
    if not all(point.efficiency.is_determined for point in curve.points):
        return "not determined"
    efficient = list(itertools.takewhile(lambda point: point.efficiency.value >= required, curve.points))
    inefficient = curve.points[len(efficient) : len(efficient) + 1]
    unsure = [point for point in efficient if (point.efficiency.low or 0.0) < required]
    unsure += [point for point in inefficient if (point.efficiency.high or math.inf) >= required]
    doubts = [
        f"{format_ratio(*point.efficiency, sign='')} on {point.timing.devices_text}"
        for point in unsure
        if point.efficiency.low is not None
    ] or ["too few samples"] * bool(unsure)
    if any(point.timing.replicates < 2 for point in (*efficient, *inefficient)):
        doubts.append(ONE_PROCESS)
    new_doubts = ", ".join(doubt for doubt in doubts if doubt not in known_doubts)
    devices = efficient[-1].timing.devices_text + ("" if inefficient else ", the most that were measured")
    return f"on up to {devices}" + (f"; not sure: {new_doubts}" if new_doubts else "")
