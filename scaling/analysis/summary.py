"""Summarize a results folder in sentences (`answer_sentences`): fastest modes, crossovers, weak scaling."""

import itertools
from collections import Counter
from collections.abc import Iterable

from scaling.analysis import forecast
from scaling.analysis.answers import describe_efficiency, measured_answers
from scaling.analysis.cases import Subject, is_candidate
from scaling.analysis.curves import Curve, curves_of_largest_problems
from scaling.analysis.estimate import UNDETERMINED, format_exponent, format_ratio
from scaling.analysis.findings import Findings
from scaling.analysis.lint import lint_findings
from scaling.analysis.ranking import Ranking
from scaling.analysis.timings import is_empty_call
from scaling.core.case import problem
from scaling.core.formatting import format_count, list_first
from scaling.core.grouping import least_by
from scaling.core.record import REASONS

_MOST_RUNS = 6  # the largest number of runs of sizes named in a sentence
_MOST_METHODS = 4  # the largest number of methods named in a sentence


def answer_sentences(findings: Findings) -> list[str]:
    """Return sentences that summarize a results folder."""
    topics = (
        _describe_fastest, describe_crossovers, _describe_weak_scaling, describe_growth,
        _describe_plans, _describe_defects,
    )  # fmt: skip
    return [sentence for describe_topic in topics for sentence in describe_topic(findings)]


def _describe_fastest(findings: Findings) -> list[str]:
    if answers := measured_answers(findings):
        return [answer.sentence for answer in answers]
    if findings.timings:
        unranked = "mode=auto, values, handwritten derivatives and other AD systems are not ranked"
        return [f"No mode that is ranked was measured: {unranked}."]
    nothing = (
        "Nothing has been measured: no record in the folder has a time. `scaling status` lists each case."
    )
    return [] if findings.forecasts else [nothing]


def _select_largest(findings: Findings, texts: Iterable[tuple[Subject, str, tuple, str]]) -> list[str]:
    """Return the text about the largest problem for each function and topic.

    `texts` contains (subject, topic, sort key, text) tuples. A topic is text such as "points". Of
    several texts about this problem, the one with the smallest sort key is returned.
    """
    # Unlike in `cases.largest_problems`, the number of device counts is ignored: no topic compares them.
    largest = least_by(texts, lambda row: (row[0].family_key, row[1]), lambda row: (-row[0].volume, row[2]))
    return [f"{text}{findings.suffix(s.environment, s.honest)}." for s, *_, text in largest.values()]


def describe_crossovers(findings: Findings) -> list[str]:
    """Return sentences that state the fastest AD mode by size of each function whose fastest mode changes.

    The other sizes have their largest values, and the device count is the smallest one.
    """
    texts = []
    for mode_map, devices in ((m, devices) for m in findings.fastest_mode_maps for devices in m.devices):
        runs = mode_map.runs(devices)
        if len({mode for mode, *_ in runs} - {""}) > 1:
            names = [f"{mode or UNDETERMINED} at {_format_range(*ends)}" for mode, *ends in runs]
            with_sizes = f" with {mode_map.fixed_sizes}" if mode_map.fixed_sizes else ""
            count = format_count(devices, "device")
            text = f"Fastest mode of {mode_map.family}{with_sizes} against {mode_map.swept} on {count}: "
            text += list_first(names, _MOST_RUNS, "; ")
            doubts = ", ".join(mode_map.doubts(devices))
            text += f"; not sure: {doubts}" if doubts else ""
            texts.append((mode_map, mode_map.swept, (devices,), text))
    return _select_largest(findings, texts)


