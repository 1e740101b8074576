"""Collapsed tables of the report: measured and failed cases, lint, plans, scaling laws, sparsity, machine."""

from collections.abc import Iterable, Sequence
from typing import Any

from scaling.analysis import lint, published_results
from scaling.analysis.answer import PEER_COLUMNS, peer_rows
from scaling.analysis.cases import family_name, group_by, method_of, relative_to
from scaling.analysis.curves import CurvePoint, format_relative
from scaling.analysis.dataframe import environment_columns
from scaling.analysis.estimate_text import format_exponent, format_percentage, format_ratio, format_share
from scaling.analysis.findings import Findings, describe_environment
from scaling.analysis.forecast import Forecast, format_efficiency
from scaling.analysis.ratios import Estimate
from scaling.analysis.scaling_fits import karp_flatt
from scaling.analysis.timings import (
    SHORT,
    Timing,
    automatic_blocks,
    break_even_calls,
    compiling_seconds,
    first_call_seconds,
    format_time,
    memory_of,
    near_floor,
    padding_share,
    sparsity_seconds,
)
from scaling.core.case import PEAKS, Case, label
from scaling.core.formatting import count_of, format_bytes, format_duration, format_number
from scaling.core.record import REASONS, Record
from scaling.options import machine_peaks
from scaling.report.labels import describe_panel, file_stems
from scaling.report.text_table import Table, join_words, make_table

_MAX_VALUES = 6  # shown of an environment fact, such as the jobs


def folded_tables(findings: Findings) -> list[Table]:
    """Return the tables of the collapsed page sections in the order of the page. Empty tables are omitted."""
    tables = [
        measured_table(findings),
        unmeasured_table(findings),
        Table("review", "Would a reviewer accept it?", "", lint.COLUMNS, lint.lint_rows(findings)),
        *_plan_tables(findings),
        Table("published", "Published and measured", "Published numbers and those measured here.",
              published_results.COLUMNS, published_results.published_rows(findings)),
        _law_table(findings),
        _growth_table(findings),
        _sparse_table(findings),
        Table("systems", "Other systems", "PyTorch and others, compared with the fastest mode of JAX.",
              PEER_COLUMNS, peer_rows(findings)),
        _machine_table(findings),
        environment_table(findings),
        make_table("damaged", "Damaged lines", "These lines are ignored; their cases run again.",
                   findings.damaged, {"line": str}),
    ]  # fmt: skip
    return [table for table in tables if table.rows]


def case_anchor(timing: Timing) -> str:
    """Return the HTML anchor of a measured case, which identifies its table row and its detail panel."""
    return f"case-{timing.case.key}-{timing.environment}" + ("" if timing.honest else "-shared")


def measured_timings(findings: Findings) -> list[Timing]:
    """Return the timings of all cases, without the benchmarks of machine peaks and of empty calls."""
    return [timing for timing in findings.timings if timing.case.kind == "case"]


def measured_table(findings: Findings) -> Table:
    """Return a table with one row per measured case: time, speed-up, efficiency, memory and remarks."""
    timings = measured_timings(findings)
    baselines = {(b.timing.environment, b.timing.honest, b.timing.case): b for b in findings.baselines}
    baseline_of = {id(t): baselines.get((t.environment, t.honest, t.case)) for t in timings}

    def ratio_cell(field: str) -> Any:
        return lambda timing: _format_curve_ratios(findings, timing, field)

    def by_hand(timing: Timing) -> str | None:
        baseline = baseline_of[id(timing)]
        return format_ratio(baseline.by_hand.value) if baseline and baseline.by_hand else None

    def of_the_roof(timing: Timing) -> str | None:
        baseline = baseline_of[id(timing)]
        bound = baseline.bound if baseline else None
        return f"{format_percentage(bound.fraction)}: {bound.name}" if bound else None

    note = (
        "One row for each case; its link opens its samples, stages and memory. Speed-up and efficiency are "
        "relative to the same program on one device, or on the fewest devices that were measured. One-device "
        "program: the speed-up over the fastest plain jit program on one device. By hand: the time divided "
        "by that of the handwritten derivative. Of the roof: the shortest time that the peak rates of the "
        "machine allow, divided by the measured time. table.md has the same rows; table.csv has one row for "
        "each record in full precision."
    )
    return make_table("measured", "Every measured case", note, timings, {
        "case": lambda timing: label(timing.case),
        "time": format_time,
        "devices": lambda timing: timing.case.devices,
        "mode": lambda timing: method_of(timing.case).name,
        "samples": lambda timing: len(timing.seconds),
        "speed-up": ratio_cell("speedup"),
        "efficiency": ratio_cell("efficiency"),
        "one-device program": ratio_cell("against_jit"),
        "by hand": by_hand,
        "of the roof": of_the_roof,
        "memory": lambda timing: _format_megabytes(memory_of(timing)),
        "first call": lambda timing: _format_seconds(first_call_seconds(timing)),
        "remarks": _make_remark_function(findings, timings),
    }, [case_anchor(timing) for timing in timings])  # fmt: skip


