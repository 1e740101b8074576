"""Comparing: two results folders, case by case: what became slower, what faster, and what cannot be told.

Cases are joined by key, never by environment: that is what differs. Knows folders and verdicts; not how a ratio is worked out
(ratios.py), nor how it is printed.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scipy.stats import false_discovery_control

from scaling.analysis import ratios
from scaling.analysis.pareto import chosen
from scaling.analysis.ratios import PairedRatio
from scaling.core import store
from scaling.core.case import Case, Refusal, label
from scaling.core.environment import OF_THE_CASE
from scaling.core.formatting import count_of, format_cell, format_duration, format_percentage, format_ratio
from scaling.core.record import Record

# In the order in which they are told.
SLOWER, FASTER, SAME, UNDECIDED = "slower", "faster", "no difference shown", "undecided"
BAD = (SLOWER, "failed in B", "failed in both")
VERDICTS = (*BAD, FASTER, "failed in A", "only in A", "only in B", "oversubscribed", UNDECIDED, SAME)
COLUMNS = ("verdict", "case", "A", "B", "B over A", "p", "remarks")
MARGIN = 0.01  # what no one acts upon: alignment and layout alone move a program by as much, whatever the replicates
FALSE_DISCOVERIES = 0.05  # of all that is called slower or faster, on average
_MOST_ROWS = 40


@dataclass(frozen=True)
class ComparedCase:
    """A case on both sides."""

    case: Case
    verdict: str
    a: tuple[Record, ...] = ()  # a process each
    b: tuple[Record, ...] = ()
    ratio: PairedRatio | None = None  # B over A
    p: float | None = None  # corrected for how many were looked at (Benjamini and Hochberg)
    text: str = ""


@dataclass(frozen=True)
class FolderComparison:
    """Two folders, A the old and B the new."""

    a: Path
    b: Path
    margin: float
    rows: Sequence[ComparedCase]  # in the order of VERDICTS, the largest ratio first
    differences: Sequence[str]  # between the environments
    notes: Sequence[str]  # what was left out

    @property
    def bad(self) -> bool:
        """Whether anything became slower or failed in B."""
        return any(row.verdict in BAD for row in self.rows)


def load_folders(first: str, second: str | None) -> tuple[Path, Path]:
    """The folders A and B; of one folder alone, what was measured beside it (`scaling run versus=...`) and the folder itself."""
    folder = store.folder_of(first)
    if second is not None:
        return folder, store.folder_of(second)
    beside = sorted(str(path) for path in folder.glob("versus-*") if path.is_dir())
    if len(beside) == 1:
        return store.folder_of(beside[0]), folder
    if beside:
        raise Refusal(
            f"several stand beside {first}: name two folders, such as {beside[0]} {first}; there are {', '.join(beside)}"
        )
    raise Refusal(f"nothing was measured beside {first}: give two folders, or make the other side with `scaling run versus=...`")


def compare(a: Path, b: Path, margin: float = MARGIN) -> FolderComparison:
    """What became of each case of A in B. A verdict is given where the ratio is beyond the margin and not by chance."""
    if not 0 <= margin < 1:
        raise Refusal(f"margin must be from 0 to under 1, such as 0.01 for one per cent, not {margin!r}")
    if a.resolve() == b.resolve():
        raise Refusal(f"{a} cannot be compared with itself; give two results folders")
    (old, old_notes), (new, new_notes) = _read("A", a), _read("B", b)
    if not old.keys() & new.keys():
        raise Refusal(f"no case is in both {a} ({len(old)} of its own) and {b} ({len(new)}); run the same study for both")
    rows = [row for key in old | new if (row := _row(old.get(key, []), new.get(key, [])))]
    differences = _differences(*([r for key in old.keys() & new.keys() for r in side[key]] for side in (old, new)))
    return FolderComparison(a, b, margin, sorted(_judged(rows, margin), key=_order), differences, old_notes + new_notes)


def _read(side: str, folder: Path) -> tuple[dict[str, list[Record]], list[str]]:
    """The records of each case in the environment in which its workload ran last, and what was left out, in words."""
    loaded = store.load(folder)
    records = [record for record in store.latest(loaded.records) if record.case.kind == "case"]
    last = {r.case.workload: r.setting for r in sorted(records, key=lambda r: r.started_at or "")}
    kept: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda r: r.replicate):
        if record.setting == last[record.case.workload]:
            kept.setdefault(record.key, []).append(record)
    earlier = len(records) - sum(map(len, kept.values()))
    left_out = {"outdated record": earlier, "damaged line": len(loaded.damaged)}
    return kept, [f"{side}: {count_of(count, what)} left out." for what, count in left_out.items() if count]


def _row(old: Sequence[Record], new: Sequence[Record]) -> ComparedCase | None:
    """A case with its ratio, as yet undecided, or with what stands in the way of one; None where neither side was to run it."""
    a, b = (tuple(r for r in side if r.status == "ok") for side in (old, new))
    failed = [name for name, side in (("A", old), ("B", new)) if any(r.status == "failed" for r in side)]
    why = dict.fromkeys(f"{r.reason}: {r.text}" if r.text else str(r.reason) for r in (*old, *new) if r.status != "ok")
    if not (a or b or failed):
        return None
    verdict = UNDECIDED if a and b else "only in A" if a else "only in B"
    if failed:
        verdict = "failed in both" if len(failed) == 2 else f"failed in {failed[0]}"
    elif not all(record.honest for record in a + b):
        verdict = "oversubscribed"
    return ComparedCase(
        (old or new)[0].case, verdict, a, b, ratios.ratio(b, a) if verdict == UNDECIDED else None, text="; ".join(why)
    )


def _judged(rows: Sequence[ComparedCase], margin: float) -> list[ComparedCase]:
    """The rows, with verdicts for those that have processes enough."""
    found = {i: row.ratio for i, row in enumerate(rows) if row.ratio}
    for paired in (True, False):  # what was not taken in turns spreads more
        some = [i for i in found if (found[i].pairs > 1) is paired]
        found |= zip(some, ratios.moderated([found[i] for i in some]), strict=True)
    chances = {i: p for i in found if (p := ratios.p_value(found[i], margin)) is not None}
    chances = dict(zip(chances, map(float, false_discovery_control(list(chances.values()))), strict=True))
    judged = list(rows)
    for i, ratio_ in found.items():
        judged[i] = dataclasses.replace(rows[i], ratio=ratio_, p=chances.get(i), verdict=_verdict(ratio_, chances.get(i)))
    return judged


def _verdict(ratio: PairedRatio, p: float | None) -> str:
    if p is None or p > FALSE_DISCOVERIES:
        return UNDECIDED if p is None else SAME
    return SLOWER if ratio.value > 1 else FASTER


def _order(row: ComparedCase) -> tuple:
    return VERDICTS.index(row.verdict), -abs(math.log(row.ratio.value)) if row.ratio else 0.0, label(row.case)


def _differences(old: Iterable[Record], new: Iterable[Record]) -> list[str]:
    """What is recorded of the environments and is not the same: 'jax (0.10.1, then 0.10.2)'."""
    a, b = _facts(old), _facts(new)
    names = [name for name in sorted(a | b) if a.get(name) != b.get(name)]
    return [f"{name} ({', then '.join(' or '.join(sorted(side.get(name, {'none'}))) for side in (a, b))})" for name in names]


def _facts(records: Iterable[Record]) -> dict[str, set[str]]:
    facts: dict[str, set[str]] = {}
    for record in records:
        for name in record.environment.keys() - set(OF_THE_CASE):
            value = record.environment[name]
            for part, plain in value.items() if isinstance(value, Mapping) else [(name, value)]:
                words = ", ".join(map(str, plain)) if isinstance(plain, list) else str(plain)
                facts.setdefault(part, set()).add(words if plain not in (None, "") else "none")
    return facts


# In words.


def comparison_lines(comparison: FolderComparison) -> list[str]:
    """What was compared and how far it can be trusted, in plain lines; the last sums up the verdicts."""
    measured = [row.ratio for row in comparison.rows if row.ratio]
    apart = sum(not found.pairs for found in measured)
    differ = f"they differ in {'; '.join(comparison.differences)}" if comparison.differences else "nothing recorded differs"
    a, b = (path.name if path.is_absolute() else path for path in (comparison.a, comparison.b))  # law 9: no path of a machine
    lines = [f"A is {a}, B is {b}; {differ}."]
    if apart:
        which = "No case was" if apart == len(measured) else f"{apart} of {len(measured)} cases were not"
        lines.append(
            f"{which} measured in turns with the other side: what the machine did between the two counts as a difference."
        )
        lines.append("`scaling run versus=...` measures both in turns.")
    elif measured:
        lines.append("Every case was measured in turns with the other side.")
    counts = Counter(row.verdict for row in comparison.rows)
    if counts[UNDECIDED]:
        lines.append(
            "Undecided: one process on a side cannot tell a difference from that process's luck; replicates=3 or more can."
        )
    told = [f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict] or verdict in (SLOWER, FASTER, SAME)]
    held = (
        f"false discoveries held to {format_percentage(FALSE_DISCOVERIES)}, up to {100 * comparison.margin:g} % is no difference"
    )
    return [*lines, *comparison.notes, f"{', '.join(told)} (of {len(comparison.rows)}; {held})"]


def comparison_rows(comparison: FolderComparison, most: int = _MOST_ROWS) -> list[tuple[str, ...]]:
    """The cases under COLUMNS, what changed first; the rest is counted in a last row."""
    lines = [_line(row) for row in comparison.rows[:most]]
    rest = Counter(row.verdict for row in comparison.rows[most:])
    told = ", ".join(f"{count} {verdict}" for verdict, count in rest.items())
    return [*lines, ("", f"and {told}", *[""] * (len(COLUMNS) - 2))] if rest else lines


def _line(row: ComparedCase) -> tuple[str, ...]:
    found, remarks = row.ratio, row.text[:100]
    if found:
        paired = f", {found.pairs} in turns" if found.pairs else ""
        remarks = f"{len(row.a)} + {len(row.b)} processes{paired}{_blocks(row)}"
    times = (format_duration(ratios.median(side)) if side else "" for side in (row.a, row.b))
    over = format_ratio(found.value, found.low, found.high) if found else ""
    return row.verdict, label(row.case), *times, over, "" if row.p is None else f"{row.p:.2g}", remarks


def _blocks(row: ComparedCase) -> str:
    """What chunk=auto came to on each side, where that is not the same: another program, whatever the code."""
    a, b = (" or ".join(dict.fromkeys(words for record in side if (words := chosen(record)))) for side in (row.a, row.b))
    return "" if a == b else f"; chunk=auto: {a or 'not told'}, then {b or 'not told'}"


def markdown(comparison: FolderComparison) -> str:
    """The same as Markdown, for a pull request: the summary, the table, the remarks."""
    *remarks, summary = map(format_cell, comparison_lines(comparison))
    lines = [COLUMNS, ["---"] * len(COLUMNS), *([format_cell(text) for text in row] for row in comparison_rows(comparison))]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n\n".join([f"**{summary}**", table, "\n".join(f"- {remark}" for remark in remarks)]) + "\n"
