"""Tables: what the report shows in rows, as words: every measured case, laws, growth, the machine, the
environments.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from scaling.analysis import lint, published
from scaling.analysis.answer import COLUMNS, PEER_COLUMNS, format_time, peer_rows, table_rows
from scaling.analysis.certainty import near_floor
from scaling.analysis.curves import Timing, family_name, relative_to, size_name, time_ratio
from scaling.analysis.findings import Findings, describe_environment
from scaling.analysis.grouping import group_by
from scaling.analysis.methods import describe_call, method_of
from scaling.analysis.ratios import Estimate
from scaling.analysis.scaling_fits import karp_flatt
from scaling.analysis.stages import break_even_calls, compiling_seconds, first_call_seconds, stage_seconds
from scaling.analysis.table import environment_columns
from scaling.analysis.variants import (
    Gain,
    automatic_blocks,
    memory_of,
    memory_setting_name,
    mesh_name,
    padding_share,
)
from scaling.core.case import PEAKS, Case
from scaling.core.formatting import (
    count_of,
    format_duration,
    format_exponent,
    format_number,
    format_percentage,
    format_ratio,
    format_share,
    is_share_determined,
)
from scaling.options import machine_peaks
from scaling.report import planned
from scaling.report.labels import describe_panel, file_stems

_MEASURED_COLUMNS = (
    "workload", "problem", "mode", "split", "api", "devices", "time", "samples", "stopped by", "first call",
    "in later calls", "memory", "by hand", "of the roof", "error", "tolerance", "speed-up", "sends",
    "remarks",
)  # fmt: skip
_MACHINE_COLUMNS = (
    "what",
    "devices",
    "dtype",
    "api",
    "a device, a call",
    "a device",
    "time",
    "samples",
    "remarks",
)
_LAW_COLUMNS = (
    "curve",
    "law",
    "best",
    "serial",
    "contention",
    "coherency",
    "largest speed-up",
    "at devices",
    "off by",
    "Karp-Flatt",
)
_GROWTH_COLUMNS = ("problem", "swept", "mode", "exponent", "sizes", "left out, under ten floors")
_PARETO_COLUMNS = (
    "problem",
    "program",
    "devices",
    "setting",
    "memory",
    "of the fastest",
    "time",
    "times as long",
    "front",
    "remarks",
)
_MESH_COLUMNS = (
    "problem",
    "program",
    "devices",
    "mesh",
    "time",
    "times as long",
    "fastest",
    "padding",
    "sends",
    "remarks",
)
_SPARSE_COLUMNS = (
    "problem", "mode", "devices", "nonzeros", "seeds", "detecting", "colouring", "compiling", "first call",
    "time", "all seeds", "times as long", "pays after", "remarks",
)  # fmt: skip
_MOST_VALUES = 6  # of a fact of the environment, such as the jobs


class PageTable(NamedTuple):
    """A table: its anchor in the page, its title, a note, its columns and rows."""

    anchor: str
    title: str
    note: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


_ROOF_NOTE = (
    "Of the roof: the least time that the machine's measured peaks allow, as a share of the time taken. "
    "The binding peak is named: bytes of inputs and result, operations, transcendental functions, or "
    "communication. Data in a cache can exceed 100 %. In later calls: the first call in units of later "
    "calls. Speed-up is over one device, or over the fewest that were measured, which it then names."
)
_LAW_NOTE = (
    "Fitted to the logarithms of the times; the time on one device is a parameter; intervals are 95 %. "
    "Karp-Flatt: the serial fraction that follows from the speed-up on the most devices alone."
)
_FRONT_NOTE = (
    "One program under several memory settings. Memory: inputs, result and temporaries of a device; of the "
    "fastest: as a share of what the fastest setting needs. On the front: no other setting needs less "
    "memory or time without needing more of the other."
)
_MESH_NOTE = (
    "Points x seeds: the devices over which each is split. Padding: the share of the work that is computed "
    "so that both divide evenly."
)
_SPARSE_NOTE = (
    "Detecting: finding the nonzeros of the derivative; colouring: finding few seeds that give all of "
    "them. All seeds: the fastest method with a seed for each row or column, and its time as a multiple. "
    "Pays after: the number of evaluations after which few seeds are faster in total, everything before "
    "the first result included."
)
_POWER_NOTE = "Time grows with the size to the power of the exponent."


def page_tables(findings: Findings) -> list[PageTable]:
    """Return every table that has rows."""
    tables = [
        PageTable("fastest", "Fastest mode", "", COLUMNS, table_rows(findings)),
        PageTable("review", "Would a reviewer accept it?", "", lint.COLUMNS, lint.lint_rows(findings)),
        *_plan_tables(findings),
        PageTable(
            "published", "Published and measured", "", published.COLUMNS, published.published_rows(findings)
        ),
        PageTable("laws", "Laws of scaling", _LAW_NOTE, _LAW_COLUMNS, _law_rows(findings)),
        PageTable("growth", "Growth with size", _POWER_NOTE, _GROWTH_COLUMNS, _growth_rows(findings)),
        PageTable("meshes", "Meshes", _MESH_NOTE, _MESH_COLUMNS, _mesh_rows(findings)),
        PageTable("fronts", "Settings of memory", _FRONT_NOTE, _PARETO_COLUMNS, _pareto_rows(findings)),
        PageTable("sparsity", "Sparse derivatives", _SPARSE_NOTE, _SPARSE_COLUMNS, _sparse_rows(findings)),
        PageTable("systems", "Other systems", "", PEER_COLUMNS, peer_rows(findings)),
        PageTable("machine", "What the machine can do", "", _MACHINE_COLUMNS, _machine_rows(findings)),
        PageTable("measured", "Every measured case", _ROOF_NOTE, _MEASURED_COLUMNS, _measured_rows(findings)),
    ]
    return [table for table in tables if table.rows]


def _plan_tables(findings: Findings) -> list[PageTable]:
    """Return the tables of plans for each hardware, and of predicted against measured times."""
    tables, stems = [], file_stems(each.hardware for each in findings.forecasts)
    for each in findings.forecasts:
        stem, title = stems[each.hardware], each.title
        tables += [
            PageTable(
                f"planned-{stem}",
                f"Every case planned for {title}",
                planned.NOTE,
                planned.COLUMNS,
                planned.planned_rows(each),
            ),
            PageTable(
                f"unfit-{stem}",
                f"What does not fit {title}",
                "",
                planned.TOO_LARGE_COLUMNS,
                planned.too_large_rows(each),
            ),
            PageTable(
                f"unplanned-{stem}",
                f"Not planned for {title}",
                "",
                planned.OTHER_COLUMNS,
                planned.unplanned_rows(each),
            ),
        ]
    stems = file_stems(each.hardware for each in findings.plan_scores)
    for scores in findings.plan_scores:
        title = f"Predicted against measured: {scores.hardware}"
        rows = planned.score_rows(scores)
        tables.append(
            PageTable(
                f"scores-{stems[scores.hardware]}", title, planned.SCORE_NOTE, planned.SCORE_COLUMNS, rows
            )
        )
    return tables


def _machine_rows(findings: Findings) -> list[tuple[str, ...]]:
    """Return every machine peak and floor, under _MACHINE_COLUMNS; a floor has a time and no rate."""
    rows: list[tuple[str, ...]] = []
    for timing in (timing for timing in findings.timings if timing.case.kind != "case"):
        case, what, rates = timing.case, str(timing.case.target), ("", "")
        if case.kind == "ceiling":
            giga, unit, (low, high) = (
                machine_peaks.peak_work(case) / 1e9,
                PEAKS[what],
                timing.interval or (None, None),
            )
            around = f" ({format_number(giga / high)} to {format_number(giga / low)})" if low and high else ""
            rate = f"{format_number(giga / timing.median)} G{unit}/s{around}"
            rates = (f"{format_number(1e3 * giga)} M{unit}", rate)
        dtype = case.dtype if what != "matmul" else f"{case.dtype}, {case.precision} precision"
        rows.append((
            what.replace("_", "-"), str(case.devices), dtype, case.api, *rates, format_time(timing),
            str(len(timing.seconds)),
            describe_environment(findings, timing.environment, timing.honest).strip(" []"),
        ))  # fmt: skip
    return rows


def _measured_rows(findings: Findings) -> list[tuple[str, ...]]:
    """Return every measured case, replicates pooled, under _MEASURED_COLUMNS."""
    baselines = {(s.timing.environment, s.timing.honest, s.timing.case): s for s in findings.baselines}
    overlaps = {id(each.timing): each for each in findings.overlaps}
    eager = {_uncompiled_key(timing): timing for timing in findings.timings if not timing.case.jit}
    rows: list[tuple[str, ...]] = []
    for timing in (timing for timing in findings.timings if timing.case.kind == "case"):
        case, first = timing.case, first_call_seconds(timing)
        baseline = baselines.get((timing.environment, timing.honest, case))
        by_hand, bound = (baseline.by_hand, baseline.bound) if baseline else (None, None)
        errors = (_known_values(timing, name) for name in ("error", "tolerance"))
        rows.append((
            family_name(case), size_name(case), method_of(case).name, _format_split(case), case.api,
            str(case.devices), format_time(timing), str(len(timing.seconds)),
            ", ".join(sorted(set(_known_values(timing, "stop_reason")))),
            format_duration(first) if first else "", format_number(first / timing.median) if first else "",
            _format_megabytes(memory_of(timing)), format_ratio(by_hand.value) if by_hand else "",
            f"{format_percentage(bound.fraction)}: {bound.name}" if bound else "",
            *(f"{max(known):.2g}" if known else "" for known in errors),
            ", ".join(_list_speedups(findings, timing)), _describe_communication(timing),
            _list_remarks(findings, timing, overlaps.get(id(timing)), eager.get(_uncompiled_key(timing))),
        ))  # fmt: skip
    return rows


def _list_remarks(findings: Findings, timing: Timing, overlap: Gain | None, eager: Timing | None) -> str:
    """Return the remarks on a measured case."""
    floor, calls = near_floor(timing), _break_even(timing, eager)
    auto, padded = automatic_blocks(timing.records[0]), padding_share(timing)
    remarks = [
        describe_environment(findings, timing.environment, timing.honest).strip(" []"),
        f"under ten floors: {format_duration(floor)}" if floor else "",
        f"compiling pays after {calls}" if calls else "",
        f"takes {auto}" if auto else "",
        f"{format_percentage(padded)} padding" if padded else "",
        f"without overlap {format_ratio(*overlap.ratio)} as long" if overlap and overlap.ratio else "",
    ]
    return ", ".join(remark for remark in remarks if remark)


def _uncompiled_key(timing: Timing) -> tuple[str, bool, Case]:
    """Return what a case has in common with the same case without jit."""
    return timing.environment, timing.honest, replace(timing.case, jit=False)


def _break_even(timing: Timing, eager: Timing | None) -> str:
    """Return after how many calls compiling has paid off, where the case was also measured without."""
    calls = break_even_calls(timing, eager) if eager and timing.case.jit else None
    return count_of(calls, "call") if calls else ""


def _format_split(case: Case) -> str:
    """Return the split of a case for a cell."""
    words = ["" if case.api == "jit" else case.split, case.mesh, "overlapped" if case.overlap else None]
    return " ".join(word for word in words if word)


def _format_megabytes(value: float | None) -> str:
    """Return bytes in one unit, so that a column can be sorted."""
    return f"{format_number(value / 1e6)} MB" if value else ""


def _describe_communication(timing: Timing) -> str:
    """Return what a device sends in a call, and in which collectives."""
    record = timing.records[0]
    kinds = ", ".join(f"{count} {kind}" for kind, count in (record.collectives or {}).items() if count)
    return (
        f"{_format_megabytes(record.collective_bytes)} in {kinds}"
        if record.collective_bytes and kinds
        else ""
    )


def _list_speedups(findings: Findings, timing: Timing) -> list[str]:
    """Return the speed-ups of a case by the kinds of its curves."""
    points = findings.points_of(timing)
    return [
        f"{kind} {format_ratio(p.speedup, p.speedup_low, p.speedup_high)}{relative_to(p.baseline_devices)}"
        for kind, p in points.items()
    ]


def _known_values(timing: Timing, name: str) -> list[Any]:
    return [value for record in timing.records if (value := getattr(record, name)) is not None]


def _law_rows(findings: Findings) -> list[tuple[str, ...]]:
    rows = []
    for curve, fitted in findings.scaling_fits:
        karp = karp_flatt(curve.points[-1]) if curve.kind == "strong" else None
        for law in fitted:
            parts = (_format_estimate(law.parts.get(name)) for name in ("serial", "contention", "coherency"))
            ends = (
                (format_ratio(law.limit), format_number(law.peak) if law.peak else "")
                if law.determined
                else ("", "")
            )
            rows.append((
                f"{curve.kind}: {curve.name}{describe_environment(findings, curve.environment)}", law.name,
                "best" if law.best else "", *parts, *ends, f"{law.spread:.1%}", _format_estimate(karp),
            ))  # fmt: skip
    return rows


def _format_estimate(estimate: Estimate | None) -> str:
    """Return a part of a law with three digits after the point."""
    if estimate is None:
        return ""
    value, low, high = estimate
    if not is_share_determined(low, high):
        return format_share(value, low, high)
    digits = 3 if abs(value) >= 0.001 or not value else 6
    around = "" if low is None or high is None else f" ({low:.{digits}f} to {high:.{digits}f})"
    return f"{value:.{digits}f}{around}"


def _growth_rows(findings: Findings) -> list[tuple[str, ...]]:
    return [
        (
            (
                f"{family_name(growth.sweep.case)}, "
                f"{describe_panel(growth.sweep.case, growth.sweep.held, growth.sweep.honest)}"
            )
            + describe_environment(findings, growth.sweep.environment),
            growth.sweep.swept,
            growth.method.name,
            format_exponent(*growth.exponent),
            str(growth.sizes),
            str(growth.left_out or ""),
        )
        for growth in findings.size_exponents
    ]


def _describe_program(case: Case) -> str:
    return f"{method_of(case).without_memory_setting.name}, {describe_call(case)}"


def _pareto_rows(findings: Findings) -> list[tuple[str, ...]]:
    """Return every memory setting of every program, the smallest first, then those that did not fit."""
    rows: list[tuple[str, ...]] = []
    for front in findings.pareto_fronts:
        program = (
            f"{family_name(front.case)} {size_name(front.case)}",
            _describe_program(front.case),
            str(front.case.devices),
        )
        remark = describe_environment(findings, front.environment).strip(" []")
        for setting in front.settings:
            remarks = [
                remark,
                f"takes {auto}" if (auto := automatic_blocks(setting.timing.records[0])) else "",
            ]
            times = (
                ""
                if setting is front.fastest
                else format_ratio(*time_ratio(setting.timing, front.fastest.timing))
            )
            share = format_percentage(setting.memory / front.fastest.memory)
            rows.append((
                *program, setting.name, _format_megabytes(setting.memory), share, format_time(setting.timing),
                times, "on it" if setting.best else "", ", ".join(word for word in remarks if word),
            ))  # fmt: skip
        for record in front.not_fitting:
            rows.append(
                (
                    *program,
                    memory_setting_name(record.case),
                    "",
                    "",
                    "",
                    "",
                    "",
                    f"did not fit: {record.text or record.reason}",
                )
            )
    return rows


def _mesh_rows(findings: Findings) -> list[tuple[str, ...]]:
    """Return every mesh of every program and number of devices, the fastest first."""
    rows: list[tuple[str, ...]] = []
    for each in findings.mesh_comparisons:
        for timing, times in each.rows:
            first = timing is each.rows[0][0]
            padded = padding_share(timing)
            rows.append((
                f"{family_name(each.case)} {size_name(each.case)}",
                f"{method_of(each.case).name}, {each.case.api}", str(each.case.devices),
                mesh_name(timing.case), format_time(timing), "" if first else format_ratio(*times),
                ("fastest" if each.distinguished else "ahead, not distinguished") if first else "",
                format_percentage(padded) if padded else "", _describe_communication(timing),
                describe_environment(findings, each.environment, each.honest).strip(" []"),
            ))  # fmt: skip
    return rows


def _sparse_rows(findings: Findings) -> list[tuple[str, ...]]:
    """Return every timing with colored seeds, its stages, and the fastest method with all seeds."""
    rows: list[tuple[str, ...]] = []
    for each in findings.coloring_gains:
        timing, record, dense = each.timing, each.timing.records[0], each.other
        spent = (
            stage_seconds(timing, "detect_seconds"),
            stage_seconds(timing, "color_seconds"),
            compiling_seconds(timing),
            first_call_seconds(timing),
        )
        colors = " + ".join(f"{count} {kind}" for kind, count in (record.colors or {}).items() if count)
        rows.append((
            f"{family_name(timing.case)} {size_name(timing.case)}", method_of(timing.case).name,
            str(timing.case.devices), f"{record.nonzeros:,}" if record.nonzeros is not None else "", colors,
            *("" if seconds is None else format_duration(seconds) for seconds in spent), format_time(timing),
            f"{method_of(dense.case).name}, {format_duration(dense.median)}" if dense else "not measured",
            format_ratio(*each.ratio) if each.ratio else "",
            "" if dense is None else count_of(each.break_even, "evaluation") if each.break_even else "never",
            describe_environment(findings, timing.environment, timing.honest).strip(" []"),
        ))  # fmt: skip
    return rows


class EnvironmentSummary(NamedTuple):
    """An environment: its digest, its number of records in words, and its facts."""

    digest: str
    cases: str
    rows: tuple[tuple[str, str], ...]


def describe_environments(findings: Findings) -> list[EnvironmentSummary]:
    """Return for each environment the number of records, when they were measured, and its facts."""
    summaries = []
    for digest in findings.environments:
        records = [record for record in findings.records if record.setting == digest]
        started = sorted(record.started_at for record in records if record.started_at)
        cells = (cell for record in records for cell in environment_columns(record.environment))
        facts = group_by((cell for cell in cells if cell[1] and cell[0] != "load"), lambda cell: cell[0])
        rows = [
            (name, _join_values(list(dict.fromkeys(v for _, v in cells)))) for name, cells in facts.items()
        ]
        rows += [("first case started", started[0]), ("last case started", started[-1])] if started else []
        summaries.append(EnvironmentSummary(digest, count_of(len(records), "record"), tuple(rows)))
    return summaries


def _join_values(values: Sequence[str]) -> str:
    """Return values in a row; of many, the first and the number of the others."""
    more = len(values) - _MOST_VALUES
    return "; ".join(values[:_MOST_VALUES]) + (f"; and {count_of(more, 'other')}" if more > 0 else "")