def _format_curve_ratios(findings: Findings, timing: Timing, field: str) -> str:
    """Return a ratio of a case on its scaling curves as text, such as '3.80x, weak 3.50x'.

    Args:
        field: The ratio: 'speedup', 'efficiency', or 'against_jit' for the speed-up over the fastest jit
            program on one device, which is returned for one curve only.
    """
    points = findings.points_of(timing)
    sign = "" if field == "efficiency" else "x"
    words = {kind: _format_point(point, field, sign) for kind, point in points.items()}
    if field == "against_jit":
        return next(iter(words.values()), "")
    return ", ".join(word if kind == "strong" else f"{kind} {word}" for kind, word in words.items())


def _format_point(point: CurvePoint, field: str, sign: str) -> str:
    if field == "against_jit":
        return format_ratio(*point.against_jit) if point.against_jit else ""
    return format_relative(point, getattr(point, field), sign) + relative_to(point.baseline_devices)


def _make_remark_function(findings: Findings, timings: Iterable[Timing]) -> Any:
    overlaps = {id(each.timing): each for each in findings.overlaps}
    eager = {_key_without_jit(timing): timing for timing in timings if not timing.case.jit}

    def describe(timing: Timing) -> str:
        floor, record = near_floor(timing), timing.records[0]
        auto, padded, overlap = automatic_blocks(record), padding_share(timing), overlaps.get(id(timing))
        other = eager.get(_key_without_jit(timing)) if timing.case.jit else None
        calls = break_even_calls(timing, other) if other else None
        return join_words(
            describe_environment(findings, timing.environment, timing.honest).strip(" []"),
            floor and f"{SHORT}: {format_duration(floor)}",
            calls and f"compiling pays after {count_of(calls, 'call')}",
            auto and f"takes {auto}",
            padded and f"{format_percentage(padded)} padding",
            overlap and overlap.ratio and f"without overlap {format_ratio(*overlap.ratio)} as long",
            _describe_collectives(record),
        )

    return describe


def _key_without_jit(timing: Timing) -> tuple:
    return timing.environment, timing.honest, label(timing.case, ["jit"])


def _describe_collectives(record: Record) -> str:
    """Return text such as 'sends 1.2 MB in 2 all-reduce', or '' if the program contains no collectives."""
    kinds = [f"{count} {kind}" for kind, count in (record.collectives or {}).items() if count]
    return f"sends {_format_megabytes(record.collective_bytes)} in {' and '.join(kinds)}" if kinds else ""


def _format_megabytes(value: float | None) -> str:
    return f"{format_number(value / 1e6)} MB" if value else ""  # one unit, to sort the column


def _format_seconds(seconds: float | None) -> str:
    return "" if seconds is None else format_duration(seconds)


def unmeasured_table(findings: Findings) -> Table:
    """Return a table of the failed, skipped and missing cases, with the reason for each case."""
    records = sorted(
        (r for r in findings.records if r.status != "ok"), key=lambda r: (r.status, r.reason or "")
    )
    cells = [
        (r.status, describe_reason(r), label(r.case) + describe_environment(findings, r.setting), r.text)
        for r in records
    ]
    cells += [("missing", "not run yet", case, "") for case in findings.missing]
    note = "Cases without a time, and why. The same command runs failed and missing ones again."
    return make_table("unmeasured", "Failed, skipped and missing", note, cells, {
        "case": lambda row: row[2],
        "status": lambda row: row[0],
        "reason": lambda row: row[1],
        "what happened": lambda row: row[3],
    })  # fmt: skip


def describe_reason(record: Record) -> str:
    """Return the reason code of a failed or skipped case and its explanation, separated by a colon."""
    return f"{record.reason}: {REASONS.get(record.reason, '')}" if record.reason else "no reason given"


def _plan_tables(findings: Findings) -> list[Table]:
    tables, stems = list[Table](), file_stems(each.hardware for each in findings.forecasts)
    for each in findings.forecasts:
        tables += [_planned_table(each, stems[each.hardware]), _unplanned_table(each, stems[each.hardware])]
    stems = file_stems(each.hardware for each in findings.plan_scores)
    note = "The same cases planned and measured. Above 1: it was predicted to take longer than it did."
    for scores in findings.plan_scores:
        title, parts = f"Errors of the predictions: {scores.hardware}", (scores.total, *scores.parts)
        tables.append(make_table(f"scores-{stems[scores.hardware]}", title, note, parts, {
            "workload": lambda part: part.workload or "all",
            "mode": lambda part: part.method.name if part.method else "all",
            "cases": lambda part: len(part.pairs),
            "predicted / measured, median": lambda part: format_ratio(part.median_ratio),
            "median absolute error": lambda part: format_percentage(part.error),
            "worst": lambda part: format_ratio(part.worst),
            "within the interval": lambda part: format_percentage(part.coverage) if part.coverage else "none",
        }))  # fmt: skip
    return tables


