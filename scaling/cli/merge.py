"""Implement `scaling merge`: copy records of several results folders into one, and merge study.json files.

Records that the output folder already contains are not copied, so that an interrupted merge can be repeated.
The records of each input folder are written to a new file. The input folders are not modified.
"""

import argparse
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from scaling.analysis.environments import describe_environments
from scaling.cli.streams import print_lines
from scaling.core.case import Refusal
from scaling.core.formatting import format_count
from scaling.core.grouping import group_by
from scaling.core.record import Record, to_line
from scaling.results import results_folder, store

_STUDY = "study.json"
_LOCK_SECONDS = 2.0


def execute(args: argparse.Namespace, console: Console) -> None:
    """Merge the input folders into the output folder, and print a summary."""
    print_lines(console, merge(args.folders, args.output))


def merge(inputs: Sequence[str], output: str) -> list[str]:
    """Copy the records of results folders into an output folder, and return the lines of a summary.

    Raise `Refusal` before any file is written if a folder is invalid or a file cannot be read.
    """
    folders, target = [results_folder.require_results_folder(folder) for folder in inputs], Path(output)
    if not output.strip():
        raise Refusal(f"--output must be a folder, such as --output results/both, not {output!r}")
    resolved = Path(os.path.realpath(target))
    if inside := [folder for folder in folders if folder.resolve() in resolved.parents]:
        problem = f"--output {target} lies inside {inside[0]}, one of the folders to merge"
        raise Refusal(f"{problem}: give another folder")
    if len(folders) == 1 and not target.is_dir():
        raise Refusal(f"{folders[0]} alone cannot be merged: give two or more results folders")
    results_folder.refuse_other_files(target, "--output ")
    for path in (path for folder in folders for path in sorted(folder.glob("*.jsonl"))):
        try:
            store.read_file(path)  # only to find out whether it can be read
        except OSError as error:
            advice = "make it readable or move it away, and merge again"
            raise Refusal(f"cannot read {path}: {error.strerror}; {advice}") from None
    loaded = [store.load(folder) for folder in (*folders, target)]  # refuses results of a newer version
    results_folder.create_results(target, "--output ")
    study = store.read_study(target)
    if study.problem and not study.content:
        raise Refusal(f"{target}: {study.problem}, or remove it")
    with store.locked(target, seconds=_LOCK_SECONDS):
        to_copy = [pair for pair in zip(folders, loaded, strict=False) if pair[0].resolve() != resolved]
        return list(_copy_folders(to_copy, target))


def _copy_folders(inputs: Sequence[tuple[Path, store.Loaded]], target: Path) -> Iterator[str]:
    """Copy the records, study.json and plans of folders to `target`, and yield the lines of a summary."""
    earlier, folders = store.load(target), [folder for folder, _ in inputs]
    records = {to_line(record): record for record in (*earlier.records, *earlier.plans)}
    earlier_count = len(records)
    yield from [_copy_records(folder, loaded, target, records) for folder, loaded in inputs]
    studies = {folder: store.read_study(folder) for folder in folders}
    yield from (f"{folder}: {study.problem}" for folder, study in studies.items() if study.problem)
    _merge_studies([store.read_study(target), *studies.values()], target)
    for path in (path for folder in folders for path in sorted(folder.glob("plan-*.json"))):
        plan = store.read_json(path)
        if plan is not None and not (target / path.name).exists():
            store.write_json(target / path.name, plan)
        elif plan != store.read_json(target / path.name):
            yield f"{path} is not copied: it differs from {target / path.name}, which is kept"
    for path in (path for folder in folders for path in sorted(folder.glob("versus-*"))):
        yield f"{path} is not copied: copy it to {target / path.name}, or merge it into that folder"
    for workload, workload_records in group_by(records.values(), lambda record: record.case.workload).items():
        if text := describe_environments(workload_records):
            yield f"{workload}: {text}, kept separate: no curve and no comparison mixes them"
    added = format_count(len(records) - earlier_count, "record")
    command = store.format_command("report", target)
    yield f"{target}: {added} added, {len(records)} in all; `{command}` shows them"


def _copy_records(folder: Path, loaded: store.Loaded, target: Path, records: dict[str, Record]) -> str:
    """Copy the records of `folder` that are not in `target`, and return a summary in one line.

    `records` maps each JSON line in `target` to its record. The copied lines are added to `records`.
    """
    folder_records = {to_line(record): record for record in (*loaded.records, *loaded.plans)}
    new_lines = [line for line in folder_records if line not in records]
    records |= folder_records
    if new_lines:
        path = target / f"merged-{uuid.uuid4().hex[:12]}.jsonl"
        store.replace_file(path, "".join(line + "\n" for line in new_lines).encode())
    present_count = len(folder_records) - len(new_lines)
    already_there = f", {present_count} already present" if present_count else ""
    damaged = f", {format_count(len(loaded.damaged), 'damaged line')} left out" if loaded.damaged else ""
    return f"{folder}: {format_count(len(new_lines), 'record')} added{already_there}{damaged}"


def _merge_studies(studies_to_merge: Sequence[store.Study], target: Path) -> None:
    """Merge the contents of several study.json files, and write the result to `target`."""
    studies = [study.content for study in studies_to_merge if study.content]
    if not studies:
        return
    named_studies = store.NAME_SEPARATOR.join(str(study["study"]) for study in studies if study.get("study"))
    study_names = named_studies.split(store.NAME_SEPARATOR)
    scalings = [study.get("scaling") or "strong" for study in studies]
    scaling_lists = [kinds if isinstance(kinds, list) else [kinds] for kinds in scalings]
    case_entries = [entry for study in studies for entry in study.get("cases", []) if isinstance(entry, dict)]
    case_entries.sort(key=store.count_replicates)  # the entry with the most replicates is kept
    first, *others = studies
    common_fields = {
        name: first.get(name) if all(study.get(name) == first.get(name) for study in others) else None
        for name in ("order_seed", "sampling")
    }
    merged = store.schema_and_version() | common_fields | {
        "study": store.NAME_SEPARATOR.join(dict.fromkeys(study_names)) or None,
        "title": next((study["title"] for study in studies if study.get("title")), None),
        "scaling": sorted({str(kind) for kinds in scaling_lists for kind in kinds}),
        "cases": list({str(entry.get("key")): entry for entry in case_entries}.values()),
    }  # fmt: skip
    if merged != store.read_json(target / _STUDY):
        store.write_json(target / _STUDY, merged)
