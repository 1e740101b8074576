"""Collapsed tables of the report: measured and failed cases, lint, plans, scaling laws, sparsity, machine."""

from collections.abc import Mapping, Sequence
from typing import Any

from scaling.analysis import lint, published_results
from scaling.analysis.baselines import Baseline, EfficiencyBreakdown
from scaling.analysis.cases import group_by
from scaling.analysis.curves import Curve, CurvePoint, format_relative
from scaling.analysis.environments import environment_columns
from scaling.analysis.estimate import Estimate, format_exponent, format_percentage, format_ratio, format_share
from scaling.analysis.findings import Findings
from scaling.analysis.forecast import Forecast, format_efficiency
from scaling.analysis.growth import SizeExponent
from scaling.analysis.plan_scores import PlanScores
from scaling.analysis.scaling_fits import ScalingFit, karp_flatt
from scaling.analysis.setting_comparison import Gain
from scaling.analysis.timings import (
    SHORT,
    SPARSITY_STAGES,
    Timing,
    automatic_blocks,
    break_even_calls,
    first_call_seconds,
    format_time,
    memory_of,
    near_floor,
    padding_share,
    stage_seconds,
    time_ratio,
)
from scaling.core.case import PEAKS, label
from scaling.core.formatting import count_of, format_bytes, format_duration, format_interval, format_number
from scaling.core.record import COMPILING_STAGES, REASONS, Record
from scaling.options import machine_peaks
from scaling.report.answer_tables import device_table, name_with_time, problem_name
from scaling.report.text import Table, file_stems, join_words, make_table

_MAX_VALUES = 6  # number of values shown per environment fact, such as the jobs


def folded_tables(findings: Findings) -> list[Table]:
    """Return the tables for the collapsed page sections, in page order. Tables without rows are omitted."""
    tables = [
        device_table(findings),
        measured_table(findings),
        _unmeasured_table(findings),
        make_table("review", "Would a reviewer accept it?", "", lint.lint_rows(findings)),
        *_plan_tables(findings),
        make_table("published", "Published and measured", "Published numbers and those measured here.",
                   published_results.published_rows(findings)),
        _law_table(findings),
        _loss_table(findings),
        _growth_table(findings),
        _sparse_table(findings),
        _peer_table(findings),
        _machine_table(findings),
        environment_table(findings),
        make_table("damaged", "Damaged lines", "These lines are ignored; their cases run again.",
                   ({"line": line} for line in findings.damaged)),
    ]  # fmt: skip
    return [table for table in tables if table.rows]


def case_anchor(timing: Timing) -> str:
    """Return the HTML anchor that identifies the table row and the detail panel of a measured case."""
    return f"case-{timing.case.key}-{timing.environment}" + ("" if timing.honest else "-shared")


def measured_timings(findings: Findings) -> list[Timing]:
    """Return the timings of all measured cases except the benchmarks of peak rates and empty calls."""
    return [timing for timing in findings.timings if timing.case.kind == "case"]


def measured_table(findings: Findings) -> Table:
    """Return a table with one row per measured case: time, speed-up, efficiency, memory and remarks."""
    timings = measured_timings(findings)
    baselines = {id(each.timing): each for each in findings.baselines}
    overlaps = (sorted(c.timings, key=lambda t: t.case.overlap) for c in findings.comparisons["overlap"])
    gains = {id(overlapped): time_ratio(plain, overlapped) for plain, overlapped in overlaps}
    eager = {_key_without_jit(timing): timing for timing in timings if not timing.case.jit}
    note = (
        "One row for each case; its link opens its samples, stages and memory. Speed-up and efficiency are "
        "relative to the same program on one device, or on the fewest devices that were measured. One-device "
        "program: the speed-up over the fastest plain jit program on one device. By hand: the time divided "
        "by that of the handwritten derivative. Of the roof: the shortest time that the peak rates of the "
        "machine allow, divided by the measured time. table.md has the same rows; table.csv has one row for "
        "each record in full precision."
    )

    def cells(timing: Timing) -> dict[str, object]:
        case, baseline = timing.case, baselines[id(timing)]
        points = {kind: point for kind, (_, point) in findings.places_of(timing).items()}
        against_jit = next((point.against_jit for point in points.values()), None)
        by_hand, bound = baseline.by_hand, baseline.bound
        without_jit = eager.get(_key_without_jit(timing)) if case.jit else None
        return {
            "case": label(case),
            "time": format_time(timing),
            "devices": case.devices,
            "mode": timing.method.name,
            "samples": len(timing.seconds),
            "speed-up": _format_ratios(points, "speedup", "x"),
            "efficiency": _format_ratios(points, "efficiency", ""),
            "one-device program": against_jit and format_ratio(*against_jit),
            "by hand": by_hand and format_ratio(by_hand.value),
            "of the roof": bound and f"{format_percentage(bound.fraction)}: {bound.name}",
            "memory": _format_megabytes(memory_of(timing)),
            "first call": _format_seconds(first_call_seconds(timing)),
            "remarks": _describe_remarks(findings, timing, without_jit, gains.get(id(timing))),
        }

    anchors = [case_anchor(timing) for timing in timings]
    return make_table("measured", "Every measured case", note, map(cells, timings), anchors)