def _planned_table(forecast: Forecast, stem: str) -> Table:
    efficiency = {p.record.key: p for curve in forecast.curves if len(curve.points) > 1 for p in curve.points}
    planned = sorted((r for r in forecast.records if r.status == "planned"), key=_planned_sort_key)
    note = (
        "Predicted, not measured. Time of a call with the 95 % interval of the prediction; efficiency "
        "relative to the fewest devices that were planned. Communication is a fraction of the time. By "
        "formula: more devices than programs were compiled for."
    )

    def time(record: Record) -> str:
        predicted = record.predicted or {}
        return format_duration(*(predicted[name] for name in ("seconds", "low", "high"))) if predicted else ""

    def part(name: str) -> Any:
        return lambda record: _format_time_share((record.predicted or {}).get(name), record)

    return make_table(f"planned-{stem}", f"Every case planned for {forecast.title}", note, planned, {
        "case": lambda record: label(record.case),
        "devices": lambda record: record.case.devices,
        "predicted time": time,
        "efficiency": lambda r: format_efficiency(efficiency[r.key]) if r.key in efficiency else "",
        "bound by": lambda record: (record.predicted or {}).get("bound"),
        "communication": part("communication"),
        "waiting": part("waiting"),
        "memory": _describe_memory,
        "by": lambda record: (record.predicted or {}).get("by"),
        "remarks": lambda record: record.text,
    })  # fmt: skip


def _planned_sort_key(record: Record) -> tuple[str, int]:
    return label(record.case, ["devices"]), record.case.devices


def _format_time_share(seconds: float | None, record: Record) -> str:
    """Return a part of a predicted time as a percentage of the whole, such as '12 %'.

    Args:
        seconds: The part, such as the time for communication. If it is None, '' is returned.
        record: The record of the planned case, which contains the predicted time of one call.
    """
    total = (record.predicted or {}).get("seconds")
    return "" if seconds is None or not total else format_percentage(seconds / total) if seconds else "none"


def _describe_memory(record: Record) -> str:
    """Return the peak memory of a device as text, such as '3.00 GB (12 %)'.

    The percentage is relative to the memory capacity of the device. It is omitted if the capacity is unknown.
    """
    if record.peak_bytes is None:
        return ""
    share = record.peak_bytes / record.capacity_bytes if record.capacity_bytes else None
    return format_bytes(record.peak_bytes) + (f" ({format_percentage(share)})" if share is not None else "")


def _unplanned_table(forecast: Forecast, stem: str) -> Table:
    rest = sorted((r for r in forecast.records if r.status in ("failed", "skipped")), key=_planned_sort_key)
    title = f"Not planned for {forecast.title}: what does not fit or failed"
    return make_table(f"unplanned-{stem}", title, "", rest, {
        "case": lambda record: label(record.case),
        "status": lambda record: record.status,
        "reason": describe_reason,
        "memory": _describe_memory,
        "what happened": lambda record: record.text,
    })  # fmt: skip


def _law_table(findings: Findings) -> Table:
    fits = [(curve, law) for curve, fitted in findings.scaling_fits for law in fitted]
    note = (
        "Fitted to the logarithms of the times; the best law is drawn. Intervals are 95 %. Karp-Flatt: the "
        "serial fraction computed from the speed-up on the most devices alone."
    )

    def part(name: str) -> Any:
        return lambda fit: _format_estimate(fit[1].parts.get(name))

    return make_table("laws", "Laws of scaling", note, fits, {
        "curve": lambda fit: f"{fit[0].name}{describe_environment(findings, fit[0].environment)}",
        "kind": lambda fit: fit[0].kind,
        "law": lambda fit: fit[1].name + (", best" if fit[1].best else ""),
        "serial": part("serial"),
        "contention": part("contention"),
        "coherency": part("coherency"),
        "largest speed-up": lambda fit: format_ratio(fit[1].limit) if fit[1].limit and fit[1].determined else "",
        "at devices": lambda fit: format_number(fit[1].peak) if fit[1].determined and fit[1].peak else "",
        "off by": lambda fit: f"{fit[1].spread:.1%}",
        "Karp-Flatt": lambda fit: _format_estimate(
            karp_flatt(fit[0].points[-1]) if fit[0].kind == "strong" else None
        ),
    })  # fmt: skip


