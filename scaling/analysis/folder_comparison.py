"""Compare two results folders to find regressions, with a verdict and a p-value for each `ComparedCase`.

Cases are matched by their key only, because the environments of the two folders usually differ.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from scipy.stats import false_discovery_control

from scaling.analysis import ratios
from scaling.analysis.cases import environment_differences
from scaling.analysis.ranking import OUT_OF_MEMORY_REASONS
from scaling.analysis.ratios import Ratio
from scaling.core.case import Case, Refusal, label
from scaling.core.formatting import format_count
from scaling.core.grouping import group_by
from scaling.core.record import Record
from scaling.results import store

# The verdicts on a case. VERDICTS lists all of them in the order of the output.
SLOWER, FASTER, SAME, UNDECIDED = "slower", "faster", "no difference shown", "undecided"
REGRESSIONS = (SLOWER, "failed in B", "failed in both", "out of memory in B")
UNCHANGED = (UNDECIDED, SAME)
VERDICTS = (
    *REGRESSIONS, FASTER, "failed in A", "skipped in A", "skipped in B", "only in A", "only in B",
    "oversubscribed", *UNCHANGED,
)  # fmt: skip
MARGIN = 0.01  # relative change of a time that memory layout alone can cause
FALSE_DISCOVERIES = 0.05  # false discovery rate among the cases called slower or faster


class ComparedCase(NamedTuple):
    """The comparison of one case in the old results folder A and in the new folder B."""

    case: Case
    verdict: str
    a: tuple[Record, ...] = ()  # successful records in A, one per process
    b: tuple[Record, ...] = ()
    ratio: Ratio | None = None  # time in B divided by time in A
    p: float | None = None  # p-value, corrected for multiple testing (Benjamini and Hochberg)
    text: str = ""  # why records have no time


@dataclass(frozen=True)
class FolderComparison:
    """The comparison of all cases in the old results folder A and in the new folder B."""

    a: Path
    b: Path
    margin: float  # relative differences of times up to this value count as no difference
    rows: Sequence[ComparedCase]  # in the order of VERDICTS, the largest change first
    differences: Mapping[str, Sequence[str]]  # environment fact -> its values in A and in B
    notes: Sequence[str]  # sentences that count the omitted records

    @property
    def has_regression(self) -> bool:
        """Return whether any case became slower, failed or ran out of memory in the second folder (B)."""
        return any(row.verdict in REGRESSIONS for row in self.rows)


def find_folders(first: str, second: str | None) -> tuple[Path, Path]:
    """Return the paths of the old results folder A and the new results folder B.

    If `second` is None, B is `first` and A is the subfolder `versus-*` of B. Raise `Refusal` if there is not
    exactly one such subfolder, or if a folder has no results.
    """
    folder = store.require_results_folder(first)
    if second is not None:
        return folder, store.require_results_folder(second)
    variants = sorted(str(path) for path in folder.glob("versus-*") if path.is_dir())
    if not variants:
        measure = "give two folders, or measure a variant with `scaling run versus=...`"
        raise Refusal(f"there is no variant of {first}: {measure}")
    if len(variants) > 1:
        two = f"name two folders, such as {variants[0]} {first}"
        raise Refusal(f"there are several variants of {first}: {two}; there are {', '.join(variants)}")
    return store.require_results_folder(variants[0]), folder


def compare(a: Path, b: Path, margin: float = MARGIN) -> FolderComparison:
    """Compare the times of each case in the old results folder `a` and the new folder `b`.

    A case is slower or faster if the relative difference of its times significantly exceeds `margin`. Raise
    `Refusal` if `margin` is invalid, if the folders are the same, or if no case is in both folders.
    """
    if not 0 <= margin < 1:
        raise Refusal(f"margin must be from 0 to under 1, such as 0.01 for one per cent, not {margin!r}")
    if a.resolve() == b.resolve():
        raise Refusal(f"{a} cannot be compared with itself; give two results folders")
    (old, old_notes), (new, new_notes) = _load_newest_records("A", a), _load_newest_records("B", b)
    both = old.keys() & new.keys()
    if not both:
        counts = f"{a} ({len(old)} of its own) and {b} ({len(new)})"
        raise Refusal(f"no case is in both {counts}; run the same study for both")
    rows = [row for key in old | new if (row := _compare_case(old.get(key, []), new.get(key, [])))]
    facts = environment_differences([record for key in both for record in side[key]] for side in (old, new))
    judged = sorted(_decide_verdicts(rows, margin), key=_sort_key)
    return FolderComparison(a, b, margin, judged, facts, old_notes + new_notes)


def _load_newest_records(name: str, folder: Path) -> tuple[dict[str, list[Record]], list[str]]:
    """Return ({case key: records}, remarks) for a results folder.

    Of each workload, only the records from the environment in which it ran last are returned. The remarks
    state the numbers of omitted records and damaged lines. They call the folder `name`.
    """
    loaded = store.load(folder)
    records = [record for record in store.latest(loaded.records) if record.case.kind == "case"]
    newest = store.keep_newest_environments(records)
    by_case = group_by(sorted(newest, key=lambda r: r.replicate), lambda r: r.key)
    omitted = {"outdated record": len(records) - len(newest), "damaged line": len(loaded.damaged)}
    return by_case, [
        f"{name}: {format_count(count, noun)} left out." for noun, count in omitted.items() if count
    ]


def _compare_case(old: Sequence[Record], new: Sequence[Record]) -> ComparedCase | None:
    a, b = (tuple(r for r in side if r.status == "ok") for side in (old, new))
    failed = [name for name, side in (("A", old), ("B", new)) if any(r.status == "failed" for r in side)]
    unmeasured = (r for r in (*old, *new) if r.status != "ok")
    causes = ((r.reason or "no reason given", r.text) for r in unmeasured)
    reasons = dict.fromkeys(f"{reason}: {text}" if text else reason for reason, text in causes)
    if not (a or b or failed):
        return None
    if failed:
        verdict = "failed in both" if len(failed) == 2 else f"failed in {failed[0]}"
    elif not b and any(r.reason in OUT_OF_MEMORY_REASONS for r in new):
        verdict = "out of memory in B"
    elif not all(record.honest for record in a + b):
        verdict = "oversubscribed"
    elif a and b:
        verdict = UNDECIDED
    elif a:
        verdict = "skipped in B" if new else "only in A"
    else:
        verdict = "skipped in A" if old else "only in B"
    ratio = ratios.estimate_ratio(b, a) if verdict == UNDECIDED else None
    return ComparedCase((old or new)[0].case, verdict, a, b, ratio, text="; ".join(reasons))


def _decide_verdicts(rows: Sequence[ComparedCase], margin: float) -> list[ComparedCase]:
    moderated = {i: row.ratio for i, row in enumerate(rows) if row.ratio}
    for paired in (True, False):  # ratios from unpaired processes have a larger variance
        group = [i for i in moderated if (moderated[i].pairs > 1) is paired]
        moderated |= zip(group, ratios.moderate_variances([moderated[i] for i in group]), strict=True)
    uncorrected = {i: p for i in moderated if (p := ratios.p_value(moderated[i], margin)) is not None}
    corrected = map(float, false_discovery_control(list(uncorrected.values())))
    p_values = dict(zip(uncorrected, corrected, strict=True))
    judged = list(rows)
    for i, ratio in moderated.items():
        verdict = SLOWER if ratio.value > 1 else FASTER
        if p_values.get(i, 1.0) > FALSE_DISCOVERIES:
            verdict = SAME if i in p_values else UNDECIDED
        judged[i] = rows[i]._replace(ratio=ratio, p=p_values.get(i), verdict=verdict)
    return judged


def _sort_key(row: ComparedCase) -> tuple:
    return VERDICTS.index(row.verdict), -abs(math.log(row.ratio.value)) if row.ratio else 0.0, label(row.case)
