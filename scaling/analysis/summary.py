"""Write the summary of a results folder in sentences: fastest modes, device counts, speed-up and failures."""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from scaling.analysis import forecast, plan_scores, summary_details, timings
from scaling.analysis.cases import group_by, is_candidate, least_by
from scaling.analysis.curves import Curve, derivative_curves, derived_bytes_note, format_relative
from scaling.analysis.estimate import Estimate, format_ratio
from scaling.analysis.fastest import FastestMethod, find_runner_up, largest_problems
from scaling.analysis.findings import Findings, read
from scaling.analysis.timings import Timing
from scaling.core.case import AUTO, problem
from scaling.core.formatting import count_of, format_duration, format_number
from scaling.core.record import REASONS


def answer_sentences(source: Path | Findings) -> list[str]:
    """Return sentences that summarize a results folder, given by its path or its findings."""
    findings = source if isinstance(source, Findings) else read(source)
    if findings.timings:
        parts = (
            describe_fastest, summary_details.describe_crossovers, _describe_scaling,
            summary_details.describe_laws, summary_details.describe_growth, summary_details.describe_variants,
            _describe_advice, _describe_peers, _describe_plans, _describe_defects,
        )  # fmt: skip
        return [sentence for part in parts for sentence in part(findings)]
    sentences = []
    for each in findings.forecasts:
        plan = forecast.describe_plan(each)
        sentences.append(f"Planned for {each.title}, and nothing measured here: {plan}")
        sentences += forecast.plan_answers(each)
    nothing = ["Nothing has been measured: no record in the folder has a time."]
    return [*(sentences or nothing), *_describe_defects(findings)]


def summarize(findings: Findings) -> list[str]:
    """Return the subset of `answer_sentences` that a report prints next to its figures and tables."""
    if not findings.timings:
        return answer_sentences(findings)
    variants = summary_details.describe_variants
    parts = (describe_fastest, variants, _describe_peers, _describe_plans, _describe_defects)
    return [sentence for part in parts for sentence in part(findings)]


def describe_fastest(findings: Findings) -> list[str]:
    """Return one paragraph per function on its fastest AD mode, its speed-up and the best device count."""
    if not findings.fastest:
        return [
            "No automatic mode of JAX other than mode=auto was measured, so that none is called the fastest."
        ]
    sentences = []
    for family, rows in largest_problems(findings.fastest):
        row = rows[0]
        is_largest = row.volume == max(each.volume for each in family)
        parts = [
            _describe_verdict(findings, row, "at the largest size" if is_largest else "at the size"),
            *([] if row.empty else _describe_speedup(findings, row.first)),
            *_describe_devices(findings, rows),
            *describe_by_hand(row),
        ]
        suffix = findings.suffix(row.environment, row.honest)
        sentences.append(f"{row.family}: {'. '.join(parts)}.{suffix}")
    return sentences


def _describe_verdict(findings: Findings, row: FastestMethod, size: str) -> str:
    mode, devices = timings.name_with_blocks(row.first), _format_devices(findings, row.first)
    at = f"on {devices} {size} ({row.size}): {timings.format_time(row.first)}, {row.call}"
    if row.empty:
        floor = (
            f"not distinguishable from an empty call ({format_duration(timings.dispatch_floor(row.first))})"
        )
        return f"no mode is called the fastest; {mode} takes the shortest time, {at}, {floor}"
    if row.second is None:
        return f"{mode} is the only automatic mode that was measured, {at}"
    second = row.second.method.name
    verb = "is fastest" if row.distinguished else f"is not distinguished from {second},"
    name = f"the next, {second}," if row.distinguished else "the latter"
    factor = timings.describe_slower(name, row.second, row.first)
    doubts = f"; not sure: {', '.join(row.doubts)}" if row.distinguished and row.doubts else ""
    return f"{mode} {verb} {at}; {factor}{doubts}"


def _format_devices(findings: Findings, timing: Timing) -> str:
    nodes = timings.nodes_of(timing.record)
    if not nodes or all((timings.nodes_of(each.record) or 1) == 1 for each in findings.timings):
        return timing.devices_text
    hours = format_number(nodes * timing.median / 3600 * 1e6)
    return f"{timing.devices_text} of {count_of(nodes, 'node')} ({hours} node-hours for a million calls)"


def _describe_speedup(findings: Findings, timing: Timing) -> list[str]:
    curve, point = findings.curves_of(timing).get("strong", (None, None))
    if curve is None or point is None or point.is_baseline:
        return []
    too_large = findings.too_large_on(timing, "strong")
    fewest = ", the fewest that it fits on," if too_large and too_large < point.baseline_devices else ""
    speedup = format_ratio(*point.speedup) + timings.note_on_ratio(curve.timings[0], timing)
    text = f"Its speed-up over the same program on {curve.baseline}{fewest} is {speedup}"
    text += f", efficiency {format_ratio(*point.efficiency, sign='')}"
    if point.against_jit:
        text += f", and over the best plain jit program on one device {format_ratio(*point.against_jit)}"
    return [text]