def _format_estimate(estimate: Estimate | None) -> str:
    return "" if estimate is None else format_share(*estimate)


def _growth_table(findings: Findings) -> Table:
    note = "Time grows with the size to the power of the exponent. "
    note += "Left out: sizes that take less than ten empty calls."
    return make_table("growth", "Growth with size", note, findings.size_exponents, {
        "problem": lambda g: join_words(
            family_name(g.sweep.case), describe_panel(g.sweep.case, g.sweep.held, g.sweep.honest)
        ) + describe_environment(findings, g.sweep.environment),
        "swept": lambda growth: growth.sweep.swept,
        "mode": lambda growth: growth.method.name,
        "exponent": lambda growth: format_exponent(*growth.exponent),
        "sizes": lambda growth: growth.sizes,
        "left out": lambda growth: growth.left_out or "",
    })  # fmt: skip


def _sparse_table(findings: Findings) -> Table:
    note = (
        "Colored seeds, which yield all nonzeros, compared with one seed for each row or column. Pays after: "
        "the number of evaluations after which colored seeds are faster in total, with detection, coloring "
        "and compilation."
    )

    def pays(each: Any) -> str:
        if each.other is None:
            return ""
        return count_of(each.break_even, "evaluation") if each.break_even else "never"

    return make_table("sparsity", "Sparse derivatives", note, findings.coloring_gains, {
        "case": lambda g: label(g.timing.case) + describe_environment(findings, g.timing.environment),
        "nonzeros": lambda each: _format_count(each.timing.records[0].nonzeros),
        "seeds": lambda each: each.seeds,
        "detecting and colouring": lambda each: _format_seconds(sparsity_seconds(each.timing)),
        "compiling": lambda each: _format_seconds(compiling_seconds(each.timing)),
        "time": lambda each: format_time(each.timing),
        "all seeds": lambda g: join_words(method_of(g.other.case).name, format_duration(g.other.median))
        if g.other else "not measured",
        "times as long": lambda each: format_ratio(*each.ratio) if each.ratio else "",
        "pays after": pays,
    })  # fmt: skip


def _format_count(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


def _machine_table(findings: Findings) -> Table:
    def rate(timing: Timing) -> str:
        if timing.case.kind != "ceiling":
            return ""
        giga, (low, high) = machine_peaks.peak_work(timing.case) / 1e9, timing.interval or (None, None)
        interval = f" ({format_number(giga / high)} to {format_number(giga / low)})" if low and high else ""
        return f"{format_number(giga / timing.median)} G{PEAKS[str(timing.case.target)]}/s{interval}"

    def dtype(case: Case) -> str:
        return case.dtype if case.target != "matmul" else f"{case.dtype}, {case.precision} precision"

    timings = [timing for timing in findings.timings if timing.case.kind != "case"]
    note = "Peak rates of a device, and the latency of an empty call."
    return make_table("machine", "What the machine can do", note, timings, {
        "what": lambda timing: str(timing.case.target).replace("_", "-"),
        "devices": lambda timing: timing.case.devices,
        "dtype": lambda timing: dtype(timing.case),
        "api": lambda timing: timing.case.api,
        "a device": rate,
        "time": format_time,
        "samples": lambda timing: len(timing.seconds),
        "remarks": lambda t: describe_environment(findings, t.environment, t.honest).strip(" []"),
    })  # fmt: skip


def environment_table(findings: Findings) -> Table:
    """Return a table with one row per environment fact (such as the driver) and a column per environment."""
    facts: dict[str, dict[str, str]] = {}
    for digest in findings.environments:
        records = [record for record in findings.records if record.setting == digest]
        started = sorted(record.started_at for record in records if record.started_at)
        cells = (cell for record in records for cell in environment_columns(record.environment))
        known = group_by((cell for cell in cells if cell[1] and cell[0] != "load"), lambda cell: cell[0])
        values = {name: _join_first(list(dict.fromkeys(v for _, v in of))) for name, of in known.items()}
        values |= {"records": str(len(records))}
        values |= {"first case started": started[0], "last case started": started[-1]} if started else {}
        for name, value in values.items():
            facts.setdefault(name, {})[digest] = value
    columns: dict[str, Any] = {"environment": lambda name: name}
    columns |= {digest: lambda name, of=digest: facts[name].get(of) for digest in findings.environments}
    return make_table("environments", "Where it was measured", "", facts, columns)


def _join_first(values: Sequence[str]) -> str:
    """Join the first six values with semicolons, and append the number of the remaining values as text."""
    more = len(values) - _MAX_VALUES
    return "; ".join(values[:_MAX_VALUES]) + (f"; and {count_of(more, 'other')}" if more > 0 else "")
