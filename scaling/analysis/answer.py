"""Summary sentences on a results folder: fastest AD modes, device counts, speed-up, plans and failures."""

import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from scaling.analysis import forecast, trends
from scaling.analysis.baselines import Baseline
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
from scaling.analysis.curves import Curve, derived_bytes_note
from scaling.analysis.estimate_text import (
    format_percentage,
    format_ratio,
    format_time_ratio,
    is_ratio_determined,
)
from scaling.analysis.findings import Findings, describe_environment, read
from scaling.analysis.forecast import Forecast
from scaling.analysis.score import ORDER_FACTOR, PlanScores
from scaling.analysis.timings import (
    Timing,
    automatic_blocks,
    dispatch_floor,
    format_time,
    note_on_pairs,
    time_ratio,
)
from scaling.core import memory
from scaling.core.case import AUTO, Case, problem
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
    if any(record.status == "ok" for record in findings.records):
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
    for family in group_by(findings.fastest, _function_key).values():
        problems = group_by(family, lambda row: problem(row.first.case)).values()
        largest = max(problems, key=lambda rows: (len(rows), problem_size(rows[0].first.case)))
        heads.append((family, sorted(largest, key=lambda row: row.first.median)))
    return heads


def _function_key(row: FastestMethod) -> tuple:
    return row.first.environment, row.first.honest, *family_key(row.first.case)


def describe_fastest(findings: Findings) -> list[str]:
    """Return a text for each differentiated function with its fastest AD mode and recommended device count.

    If `findings.fastest` is empty, return a single sentence that lists what was measured.
    """
    if not findings.fastest:
        kinds = ", ".join(dict.fromkeys(_describe_kind(timing.case) for timing in findings.timings))
        return [
            f"No mode of JAX was measured, so that none is called the fastest; what was measured: {kinds}."
        ]
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


def _describe_kind(case: Case) -> str:
    if case.kind != "case" or case.engine != "jax":
        return case.engine if case.kind == "case" else "what the machine can do"
    if case.mode == AUTO:
        return "the method chosen by mode=auto"
    return "values" if case.ad_mode.is_value else "derivatives written by hand"


def _describe_verdict(findings: Findings, row: FastestMethod, size: str) -> str:
    case, mode = row.first.case, name_with_blocks(row.first)
    at = (
        f"on {_format_devices(findings, row.first)} {size} ({size_name(case)}): "
        f"{format_time(row.first)}, {describe_call(case)}"
    )
    if row.empty:
        floor = format_duration(dispatch_floor(row.first))
        return (
            f"no mode is called the fastest; {mode} takes the shortest time, {at}, "
            f"not distinguishable from an empty call ({floor})"
        )
    if row.second is None:
        return f"{list_measured(row)}, {at}"
    verb = "is fastest" if row.distinguished else "is tied with the next, not distinguished,"
    name = f"the next, {method_of(row.second.case).name},"
    factor = format_time_ratio(name, *(row.ratio or ()))
    doubts = f"; not sure: {', '.join(row.doubts)}" if row.distinguished and row.doubts else ""
    return f"{mode} {verb} {at}; {factor}{note_on_pairs(row.second, row.first)}{doubts}"


def _format_devices(findings: Findings, timing: Timing) -> str:
    devices = count_of(timing.case.devices, "device")
    if not timing.nodes or not findings.has_several_nodes:
        return devices
    hours = format_number(timing.nodes * timing.median / 3600 * 1e6)
    return f"{devices} of {count_of(timing.nodes, 'node')} ({hours} node-hours for a million calls)"


def name_with_blocks(timing: Timing) -> str:
    """Return the method name of a timing, followed by the block sizes if they were chosen automatically.

    An example is 'jacfwd (vmap), chunk=auto (4 seeds and all points at a time)'.
    """
    name, auto = method_of(timing.case).name, automatic_blocks(timing.records[0])
    return f"{name} ({auto}{_describe_saved_memory(timing.records[0])})" if auto else name


def _describe_saved_memory(record: Record) -> str:
    """Return text that compares the memory per device of a program with automatic blocks and without blocks.

    An example is ', 1.2 GB against 5 GB of all at once'. Return '' if one of the two numbers is unknown.
    """
    probes, used = (record.blocks or {}).get("probes"), memory.bytes_while_running(vars(record))
    tried = probes if isinstance(probes, list) else []
    whole = next((p.get("bytes") for p in tried if not (p.get("block") or p.get("chunk"))), None)
    return f", {format_bytes(used)} against {format_bytes(whole)} of all at once" if whole and used else ""


def list_measured(row: FastestMethod) -> str:
    """Return a clause with all methods measured for a problem: 'only jacfwd and analytic were measured'."""
    others = dict.fromkeys(method_of(timing.case).name for timing in row.others)
    *names, last = [name_with_blocks(row.first), *others]
    return f"only {', '.join(names)} and {last} were measured" if names else f"only {last} was measured"