def _format_range(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def describe_growth(findings: Findings) -> list[str]:
    """Return sentences that state how the time of each function grows with each size that was varied.

    The other sizes have their largest values, and the device count is the smallest one.
    """
    texts = []
    for sweep in findings.size_sweeps:
        exponents = sorted(sweep.exponents.items(), key=lambda pair: pair[1].value)
        powers = [f"{format_exponent(*exponent)} in {method.name}" for method, exponent in exponents]
        powers.sort(key=lambda power: power.startswith(UNDETERMINED))
        growth = f"Time of {sweep.family} grows with {sweep.swept} on {sweep.devices_text}"
        text = f"{growth}: exponent {list_first(powers, _MOST_METHODS)}"
        if powers:
            texts.append((sweep, sweep.swept, (sweep.case.devices,), text))
    return _select_largest(findings, texts)


def fastest_curves(curves: Iterable[Curve], rankings: Iterable[Ranking]) -> list[Curve]:
    """Return the best scaling curve for the largest problem of each function and for each kind of scaling.

    Curves of function values (mode=value) are omitted. The best curve is the first one in this order:

    1. JAX methods before other AD systems, handwritten derivatives and mode=auto
    2. the largest device count
    3. curves whose last timing is the fastest of one of the `rankings`
    4. the shortest time on the largest device count
    """
    derivatives = (curve for curve in curves if not curve.case.ad_mode.is_value)
    largest = itertools.chain(*curves_of_largest_problems(derivatives))
    fastest_ids = {id(ranking.fastest) for ranking in rankings}

    def rank(curve: Curve) -> tuple[bool, int, bool, float]:
        last = curve.points[-1]
        return not is_candidate(curve.case), -last.devices, id(last.timing) not in fastest_ids, last.seconds

    return list(least_by(largest, lambda c: (c.environment, c.kind, problem(c.program[1])), rank).values())


def _describe_weak_scaling(findings: Findings) -> list[str]:
    """Return a sentence that describes the best weak scaling curve of each function measured with JAX.

    `fastest_curves` selects the curve. A curve is omitted if its time on the largest device count may be that
    of an empty call.
    """
    weak = (curve for curve in findings.curves if curve.kind == "weak" and curve.case.engine == "jax")
    return [
        f"Weak scaling of {curve.family} on {last.timing.devices_text}: scaled speed-up "
        f"{format_ratio(*last.speedup)}{last.relative}, efficiency "
        f"{format_ratio(*last.efficiency, sign='')}, with {curve.program_name}, the curve that ranks "
        f"first, at {curve.size}; efficiency of at least {findings.efficiency:g} "
        f"{describe_efficiency(findings, curve)}"
        f"{findings.suffix(curve.environment)}."
        for curve in fastest_curves(weak, findings.fastest)
        if not is_empty_call((last := curve.points[-1]).timing)
    ]


def _describe_plans(findings: Findings) -> list[str]:
    sentences = []
    for each in findings.forecasts:
        sentences.append(f"Planned for {each.title}: {forecast.describe_plan(each)}")
        sentences += forecast.plan_answers(each)
    return sentences + [text for score in findings.plan_scores for text in forecast.describe_score(score)]


def count_unmeasured(findings: Findings) -> list[str]:
    """Return sentences that count the failed and the skipped cases by reason."""
    sentences = []
    for status in ("failed", "skipped"):
        records = [record for record in findings.newest_records if record.status == status]
        reasons = Counter(record.reason for record in records)
        replicated = ", each replicate counted" if any(record.replicate for record in records) else ""
        counts = "; ".join(
            f"{count} {f'{reason}: {REASONS[reason]}' if reason else 'for no reason given'}"
            for reason, count in reasons.most_common()
        )
        if reasons:
            sentences.append(f"{format_count(len(records), 'case')} {status}{replicated}: {counts}.")
    return sentences


def _describe_defects(findings: Findings) -> list[str]:
    remarks = lint_findings(findings)
    rules = ", ".join(f"{remark.rule} ({remark.count})" for remark in remarks)
    lint = [f"Problems of the measurement, which `scaling lint` explains: {rules}."] if remarks else []
    return [*count_unmeasured(findings), *findings.weak_refusals, *lint]
