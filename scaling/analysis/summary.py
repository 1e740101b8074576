"""Write the summary of a results folder in sentences: fastest modes, device counts, speed-up and failures."""

import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from scaling.analysis import forecast, plan_scores, summary_details, timings
from scaling.analysis.answers import describe_efficiency, measured_answers
from scaling.analysis.cases import group_by, is_candidate, least_by
from scaling.analysis.curves import Curve, derivative_curves, derived_bytes_note
from scaling.analysis.estimate import Estimate, format_ratio
from scaling.analysis.fastest import FastestMethod, largest_problems
from scaling.analysis.findings import Findings, read
from scaling.analysis.timings import Timing
from scaling.core.case import AUTO, problem
from scaling.core.formatting import count_of
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
    return [answer.sentence for answer in measured_answers(findings)]


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
            f"{describe_choice(curve)} there, at {curve.size}; {describe_efficiency(findings, curve)}"
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
