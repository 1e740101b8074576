"""The answer: what a results folder shows, as sentences and a short table.

Does not compute (curves.py), and knows no pages or figures (report/).
"""

import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from scaling.analysis import certainty, forecast, trends
from scaling.analysis import curves as analysis
from scaling.analysis.baselines import Baseline
from scaling.analysis.curves import (
    Curve,
    FastestMethod,
    Timing,
    baseline_name,
    family_name,
    problem_size,
    size_name,
    time_ratio,
)
from scaling.analysis.findings import Findings, describe_environment, read
from scaling.analysis.forecast import Forecast
from scaling.analysis.grouping import group_by
from scaling.analysis.methods import describe_call, method_of
from scaling.analysis.pareto import automatic_blocks
from scaling.analysis.score import ORDER_FACTOR, PlanScores
from scaling.core import memory
from scaling.core.case import Case, problem
from scaling.core.formatting import (
    count_of,
    format_bytes,
    format_duration,
    format_number,
    format_percentage,
    format_ratio,
    format_seconds,
    is_ratio_determined,
)
from scaling.core.record import REASONS, Record

_MOST_ROWS = 20  # of the summary
_CHOICES = (
    trends.describe_memory,
    trends.describe_meshes,
    trends.describe_overlaps,
    trends.describe_colorings,
)  # what else there is to choose besides the mode
COLUMNS = ("problem", "devices", "fastest", "time", "runner-up", "times as long")


def format_time(timing: Timing) -> str:
    """Return the time of a timing with its interval."""
    return format_duration(timing.median, *(timing.interval or (None, None)))


def answer_sentences(source: Path | Findings) -> list[str]:
    """Return what the folder shows, with numbers: the fastest modes, the best scaling, and what went
    wrong.
    """
    findings = source if isinstance(source, Findings) else read(source)
    count = Counter(record.status for record in findings.records)
    if not count["ok"] and findings.forecasts:
        return [*_describe_plans_only(findings), *_describe_problems(findings)]
    if not count["ok"]:
        return [
            "Nothing has been measured: the folder holds no record of a case that ended well.",
            *_describe_problems(findings),
        ]
    parts = (
        describe_fastest, trends.describe_crossovers, _describe_scaling, trends.describe_laws,
        trends.describe_growth, *_CHOICES, _describe_peers, _describe_plans, _describe_problems,
    )  # fmt: skip
    return [sentence for part in parts for sentence in part(findings)]


def largest_problems(findings: Findings) -> list[tuple[list[FastestMethod], list[FastestMethod]]]:
    """Return for each family (all its rows, the rows of its largest problem with the least time first).

    The largest problem is taken from those measured on the most device counts: points that grow with their
    devices are on one device count each.
    """
    heads = []
    for family in group_by(findings.fastest, _family).values():
        problems = group_by(family, lambda row: problem(row.first.case)).values()
        largest = max(problems, key=lambda rows: (len(rows), problem_size(rows[0].first.case)))
        heads.append((family, sorted(largest, key=lambda row: row.first.median)))
    return heads


def _family(row: FastestMethod) -> tuple:
    return row.first.environment, row.first.honest, *analysis.family_key(row.first.case)


def describe_fastest(findings: Findings) -> list[str]:
    """Return for each family the fastest method for its largest problem, on how many devices, and how
    sure that is.
    """
    sentences = list[str]()
    if not findings.fastest:
        kinds = dict.fromkeys(_engine_name(timing.case) for timing in findings.timings)
        sentences.append(
            "No mode of JAX was measured, so that none is called the fastest; what was measured: "
            f"{', '.join(kinds)}."
        )
    for rows, (row, *others) in largest_problems(findings):
        largest = problem_size(row.first.case) == max(problem_size(each.first.case) for each in rows)
        text = (
            _describe_verdict(row, "at the largest size" if largest else "at the size")
            + _describe_devices(findings, row.first, others)
            + _describe_by_hand(findings, row)
            + _count_wins(rows)
        )
        sentences.append(
            f"{family_name(row.first.case)}: "
            f"{text}.{describe_environment(findings, row.first.environment, row.first.honest)}"
        )
    return sentences


