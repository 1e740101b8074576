"""Summary sentences on a results folder: fastest AD modes, device counts, speed-up, plans and failures."""

import itertools
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from scaling.analysis import forecast, trends
from scaling.analysis.cases import (
    describe_call,
    family_key,
    family_name,
    group_by,
    least_by,
    method_of,
    problem_size,
    size_name,
)
from scaling.analysis.crossover import FastestMethod
from scaling.analysis.curves import Curve, derivative_curves, derived_bytes_note, format_relative
from scaling.analysis.estimate import (
    Estimate,
    format_percentage,
    format_ratio,
    is_ratio_determined,
)
from scaling.analysis.findings import Findings, describe_environment, read
from scaling.analysis.forecast import ORDER_FACTOR, Forecast, PlanScores
from scaling.analysis.timings import (
    Timing,
    automatic_blocks,
    describe_slower,
    dispatch_floor,
    format_time,
    nodes_of,
    note_on_pairs,
    time_ratio,
)
from scaling.core import memory
from scaling.core.case import AUTO, problem
from scaling.core.formatting import count_of, format_bytes, format_duration, format_number
from scaling.core.record import REASONS, Record


def answer_sentences(source: Path | Findings) -> list[str]:
    """Return a list of English sentences that summarize a results folder.

    The sentences report the fastest AD modes, scaling, other AD systems and failures. If no record has a
    time, the sentences report the predictions for the planned cases and the failures.

    Args:
        source: the path of a results folder, or the findings derived from it.
    """
    findings = source if isinstance(source, Findings) else read(source)
    if findings.timings:
        parts = (
            describe_fastest, trends.describe_crossovers, _describe_scaling, trends.describe_laws,
            trends.describe_growth, trends.describe_variants, _describe_advice, _describe_peers,
            _describe_plans, _describe_defects,
        )  # fmt: skip
        return [sentence for part in parts for sentence in part(findings)]
    planned = [
        sentence
        for each in findings.forecasts
        for sentence in (
            f"Planned for {each.title}, and nothing measured here: {describe_plan(each)}",
            *forecast.plan_answers(each),
        )
    ]
    nothing = ["Nothing has been measured: no record in the folder has a time."]
    return [*(planned or nothing), *_describe_defects(findings)]


def summarize(findings: Findings) -> list[str]:
    """Return the sentences that `scaling report` prints below its tables.

    They name the fastest modes and the results that are in no table. If no record has a time, return all
    sentences of `answer_sentences`.
    """
    if not findings.timings:
        return answer_sentences(findings)
    parts = (describe_fastest, trends.describe_variants, _describe_peers, _describe_plans, _describe_defects)
    return [sentence for part in parts for sentence in part(findings)]


def largest_problems(findings: Findings) -> list[tuple[list[FastestMethod], list[FastestMethod]]]:
    """Return the fastest methods of each differentiated function, for all problems and for the largest one.

    A function that was measured in several environments is listed once for each environment. The largest
    problem is selected among the problems that were measured on the most device counts.

    Returns:
        A list with one pair of lists for each function. The first list has one `FastestMethod` for each
            problem and device count. The second list contains those of the largest problem, in ascending
            order of time.
    """
    heads = []
    families = group_by(
        findings.fastest, lambda row: (row.first.environment, row.first.honest, *family_key(row.first.case))
    )
    for family in families.values():
        problems = group_by(family, lambda row: problem(row.first.case)).values()
        largest = max(problems, key=lambda rows: (len(rows), problem_size(rows[0].first.case)))
        heads.append((family, sorted(largest, key=lambda row: row.first.median)))
    return heads


def describe_fastest(findings: Findings) -> list[str]:
    """Return a text for each differentiated function with its fastest AD mode and recommended device count.

    If `findings.fastest` is empty, return a single sentence that says so.
    """
    if not findings.fastest:
        return ["No mode of JAX was measured, so that none is called the fastest."]
    sentences = []
    for family, (row, *others) in largest_problems(findings):
        largest = problem_size(row.first.case) == max(problem_size(each.first.case) for each in family)
        parts = [
            _describe_verdict(findings, row, "at the largest size" if largest else "at the size"),
            *_describe_speedup(findings, row.first),
            *_describe_devices(findings, [row, *others]),
        ]
        if row.by_hand:
            parts.append(f"Written by hand it would take {format_ratio(1 / row.by_hand)} as long")
        where = describe_environment(findings, row.first.environment, row.first.honest)
        sentences.append(f"{family_name(row.first.case)}: {'. '.join(parts)}.{where}")
    return sentences


