"""Plan tables: what was planned for other hardware, and predicted against measured times, as rows of
words.
"""

from collections.abc import Iterable
from typing import NamedTuple

from scaling.analysis import forecast as analysis
from scaling.analysis.answer import describe_plan
from scaling.analysis.curves import family_name, size_name
from scaling.analysis.findings import Findings
from scaling.analysis.forecast import Forecast, PredictedPoint
from scaling.analysis.methods import describe_call, method_of
from scaling.analysis.score import PlanScores
from scaling.core.case import Case, label
from scaling.core.formatting import (
    format_bytes,
    format_duration,
    format_number,
    format_percentage,
    format_ratio,
)
from scaling.core.record import REASONS, Record
from scaling.report.labels import file_stems

COLUMNS = (
    "workload", "problem", "mode", "call", "devices", "predicted time", "efficiency", "bound by",
    "communication", "waiting", "operations", "of the program", "bytes", "of the program's kernels", "memory",
    "of capacity", "collectives", "by", "remarks",
)  # fmt: skip
NOTE = (
    "Nothing here was measured. Times are of a call, with the 95 % interval of the prediction; efficiency "
    "is against the fewest devices that were planned; bound by: what most of the kernels' time is for. "
    "Communication and waiting are shares of the time. Of one device: operations as they are counted in "
    "what is asked for, and in the optimised program; bytes, its inputs read once and its result written "
    "once, and what the optimised program's kernels read and write; memory against what a device has; "
    "collectives with the bytes and the devices of each. By formula: more devices than programs were "
    "compiled for."
)
TOO_LARGE_COLUMNS = ("workload", "problem", "mode", "call", "devices", "memory", "of capacity", "remarks")
OTHER_COLUMNS = ("status", "reason", "case", "text")
SCORE_COLUMNS = (
    "workload", "mode", "cases", "predicted / measured, median", "median absolute error", "worst",
    "within the interval",
)  # fmt: skip
SCORE_NOTE = (
    "The same cases on the same kind of device, planned and measured. A ratio above 1: it was predicted to "
    "take longer than it did. What takes under ten empty calls is left out: it says what asking takes."
)
_LETTERS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


class PlanSection(NamedTuple):
    """The section of a page on one plan."""

    anchor: str  # of the section and of its figure
    title: str
    basis: str
    answers: tuple[str, ...]


def plan_sections(findings: Findings) -> list[PlanSection]:
    """Return a section for each hardware, in the order of the forecasts."""
    anchors = file_stems(each.hardware for each in findings.forecasts)
    return [
        PlanSection(
            f"plan-{anchors[each.hardware]}",
            f"Planned for {each.title}",
            describe_plan(each),
            tuple(analysis.plan_answers(each)),
        )
        for each in findings.forecasts
    ]


def leave_out_answers(plans: Iterable[PlanSection], sentences: Iterable[str]) -> list[str]:
    """Return the sentences that are not answers of a plan section."""
    there = {answer for section in plans for answer in section.answers}
    return [sentence for sentence in sentences if sentence not in there]


def planned_rows(forecast: Forecast) -> list[tuple[str, ...]]:
    """Return every planned case, under COLUMNS."""
    curves = (curve for curve in forecast.curves if len(curve.points) > 1)
    efficiency = {point.record.key: point for curve in curves for point in curve.points}
    planned = (record for record in forecast.records if record.status == "planned")
    return [
        (
            *_identify_case(record.case),
            *_time_cells(record, efficiency.get(record.key)),
            *_work_cells(record),
            *_memory_cells(record),
            *_communication_cells(record),
        )
        for record in _sort_records(planned)
    ]


def _sort_records(records: Iterable[Record]) -> list[Record]:
    """Return the records by family, problem, method and call, then by devices."""
    return sorted(records, key=lambda r: (*_identify_case(r.case)[:4], r.case.devices))


def _identify_case(case: Case) -> tuple[str, ...]:
    return family_name(case), size_name(case), method_of(case).name, describe_call(case), str(case.devices)