def _engine_name(case: Case) -> str:
    """Return what was timed, where it is no mode of JAX."""
    if case.kind != "case":
        return "what the machine can do"
    return (
        case.engine
        if case.engine != "jax"
        else "values"
        if case.ad_mode.is_value
        else "derivatives written by hand"
    )


def _describe_verdict(row: FastestMethod, size: str) -> str:
    case, mode = row.first.case, name_with_blocks(row.first)
    at = (
        f"on {count_of(case.devices, 'device')} {size} ({size_name(case)}): "
        f"{format_time(row.first)}, {describe_call(case)}"
    )
    if row.empty:
        floor = format_duration(certainty.dispatch_floor(row.first))
        return (
            f"no mode is called the fastest; {mode} takes least, {at}, "
            f"not distinguishable from an empty call ({floor})"
        )
    if row.second is None:
        return f"{list_measured(row)}, {at}"
    verdict = (
        "is fastest" if row.distinguished else "is ahead of the next, but the two are not distinguished,"
    )
    factor = format_seconds(
        f"the next, {method_of(row.second.case).name},", row.ratio, row.ratio_low, row.ratio_high
    )
    doubts = f"; not sure: {', '.join(row.doubts)}" if row.distinguished and row.doubts else ""
    return f"{mode} {verdict} {at}; {factor}{doubts}"


def name_with_blocks(timing: Timing) -> str:
    """Return the name of a method, with the blocks that chunk=auto has chosen and the memory that they
    save.
    """
    name, auto = method_of(timing.case).name, automatic_blocks(timing.records[0])
    return f"{name} ({auto}{_describe_saved_memory(timing.records[0])})" if auto else name


def _describe_saved_memory(record: Record) -> str:
    """Return the memory of chunk=auto against that of all at once, or '' where it is not known."""
    probes = (record.blocks or {}).get("probes")
    whole = (
        [p.get("bytes") for p in probes if not (p.get("block") or p.get("chunk"))]
        if isinstance(probes, list)
        else []
    )
    used = memory.bytes_while_running(vars(record))
    return (
        f", {format_bytes(used)} against {format_bytes(whole[0])} of all at once"
        if whole and whole[0] and used
        else ""
    )


def list_measured(row: FastestMethod) -> str:
    """Return in words that a method has no rival, and what else was measured for the same problem."""
    others = dict.fromkeys(method_of(timing.case).name for timing in row.others)
    return f"only {_join_names([name_with_blocks(row.first), *others])} measured"


def _join_names(names: Sequence[str]) -> str:
    """Return names as the subject of a sentence: 'a was', 'a and b were', 'a, b and c were'."""
    *others, last = names
    return f"{', '.join(others)} and {last} were" if others else f"{last} was"


def _describe_devices(findings: Findings, first: Timing, others: Sequence[FastestMethod]) -> str:
    """Return the speed-up of the fastest method over its baseline, or that more devices do not pay."""
    point = findings.points_of(first).get("strong")
    if point and not point.is_baseline:
        speedup, base = (
            format_ratio(point.speedup, point.speedup_low, point.speedup_high),
            baseline_name(point.baseline_devices),
        )
        same = f"the same program on {base}"
        known = is_ratio_determined(point.speedup_low, point.speedup_high)
        text = (
            f". That is {speedup} as fast as {same}" if known else f". Its speed-up over {same} is {speedup}"
        )
        text += f", efficiency {format_number(point.efficiency)}" if known else ""
        if point.against_jit is not None and is_ratio_determined(
            point.against_jit_low, point.against_jit_high
        ):
            plain = format_ratio(point.against_jit, point.against_jit_low, point.against_jit_high)
            where = "there" if point.baseline_devices == 1 else "on one device"
            text += f", and {plain} as fast as the best plain jit program {where}"
        return text
    more = [row.first for row in others if row.first.case.devices > first.case.devices]
    if not more or not first.honest:
        return ""
    value, low, high = time_ratio(more[0], first)
    sentences = format_seconds(count_of(more[0].case.devices, "device"), value, low, high).replace(
        " takes ", " take "
    )
    if low is not None and high is not None and low <= 1 <= high:
        return f". More devices are not distinguished: {sentences}"
    return f". More devices do not pay: {sentences}"