def describe_by_hand(row: FastestMethod) -> list[str]:
    """Return a list with a sentence that compares the handwritten derivative with `row.first`, or []."""
    if row.by_hand is None:
        return []
    ratio = format_ratio(*row.by_hand.inverse)
    if not row.by_hand.is_determined:
        return [f"The ratio to the derivative written by hand is {ratio}"]
    return [f"Written by hand it would take {ratio} as long"]


def compare_with_more_devices(rows: Sequence[FastestMethod]) -> tuple[Timing | None, str]:
    """Return the best timing on more devices than the fastest one uses, and text on whether more devices pay.

    `rows` contains the fastest method on each device count, in ascending order of time. `find_runner_up`
    selects the timing, which is None if the fastest timing uses the most devices.
    """
    first, *others = [row.first for row in rows]
    more, ratio = find_runner_up(first, (t for t in others if t.case.devices > first.case.devices))
    pay = "do not pay" if ratio and ratio.above_one else "are not distinguished"
    return more, f"More devices {pay}"


def _describe_devices(findings: Findings, rows: Sequence[FastestMethod]) -> list[str]:
    """Return sentences that recommend a device count for one problem, and state its parallel efficiency.

    `rows` contains the fastest method on each device count, in ascending order of time.
    """
    first, *others = [row.first for row in rows]
    if not first.honest or rows[0].empty or not others:
        return []
    sentences = []
    more, pay = compare_with_more_devices(rows)
    if more:
        slower = timings.describe_slower(f"the fastest mode on {more.devices_text}", more, first)
        sentences.append(f"{pay}: {slower}")
    chosen, doubt = timings.recommend_devices([first, *others])
    text = f"Recommended: {first.devices_text}"
    if doubt:
        text = f"No number of devices can be recommended: {doubt}"
    elif chosen is not first:
        takes = timings.describe_slower(chosen.method.name, chosen, first)
        text = f"Recommended: {_format_devices(findings, chosen)}"
        text += f", not distinguished from {first.devices_text} ({takes})"
    curve, point = findings.curves_of(chosen).get("strong", (None, None))
    if curve and point and len(curve.points) > 1:
        text += "" if doubt else f", efficiency {format_relative(point, point.efficiency, '')}"
        text += f"; {_describe_efficiency(findings, curve)}"
    return [*sentences, text]


def _describe_efficiency(findings: Findings, curve: Curve) -> str:
    required = f"{findings.efficiency:g}"
    if not all(point.efficiency.is_determined for point in curve.points):
        return f"the largest number of devices with an efficiency of at least {required} is not determined"
    efficient = list(itertools.takewhile(lambda p: p.efficiency.value >= findings.efficiency, curve.points))
    last, all_efficient = efficient[-1], len(efficient) == len(curve.points)
    devices = last.timing.devices_text + (", the most measured" if all_efficient else "")
    following = curve.points[len(efficient) : len(efficient) + 1]
    is_unsure = any((point.efficiency.low or 0.0) < findings.efficiency for point in efficient) or any(
        (point.efficiency.high or math.inf) >= findings.efficiency for point in following
    )
    doubt = ", not surely" if is_unsure else ""
    return f"efficiency stays at {required} or above up to {devices}{doubt}"


def fastest_curves(curves: Iterable[Curve], fastest: Iterable[FastestMethod]) -> list[Curve]:
    """Return the fastest curve on the largest device count for each function and kind of scaling.

    The curve of the method in `fastest` is selected, or else the curve with the shortest time. Handwritten
    derivatives, mode=auto and peers (other AD systems) are selected only if there is no other curve.
    """
    largest = itertools.chain(*derivative_curves(curves))
    firsts = {id(row.first) for row in fastest}
    problems = group_by(largest, lambda c: (c.environment, c.kind, problem(c.program[1]))).values()

    def rank(curve: Curve) -> tuple[bool, int, bool, float]:
        last = curve.points[-1]
        return not is_candidate(curve.case), -last.devices, id(last.timing) not in firsts, last.seconds

    return [min(same, key=rank) for same in problems]


def describe_choice(curve: Curve) -> str:
    """Return text on the curve that `fastest_curves` selects, such as 'the curve that ranks first'."""
    return f"the curve {'of an automatic mode ' if is_candidate(curve.case) else ''}that ranks first"