def _format_ratios(points: Mapping[str, CurvePoint], field: str, sign: str) -> str:
    words = {
        kind: format_relative(point, getattr(point, field), sign) + point.relative
        for kind, point in points.items()
    }
    return ", ".join(word if kind == "strong" else f"{kind} {word}" for kind, word in words.items())


def _describe_remarks(
    findings: Findings, timing: Timing, eager: Timing | None, overlap: Estimate | None
) -> str:
    floor, record, padded = near_floor(timing), timing.record, padding_share(timing)
    auto, calls = automatic_blocks(record), break_even_calls(timing, eager) if eager else None
    kinds = " and ".join(f"{count} {kind}" for kind, count in (record.collectives or {}).items() if count)
    return join_words(
        findings.suffix(timing.environment, timing.honest).strip(" []"),
        floor and f"{SHORT}: {format_duration(floor)}",
        calls and f"compiling pays after {count_of(calls, 'call')}",
        auto and f"takes {auto}",
        padded and f"{format_percentage(padded)} padding",
        overlap and f"without overlap {format_ratio(*overlap)} as long",
        kinds and f"sends {_format_megabytes(record.collective_bytes)} in {kinds}",
    )


def _key_without_jit(timing: Timing) -> tuple:
    return timing.environment, timing.honest, label(timing.case, ["jit"])


def _format_megabytes(value: float | None) -> str:
    return f"{format_number(value / 1e6)} MB" if value else ""  # always MB, so that columns can be sorted


def _format_seconds(seconds: float | None) -> str:
    return "" if seconds is None else format_duration(seconds)


def _unmeasured_table(findings: Findings) -> Table:
    bad = [record for record in findings.records if record.status != "ok"]
    rows = [
        _unmeasured_cells(record, findings.suffix(record.setting))
        for record in sorted(bad, key=lambda record: (record.status, record.reason or ""))
    ]
    rows += [
        {"case": case, "status": "missing", "reason": "not run yet", "memory": "", "what happened": ""}
        for case in findings.missing
    ]
    note = "Cases without a time, and why. The same command runs failed and missing ones again."
    return make_table("unmeasured", "Failed, skipped and missing", note, rows)


def _unmeasured_cells(record: Record, where: str = "") -> dict[str, object]:
    return {
        "case": label(record.case) + where,
        "status": record.status,
        "reason": _describe_reason(record),
        "memory": _describe_memory(record),
        "what happened": record.text,
    }


def _describe_reason(record: Record) -> str:
    return f"{record.reason}: {REASONS.get(record.reason, '')}" if record.reason else "no reason given"


def _plan_tables(findings: Findings) -> list[Table]:
    tables, stems = list[Table](), file_stems(each.hardware for each in findings.forecasts)
    for each in findings.forecasts:
        stem, without_time = stems[each.hardware], _planned_records(each, "failed", "skipped")
        title = f"Not planned for {each.title}: what does not fit or failed"
        tables.append(_planned_table(each, stem))
        tables.append(make_table(f"unplanned-{stem}", title, "", map(_unmeasured_cells, without_time)))
    stems = file_stems(each.hardware for each in findings.plan_scores)
    return [*tables, *(_score_table(each, stems[each.hardware]) for each in findings.plan_scores)]


def _score_table(scores: PlanScores, stem: str) -> Table:
    rows = (
        {
            "workload": part.workload or "all",
            "mode": part.method.name if part.method else "all",
            "cases": len(part.pairs),
            "predicted / measured, median": format_ratio(part.median_ratio),
            "median absolute error": format_percentage(part.error),
            "worst": format_ratio(part.worst),
            "within the interval": format_percentage(part.coverage) if part.coverage else "none",
        }
        for part in (scores.total, *scores.parts)
    )
    note = "The same cases planned and measured. Above 1: it was predicted to take longer than it did."
    return make_table(f"scores-{stem}", f"Errors of the predictions: {scores.hardware}", note, rows)