def _describe_by_hand(findings: Findings, row: FastestMethod) -> str:
    """Return how the derivative written by hand compares."""
    if not row.by_hand:
        return ""
    roofs = [
        s.bound
        for s in findings.baselines
        if s.bound and s.by_hand and s.by_hand[0] == 1 and _is_same_problem(s, row)
    ]
    roof = f" ({format_percentage(roofs[0].fraction)} of the roof: {roofs[0].name})" if roofs else ""
    return f". Written by hand it would take {format_ratio(1 / row.by_hand)} as long{roof}"


def _count_wins(rows: Sequence[FastestMethod]) -> str:
    """Return how often each method is the fastest."""
    wins = Counter(method_of(row.first.case).without_memory_setting.name for row in rows if row.distinguished)
    if len(rows) < 2 or not wins:
        return ""
    counts = ", ".join(f"{name} ({count})" for name, count in wins.most_common())
    clear = (
        "Clear winners"
        if all(row.sure for row in rows if row.distinguished)
        else "Distinguished from the next"
    )
    return f". {clear} over {len(rows)} problems and device counts: {counts}"


def _is_same_problem(baseline: Baseline, row: FastestMethod) -> bool:
    """Return whether a baseline is of the same problem, on as many devices, in the same environment."""
    one, other = baseline.timing, row.first
    same = (one.environment, one.honest, one.case.devices) == (
        other.environment,
        other.honest,
        other.case.devices,
    )
    return same and problem(one.case) == problem(other.case)


def _describe_peers(findings: Findings) -> list[str]:
    """Return for each other engine its fastest time over JAX's, over all problems that both have."""
    fastest: dict[tuple, Baseline] = {}
    for baseline in findings.baselines:
        if baseline.over_jax:
            timing = baseline.timing
            key = (
                timing.environment,
                timing.case.engine,
                timing.honest,
                timing.case.devices,
                problem(timing.case),
            )
            fastest[key] = min(fastest.get(key, baseline), baseline, key=lambda s: s.timing.median)
    systems: dict[tuple[str, str, bool], list[Baseline]] = {}
    for (environment, engine, honest, *_), baseline in fastest.items():
        systems.setdefault((environment, engine, honest), []).append(baseline)
    sentences = []
    for (environment, engine, honest), rows in systems.items():
        factors = sorted((row.over_jax[0], index) for index, row in enumerate(rows) if row.over_jax)
        (least, least_at), (most, most_at) = factors[0], factors[-1]
        middle = statistics.median(factor for factor, _ in factors)
        over = "one problem" if len(rows) == 1 else f"{len(rows)} problems and device counts"
        text = (
            f"{engine} takes {format_ratio(middle)} as long as JAX, each with its fastest method, "
            f"in the median of {over}"
        )
        if len(rows) > 1:
            text += (
                f": from {format_ratio(least)} ({_problem_of(rows[least_at])}) to {format_ratio(most)} "
                f"({_problem_of(rows[most_at])})"
            )
        sentences.append(f"{text}.{describe_environment(findings, environment, honest)}")
    return sentences


def _problem_of(baseline: Baseline) -> str:
    case = baseline.timing.case
    return (
        f"{family_name(case)}, {size_name(case)}, {count_of(case.devices, 'device')}, {method_of(case).name}"
    )


PEER_COLUMNS = ("problem", "devices", "system", "time", "JAX's fastest", "times as long")


def peer_rows(findings: Findings) -> list[tuple[str, ...]]:
    """Return each timing of another engine with JAX's fastest method for the same problem, under
    PEER_COLUMNS.
    """
    rows: list[tuple[str, ...]] = []
    for baseline in findings.baselines:
        timing, jax = baseline.timing, baseline.jax
        if timing.case.engine != "jax":
            rows.append(
                (
                    (
                        f"{family_name(timing.case)} {size_name(timing.case)}"
                        + describe_environment(findings, timing.environment, timing.honest)
                    ),
                    str(timing.case.devices),
                    method_of(timing.case).name,
                    format_time(timing),
                    f"{method_of(jax.case).name}, {format_duration(jax.median)}" if jax else "not measured",
                    format_ratio(*baseline.over_jax) if baseline.over_jax else "",
                )
            )
    return rows


