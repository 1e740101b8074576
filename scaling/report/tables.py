"""Make the tables of a report: fastest modes, cases with or without a time, environments, lint, plans, peers.

Each function *_rows yields the rows of one table as dicts from column name to cell. The HTML page, table.md
and the terminal show the same tables.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from typing import Any

from scaling.analysis import lint, timings
from scaling.analysis.cases import BOOLEAN_WORDS, environment_columns, join_words
from scaling.analysis.curves import (
    Curve,
    CurvePoint,
    format_relative,
    format_serial_part,
)
from scaling.analysis.estimate import Estimate, format_percentage, format_ratio
from scaling.analysis.findings import Findings
from scaling.analysis.forecast import Forecast
from scaling.analysis.ranking import Ranking, group_settings, recommend_ranking
from scaling.analysis.timings import Timing, format_time
from scaling.core.case import PEAKS, label
from scaling.core.formatting import (
    format_bytes,
    format_count,
    format_duration,
    format_interval,
    format_number,
    list_first,
)
from scaling.core.grouping import group_by
from scaling.core.record import REASONS, Record, bytes_while_running
from scaling.options import machine_peaks
from scaling.report.text import Table, file_stem, make_table
from scaling.results.store import sort_by_start

Row = dict[str, object]  # a table row, from column name to cell
_LINT_COLUMNS = ("severity", "what", "how many", "which", "how to fix it")
_MAX_VALUES = 6  # largest number of values shown per property of an environment, such as its jobs
_NOTES = {  # first word of a table's HTML anchor -> text above the table
    "fastest": "The fastest mode on the recommended device count, which is the smallest whose time is not "
    "significantly longer than the shortest. Derivatives written by hand and other AD systems are not "
    "ranked. Runner-up: the next mode on as many devices. Ratio: its time over that of the fastest. "
    "Certainty: that of the mode, and that of the device count if they differ. In parentheses: 95 % "
    "intervals.",
    "measured": "One row for each case; its link opens its samples, stages and memory. Speed-up and "
    "efficiency are relative to the same program on the fewest devices. Serial part: the fraction of the "
    "time that is not divided among the devices, by Amdahl's or Gustafson's law (Karp and Flatt 1990). "
    "One-device program: the speed-up over the best plain jit program on one device. By hand: the time "
    "divided by that of the handwritten derivative. Of the roof: the least time that the peak rates of the "
    "machine allow, divided by the time.",
    "unmeasured": "Cases without a time, and why. Repeat the command to run failed and missing ones again, "
    "on a cluster with retry=true.",
    "planned": "Predicted, not measured. Times have the 95 % interval of the prediction; the efficiency is "
    "relative to the fewest devices that were planned.",
    "settings": "Cases that differ only in settings such as chunk, mesh and seeds, the fastest first. Times "
    "as long: the time divided by that of the fastest, with its 95 % interval.",
    "systems": "PyTorch and others, compared with the fastest mode of JAX.",
    "machine": "Peak rates of a device, and the latency of an empty call.",
    "damaged": "Ignored. Repeat the command that wrote them, and delete the lines to end this remark.",
}


_NUMBER_FORMATS: Mapping[str, Callable[[Any], str]] = {  # column -> function that formats its numbers
    **dict.fromkeys(("first call", "detecting and coloring"), format_duration),
    **dict.fromkeys(("communication", "waiting"), format_percentage),
    "memory": lambda value: f"{format_number(value / 1e6)} MB",  # always MB, so that the column can be sorted
    "nonzeros": "{:,}".format,
}


def answer_table(findings: Findings) -> Table:
    """Return a table with the fastest AD mode, its number of devices and its runner-up for each problem."""
    problems = group_by(findings.fastest, lambda ranking: ranking.problem_key).values()
    rankings = map(recommend_ranking, problems)
    table_rows = (_fastest_row(findings, ranking, ranking.certainties) for ranking in rankings)
    return _table("fastest", "Fastest mode of each problem", table_rows)


def _fastest_row(findings: Findings, ranking: Ranking, certainty: str) -> Row:
    return {
        "problem": findings.problem_name(ranking),
        "fastest": timings.name_with_blocks(ranking.fastest),
        "time": format_time(ranking.fastest),
        "devices": ranking.case.devices,
        "runner-up": ranking.runner_up and _name_with_time(ranking.runner_up),
        "ratio": ranking.ratio,
        "certainty": certainty,
    }


def _name_with_time(timing: Timing) -> str:
    """Return the AD method and the time of a timing as text, such as 'jacrev (vmap), 1.20 ms'."""
    return f"{timing.method.name}, {format_duration(timing.median)}"


def curve_table(findings: Findings, curves: Sequence[Curve]) -> Table:
    """Return a table of times and speed-ups, with a row for each curve and a column for each device count.

    Curves with the largest device counts come first. Curves with the same largest device count are sorted by
    the time on it.
    """
    first, device_counts = curves[0], sorted({point.devices for curve in curves for point in curve.points})
    curves = sorted(curves, key=lambda curve: (-curve.points[-1].devices, curve.points[-1].seconds))
    kind = "scaled speed-up, weak scaling" if first.kind == "weak" else "speed-up, strong scaling"
    title = f"{first.family}, {first.size}{findings.suffix(first.environment)}: time and {kind}"
    table_rows = (
        {"on devices": curve.program_name, **dict.fromkeys(map(str, device_counts))}
        | {str(point.devices): _curve_cell(point) for point in curve.points}
        for curve in curves
    )
    return make_table("curves", f"{title}{first.points[0].relative}", "", table_rows)


def _curve_cell(point: CurvePoint) -> str:
    time = format_duration(point.seconds)
    if point.is_baseline:
        return time
    return f"{time}, {format_ratio(*point.speedup).partition(' (')[0]}"


def count_statuses(findings: Findings) -> Counter[str]:
    """Return the number of cases with each status, including "planned" and "missing".

    Each replicate counts as a case. If the folder has only plans, their skipped and failed cases are counted.
    """
    plans = Counter(record.status for forecast in findings.forecasts for record in forecast.records)
    counts = Counter(record.status for record in findings.newest_records) or plans
    return counts | Counter(planned=plans["planned"], missing=len(findings.missing))


def folded_tables(findings: Findings) -> list[Table]:
    """Return the tables in the collapsed sections of the HTML page, in order, without empty tables."""
    anchors = [case_anchor(timing) for timing in findings.case_timings]
    fastest_rows = (_fastest_row(findings, row, row.certainty) for row in findings.fastest)
    tables = [
        _table("each", "Fastest mode on each number of devices", fastest_rows),
        _table("measured", "Every measured case", _measured_rows(findings))._replace(row_anchors=anchors),
        _table("unmeasured", "Failed, skipped and missing", _unmeasured_rows(findings)),
        _table("review", "Would a reviewer accept it?", _lint_rows(findings)),
        *(
            _table(f"planned-{file_stem(f.hardware)}", f"Every case planned for {f.title}", _planned_rows(f))
            for f in findings.forecasts
        ),
        _table("settings", "Settings of one program", _settings_rows(findings)),
        _table("systems", "Other systems", _peer_rows(findings)),
        _table("machine", "What the machine can do", _machine_rows(findings)),
        environment_table(findings),
        _table("damaged", "Damaged lines", ({"line": line} for line in findings.damaged)),
    ]
    return [table for table in tables if table.rows]


def _table(anchor: str, title: str, rows: Iterable[Mapping[str, object]]) -> Table:
    text_rows = ({name: _format_cell(name, value) for name, value in row.items()} for row in rows)
    return make_table(anchor, title, _NOTES.get(anchor.partition("-")[0], ""), text_rows)


def _format_cell(column: str, value: object) -> str:
    if isinstance(value, Estimate):
        return format_ratio(*value)
    if isinstance(value, int | float):
        return _NUMBER_FORMATS.get(column, str)(value)
    return str(value or "")


def case_anchor(timing: Timing) -> str:
    """Return the HTML ID of a measured case, which its table row and its detail panel share."""
    return f"case-{timing.case.key}-{timing.environment}" + ("" if timing.honest else "-shared")


def _measured_rows(findings: Findings) -> Iterator[Row]:
    baselines = {baseline.timing: baseline for baseline in findings.baselines}
    for timing in findings.case_timings:
        bound = baselines[timing].bound
        points = findings.curves_by_case.get((timing.environment, timing.honest, timing.case), {})
        yield {
            "case": label(timing.case),
            "time": format_time(timing),
            "devices": timing.case.devices,
            "mode": timing.method.name,
            "samples": len(timing.seconds),
            "speed-up": _format_kinds(points, lambda _, p: format_relative(p, p.speedup) + p.relative),
            "efficiency": _format_kinds(
                points, lambda _, p: format_relative(p, p.efficiency, "") + p.relative
            ),
            "serial part": _format_kinds(points, format_serial_part),
            "one-device program": next((point.against_jit for _, point in points.values()), None),
            "by hand": baselines[timing].by_hand,
            "of the roof": bound and f"{format_percentage(bound[1])}: {bound[0]}",
            "memory": timing.record.peak_bytes or bytes_while_running(vars(timing.record)) or None,
            "first call": timings.first_call_seconds(timing),
            "remarks": _describe_remarks(findings, timing),
        }


def _format_kinds(
    points: Mapping[str, tuple[Curve, CurvePoint]], format_point: Callable[[Curve, CurvePoint], str]
) -> str:
    """Return the values of a case on its scaling curves as text, such as '1.9x, weak 1.8x'.

    `points` maps the kind "strong" or "weak" to a curve and the point of the case on it. `format_point`
    returns the text for one curve. Return '' if `points` is empty.
    """
    texts = {kind: format_point(*pair) for kind, pair in points.items()}
    return ", ".join(text if kind == "strong" else f"{kind} {text}" for kind, text in texts.items() if text)


def _describe_remarks(findings: Findings, timing: Timing) -> str:
    record, dispatch = timing.record, timings.significant_floor(timing)
    blocks = timings.blocks_of(timing)
    padding = max(process.padding or 0.0 for process in timing.records)  # share of the (point, seed) pairs
    counts = (record.collectives or {}).items()
    collectives = " and ".join(format_count(count, name) for name, count in counts if count)
    return join_words(
        findings.suffix(timing.environment, timing.honest).strip(" []"),
        dispatch and f"{timings.SHORT}: {format_duration(dispatch)}",
        blocks and f"takes {blocks}",
        padding and f"{format_percentage(padding)} padding",
        collectives and f"sends {format_bytes(record.collective_bytes or 0)} in {collectives}",
    )


def _unmeasured_rows(findings: Findings) -> Iterator[Row]:
    unmeasured = [record for record in findings.records if record.status != "ok"]
    for record in sorted(unmeasured, key=lambda record: (record.status, record.reason or "")):
        replicate = f" replicate {record.replicate + 1}" if record.replicate else ""
        yield {
            "case": label(record.case) + replicate + findings.suffix(record.setting),
            "status": record.status,
            "reason": _describe_reason(record),
            "memory": _describe_memory(record),
            "what happened": record.text,
        }
    for case in findings.missing:
        yield {"case": case, "status": "missing", "reason": "not run yet", "memory": "", "what happened": ""}


def _describe_reason(record: Record) -> str:
    return f"{record.reason}: {REASONS.get(record.reason, '')}" if record.reason else "no reason given"


def _lint_rows(findings: Findings) -> Iterator[Row]:
    remarks = lint.lint_findings(findings)
    for cells in [("verdict", lint.format_verdict(remarks), "", "", ""), *map(astuple, remarks)]:
        yield dict(zip(_LINT_COLUMNS, cells, strict=True))


def _planned_rows(forecast: Forecast) -> Iterator[Row]:
    curves = [curve for curve in forecast.curves if len(curve.points) > 1]
    points = [(curve.kind, (curve, point)) for curve in curves for point in curve.points]
    points_by_case = group_by(points, lambda pair: pair[1][1].timing.case)
    by_program = sorted(forecast.records, key=lambda r: (label(r.case, ["devices"]), r.case.devices))
    for record in by_program:
        predicted, pairs = record.predicted, points_by_case.get(record.case, [])
        predicted_times = [predicted[name] for name in ("seconds", "low", "high")] if predicted else None
        reason = "" if record.status == "planned" else _describe_reason(record)
        yield {
            "case": label(record.case),
            "status": record.status,
            "devices": record.case.devices,
            "predicted time": predicted_times and format_duration(*predicted_times),
            "efficiency": _format_kinds(dict(pairs), lambda _, p: format_ratio(*p.efficiency, suffix="")),
            "bound by": predicted and predicted.get("bound"),
            "communication": predicted and predicted["communication"] / predicted["seconds"],
            "waiting": predicted and predicted["waiting"] / predicted["seconds"],
            "memory": _describe_memory(record),
            "remarks": "; ".join(filter(None, (reason, record.text))),
        }


def _describe_memory(record: Record) -> str:
    used, capacity = record.peak_bytes, record.capacity_bytes
    if used is None:
        return ""
    return format_bytes(used) + (f" ({format_percentage(used / capacity)})" if capacity else "")


def _settings_rows(findings: Findings) -> Iterator[Row]:
    for program in group_settings(findings.case_timings):
        for timing in program:
            yield {
                "case": label(timing.case) + findings.suffix(timing.environment, timing.honest),
                "time": format_time(timing),
                "times as long": None if timing is program[0] else timings.time_ratio(timing, program[0]),
                "memory": bytes_while_running(vars(timing.record)) or None,
                "nonzeros": timing.record.nonzeros,
                "seeds": sum(count or 0 for count in (timing.record.colors or {}).values()) or None,
                "detecting and coloring": timings.stage_seconds(timing, *timings.SPARSITY_STAGES),
                "first call": timings.first_call_seconds(timing),
            }


def _peer_rows(findings: Findings) -> Iterator[Row]:
    for baseline in findings.baselines:
        timing, jax = baseline.timing, baseline.jax
        if timing.case.engine != "jax":
            yield {
                "problem": findings.problem_name(timing),
                "devices": timing.case.devices,
                "system": timing.method.name,
                "time": format_time(timing),
                "JAX's fastest": _name_with_time(jax) if jax else "not measured",
                "times as long": baseline.over_jax,
            }


def _machine_rows(findings: Findings) -> Iterator[Row]:
    # Benchmarks of peak rates and latencies are no cases of the study.
    for timing in (timing for timing in findings.timings if timing.case.kind != "case"):
        case = timing.case
        yield {
            "what": str(case.target).replace("_", "-"),
            "devices": case.devices,
            "dtype": case.dtype if case.target != "matmul" else f"{case.dtype}, {case.precision} precision",
            "api": case.api,
            "a device": _format_rate(timing) if case.kind == "ceiling" else "",
            "time": format_time(timing),
            "samples": len(timing.seconds),
            "remarks": findings.suffix(timing.environment, timing.honest).strip(" []"),
        }


def _format_rate(peak: Timing) -> str:
    giga_units, (seconds, low, high) = machine_peaks.peak_work(peak.case) / 1e9, peak.estimate
    interval = format_interval(giga_units / high, giga_units / low) if low and high else ""
    return f"{format_number(giga_units / seconds)} G{PEAKS[str(peak.case.target)]}/s{interval}"


def environment_table(findings: Findings) -> Table:
    """Return a table of the recorded hardware and software, with one column for each environment."""
    rows: dict[str, Row] = {}
    groups = group_by(sort_by_start(findings.records), lambda record: record.setting)
    for digest, records in groups.items():
        facts = (fact for record in records for fact in environment_columns(record.environment))
        fields = [(name, text) for name, text in facts if text and name != "load"]
        fields += [
            ("records", str(len(records))),
            ("first case started", records[0].started_at or ""),
            ("last case started", records[-1].started_at or ""),
        ]
        for name, same_field in group_by(dict.fromkeys(fields), lambda cell: cell[0]).items():
            row = rows.setdefault(name, {"environment": name, **dict.fromkeys(groups)})
            texts = [BOOLEAN_WORDS.get(text, text) for _, text in same_field]
            row[digest] = list_first(texts, _MAX_VALUES, "; ")
    return make_table("environments", "Where it was measured", "", rows.values())