def _planned_table(forecast: Forecast, stem: str) -> Table:
    points = {p.record.key: p for curve in forecast.curves if len(curve.points) > 1 for p in curve.points}
    note = (
        "Predicted, not measured. Time of a call with the 95 % interval of the prediction; efficiency "
        "relative to the fewest devices that were planned. Communication is a fraction of the time. By "
        "formula: more devices than programs were compiled for."
    )

    def cells(record: Record) -> dict[str, object]:
        predicted, point = record.predicted or {}, points.get(record.key)
        times = [predicted[name] for name in ("seconds", "low", "high")] if predicted else []
        return {
            "case": label(record.case),
            "devices": record.case.devices,
            "predicted time": format_duration(*times) if times else "",
            "efficiency": point and format_efficiency(point),
            "bound by": predicted.get("bound"),
            "communication": _format_time_share(predicted, "communication"),
            "waiting": _format_time_share(predicted, "waiting"),
            "memory": _describe_memory(record),
            "by": predicted.get("by"),
            "remarks": record.text,
        }

    rows = map(cells, _planned_records(forecast, "planned"))
    return make_table(f"planned-{stem}", f"Every case planned for {forecast.title}", note, rows)


def _planned_records(forecast: Forecast, *statuses: str) -> list[Record]:
    records = (record for record in forecast.records if record.status in statuses)
    return sorted(records, key=lambda record: (label(record.case, ["devices"]), record.case.devices))


def _format_time_share(predicted: Mapping[str, Any], name: str) -> str:
    seconds, total = predicted.get(name), predicted.get("seconds")
    return "" if seconds is None or not total else format_percentage(seconds / total) if seconds else "none"


def _describe_memory(record: Record) -> str:
    if record.peak_bytes is None:
        return ""
    share = (
        f" ({format_percentage(record.peak_bytes / record.capacity_bytes)})" if record.capacity_bytes else ""
    )
    return format_bytes(record.peak_bytes) + share


def _law_table(findings: Findings) -> Table:
    note = (
        "Fitted to the logarithms of the times; the best law is drawn. Intervals are 95 %. Karp-Flatt: the "
        "serial fraction computed from the speed-up on the most devices alone."
    )

    def cells(curve: Curve, law: ScalingFit) -> dict[str, object]:
        names, last = ("serial", "contention", "coherency"), curve.points[-1]
        parts = {name: format_share(*law.parts[name]) if name in law.parts else "" for name in names}
        serial = karp_flatt(last) if curve.kind == "strong" else None
        return {
            "curve": f"{curve.name}{findings.suffix(curve.environment)}",
            "kind": curve.kind,
            "law": law.name + (", best" if law.best else ""),
            **parts,
            "largest speed-up": format_ratio(law.limit) if law.limit is not None and law.determined else "",
            "at devices": format_number(law.peak) if law.determined and law.peak else "",
            "off by": f"{law.spread:.1%}",
            "Karp-Flatt": serial and format_share(*serial),
        }

    rows = (cells(curve, law) for curve, fitted in findings.scaling_fits for law in fitted)
    return make_table("laws", "Laws of scaling", note, rows)


def _loss_table(findings: Findings) -> Table:
    note = (
        "Shares of the device-seconds: the efficiency is the part that does the work of the one-device "
        "program. Communication and imbalance between processes are part of the rest where they are not "
        "known. Left out: cases that take no longer than an empty call."
    )

    def cells(curve: Curve, part: EfficiencyBreakdown) -> dict[str, object]:
        shares = {
            "efficiency": next(p.efficiency.value for p in curve.points if p.devices == part.devices),
            "communication": part.communication,
            "imbalance": part.imbalance,
            "dispatch": part.dispatch,
            "the rest": part.serial,
        }
        return {
            "curve": f"{curve.name}{findings.suffix(curve.environment)}",
            "kind": curve.kind,
            "devices": part.devices,
            **{name: None if share is None else f"{100 * share:.0f} %" for name, share in shares.items()},
        }

    rows = (cells(curve, part) for curve, parts in findings.efficiency_breakdowns for part in parts)
    return make_table("losses", "Where the efficiency goes", note, rows)


def _growth_table(findings: Findings) -> Table:
    note = (
        "Time grows with the size to the power of the exponent. Left out: sizes that take less than ten "
        "empty calls."
    )

    def cells(growth: SizeExponent) -> dict[str, object]:
        sweep = growth.sweep
        return {
            "problem": f"{sweep.family}, {sweep.constants}{findings.suffix(sweep.environment)}",
            "swept": sweep.swept,
            "mode": growth.method.name,
            "exponent": format_exponent(*growth.exponent),
            "sizes": growth.sizes,
            "left out": growth.left_out or "",
        }

    return make_table("growth", "Growth with size", note, map(cells, findings.size_exponents))


