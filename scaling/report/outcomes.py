"""Outcomes: the status of every case as a grid of methods by device counts, and the failed and skipped
cases by reason.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from scaling.analysis.curves import family_name, size_name
from scaling.analysis.findings import Findings, describe_environment
from scaling.analysis.grouping import group_by
from scaling.analysis.methods import describe_call, method_of
from scaling.core.case import Case, label
from scaling.core.formatting import count_of
from scaling.core.record import REASONS, Record

_MOST_REASONS = 5  # reasons in one cell
_WORST = ("failed", "skipped", "ok")


class OutcomeCell(NamedTuple):
    """The cases of one method on one number of devices: the worst status, the counts, and the reasons."""

    status: str
    text: str
    reasons: tuple[str, ...]


class OutcomeRow(NamedTuple):
    """A method for one family, with a cell for each number of devices; None where there is no case."""

    family: str
    method: str
    cells: tuple[OutcomeCell | None, ...]


class OutcomeGrid(NamedTuple):
    """The status of all cases."""

    devices: tuple[int, ...]
    rows: tuple[OutcomeRow, ...]


def outcome_grid(findings: Findings) -> OutcomeGrid | None:
    """Return every family and method by device count; None where every case is ok."""
    records = [record for record in findings.records if record.case.kind == "case"]
    if all(record.status == "ok" for record in records):
        return None
    devices = tuple(sorted({record.case.devices for record in records}))
    by_row = group_by(records, lambda record: (family_name(record.case), _describe_method(record.case)))
    rows = []
    for key in sorted(by_row):
        cells = group_by(by_row[key], lambda record: record.case.devices)
        rows.append(OutcomeRow(*key, tuple(_outcome_cell(cells.get(count, ())) for count in devices)))
    return OutcomeGrid(devices, tuple(rows))


def _describe_method(case: Case) -> str:
    """Return the method and its call in words, without memory setting and mesh."""
    return (
        f"{method_of(case).without_memory_setting.name}, {describe_call(replace(case, mesh=None))}"
    ).removesuffix(", the fastest mesh")


def _outcome_cell(records: Sequence[Record]) -> OutcomeCell | None:
    """Return the cell of these records; of the replicates of a case the worst counts."""
    worst: dict[tuple[str, str], Record] = {}
    for record in sorted(records, key=lambda record: _WORST.index(record.status), reverse=True):
        worst[record.key, record.setting] = record
    if not worst:
        return None
    count = Counter(record.status for record in worst.values())
    text = ", ".join(f"{count[status]} {status}" for status in reversed(_WORST) if count[status])
    return OutcomeCell(
        next(status for status in _WORST if count[status]), text, tuple(_list_reasons(worst.values()))
    )


def _list_reasons(records: Iterable[Record]) -> list[str]:
    """Return which problems are not ok, and why; of many, the first and the number of the others."""
    sentences = [
        f"{_describe_problem(r.case)}: {r.status}, {r.reason or 'no reason given'}{_format_text(r)}"
        for r in records
        if r.status != "ok"
    ]
    more = len(sentences) - _MOST_REASONS
    return sentences[:_MOST_REASONS] + ([f"and {more} more, in the list below"] if more > 0 else [])


def _describe_problem(case: Case) -> str:
    """Return the problem of a case within its cell."""
    return ", ".join(
        word
        for word in (size_name(case), case.mesh and f"mesh {case.mesh}", method_of(case).memory_setting)
        if word
    )


def _format_text(record: Record) -> str:
    words = " ".join((record.text or "").split())
    return f": {words[:160]}{'…' if len(words) > 160 else ''}" if words else ""


@dataclass(frozen=True)
class UnmeasuredCases:
    """The cases that were skipped or failed for one reason."""

    status: str
    reason: str
    meaning: str
    count: str  # such as '2 cases'
    cases: tuple[tuple[str, str], ...]  # label and text of each record


def group_unmeasured(findings: Findings) -> list[UnmeasuredCases]:
    """Return the skipped and failed cases by reason, failures first."""
    ordered = sorted(findings.records, key=lambda r: (r.status, r.reason or ""))
    unmeasured = (record for record in ordered if record.status != "ok")
    groups = group_by(unmeasured, lambda record: (record.status, record.reason or "no reason given"))
    return [
        UnmeasuredCases(
            status,
            reason,
            REASONS.get(reason, ""),
            count_of(len({r.key for r in records}), "case"),
            tuple((label(r.case) + describe_environment(findings, r.setting), r.text or "") for r in records),
        )
        for (status, reason), records in groups.items()
    ]