def _describe_verdict(findings: Findings, row: FastestMethod, size: str) -> str:
    case, mode = row.first.case, name_with_blocks(row.first)
    devices, time = _format_devices(findings, row.first), format_time(row.first)
    at = f"on {devices} {size} ({size_name(case)}): {time}, {describe_call(case)}"
    if row.empty:
        floor = format_duration(dispatch_floor(row.first))
        return (
            f"no mode is called the fastest; {mode} takes the shortest time, {at}, "
            f"not distinguishable from an empty call ({floor})"
        )
    if row.second is None:
        return f"{mode} is the only automatic mode that was measured, {at}"
    verb = "is fastest" if row.distinguished else "is tied with the next, not distinguished,"
    factor = describe_slower(f"the next, {method_of(row.second.case).name},", row.second, row.first)
    doubts = f"; not sure: {', '.join(row.doubts)}" if row.distinguished and row.doubts else ""
    return f"{mode} {verb} {at}; {factor}{doubts}"


def _format_devices(findings: Findings, timing: Timing) -> str:
    devices, nodes = count_of(timing.case.devices, "device"), nodes_of(timing.records[0])
    if not nodes or not findings.has_several_nodes:
        return devices
    hours = format_number(nodes * timing.median / 3600 * 1e6)
    return f"{devices} of {count_of(nodes, 'node')} ({hours} node-hours for a million calls)"


def name_with_blocks(timing: Timing) -> str:
    """Return the method name of a timing, followed by the block sizes if they were chosen automatically.

    An example is 'jacfwd (vmap), chunk=auto (4 seeds and all points at a time)'.
    """
    name, auto = method_of(timing.case).name, automatic_blocks(timing.records[0])
    return f"{name} ({auto}{_describe_saved_memory(timing.records[0])})" if auto else name


def _describe_saved_memory(record: Record) -> str:
    """Return text that compares the memory of automatic blocks with that of all at once, or ''."""
    probes, used = (record.blocks or {}).get("probes"), memory.bytes_while_running(vars(record))
    tried = probes if isinstance(probes, list) else []
    whole = next((p.get("bytes") for p in tried if not (p.get("block") or p.get("chunk"))), None)
    return f", {format_bytes(used)} against {format_bytes(whole)} of all at once" if whole and used else ""


def _describe_speedup(findings: Findings, timing: Timing) -> list[str]:
    if (place := findings.place_of(timing)) is None or place[1].is_baseline:
        return []
    curve, point = place
    too_large = findings.too_large_on(timing, "strong")
    fewest = ", the fewest that it fits on," if too_large and too_large < point.baseline_devices else ""
    speedup = format_ratio(*point.speedup) + note_on_pairs(curve.timings[0], timing)
    text = f"Its speed-up over the same program on {curve.baseline}{fewest} is {speedup}"
    text += f", efficiency {format_ratio(*point.efficiency, sign='')}"
    if point.against_jit:
        text += f", and over the best plain jit program on one device {format_ratio(*point.against_jit)}"
    return [text]


def _describe_devices(findings: Findings, rows: Sequence[FastestMethod]) -> list[str]:
    """Return sentences that recommend a device count for one problem, and state its parallel efficiency.

    The recommended device count is the smallest one whose time is not significantly longer than the shortest
    time. The list is empty if there is only one device count, if devices shared CPU cores, or if the shortest
    time cannot be distinguished from that of an empty call.

    Args:
        rows: the fastest method on each device count, in ascending order of time.
    """
    first, others = rows[0].first, [row.first for row in rows[1:]]
    if not first.honest or rows[0].empty or not others:
        return []
    sentences = []
    if more := next((timing for timing in others if timing.case.devices > first.case.devices), None):
        pay = "do not pay" if time_ratio(more, first).above_one else "are not distinguished"
        name = f"the fastest mode on {count_of(more.case.devices, 'device')}"
        sentences.append(f"More devices {pay}: {describe_slower(name, more, first)}")
    tied = [timing for timing in (first, *others) if not time_ratio(timing, first).above_one]
    chosen = min(tied, key=lambda timing: timing.case.devices)
    devices = (
        count_of(chosen.case.devices, "device") if chosen is first else _format_devices(findings, chosen)
    )
    text = f"Recommended: {devices}"
    if chosen is not first:
        takes = describe_slower(method_of(chosen.case).name, chosen, first)
        text += f", not distinguished from {count_of(first.case.devices, 'device')} ({takes})"
    if (place := findings.place_of(chosen)) and len(place[0].points) > 1:
        curve, point = place
        text += f", efficiency {format_relative(point, point.efficiency, '')}"
        text += f"; {describe_efficiency(findings, curve)}"
    return [*sentences, text]