def _sparse_table(findings: Findings) -> Table:
    note = (
        "Colored seeds, which yield all nonzeros, compared with one seed for each row or column. Pays after: "
        "the number of evaluations after which colored seeds are faster in total, with detection, coloring "
        "and compilation."
    )

    def cells(gain: Gain) -> dict[str, object]:
        timing, other, nonzeros = gain.timing, gain.other, gain.timing.record.nonzeros
        dense = other and name_with_time(other)
        pays = count_of(gain.break_even, "evaluation") if gain.break_even else "never"
        return {
            "case": label(timing.case) + findings.suffix(timing.environment),
            "nonzeros": "" if nonzeros is None else f"{nonzeros:,}",
            "seeds": gain.seeds,
            "detecting and colouring": _format_seconds(stage_seconds(timing, *SPARSITY_STAGES)),
            "compiling": _format_seconds(stage_seconds(timing, *COMPILING_STAGES)),
            "time": format_time(timing),
            "all seeds": dense or "not measured",
            "times as long": gain.ratio and format_ratio(*gain.ratio),
            "pays after": other and pays,
        }

    return make_table("sparsity", "Sparse derivatives", note, map(cells, findings.coloring_gains))


def _peer_table(findings: Findings) -> Table:
    def cells(baseline: Baseline) -> dict[str, object]:
        timing, jax = baseline.timing, baseline.jax
        return {
            "problem": problem_name(findings, timing),
            "devices": timing.case.devices,
            "system": timing.method.name,
            "time": format_time(timing),
            "JAX's fastest": name_with_time(jax) if jax else "not measured",
            "times as long": baseline.over_jax and format_ratio(*baseline.over_jax),
        }

    rows = (cells(each) for each in findings.baselines if each.timing.case.engine != "jax")
    note = "PyTorch and others, compared with the fastest mode of JAX."
    return make_table("systems", "Other systems", note, rows)


def _machine_table(findings: Findings) -> Table:
    def cells(timing: Timing) -> dict[str, object]:
        case = timing.case
        return {
            "what": str(case.target).replace("_", "-"),
            "devices": case.devices,
            "dtype": case.dtype if case.target != "matmul" else f"{case.dtype}, {case.precision} precision",
            "api": case.api,
            "a device": _format_rate(timing) if case.kind == "ceiling" else "",
            "time": format_time(timing),
            "samples": len(timing.seconds),
            "remarks": findings.suffix(timing.environment, timing.honest).strip(" []"),
        }

    timings = (timing for timing in findings.timings if timing.case.kind != "case")
    note = "Peak rates of a device, and the latency of an empty call."
    return make_table("machine", "What the machine can do", note, map(cells, timings))


def _format_rate(peak: Timing) -> str:
    giga, (low, high) = machine_peaks.peak_work(peak.case) / 1e9, peak.interval or (None, None)
    interval = format_interval(giga / high, giga / low) if low and high else ""
    return f"{format_number(giga / peak.median)} G{PEAKS[str(peak.case.target)]}/s{interval}"


def environment_table(findings: Findings) -> Table:
    """Return a table of hardware and software facts, with one row per fact and one column per environment."""
    facts: dict[str, dict[str, str]] = {}
    for digest in findings.environments:
        records = [record for record in findings.records if record.setting == digest]
        for name, values in _environment_facts(records).items():
            facts.setdefault(name, dict.fromkeys(findings.environments, ""))[digest] = _join_first(values)
    rows = ({"environment": name} | values for name, values in facts.items())
    return make_table("environments", "Where it was measured", "", rows)


def _environment_facts(records: Sequence[Record]) -> dict[str, list[str]]:
    cells = (cell for record in records for cell in environment_columns(record.environment))
    known = group_by((cell for cell in cells if cell[1] and cell[0] != "load"), lambda cell: cell[0])
    facts = {name: list(dict.fromkeys(value for _, value in same)) for name, same in known.items()}
    facts["records"] = [str(len(records))]
    if started := sorted(record.started_at for record in records if record.started_at):
        facts |= {"first case started": [started[0]], "last case started": [started[-1]]}
    return facts


def _join_first(values: Sequence[str]) -> str:
    more = len(values) - _MAX_VALUES
    return "; ".join(values[:_MAX_VALUES]) + (f"; and {count_of(more, 'other')}" if more > 0 else "")
