"""Compare an old (A) and a new results folder (B): a verdict, ratio and p-value for each `ComparedCase`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from scipy.stats import false_discovery_control

from scaling.analysis.cases import OUT_OF_MEMORY_REASONS, environment_differences
from scaling.analysis.ratios import Ratio, estimate_ratio, moderate_variances, p_value
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
    "unbound or oversubscribed", *UNCHANGED,
)  # fmt: skip
MARGIN = 0.01  # relative change of a time that memory layout alone can cause
FALSE_DISCOVERIES = 0.05  # false discovery rate among the cases called slower or faster


class ComparedCase(NamedTuple):
    """The comparison of one case in the old results folder A and in the new folder B."""

    case: Case
    verdict: str  # one of VERDICTS
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
        """Return whether any case became slower, failed or ran out of memory in the new folder (B)."""
        return any(row.verdict in REGRESSIONS for row in self.rows)


def find_folders(first: str, second: str | None) -> tuple[Path, Path]:
    """Return the paths of the old results folder A and the new results folder B.

    A is `first`, and B is `second`. If `second` is None, B is `first`, and A is the subfolder `versus-*` of
    B. Raise `Refusal` if there is not exactly one such subfolder, or if a folder has no results.
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


def compare(old_folder: Path, new_folder: Path, margin: float = MARGIN) -> FolderComparison:
    """Compare the times of each case in an old and a new results folder.

    A case is slower or faster if its time differs significantly by more than the fraction `margin`. Raise
    `Refusal` if `margin` is invalid, if the folders are the same, or if no case is in both.
    """
    if not 0 <= margin < 1:
        raise Refusal(f"margin must be from 0 to under 1, such as 0.01 for one per cent, not {margin!r}")
    if old_folder.resolve() == new_folder.resolve():
        raise Refusal(f"{old_folder} cannot be compared with itself; give two results folders")
    old_records, old_notes = _load_newest_records("A", old_folder)
    new_records, new_notes = _load_newest_records("B", new_folder)
    common_keys = old_records.keys() & new_records.keys()
    if not common_keys:
        counts = f"{old_folder} ({len(old_records)} of its own) and {new_folder} ({len(new_records)})"
        notes = "".join(f"; {note}" for note in (*old_notes, *new_notes)).rstrip(".")
        raise Refusal(f"no case is in both {counts}; run the same study for both{notes}")
    pairs = ((old_records.get(key, []), new_records.get(key, [])) for key in old_records | new_records)
    compared_cases = [compared for pair in pairs if (compared := _compare_case(*pair))]
    differences = environment_differences(
        [record for key in common_keys for record in by_case[key]] for by_case in (old_records, new_records)
    )
    rows = sorted(_decide_verdicts(compared_cases, margin), key=_verdict_sort_key)
    return FolderComparison(old_folder, new_folder, margin, rows, differences, old_notes + new_notes)


def _load_newest_records(name: str, folder: Path) -> tuple[dict[str, list[Record]], list[str]]:
    """Return the records of a results folder by case key, and remarks on what was omitted.

    The records of each workload are from its newest environment. The remarks are sentences that count the
    omitted records and the damaged lines, and start with `name`.
    """
    loaded = store.load(folder)
    current_records = store.current_records(loaded.records, folder)
    records = [record for record in current_records if record.case.kind == "case"]
    newest = store.keep_newest_environments(records)
    by_case = group_by(sorted(newest, key=lambda record: record.replicate), lambda record: record.key)
    omitted_counts = {"outdated record": len(records) - len(newest), "damaged line": len(loaded.damaged)}
    return by_case, [
        f"{name}: {format_count(count, noun)} left out." for noun, count in omitted_counts.items() if count
    ]


def _compare_case(old: Sequence[Record], new: Sequence[Record]) -> ComparedCase | None:
    a, b = (tuple(record for record in records if record.status == "ok") for records in (old, new))
    folders = (("A", [] if a else old), ("B", new))  # other processes of A have a time to compare with
    failed = [name for name, records in folders if any(record.status == "failed" for record in records)]
    unmeasured = (record for record in (*old, *new) if record.status != "ok")
    reasons = (": ".join(filter(None, (r.reason or "no reason given", r.text))) for r in unmeasured)
    possible_verdicts = {  # the first one that applies is the verdict on the case
        "failed in both": len(failed) == 2,
        "failed in A": failed == ["A"],
        "failed in B": failed == ["B"],
        "out of memory in B": a and not b and any(r.reason in OUT_OF_MEMORY_REASONS for r in new),
        "unbound or oversubscribed": not all(record.honest for record in a + b),
        UNDECIDED: a and b,
        "skipped in B": a and new,
        "only in A": a,
        "skipped in A": b and old,
        "only in B": b,
    }
    verdict = next((verdict for verdict, applies in possible_verdicts.items() if applies), None)
    if verdict is None:
        return None
    ratio = estimate_ratio(b, a) if verdict == UNDECIDED else None
    return ComparedCase((old or new)[0].case, verdict, a, b, ratio, text="; ".join(dict.fromkeys(reasons)))


def _decide_verdicts(compared_cases: Sequence[ComparedCase], margin: float) -> list[ComparedCase]:
    """Return copies of the cases with verdicts, corrected p-values, and ratios with moderated variances."""
    ratios: dict[str, Ratio] = {}
    for paired in (True, False):  # ratios from unpaired processes have a larger variance
        group = {c.case.key: c.ratio for c in compared_cases if c.ratio and (c.ratio.pairs > 1) is paired}
        ratios |= zip(group, moderate_variances(list(group.values())), strict=True)
    uncorrected = {key: p for key, ratio in ratios.items() if (p := p_value(ratio, margin)) is not None}
    corrected = map(float, false_discovery_control(list(uncorrected.values())))
    p_values = dict(zip(uncorrected, corrected, strict=True))
    return [_decide_verdict(c, ratios.get(c.case.key), p_values.get(c.case.key)) for c in compared_cases]


def _decide_verdict(compared: ComparedCase, ratio: Ratio | None, p: float | None) -> ComparedCase:
    if ratio is None or p is None:
        return compared._replace(ratio=ratio)
    change = SLOWER if ratio.value > 1 else FASTER
    return compared._replace(ratio=ratio, p=p, verdict=SAME if p > FALSE_DISCOVERIES else change)


def _verdict_sort_key(compared: ComparedCase) -> tuple:
    difference = abs(math.log(compared.ratio.value)) if compared.ratio else 0.0
    return VERDICTS.index(compared.verdict), -difference, label(compared.case)