def describe_efficiency(findings: Findings, curve: Curve) -> str:
    """Return a clause that states up to which device count the parallel efficiency of a curve is acceptable.

    An example is 'efficiency stays at 0.5 or above up to 8 devices', for `findings.efficiency` = 0.5.
    """
    least = f"{findings.efficiency:g}"
    if not all(is_ratio_determined(*p.efficiency[1:]) for p in curve.points):
        return f"the largest number of devices with an efficiency of at least {least} is not determined"
    kept = list(itertools.takewhile(lambda p: p.efficiency.value >= findings.efficiency, curve.points))
    most = kept[-1]
    where = count_of(most.devices, "device") + (", the most measured" if kept == [*curve.points] else "")
    doubt = ", not surely" if (most.efficiency.low or 1.0) < findings.efficiency else ""
    return f"efficiency stays at {least} or above up to {where}{doubt}"


def _describe_ratios(rows: Sequence[tuple[Estimate, Timing]], reference: str) -> str:
    median = statistics.median(ratio.value for ratio, _ in rows)
    most, timing = max(rows, key=lambda row: row[0].value)
    case, problems = timing.case, count_of(len(rows), "comparison")
    text = f"takes {format_ratio(median)} as long as {reference} in the median of {problems}"
    where = f"{family_name(case)}, {size_name(case)}, {count_of(case.devices, 'device')}"
    return f"{text}; most, {format_ratio(*most)}, for {where}, {method_of(case).name}"


def _describe_advice(findings: Findings) -> list[str]:
    rows = [(row.first, t) for row in findings.fastest for t in row.others if t.case.mode == AUTO]
    if not rows:
        return []
    chosen = ", ".join({str((timing.records[-1].chosen or {}).get("mode")): None for _, timing in rows})
    ratios = [(time_ratio(timing, first), timing) for first, timing in rows]
    return [f"mode=auto {_describe_ratios(ratios, 'the fastest mode')}; it chose {chosen}."]


def _describe_peers(findings: Findings) -> list[str]:
    """Return a sentence for each other AD system (engine) that states its time relative to that of JAX.

    For each problem and device count, the time of the fastest method of the other system is divided by that
    of the fastest JAX method.
    """
    fastest = least_by(
        (each for each in findings.baselines if each.over_jax),
        lambda b: (b.timing.environment, b.timing.honest, b.timing.case.engine, b.timing.case.devices,
                   problem(b.timing.case)),
        lambda b: b.timing.median,
    )  # fmt: skip
    sentences = []
    for (environment, honest, engine), group in group_by(fastest.items(), lambda row: row[0][:3]).items():
        ratios = [(each.over_jax, each.timing) for _, each in group if each.over_jax]
        where = describe_environment(findings, environment, honest)
        text = _describe_ratios(ratios, "JAX, each with its fastest method,")
        sentences.append(f"{engine} {text}.{where}")
    return sentences


def _describe_scaling(findings: Findings) -> list[str]:
    """Return a sentence on the fastest scaling curve of each function, for strong and for weak scaling.

    A strong scaling curve that `describe_fastest` already describes is omitted.
    """
    headed = {(row.first.environment, row.first.case) for _, (row, *_) in largest_problems(findings)}
    sentences = []
    for best, *_ in derivative_curves(c for c in findings.curves if c.case.engine == "jax"):
        last = best.timings[-1].case
        if best.kind == "strong" and (best.environment, last) in headed:
            continue
        head = (
            f"{best.kind.capitalize()} scaling of {family_name(last)} on {count_of(last.devices, 'device')}"
        )
        where = describe_environment(findings, best.environment)
        sentences.append(f"{head}: {_describe_curve(findings, best)}.{where}")
    return sentences