def _describe_speedup(findings: Findings, timing: Timing) -> list[str]:
    point, curve = findings.points_of(timing).get("strong"), findings.curve_of(timing)
    if point is None or curve is None or point.is_baseline:
        return []
    too_large = findings.too_large_on(timing, "strong")
    fewest = ", the fewest that it fits on" if too_large and too_large < point.baseline_devices else ""
    base, speedup = curve.baseline + fewest, format_ratio(*point.speedup)
    if not is_ratio_determined(*point.speedup[1:]):
        return [f"Its speed-up over the same program on {base} is {speedup}"]
    text = f"That is {speedup} as fast as the same program on {base}"
    text += f"{note_on_pairs(curve.timings[0], timing)}, efficiency {format_number(point.efficiency.value)}"
    if point.against_jit and is_ratio_determined(*point.against_jit[1:]):
        where = "there" if point.baseline_devices == 1 else "on one device"
        text += f", and {format_ratio(*point.against_jit)} as fast as the best plain jit program {where}"
    return [text]


def _describe_devices(findings: Findings, rows: Sequence[FastestMethod]) -> list[str]:
    """Return sentences that recommend a device count for one problem, and state its parallel efficiency.

    The recommended device count is the smallest one whose time is not significantly longer than the shortest
    time. The list is empty if there is only one device count, if devices shared CPU cores, or if the shortest
    time cannot be distinguished from that of an empty call.

    Args:
        rows: the fastest method on each device count, in ascending order of time.
    """
    first = rows[0].first
    more = [row.first for row in rows if row.first.case.devices > first.case.devices]
    fewer = [row.first for row in rows[1:] if row.first.case.devices < first.case.devices]
    if not first.honest or rows[0].empty or not (more or fewer):
        return []
    ties = [timing for timing in fewer if _is_tied(timing, first)]
    chosen = min(ties, key=lambda timing: timing.case.devices, default=first)
    parts = []
    if ties:
        takes = format_time_ratio(method_of(chosen.case).name, *time_ratio(chosen, first))
        fastest = count_of(first.case.devices, "device")
        parts.append(f", not distinguished from {fastest} ({takes}{note_on_pairs(chosen, first)})")
    elif fewer:
        parts.append(", the fewest that are not distinguished from the fastest")
    sentences = [_describe_more_devices(first, more[0])] if more else []
    strong = findings.curve_of(chosen)
    if strong and len(strong.points) > 1:
        point = next(p for p in strong.points if p.devices == chosen.case.devices)
        efficiency = format_ratio(*point.efficiency, sign="")
        parts.append("" if point.is_baseline else f", efficiency {efficiency}")
        parts.append(f"; {describe_efficiency(findings, strong)}")
    devices = (
        count_of(chosen.case.devices, "device") if chosen is first else _format_devices(findings, chosen)
    )
    return [*sentences, f"Recommended: {devices}{''.join(parts)}"]


def _describe_more_devices(first: Timing, more: Timing) -> str:
    ratio = time_ratio(more, first)
    text = format_time_ratio(count_of(more.case.devices, "device"), *ratio).replace(" takes ", " take ")
    pay = "are not distinguished" if _is_tied(more, first) else "do not pay"
    return f"More devices {pay}: {text}{note_on_pairs(more, first)}"


def _is_tied(slow: Timing, fast: Timing) -> bool:
    low = time_ratio(slow, fast).low
    return low is None or low <= 1


def describe_efficiency(findings: Findings, curve: Curve) -> str:
    """Return a clause that states up to which device count the parallel efficiency of a curve is acceptable.

    An example is 'efficiency stays at 0.5 or above up to 8 devices', for `findings.efficiency` = 0.5.
    """
    least = f"{findings.efficiency:g}"
    if not all(is_ratio_determined(*p.efficiency[1:]) for p in curve.points):
        return f"the largest number of devices with an efficiency of at least {least} is not determined"
    below = next((p for p in curve.points if p.efficiency.value < findings.efficiency), None)
    most = max(
        (p for p in curve.points if below is None or p.devices < below.devices), key=lambda p: p.devices
    )
    low = most.efficiency.low
    doubt = ", not surely" if low is not None and low < findings.efficiency else ""
    where = f"up to {count_of(most.devices, 'device')}{', the most measured' if below is None else ''}"
    return f"efficiency stays at {least} or above {where}{doubt}"


