"""Outcomes: what became of every case, as cells of a grid, ways by device counts, and what failed or was skipped by its reason.

Knows records; not why they ended as they did, nor markup.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from scaling.analysis.curves import family_name, size_name
from scaling.analysis.findings import Findings, marks
from scaling.analysis.methods import describe_call, method_of
from scaling.core.case import Case, label
from scaling.core.formatting import count_of
from scaling.core.record import REASONS, Record

_MOST_TOLD = 5  # reasons in one cell
_WORST = ("failed", "skipped", "ok")


class OutcomeCell(NamedTuple):
    """The cases of one way on so many devices: the worst that became of any, how many of each, and the reasons."""

    status: str
    text: str
    reasons: tuple[str, ...]


class OutcomeRow(NamedTuple):
    """A way to differentiate one family, with a cell for each number of devices; None where there is no case."""

    family: str
    way: str
    cells: tuple[OutcomeCell | None, ...]


class OutcomeGrid(NamedTuple):
    """What became of the cases."""

    devices: tuple[int, ...]
    rows: tuple[OutcomeRow, ...]


def grid(found: Findings) -> OutcomeGrid | None:
    """Every family and way by device count; None where every case ended well."""
    records = [record for record in found.records if record.case.kind == "case"]
    if all(record.status == "ok" for record in records):
        return None
    devices = tuple(sorted({record.case.devices for record in records}))
    rows: dict[tuple[str, str], dict[int, list[Record]]] = {}
    for record in sorted(records, key=lambda record: (family_name(record.case), _how(record.case))):
        of = (family_name(record.case), _how(record.case))
        rows.setdefault(of, {}).setdefault(record.case.devices, []).append(record)
    made = [OutcomeRow(*of, tuple(_cell(cells.get(count, ())) for count in devices)) for of, cells in rows.items()]
    return OutcomeGrid(devices, tuple(made))


def _how(case: Case) -> str:
    """How it is computed, whatever the setting of its memory and its mesh: a row has room for all of them."""
    return f"{method_of(case).plain.name}, {describe_call(replace(case, mesh=None))}".removesuffix(", the fastest mesh")


def _cell(records: Sequence[Record]) -> OutcomeCell | None:
    """Replicates of a case are one case, and the worst of them counts."""
    worst: dict[tuple[str, str], Record] = {}
    for record in sorted(records, key=lambda record: _WORST.index(record.status), reverse=True):
        worst[record.key, record.setting] = record
    if not worst:
        return None
    count = Counter(record.status for record in worst.values())
    text = ", ".join(f"{count[status]} {status}" for status in reversed(_WORST) if count[status])
    return OutcomeCell(next(status for status in _WORST if count[status]), text, tuple(_reasons(worst.values())))


def _reasons(records: Iterable[Record]) -> list[str]:
    """Of what did not end well: which problem, and why; of many, the first and how many more."""
    told = [f"{_which(r.case)}: {r.status}, {r.reason or 'no reason given'}{_text(r)}" for r in records if r.status != "ok"]
    more = len(told) - _MOST_TOLD
    return told[:_MOST_TOLD] + ([f"and {more} more, in the list below"] if more > 0 else [])


def _which(case: Case) -> str:
    """Which of those in one cell."""
    return ", ".join(word for word in (size_name(case), case.mesh and f"mesh {case.mesh}", method_of(case).setting) if word)


def _text(record: Record) -> str:
    words = " ".join((record.text or "").split())
    return f": {words[:160]}{'…' if len(words) > 160 else ''}" if words else ""


def unmeasured(found: Findings) -> list[dict[str, Any]]:
    """Skipped and failed cases by reason, failures first, each with its label and text."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in sorted(found.records, key=lambda r: (r.status, r.reason or "")):
        if record.status != "ok":
            groups.setdefault((record.status, record.reason or "no reason given"), []).append(record)
    return [
        {
            "status": status,
            "reason": reason,
            "meaning": REASONS.get(reason, ""),
            "count": count_of(len({r.key for r in records}), "case"),
            "items": [(label(r.case) + marks(found, r.setting), r.text or "") for r in records],
        }
        for (status, reason), records in groups.items()
    ]
