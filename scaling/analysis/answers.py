"""Describe the fastest AD mode, recommended device count and speed-up of each function (`FastestAnswer`)."""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from scaling.analysis.cases import largest_problems, method_of
from scaling.analysis.curves import Curve
from scaling.analysis.estimate import format_ratio
from scaling.analysis.findings import Findings
from scaling.analysis.ranking import Ranking, Recommendation, join_certainties, recommend_ranking
from scaling.analysis.timings import (
    ONE_PROCESS,
    Timing,
    describe_slower,
    format_time,
    name_with_blocks,
)
from scaling.core.case import problem
from scaling.core.formatting import list_first

_MOST_NAMES = 3  # the largest number of modes named in a sentence
_MOST_COUNTS = 6  # the largest number of device counts named in a sentence


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


def _describe_speedup(findings: Findings, timing: Timing) -> list[str]:
    curve, point = findings.curves_of(timing).get("strong", (None, None))
    if curve is None or point is None or point.is_baseline:
        return []
    too_large = findings.too_large_on(timing, "strong")
    fewest = ", the fewest that it fits on" if too_large and too_large < point.baseline_devices else ""
    same = f"{format_ratio(*point.speedup)} over the same program on {curve.baseline}{fewest}"
    efficiency = f"Efficiency: {format_ratio(*point.efficiency, sign='')}"
    if point.against_jit is None:
        return [f"Speed-up: {same}", efficiency]
    over_jit = f"{format_ratio(*point.against_jit)} over the best plain jit program on one device"
    return [f"Speed-up: {over_jit}", f"{efficiency}, from a speed-up of {same}"]


def _describe_devices(
    findings: Findings, rankings: Sequence[Ranking], recommendation: Recommendation
) -> list[str]:
    """Return sentences that compare the device counts, and state the speed-up and the efficiency.

    `rankings` contains one `Ranking` per device count.
    """
    recommended = recommendation.ranking.fastest
    if len(rankings) == 1:
        return [f"Measured on {recommended.devices_text} only"]
    speedup = _describe_speedup(findings, recommended)
    timings = sorted((ranking.fastest for ranking in rankings), key=lambda timing: timing.median)
    shown = [recommended.case.devices] + [1] * ("".join(speedup[:1]).endswith("one device"))
    others = [timing for timing in timings if timing.case.devices not in shown]
    times = [describe_slower(timing.method_on_devices, timing, recommended) for timing in others]
    sentences = speedup[:1]
    sentences += [f"Other device counts: {list_first(times, _MOST_COUNTS, '; ')}"] if times else []
    if recommendation.doubt:
        sentences.append(f"No number of devices can be recommended: {recommendation.doubt}")
    sentences += speedup[1:]
    curve, _ = findings.curves_of(recommended).get("strong", (None, None))
    if curve and len(curve.points) > 1:
        efficient = describe_efficiency(findings, curve, recommendation.certainty)
        relative = curve.points[0].relative
        sentences.append(f"Efficiency{relative} of at least {findings.efficiency:g}: {efficient}")
    return sentences


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