def _describe_scaling(findings: Findings) -> list[str]:
    """Return for each kind and family the curve that is fastest on the most devices, and the spread of
    all that reach it.
    """
    several = (c for c in findings.curves if not c.points[-1].is_baseline and c.case.engine == "jax")
    families = group_by(
        several, lambda c: (c.kind, c.environment, c.baseline_devices, *analysis.family_key(c.case))
    )
    headed = {(row.first.environment, row.first.case) for _, (row, *_) in largest_problems(findings)}
    sentences = []
    for family in families.values():
        most = max(curve.points[-1].devices for curve in family)
        rivals = [curve for curve in family if curve.points[-1].devices == most]
        largest = problem(max(rivals, key=lambda curve: problem_size(curve.case)).case)
        best = min(
            (c for c in rivals if problem(c.case) == largest), key=lambda curve: curve.points[-1].seconds
        )
        is_told = best.kind == "strong" and (best.environment, best.timings[-1].case) in headed
        parts = [
            *([] if is_told else [_describe_speedup(best)]),
            *([_describe_spread(rivals)] if len(rivals) > 1 else []),
        ]
        if parts:
            text = (
                f"{best.kind.capitalize()} scaling of {family_name(best.case)} on "
                f"{count_of(most, 'device')}: {'; '.join(parts)}."
            )
            sentences.append(text + describe_environment(findings, best.environment))
    return sentences


def _describe_speedup(curve: Curve) -> str:
    last, weak = curve.points[-1], curve.kind == "weak"
    return (
        f"{'scaled speed-up' if weak else 'speed-up'} "
        f"{format_ratio(last.speedup, last.speedup_low, last.speedup_high)}{curve.relative}, efficiency "
        f"{format_ratio(last.efficiency, last.efficiency_low, last.efficiency_high, sign='')}, with "
        f"{method_of(curve.case).name}, {describe_call(curve.case)}, the fastest there at {curve.size}"
        + (_note_derived_bytes(curve) if weak else "")
    )


def _note_derived_bytes(curve: Curve) -> str:
    note = analysis.derived_bytes_note(curve.timings)
    return f"; compulsory bytes{note}" if note else ""


def _describe_spread(rivals: Sequence[Curve]) -> str:
    each = sorted(curve.points[-1].speedup for curve in rivals)
    middle = format_ratio(statistics.median(each))
    where = rivals[0].relative
    return (
        f"the median speed-up of {len(rivals)} curves{where} is {middle}, from {format_ratio(each[0])} to "
        f"{format_ratio(each[-1])}"
    )


def describe_plan(forecast: Forecast) -> str:
    """Return what was planned for a hardware, on how many devices, with which tools."""
    records = forecast.records
    devices = sorted({record.case.devices for record in records})
    count = Counter(record.status for record in records)
    became = ", ".join([
        count_of(count["planned"], "case"),
        *(f"{count[each]} {each}" for each in ("skipped", "failed") if count[each])
    ])  # fmt: skip
    span = (
        count_of(devices[0], "device") if len(devices) == 1 else f"{devices[0]:,} to {devices[-1]:,} devices"
    )
    around = records[0].environment
    versions = around.get("versions") or {}
    tools = {name: version for name, version in around["hardware"].items() if name not in ("name", "digest")}
    tools |= {"JAX": versions["jax"]} if "jax" in versions else {}
    tools.pop("jax", None)
    by = f" with {', '.join(f'{name} {version}' for name, version in tools.items())}" if tools else ""
    return (
        f"{became} on {span} of {around.get('device_kind')}, compiled{by}; "
        "times are predicted and not measured."
    )