def _time_cells(record: Record, efficiency: PredictedPoint | None) -> tuple[str, ...]:
    """Return time, efficiency, bound, and the shares of communication and waiting."""
    predicted = record.predicted
    if predicted is None:
        return "", "", "", "", ""
    shares = (
        _format_share_or_none(predicted[name] / predicted["seconds"]) for name in ("communication", "waiting")
    )
    time = format_duration(predicted["seconds"], predicted["low"], predicted["high"])
    return (
        time,
        "" if efficiency is None else analysis.format_efficiency(efficiency),
        predicted["bound"] or "",
        *shares,
    )


def _format_share_or_none(value: float) -> str:
    return format_percentage(value) if value else "none"


def _work_cells(record: Record) -> tuple[str, ...]:
    """Return operations and bytes, as counted and as compiled."""
    return (
        _format_amount(record.flops), _format_amount(record.program_flops),
        *("" if held is None else format_bytes(held) for held in (record.compulsory_bytes, record.hbm_bytes)),
    )  # fmt: skip


def _format_amount(value: float | None) -> str:
    """Return a large number with a prefix, such as '4.01 M'."""
    if value is None:
        return ""
    size, letter = next(((size, letter) for size, letter in _LETTERS if value >= 0.9995 * size), (1.0, ""))
    return f"{format_number(value / size)} {letter}".rstrip() if letter else f"{value:.0f}"


def _memory_cells(record: Record) -> tuple[str, str]:
    """Return the memory of a device, in bytes and as a share of its capacity."""
    if record.peak_bytes is None:
        return "", ""
    return format_bytes(record.peak_bytes), _format_share_or_ratio(
        record.peak_bytes / record.capacity_bytes
    ) if record.capacity_bytes else ""


def _format_share_or_ratio(part: float) -> str:
    """Return a percentage, or a ratio from 10 on."""
    return format_percentage(part) if part < 10 else format_ratio(part)


def _communication_cells(record: Record) -> tuple[str, str, str]:
    """Return the collectives, whether the prediction is by program or formula, and remarks."""
    kinds: dict[str, float] = {}
    for message in record.messages or ():
        what = (
            f"{message.get('kind')} of {format_bytes(message.get('bytes', 0))} among "
            f"{message.get('group', 0):,}"
        )
        kinds[what] = kinds.get(what, 0) + message.get("times", 1)
    sent = "; ".join(
        what if times == 1 else f"{what}, {format_number(times)} times" for what, times in kinds.items()
    )
    return (
        sent or ("none" if record.messages is not None else ""),
        (record.predicted or {}).get("by", ""),
        record.text or "",
    )


def too_large_rows(forecast: Forecast) -> list[tuple[str, ...]]:
    """Return what does not fit, with its numbers, under TOO_LARGE_COLUMNS."""
    return [
        (*_identify_case(record.case), *_memory_cells(record), record.text or "")
        for record in _sort_records(forecast.too_large)
    ]


def unplanned_rows(forecast: Forecast) -> list[tuple[str, ...]]:
    """Return what failed, and what was skipped for other reasons than size, under OTHER_COLUMNS."""
    rest = [r for r in forecast.records if r.status in ("failed", "skipped") and r.reason != "too_large"]
    predicted = [(r.status, _describe_reason(r), label(r.case), r.text or "") for r in rest]
    return sorted(predicted, key=lambda row: row[:3])


def _describe_reason(record: Record) -> str:
    return f"{record.reason}: {REASONS.get(record.reason, '')}" if record.reason else "no reason given"


def score_rows(scores: PlanScores) -> list[tuple[str, ...]]:
    """Return the errors in total and by workload and method, under SCORE_COLUMNS."""
    return [
        (
            part.workload or "all",
            part.method.name if part.method else "all",
            str(len(part.pairs)),
            format_ratio(part.median_ratio),
            format_percentage(part.error),
            format_ratio(part.worst),
            _format_share_or_none(part.coverage),
        )
        for part in (scores.total, *scores.parts)
    ]
