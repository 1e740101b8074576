"""Implement `scaling merge`: copy the records of several results folders into one.

A record that the output folder already has is not copied, so that a merge can be repeated. The input folders
are not modified.
"""

import argparse
import itertools
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from scaling.cli.output import damaged_notes, print_lines
from scaling.core.case import Refusal, check_value
from scaling.core.formatting import format_count
from scaling.core.record import to_line
from scaling.results import store

_LOCK_SECONDS = 2.0


def execute(args: argparse.Namespace, console: Console) -> None:
    """Copy the results of the input folders to the output folder, and print a summary."""
    print_lines(console, merge(args.folders, args.output))


def merge(inputs: Sequence[str], output: str) -> list[str]:
    """Copy the records of the folders `inputs` to the folder `output`, and return the lines of a summary.

    Raise `Refusal` before any file is written if a folder is invalid or a file cannot be read.
    """
    folders, target = [store.require_results_folder(folder) for folder in inputs], Path(output)
    check_value("--output", output, bool(output.strip()), "a folder, such as --output results/both")
    store.refuse_other_files(target, "--output ")
    loaded = {folder: _load_all_files(folder) for folder in (*folders, target)}
    store.create_results(target, "--output ")
    if problem := store.read_study(target).problem:
        raise Refusal(f"{target}: {problem}, or remove it")
    with store.lock_folder(target, seconds=_LOCK_SECONDS):
        return list(_copy_results({folder: loaded[folder] for folder in folders}, target))


def _load_all_files(folder: Path) -> store.Loaded:
    """Return the records and plans in a folder. Raise `Refusal` if a file of records cannot be read."""
    loaded = store.load(folder)
    if loaded.unreadable_files:
        advice = "make it readable or move it away, and merge again"
        raise Refusal(f"cannot read {folder / loaded.unreadable_files[0]}; {advice}")
    return loaded


def _copy_results(folders: Mapping[Path, store.Loaded], target: Path) -> Iterator[str]:
    """Copy the records, plans and study.json of `folders` to `target`, and yield the lines of a summary."""
    present_lines = set(_format_records(_load_all_files(target)))
    input_lines = itertools.chain(*map(_format_records, folders.values()))
    new_lines = [line for line in dict.fromkeys(input_lines) if line not in present_lines]
    if new_lines:
        path = target / f"merged-{uuid.uuid4().hex[:12]}.jsonl"
        store.replace_file(path, "".join(f"{line}\n" for line in new_lines).encode())
    for folder, loaded in folders.items():
        yield from (f"{folder}: {note}" for note in damaged_notes(loaded))
    studies = {folder: store.read_study(folder) for folder in (target, *folders)}
    yield from (f"{folder}: {study.problem}" for folder, study in studies.items() if study.problem)
    _merge_studies(list(studies.values()), target)
    for path in (path for folder in folders for path in sorted(folder.glob("plan-*.json"))):
        plan = store.read_json(path)
        if plan is not None and not (target / path.name).exists():
            store.write_json(target / path.name, plan)
        elif plan != store.read_json(target / path.name):
            yield f"{path} is not copied: it differs from {target / path.name}, which is kept"
    for path in (path for folder in folders for path in sorted(folder.glob("versus-*"))):
        yield f"{path} is not copied: copy it to {target / path.name}, or merge it into that folder"
    copied = f"{format_count(len(new_lines), 'record')} copied, {len(present_lines) + len(new_lines)} in all"
    yield f"{target}: {copied}; `{store.format_command('report', target)}` shows them"


def _format_records(loaded: store.Loaded) -> list[str]:
    return [to_line(record) for record in (*loaded.records, *loaded.plans)]


def _merge_studies(studies_to_merge: Sequence[store.Study], target: Path) -> None:
    """Merge the contents of several study.json files, and write the result to the folder `target`."""
    studies = [study.content for study in studies_to_merge if study.content]
    if not studies:
        return
    names = [str(study["study"]).split(store.NAME_SEPARATOR) for study in studies if study.get("study")]
    scalings = [study.get("scaling") or "strong" for study in studies]
    scaling_lists = [kinds if isinstance(kinds, list) else [kinds] for kinds in scalings]
    case_entries = [entry for study in studies for entry in study.get("cases", []) if isinstance(entry, dict)]
    case_entries.sort(key=store.count_replicates)  # the entry with the most replicates is kept
    merged = store.schema_and_version() | {
        "study": store.NAME_SEPARATOR.join(dict.fromkeys(itertools.chain(*names))) or None,
        "title": next((study["title"] for study in studies if study.get("title")), None),
        "scaling": sorted({str(kind) for kind in itertools.chain(*scaling_lists)}),
        "cases": list({str(entry.get("key")): entry for entry in case_entries}.values()),
    }
    if merged != store.read_json(target / "study.json"):
        store.write_json(target / "study.json", merged)