def describe_score(scores: PlanScores) -> list[str]:
    """Return how close the predictions for one hardware were, and how often the order of two methods was
    right.
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
    """Return what was planned besides the measurements, and how close predictions were."""
    sentences = [f"Planned for {each.title}: {describe_plan(each)}" for each in findings.forecasts]
    return [*sentences, *(sentence for scores in findings.plan_scores for sentence in describe_score(scores))]


def _describe_plans_only(findings: Findings) -> list[str]:
    """Return what the plans say, where nothing was measured."""
    sentences = list[str]()
    for each in findings.forecasts:
        sentences += [
            f"Planned for {each.title}, and nothing measured here: {describe_plan(each)}",
            *forecast.plan_answers(each),
        ]
    return sentences


def count_unmeasured(findings: Findings) -> list[str]:
    """Return how many cases failed and were skipped, by reason, the most frequent first."""
    sentences = []
    for status in ("failed", "skipped"):
        given = (record.reason for record in findings.records if record.status == status)
        reasons = Counter(
            f"{reason}: {REASONS.get(reason, '')}" if reason else "for no reason given" for reason in given
        )
        if reasons:
            counts = "; ".join(f"{count} {reason}" for reason, count in reasons.most_common())
            sentences.append(f"{count_of(reasons.total(), 'case')} {status}: {counts}.")
    return sentences


def _describe_problems(findings: Findings) -> list[str]:
    """Return what went wrong, and what a reader must know of the folder."""
    sentences = list[str]()
    sentences += [*count_unmeasured(findings), *findings.weak_refusals]
    if count := len([t for t in findings.timings if not t.honest]):
        sentences.append(
            f"{count_of(count, 'case')} ran oversubscribed, without a core for each device: "
            "marked, and never drawn as scaling."
        )
    if findings.has_mixed_environments:
        sentences.append(
            f"{len(findings.environments)} environments are in this folder "
            f"({', '.join(findings.environments)}): they are kept apart, no curve and no comparison mixes "
            "them."
        )
    if findings.missing:
        sentences.append(
            f"{count_of(len(findings.missing), 'case')} of the study "
            f"{'has' if len(findings.missing) == 1 else 'have'} no record yet."
        )
    if findings.damaged:
        lines = (
            f"{len(findings.damaged)} damaged {'line was' if len(findings.damaged) == 1 else 'lines were'}"
        )
        sentences.append(f"{lines} passed over, the first {findings.damaged[0]}.")
    return sentences


def summarize(findings: Findings) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return the rows of the largest problem of each family, and the sentences that no row says."""
    if not any(record.status == "ok" for record in findings.records):
        return [], answer_sentences(findings)
    others = [
        sentence
        for part in (describe_fastest, *_CHOICES, _describe_peers, _describe_plans, _describe_problems)
        for sentence in part(findings)
    ]
    if len(findings.fastest) <= _MOST_ROWS:
        return table_rows(findings), others
    rows = group_by(findings.fastest, lambda row: (row.first.case.devices, *_family(row))).values()
    largest = [max(group, key=lambda row: problem_size(row.first.case)) for group in rows]
    return table_rows(findings, largest), others


def _format_certainty(row: FastestMethod, factor: str) -> str:
    """Return a ratio, or why it is not certain."""
    if row.empty:
        return f"no more than an empty call ({format_duration(certainty.dispatch_floor(row.first))})"
    return factor if row.distinguished or row.second is None else f"not distinguished: {factor}"


def table_rows(source: Path | Findings, some: list[FastestMethod] | None = None) -> list[tuple[str, ...]]:
    """Return the fastest mode of each problem on each number of devices, or of some of them, under
    COLUMNS.
    """
    findings = source if isinstance(source, Findings) else read(source)
    rows: list[tuple[str, ...]] = []
    for row in findings.fastest if some is None else some:
        case, second = row.first.case, row.second
        factor = format_ratio(row.ratio, row.ratio_low, row.ratio_high) or "no other automatic mode"
        rows.append(
            (
                (
                    f"{family_name(case)} {size_name(case)}"
                    + describe_environment(findings, row.first.environment, row.first.honest)
                ),
                str(case.devices),
                method_of(case).name,
                format_time(row.first),
                f"{method_of(second.case).name}, {format_duration(second.median)}" if second else "",
                _format_certainty(row, factor),
            )
        )
    return rows
