"""Implement `scaling merge`: copy the records of several results folders into one folder.

A record is a line of JSON with the result of one run. Lines are copied unchanged into new files. The input
folders are not modified, and no existing file is overwritten. Records that the output folder already contains
are not copied again, so that repeating the command completes an interrupted merge.
"""

import argparse
import contextlib
import fcntl
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from scaling.cli.streams import print_lines
from scaling.cli.verbs import OK
from scaling.cluster import submission_files
from scaling.cluster.journal import read_journal
from scaling.core import store
from scaling.core.case import Refusal
from scaling.core.formatting import count_of
from scaling.core.record import Record, from_line, to_line

DAMAGED = "damaged"  # subfolder of the output folder for damaged lines
_STUDY = "study.json"
_JOIN = " + "  # separator of the names of different studies
_LOCK_SECONDS = 2.0
_Records = dict[str, Record]  # digest of a record -> record in the output folder


def execute(args: argparse.Namespace, console: Console) -> int:
    """Merge the input folders into the output folder, print a summary, and return exit status 0."""
    print_lines(console, merge(args.folders, args.output))
    return OK


def merge(inputs: Sequence[str], output: str) -> list[str]:
    """Copy the records of results folders into an output folder, and return a summary as lines of text.

    The output folder is created if it does not exist. If the input is invalid, raise `Refusal` before any
    file is written.

    Args:
        inputs: The paths of the results folders.
        output: The path of the output folder.
    """
    folders = [store.folder_of(each) for each in inputs]
    if not output.strip():
        raise Refusal(f"--output must be a folder, such as --output results/both, not {output!r}")
    target = Path(output)
    if inside := [each for each in folders if each.resolve() in target.resolve().parents]:
        problem = f"--output {target} lies inside {inside[0]}, one of the folders to merge"
        raise Refusal(f"{problem}: give another folder")
    if len(folders) + target.is_dir() < 2:
        raise Refusal(f"{folders[0]} alone cannot be merged: give two or more results folders")
    names = {path.name for path in target.glob("[!.]*")} - {DAMAGED}
    if names and _STUDY not in names and not any(name.endswith(".jsonl") for name in names):
        raise Refusal(f"{target} is not empty and holds no results: give a new folder with --output PATH")
    for path in (path for folder in folders for path in sorted(folder.glob("*.jsonl"))):
        _read_bytes(path)  # raise `Refusal` for an unreadable file before writing any file
    with _lock_output_folder(target):
        return _copy_folders([each for each in folders if each.resolve() != target.resolve()], target)


@contextlib.contextmanager
def _lock_output_folder(target: Path) -> Iterator[None]:
    store.check_schemas(target)
    with contextlib.ExitStack() as stack:
        try:
            target.mkdir(parents=True, exist_ok=True)
            stack.enter_context(store.locked(target, seconds=_LOCK_SECONDS))
        except Refusal:
            advice = "wait for it, or give another folder with --output PATH"
            raise Refusal(f"a run is working in {target}: {advice}") from None
        except OSError as error:
            problem = f"cannot write to {target}: {error.strerror}"
            raise Refusal(f"{problem}; give another folder with --output PATH") from None
        yield


def _copy_folders(folders: Sequence[Path], target: Path) -> list[str]:
    """Copy the new records of each folder to the output folder, and return a summary as lines of text."""
    loaded = store.load(target)
    records = {_digest(to_line(record).encode()): record for record in (*loaded.records, *loaded.plans)}
    kept_apart = (path.read_bytes().split(b"\n") for path in (target / DAMAGED).glob("*.txt"))
    damaged, before = {_digest(line) for lines in kept_apart for line in lines}, len(records)
    lines = [line for folder in folders for line in _copy_records(folder, target, records, damaged)]
    lines += _unite_studies([target, *folders], target)
    for path in (path for folder in folders for path in sorted(folder.glob("plan-*.json"))):
        if not (target / path.name).exists() and (study := store.read_json(path)) is not None:
            store.write_json(target / path.name, study)
    settings = {record.setting for record in records.values()}
    apart = ", kept separate: no curve and no comparison mixes them" if len(settings) > 1 else ""
    added, environments = count_of(len(records) - before, "record"), count_of(len(settings), "environment")
    lines.append(f"{target}: {added} added, {len(records)} in all; {environments}{apart}")
    measured = Counter((r.key, r.setting, r.replicate) for r in records.values() if r.status == "ok")
    if several := sum(count > 1 for count in measured.values()):
        of = f"{count_of(several, 'measurement')} with several records"
        lines.append(f"{of}, of the same case, environment and replicate: the last one counts")
    return lines


