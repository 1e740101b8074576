"""Implement `scaling merge`: copy the files of records of several results folders into one.

Each run writes its own file of records, which only grows, so that files with the same name are copies.
The longest one is kept, and a merge can be repeated. The input folders are not modified.
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console

from scaling.cli.output import print_lines
from scaling.core.case import Refusal
from scaling.core.formatting import format_count
from scaling.results import store

_STUDY = "study.json"
_LOCK_SECONDS = 2.0


def execute(args: argparse.Namespace, console: Console) -> None:
    """Merge the input folders into the output folder, and print a summary."""
    print_lines(console, merge(args.folders, args.output))


def merge(inputs: Sequence[str], output: str) -> list[str]:
    """Copy the records of results folders into an output folder, and return the lines of a summary.

    Raise `Refusal` before any file is written if a folder is invalid or a file cannot be read.
    """
    folders, target = [store.require_results_folder(folder) for folder in inputs], Path(output)
    if not output.strip():
        raise Refusal(f"--output must be a folder, such as --output results/both, not {output!r}")
    store.refuse_other_files(target, "--output ")
    files = list(_read_files(folders))
    _keep_longest([*_read_files([target]), *files])  # refuses files that are not copies
    for folder in (*folders, target):
        store.refuse_newer_schema(folder)
    store.create_results(target, "--output ")
    study = store.read_study(target)
    if study.problem and not study.content:
        raise Refusal(f"{target}: {study.problem}, or remove it")
    with store.locked(target, seconds=_LOCK_SECONDS):
        return list(_copy_files(folders, files, target))


def _read_files(folders: Iterable[Path]) -> Iterator[tuple[Path, bytes]]:
    """Yield the path and the content of each file of records. Raise `Refusal` if one cannot be read."""
    for path in (path for folder in folders for path in sorted(folder.glob("*.jsonl"))):
        try:
            yield path, store.read_file(path)
        except OSError as error:
            advice = "make it readable or move it away, and merge again"
            raise Refusal(f"cannot read {path}: {error.strerror}; {advice}") from None


def _keep_longest(files: Iterable[tuple[Path, bytes]]) -> dict[str, bytes]:
    """Return {name: longest content} of files. Several of them may have the same name.

    Raise `Refusal` unless the shorter content of two such files is the beginning of the longer one.
    """
    contents: dict[str, bytes] = {}
    for path, content in files:
        shorter, longer = sorted((contents.get(path.name, b""), content), key=len)
        if not longer.startswith(shorter):
            problem = "has the name of a file of another folder, with other records"
            raise Refusal(f"{path} {problem}: rename it, and merge again")
        contents[path.name] = longer
    return contents


def _copy_files(folders: Sequence[Path], files: Sequence[tuple[Path, bytes]], target: Path) -> Iterator[str]:
    """Copy the records, study.json and plans of `folders` to `target`, and yield the lines of a summary.

    `files` contains the paths and contents of the files of records in `folders`.
    """
    target_files = list(_read_files([target]))
    present, contents = _keep_longest(target_files), _keep_longest([*target_files, *files])
    # An earlier version copied the lines to files with other names, merged-*.jsonl.
    lines, changed = {line for content in present.values() for line in content.split(b"\n")}, list[str]()
    for name in sorted(contents, key=lambda name: -len(contents[name])):  # the file with the most lines first
        new_lines = contents[name].split(b"\n")
        if contents[name] != present.get(name) and not lines.issuperset(new_lines):
            changed.append(name)
            lines.update(new_lines)
    for name in changed:
        store.replace_file(target / name, contents[name])
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
    copied = f"{format_count(len(changed), 'file')} of records copied, {len(present.keys() | changed)} in all"
    yield f"{target}: {copied}; `{store.format_command('report', target)}` shows them"


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