def _describe_advice(findings: Findings) -> list[str]:
    rows = [(row.first, t) for row in findings.fastest for t in row.others if t.case.mode == AUTO]
    ratios = sorted(
        ((time_ratio(timing, first), timing) for first, timing in rows), key=lambda row: row[0][0]
    )
    if not ratios:
        return []
    median = statistics.median(ratio.value for ratio, _ in ratios)
    problems = "one problem" if len(ratios) == 1 else f"{len(ratios)} problems and device counts"
    text = f"mode=auto takes {format_ratio(median)} as long as the fastest mode in the median of {problems}"
    (most, timing), chosen = ratios[-1], (ratios[-1][1].records[-1].chosen or {}).get("mode")
    where = f"{family_name(timing.case)}, {size_name(timing.case)}, {count_of(timing.case.devices, 'device')}"
    return [f"{text}; most, {format_ratio(*most)}, for {where}, where it chose {chosen}."]


def _describe_peers(findings: Findings) -> list[str]:
    """Return a sentence for each other AD system (engine) that states its time relative to that of JAX.

    For each problem and device count, the time of the fastest method of the other system is divided by that
    of the fastest JAX method. The sentence states the median of these ratios, and the extremes if there are
    several.
    """
    both = (each for each in findings.baselines if each.over_jax)
    fastest = least_by(
        both,
        lambda b: (b.timing.environment, b.timing.honest, b.timing.case.engine, b.timing.case.devices,
                   problem(b.timing.case)),
        lambda b: b.timing.median,
    )  # fmt: skip
    sentences = []
    for (environment, honest, engine), group in group_by(fastest.items(), lambda row: row[0][:3]).items():
        rows = sorted((b for _, b in group if b.over_jax), key=lambda b: b.over_jax or ())
        factors = [each.over_jax.value for each in rows if each.over_jax]
        problems = "one problem" if len(rows) == 1 else f"{len(rows)} problems and device counts"
        text = (
            f"{engine} takes {format_ratio(statistics.median(factors))} as long as JAX, each with its "
            f"fastest method, in the median of {problems}"
        )
        if len(rows) > 1:
            ends = (
                f"{format_ratio(f)} ({_name_problem(b)})" for f, b in ((factors[i], rows[i]) for i in (0, -1))
            )
            text += f": from {' to '.join(ends)}"
        sentences.append(f"{text}.{describe_environment(findings, environment, honest)}")
    return sentences


def _name_problem(baseline: Baseline) -> str:
    case, devices = baseline.timing.case, count_of(baseline.timing.case.devices, "device")
    return f"{family_name(case)}, {size_name(case)}, {devices}, {method_of(case).name}"


def _describe_scaling(findings: Findings) -> list[str]:
    """Return a sentence on the fastest scaling curve of each function, for strong and for weak scaling.

    The curve is selected among those that reach the largest device count and, of these, have the largest
    problem. A strong scaling curve that `describe_fastest` already describes is omitted.
    """
    several = (c for c in findings.curves if not c.points[-1].is_baseline and c.case.engine == "jax")
    key = lambda c: (c.kind, c.environment, c.baseline_devices, *family_key(c.case))  # noqa: E731
    headed = {(row.first.environment, row.first.case) for _, (row, *_) in largest_problems(findings)}
    sentences = []
    for family in group_by(several, key).values():
        most = max(curve.points[-1].devices for curve in family)
        reach = [curve for curve in family if curve.points[-1].devices == most]
        largest = max(problem_size(curve.case) for curve in reach)
        rivals = (curve for curve in reach if problem_size(curve.case) == largest)
        best = min(rivals, key=lambda curve: curve.points[-1].seconds)
        if best.kind == "strong" and (best.environment, best.timings[-1].case) in headed:
            continue
        head = f"{best.kind.capitalize()} scaling of {family_name(best.case)} on {count_of(most, 'device')}"
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
    records = forecast.records
    devices = sorted({record.case.devices for record in records})
    count = Counter(record.status for record in records)
    others = (f"{count[each]} {each}" for each in ("skipped", "failed") if count[each])
    became = ", ".join([count_of(count["planned"], "case"), *others])
    one = len(devices) == 1
    span = count_of(devices[0], "device") if one else f"{devices[0]:,} to {devices[-1]:,} devices"
    environment = records[0].environment
    versions = environment.get("versions") or {}
    unnamed = ("name", "digest", "jax")
    tools = {name: version for name, version in environment["hardware"].items() if name not in unnamed}
    tools |= {"JAX": versions["jax"]} if "jax" in versions else {}
    by = f" with {', '.join(f'{name} {version}' for name, version in tools.items())}" if tools else ""
    return (
        f"{became} on {span} of {environment.get('device_kind')}, compiled{by}; "
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


def summarize(findings: Findings) -> list[str]:
    """Return the sentences that `scaling report` prints below its tables.

    They name the fastest modes and the results that are in no table. If no record has a time, return all
    sentences of `answer_sentences`.
    """
    if not any(record.status == "ok" for record in findings.records):
        return answer_sentences(findings)
    parts = (describe_fastest, trends.describe_variants, _describe_peers, _describe_plans, _describe_defects)
    return [sentence for part in parts for sentence in part(findings)]