def _copy_records(folder: Path, target: Path, records: _Records, damaged: set[str]) -> list[str]:
    """Copy the new records of a folder to the output folder, and return a summary as lines of text.

    New damaged lines are copied to the subfolder `damaged`. The new records are added to `records`, and the
    digests of the new damaged lines to `damaged`.
    """
    counts: Counter[str] = Counter()
    for path in sorted(folder.glob("*.jsonl")):
        new_lines, damaged_lines = [], []
        for line in filter(bytes.strip, _read_bytes(path).split(b"\n")):
            try:
                record = from_line(line.decode())
            except (ValueError, RecursionError):
                damaged_lines.append(line)
                continue
            if records.setdefault(_digest(to_line(record).encode()), record) is record:
                new_lines.append(line)
            else:
                counts["known"] += 1
        new_damaged = [line for line in damaged_lines if _digest(line) not in damaged]
        _write_new_file(target, path, new_lines)
        _write_new_file(target / DAMAGED, path.with_suffix(".txt"), new_damaged)
        damaged.update(map(_digest, new_damaged))
        counts += Counter(added=len(new_lines), damaged=len(damaged_lines))
    words = [f"{count_of(counts['added'], 'record')} added"]
    words += [f"{counts['known']} there before"] if counts["known"] else []
    if counts["damaged"]:
        words.append(f"{count_of(counts['damaged'], 'damaged line')} kept apart in {DAMAGED}/")
    return [f"{folder}: {', '.join(words)}", *_describe_omissions(folder)]


def _read_bytes(path: Path) -> bytes:
    try:
        return store.read_file(path)
    except OSError as error:
        advice = "make it readable or move it away, and merge again"
        raise Refusal(f"cannot read {path}: {error.strerror}; {advice}") from None


def _write_new_file(folder: Path, like: Path, lines: Sequence[bytes]) -> None:
    """Write lines to a new file with the name of the file `like`. If `lines` is empty, write no file.

    If a file with this name exists, a digest is appended to the name.
    """
    if lines:
        folder.mkdir(exist_ok=True)
        content, path = b"\n".join(lines) + b"\n", folder / like.name
        if path.exists():
            path = path.with_stem(f"{path.stem}-{_digest(content)[:12]}")
        store.replace_file(path, content, durable=True)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _describe_omissions(folder: Path) -> list[str]:
    """Return lines of text about the results of a folder that are missing in the copy.

    These are the subfolders `versus-*`, which are not copied, and records that unfinished runs may add.
    """
    lines = []
    if variants := sorted(path.name for path in folder.glob("versus-*") if path.is_dir()):
        lines.append(f"{folder}: the other variant of its comparison is not copied: {', '.join(variants)}")
    entries = [entry for made in submission_files.read_submissions(folder) for entry in made.entries]
    events = [read_journal(entry.path).last_event for entry in entries]  # without a query
    if count := sum(event not in ("ended", "stopped") for event in events):
        advice = "jobs are not copied, merge again after they end"
        lines.append(f"{folder}: {count_of(count, 'task')} of its jobs may still run; {advice}")
    elif _is_locked(folder):
        lines.append(f"{folder}: a run is in progress there; merge again after it ends")
    return lines


def _is_locked(folder: Path) -> bool:
    try:
        with (folder / ".lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


def _unite_studies(folders: Sequence[Path], target: Path) -> list[str]:
    """Merge the studies of several folders into the study.json of the output folder. Return remarks.

    The first title is kept. The fields `order_seed` and `sampling` are None if the studies differ in them.
    There is a remark if the titles differ, and one if the sampling settings differ.
    """
    studies = [study for study in (store.read_json(f / _STUDY) for f in folders) if isinstance(study, dict)]
    if not studies:
        return []
    first, common = studies[0], ("title", "order_seed", "sampling")
    differing = {name for name in common if any(s.get(name) != first.get(name) for s in studies)}
    names = [part for s in studies if s.get("study") for part in str(s["study"]).split(_JOIN)]
    kinds = [study.get("scaling") or "strong" for study in studies]
    words = {str(word) for kind in kinds for word in (kind if isinstance(kind, list) else [kind])}
    listed = [study["cases"] for study in studies if isinstance(study.get("cases"), list)]
    cells: list[Mapping[str, Any]] = [cell for each in listed for cell in each if isinstance(cell, dict)]
    cells.sort(key=store.replicates_of)  # the entry with the most replicates is kept
    title = next((study["title"] for study in studies if study.get("title")), None)
    united = store.stamp() | {
        "study": _JOIN.join(dict.fromkeys(names)) or None, "title": title, "scaling": sorted(words),
        **{name: None if name in differing else first.get(name) for name in common[1:]},
        "cases": list({str(cell.get("key")): cell for cell in cells}.values()),
    }  # fmt: skip
    if united != store.read_json(target / _STUDY):
        store.write_json(target / _STUDY, united)
    kept = {"title": f"{title!r} is kept", "sampling": "none is kept"}
    return [f"the studies differ in their {name}: {kept[name]}" for name in kept if name in differing]