def _describe_scaling(findings: Findings) -> list[str]:
    """Return a sentence on the fastest JAX curve of each function, unless `describe_fastest` describes it."""
    described = {(rows[0].environment, rows[0].case) for _, rows in largest_problems(findings.fastest)}
    sentences = []
    for curve in fastest_curves((c for c in findings.curves if c.case.engine == "jax"), findings.fastest):
        last, weak = curve.points[-1], curve.kind == "weak"
        is_described = not weak and (curve.environment, last.timing.case) in described
        if is_described or timings.is_empty_call(last.timing):
            continue
        note = derived_bytes_note(curve.timings) if weak else ""
        sentences.append(
            f"{curve.kind.capitalize()} scaling of {curve.family} on {last.timing.devices_text}: "
            f"{'scaled speed-up' if weak else 'speed-up'} {format_ratio(*last.speedup)}{last.relative}, "
            f"efficiency {format_ratio(*last.efficiency, sign='')}, with {curve.program_name}, "
            f"{describe_choice(curve)} there, at {curve.size}; {_describe_efficiency(findings, curve)}"
            f"{note and f'; compulsory bytes{note}'}.{findings.suffix(curve.environment)}"
        )
    return sentences


def _describe_ratios(rows: Sequence[tuple[Estimate, Timing]], reference: str) -> str:
    median = format_ratio(statistics.median(ratio.value for ratio, _ in rows))
    largest, timing = max(rows, key=lambda row: row[0].value)
    return (
        f"takes {median} as long as {reference} in the median of {count_of(len(rows), 'comparison')}; "
        f"most, {format_ratio(*largest)}, for {timing.family}, {timing.size}, {timing.devices_text}, "
        f"{timing.method.name}"
    )


def _describe_advice(findings: Findings) -> list[str]:
    rows = [(row.first, t) for row in findings.fastest for t in row.others if t.case.mode == AUTO]
    if not rows:
        return []
    chosen = ", ".join(dict.fromkeys(str((t.records[-1].chosen or {}).get("mode")) for _, t in rows))
    ratios = [(timings.time_ratio(timing, first), timing) for first, timing in rows]
    return [f"mode=auto {_describe_ratios(ratios, 'the fastest mode')}; it chose {chosen}."]


def _describe_peers(findings: Findings) -> list[str]:
    pairs = [(each.over_jax, each.timing) for each in findings.baselines if each.over_jax]
    systems = group_by(pairs, lambda pair: (pair[1].environment, pair[1].honest, pair[1].case.engine))
    sentences = []
    for (environment, honest, engine), group in systems.items():
        fastest = least_by(group, lambda pair: pair[1].comparison_key, lambda pair: pair[1].median)
        text = _describe_ratios(list(fastest.values()), "JAX, each with its fastest method,")
        sentences.append(f"{engine} {text}.{findings.suffix(environment, honest)}")
    return sentences


def _describe_plans(findings: Findings) -> list[str]:
    plans = [f"Planned for {each.title}: {forecast.describe_plan(each)}" for each in findings.forecasts]
    return plans + [text for scores in findings.plan_scores for text in plan_scores.describe_score(scores)]


def count_unmeasured(findings: Findings) -> list[str]:
    """Return a sentence that counts the failed cases for each reason, and the same for the skipped cases."""
    sentences = []
    for status in ("failed", "skipped"):
        records = [record for record in findings.newest_records if record.status == status]
        reasons = Counter(record.reason for record in records)
        replicated = ", each replicate counted" if any(record.replicate for record in records) else ""
        counts = "; ".join(
            f"{count} {f'{reason}: {REASONS.get(reason, str())}' if reason else 'for no reason given'}"
            for reason, count in reasons.most_common()
        )
        if reasons:
            sentences.append(f"{count_of(len(records), 'case')} {status}{replicated}: {counts}.")
    return sentences


def _describe_defects(findings: Findings) -> list[str]:
    sentences = [*count_unmeasured(findings), *findings.weak_refusals]
    if count := sum(not timing.honest for timing in findings.timings):
        oversubscribed = f"{count_of(count, 'case')} ran oversubscribed, without a core for each device"
        sentences.append(f"{oversubscribed}: marked, and never drawn as scaling.")
    if findings.has_mixed_environments:
        digests = findings.environments
        environments = f"{len(digests)} environments are in this folder ({', '.join(digests)})"
        sentences.append(f"{environments}: they are kept apart, no curve and no comparison mixes them.")
    if missing := len(findings.missing):
        have = "has" if missing == 1 else "have"
        sentences.append(f"{count_of(missing, 'case')} of the study {have} no record yet.")
    if findings.study_problem:
        sentences.append(f"{findings.study_problem}.")
    if damaged := len(findings.damaged):
        lines = "line was" if damaged == 1 else "lines were"
        sentences.append(f"{damaged} damaged {lines} ignored, the first {findings.damaged[0]}.")
    return sentences
