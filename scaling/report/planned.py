"""Planned: what was planned for hardware that is not here, and how far predictions were from measurements, as rows.

Knows forecasts and scores and how they are worded; not markup. No row of it is a measurement, and it stands in no table of those.
"""

from collections.abc import Iterable
from typing import NamedTuple

from scaling.analysis import forecast as analysis
from scaling.analysis.answer import basis
from scaling.analysis.curves import family_name, size_name
from scaling.analysis.findings import Findings
from scaling.analysis.forecast import Expected, Forecast
from scaling.analysis.methods import describe_call, method_of
from scaling.analysis.score import PlanScores
from scaling.core.case import Case, label
from scaling.core.formatting import format_bytes, format_duration, format_number, format_percentage, format_ratio
from scaling.core.record import REASONS, Record
from scaling.report.labels import stems

COLUMNS = (
    "workload", "problem", "mode", "call", "devices", "predicted time", "efficiency", "bound by", "communication", "waiting",
    "operations", "of the program", "bytes", "of the program's kernels", "memory", "of capacity", "collectives", "by", "remarks",
)  # fmt: skip
NOTE = (
    "Nothing here was measured. Times are of a call, with the 95 % interval of the prediction; efficiency is against the fewest "
    "devices that were planned; bound by: what most of the kernels' time is for. Communication and waiting are shares of the "
    "time. Of one device: operations as they are counted in what is asked for, and in the optimised program; bytes, its inputs "
    "read once and its result written once, and what the optimised program's kernels read and write; memory against what a "
    "device has; collectives with the bytes and the devices of each. By formula: more devices than programs were compiled for."
)
UNFIT_COLUMNS = ("workload", "problem", "mode", "call", "devices", "memory", "of capacity", "what is said")
OTHER_COLUMNS = ("status", "reason", "case", "text")
SCORE_COLUMNS = (
    "workload", "mode", "cases", "predicted / measured, median", "median absolute error", "worst", "within the interval",
)  # fmt: skip
SCORE_NOTE = (
    "The same cases on the same kind of device, planned and measured. A ratio above 1: it was predicted to take longer than it "
    "did. What takes under ten empty calls is left out: it says what asking takes."
)
_LETTERS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


class Section(NamedTuple):
    """What a page says of one plan: its place, its title, on what it rests, and the answers."""

    anchor: str  # that of its figure too
    title: str
    basis: str
    answers: tuple[str, ...]


def sections(found: Findings) -> list[Section]:
    """One for each hardware, in the order of the forecasts."""
    of = stems(each.hardware for each in found.forecasts)
    return [
        Section(f"plan-{of[each.hardware]}", f"Planned for {each.title}", basis(each), tuple(analysis.answers(each)))
        for each in found.forecasts
    ]


def without(plans: Iterable[Section], said: Iterable[str]) -> list[str]:
    """Sentences less those that stand in the sections of plans."""
    there = {answer for section in plans for answer in section.answers}
    return [sentence for sentence in said if sentence not in there]


def rows(forecast: Forecast) -> list[tuple[str, ...]]:
    """Every case that was planned, under COLUMNS."""
    curves = (curve for curve in forecast.curves if len(curve.points) > 1)
    efficiency = {point.record.key: point for curve in curves for point in curve.points}
    planned = (record for record in forecast.records if record.status == "planned")
    return [
        (*_where(record.case), *_time(record, efficiency.get(record.key)), *_work(record), *_memory(record), *_sends(record))
        for record in _sorted(planned)
    ]


def _sorted(records: Iterable[Record]) -> list[Record]:
    """Those of one way beside each other, devices ascending."""
    return sorted(records, key=lambda r: (*_where(r.case)[:4], r.case.devices))


def _where(case: Case) -> tuple[str, ...]:
    return family_name(case), size_name(case), method_of(case).name, describe_call(case), str(case.devices)


def _time(record: Record, efficiency: Expected | None) -> tuple[str, ...]:
    """Time, efficiency, what binds, and the shares of communication and of waiting."""
    told = record.predicted
    if told is None:
        return "", "", "", "", ""
    parts = (_part(told[name] / told["seconds"]) for name in ("communication", "waiting"))
    time = format_duration(told["seconds"], told["low"], told["high"])
    return time, "" if efficiency is None else analysis.sure(efficiency), told["bound"] or "", *parts


def _part(value: float) -> str:
    return format_percentage(value) if value else "none"


def _work(record: Record) -> tuple[str, ...]:
    """Operations and bytes: counted, and of the optimised program."""
    return (
        _amount(record.flops), _amount(record.program_flops),
        *("" if held is None else format_bytes(held) for held in (record.compulsory_bytes, record.hbm_bytes)),
    )  # fmt: skip


def _amount(value: float | None) -> str:
    """Many of something: 4.01 M."""
    if value is None:
        return ""
    size, letter = next(((size, letter) for size, letter in _LETTERS if value >= 0.9995 * size), (1.0, ""))
    return f"{format_number(value / size)} {letter}".rstrip() if letter else f"{value:.0f}"


def _memory(record: Record) -> tuple[str, str]:
    """Of a device: what it takes, and as a share of what there is."""
    if record.peak_bytes is None:
        return "", ""
    return format_bytes(record.peak_bytes), _times(record.peak_bytes / record.capacity_bytes) if record.capacity_bytes else ""


def _times(part: float) -> str:
    """A share, or how many times as much."""
    return format_percentage(part) if part < 10 else format_ratio(part)


def _sends(record: Record) -> tuple[str, str, str]:
    """The collectives, whether by program or formula, and what else is said."""
    kinds: dict[str, float] = {}
    for message in record.messages or ():
        what = f"{message.get('kind')} of {format_bytes(message.get('bytes', 0))} among {message.get('group', 0):,}"
        kinds[what] = kinds.get(what, 0) + message.get("times", 1)
    sent = "; ".join(what if times == 1 else f"{what}, {format_number(times)} times" for what, times in kinds.items())
    return sent or ("none" if record.messages is not None else ""), (record.predicted or {}).get("by", ""), record.text or ""


def unfit(forecast: Forecast) -> list[tuple[str, ...]]:
    """What does not fit, with its figures, under UNFIT_COLUMNS."""
    return [(*_where(record.case), *_memory(record), record.text or "") for record in _sorted(forecast.too_large)]


def others(forecast: Forecast) -> list[tuple[str, ...]]:
    """What failed, and what was skipped for another reason than its size, failures first, under OTHER_COLUMNS."""
    rest = [r for r in forecast.records if r.status in ("failed", "skipped") and r.reason != "too_large"]
    told = [(r.status, _reason(r), label(r.case), r.text or "") for r in rest]
    return sorted(told, key=lambda row: row[:3])


def _reason(record: Record) -> str:
    return f"{record.reason}: {REASONS.get(record.reason, '')}" if record.reason else "no reason given"


def score_rows(scores: PlanScores) -> list[tuple[str, ...]]:
    """The errors per workload and mode, those of all first, under SCORE_COLUMNS."""
    return [
        (
            part.workload or "all", part.way.name if part.way else "all", str(len(part.pairs)), format_ratio(part.middle),
            format_percentage(part.error), format_ratio(part.worst), _part(part.held),
        )
        for part in (scores.whole, *scores.parts)
    ]  # fmt: skip