def _describe_curve(findings: Findings, curve: Curve) -> str:
    last, weak = curve.points[-1], curve.kind == "weak"
    speedup, efficiency = format_ratio(*last.speedup), format_ratio(*last.efficiency, sign="")
    note = derived_bytes_note(curve.timings) if weak else ""
    return (
        f"{'scaled speed-up' if weak else 'speed-up'} {speedup}{curve.relative}, efficiency {efficiency}, "
        f"with {method_of(curve.case).name}, {describe_call(curve.case)}, the fastest there at {curve.size}; "
        f"{describe_efficiency(findings, curve)}{f'; compulsory bytes{note}' if note else ''}"
    )


def describe_plan(forecast: Forecast) -> str:
    """Return a sentence on the planned cases: their number, device counts, hardware and software versions.

    Planned cases are compiled to predict their times, but are not run.
    """
    count = Counter(record.status for record in forecast.records)
    others = (f"{count[each]} {each}" for each in ("skipped", "failed") if count[each])
    became = ", ".join([count_of(count["planned"], "case"), *others])
    devices = sorted({record.case.devices for record in forecast.records})
    span = f"{devices[0]:,} to {devices[-1]:,} devices" if devices[1:] else count_of(devices[0], "device")
    environment = forecast.records[0].environment
    jax = (environment.get("versions") or {}).get("jax", "of an unknown version")
    tools = environment["hardware"] | {"JAX": jax}
    versions = ", ".join(f"{tool} {tools[tool]}" for tool in tools if tool not in ("name", "digest", "jax"))
    return (
        f"{became} on {span} of {environment.get('device_kind')}, compiled with {versions}; "
        "times are predicted and not measured."
    )


def describe_score(scores: PlanScores) -> list[str]:
    """Return sentences that state the errors of the predicted times for one type of hardware.

    A second sentence states how often the order of two methods was predicted correctly. This sentence is
    omitted if no pair of methods is comparable.
    """
    whole = scores.total
    sentences = [
        f"Predicted against measured on {scores.hardware}: the median prediction is "
        f"{format_ratio(whole.median_ratio)} what was measured, over {count_of(len(whole.pairs), 'case')}; "
        f"the median error is {format_percentage(whole.error)}, the worst ratio "
        f"{format_ratio(whole.worst)}, and {format_percentage(whole.coverage)} of the measured times lie in "
        "their predicted 95 % interval."
    ]
    if scores.comparable:
        sentences.append(
            f"Of {count_of(scores.comparable, 'pair')} of methods for one problem whose measured times "
            f"differ by more than a factor of {format_number(ORDER_FACTOR)}, {scores.ordered} "
            f"({format_percentage(scores.ordered / scores.comparable)}) were predicted in the right order."
        )
    return sentences


def _describe_plans(findings: Findings) -> list[str]:
    sentences = [f"Planned for {each.title}: {describe_plan(each)}" for each in findings.forecasts]
    return [*sentences, *(sentence for scores in findings.plan_scores for sentence in describe_score(scores))]


def count_unmeasured(findings: Findings) -> list[str]:
    """Return one sentence that counts the failed cases by reason, and another for the skipped cases.

    Each sentence is omitted if there are no such cases.
    """
    sentences = []
    for status in ("failed", "skipped"):
        reasons = Counter(record.reason for record in findings.records if record.status == status)
        counts = "; ".join(
            f"{count} {f'{reason}: {REASONS.get(reason, str())}' if reason else 'for no reason given'}"
            for reason, count in reasons.most_common()
        )
        if reasons:
            sentences.append(f"{count_of(reasons.total(), 'case')} {status}: {counts}.")
    return sentences


def _describe_defects(findings: Findings) -> list[str]:
    crowded = sum(not timing.honest for timing in findings.timings)
    missing, damaged, environments = len(findings.missing), len(findings.damaged), findings.environments
    return [
        *count_unmeasured(findings),
        *findings.weak_refusals,
        *[f"{count_of(crowded, 'case')} ran oversubscribed, without a core for each device: "
          "marked, and never drawn as scaling."] * bool(crowded),
        *[f"{len(environments)} environments are in this folder ({', '.join(environments)}): "
          "they are kept apart, no curve and no comparison mixes them."] * findings.has_mixed_environments,
        *[f"{count_of(missing, 'case')} of the study {'has' if missing == 1 else 'have'} no record yet."]
        * bool(missing),
        *[f"{damaged} damaged {'line was' if damaged == 1 else 'lines were'} ignored, the first {line}."
          for line in findings.damaged[:1]],
    ]  # fmt: skip
