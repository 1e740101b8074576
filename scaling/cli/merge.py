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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
from scaling.core.record import Record, to_line
from scaling.core.record_reading import from_line

DAMAGED = "damaged"  # the name of the folder for damaged lines
_STUDY = "study.json"
_JOIN = " + "  # between the names of studies that differ
_LOCK_SECONDS = 2.0


@dataclass(frozen=True)
class _MergedRecords:
    """Digests and counts of the records that the output folder contains so far."""

    digests: set[str] = field(default_factory=set)  # digests of records and of damaged lines
    measurements: Counter[tuple[str, str, int]] = field(default_factory=Counter)  # -> number of "ok" records
    settings: Counter[str] = field(default_factory=Counter)  # -> number of records

    def add(self, record: Record) -> bool:
        """Add a record to the counts unless it is already contained. Return whether it was added."""
        digest = _digest(to_line(record).encode())
        if digest in self.digests:
            return False
        self.digests.add(digest)
        self.settings[record.setting] += 1
        self.measurements[record.key, record.setting, record.replicate] += record.status == "ok"
        return True


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
    for folder in folders:
        for path in sorted(folder.glob("*.jsonl")):
            _read_bytes(path)  # raises for an unreadable file before anything is written
    with _lock_output_folder(target):
        return _copy_folders([each for each in folders if each.resolve() != target.resolve()], target)


@contextlib.contextmanager
def _lock_output_folder(target: Path) -> Iterator[None]:
    """Create the output folder, and lock it inside the context, so that no other process writes to it.

    Raise `Refusal` if another process has locked the folder, if the folder cannot be written to, or if it
    contains files but no results.
    """
    store.check_schemas(target)
    with contextlib.ExitStack() as stack:
        try:
            target.mkdir(parents=True, exist_ok=True)
            names = {path.name for path in target.iterdir() if not path.name.startswith(".")} - {DAMAGED}
            other = names and _STUDY not in names and not any(name.endswith(".jsonl") for name in names)
            if not other:
                stack.enter_context(store.locked(target, seconds=_LOCK_SECONDS))
        except Refusal:
            advice = "wait for it, or give another folder with --output PATH"
            raise Refusal(f"a run is working in {target}: {advice}") from None
        except OSError as error:
            problem = f"cannot write to {target}: {error.strerror}"
            raise Refusal(f"{problem}; give another folder with --output PATH") from None
        if other:
            raise Refusal(f"{target} is not empty and holds no results: give a new folder with --output PATH")
        yield


def _copy_folders(folders: Sequence[Path], target: Path) -> list[str]:
    """Copy the new records of each folder to the output folder, and return a summary as lines of text."""
    loaded, content = store.load(target), _MergedRecords()
    for record in (*loaded.records, *loaded.plans):
        content.add(record)
    for path in (target / DAMAGED).glob("*.txt"):
        content.digests.update(map(_digest, path.read_bytes().split(b"\n")))
    before = content.settings.total()
    lines = [
        line
        for folder in folders
        for line in _describe_copied_folder(folder, _copy_records(folder, target, content))
    ]
    lines += _unite_studies([target, *folders], target)
    _copy_new_plans(folders, target)
    return lines + _summarize_output_folder(target, content, before)


def _copy_records(folder: Path, target: Path, content: _MergedRecords) -> Counter[str]:
    """Copy the new records of a folder to the output folder, and return a counter of lines.

    The counter has the keys "added" for new records, "known" for records that the output folder already
    contains, and "damaged" for unreadable lines. New damaged lines are copied to the subfolder `damaged`.
    """
    counts: Counter[str] = Counter()
    for path in sorted(folder.glob("*.jsonl")):
        records, damaged = [], []
        for line in filter(bytes.strip, _read_bytes(path).split(b"\n")):
            try:
                if content.add(from_line(line.decode())):
                    records.append(line)
                else:
                    counts["known"] += 1
            except (ValueError, RecursionError):
                damaged.append(line)
        _write_new_file(target, path, records)
        _write_new_file(
            target / DAMAGED,
            path.with_suffix(".txt"),
            [x for x in damaged if _digest(x) not in content.digests],
        )
        content.digests.update(map(_digest, damaged))
        counts += Counter(added=len(records), damaged=len(damaged))
    return counts


def _read_bytes(path: Path) -> bytes:
    try:
        return store.read_file(path)
    except OSError as error:
        advice = "make it readable or move it away, and merge again"
        raise Refusal(f"cannot read {path}: {error.strerror}; {advice}") from None


def _write_new_file(folder: Path, like: Path, lines: Sequence[bytes]) -> None:
    """Write lines to a new file of a folder, which has the same name as the file `like`.

    If that name exists in the folder, a digest of the content is appended. Without lines, no file is written.
    """
    if not lines:
        return
    folder.mkdir(exist_ok=True)
    content = b"\n".join(lines) + b"\n"
    path = folder / like.name
    if path.exists():
        path = path.with_stem(f"{path.stem}-{_digest(content)[:12]}")
    store.replace_file(path, content, durable=True)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _describe_copied_folder(folder: Path, counts: Mapping[str, int]) -> list[str]:
    """Return a summary of a copied folder as lines of text, such as "results/a: 12 records added".

    A further line reports variants that are not copied. Another line warns if a run may still add records.
    """
    words = [f"{count_of(counts['added'], 'record')} added"]
    words += [f"{counts['known']} there before"] if counts["known"] else []
    if counts["damaged"]:
        words.append(f"{count_of(counts['damaged'], 'damaged line')} kept apart in {DAMAGED}/")
    lines = [f"{folder}: {', '.join(words)}"]
    if variants := sorted(path.name for path in folder.glob("versus-*") if path.is_dir()):
        lines.append(f"{folder}: the other variant of its comparison is not copied: {', '.join(variants)}")
    entries = [entry for made in submission_files.read_submissions(folder) for entry in made.entries]
    events = [read_journal(entry.path).last_event for entry in entries]  # no scheduler query
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
        return False
    except BlockingIOError:
        return True
    except OSError:
        return False


def _copy_new_plans(folders: Sequence[Path], target: Path) -> None:
    for path in (path for folder in folders for path in sorted(folder.glob("plan-*.json"))):
        if not (target / path.name).exists() and (study := store.read_json(path)) is not None:
            store.write_json(target / path.name, study)


def _unite_studies(folders: Iterable[Path], target: Path) -> list[str]:
    """Merge the study.json files of all folders, and write the result to the output folder.

    Return a list with a message for each of the fields `title` and `sampling` in which the studies differ.
    """
    studies = [study for study in (store.read_json(f / _STUDY) for f in folders) if isinstance(study, dict)]
    if not studies:
        return []
    united = _union_of_studies(studies)
    lines = []
    for name in ("title", "sampling"):
        if any(study.get(name) != studies[0].get(name) for study in studies):
            kept = f"{united['title']!r} is kept" if name == "title" else "none is kept"
            lines.append(f"the studies differ in their {name}: {kept}")
    if united != store.read_json(target / _STUDY):
        store.write_json(target / _STUDY, united)
    return lines


def _union_of_studies(studies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the content of a study.json file with the cases and common settings of several studies.

    The first title is kept. The fields `order_seed` and `sampling` are None if the studies differ in them.
    """
    names = [part for s in studies if s.get("study") for part in str(s["study"]).split(_JOIN)]
    kinds = [study.get("scaling") or "strong" for study in studies]
    words = {str(word) for kind in kinds for word in (kind if isinstance(kind, list) else [kind])}
    listed = [study["cases"] for study in studies if isinstance(study.get("cases"), list)]
    cells = [cell for each in listed for cell in each if isinstance(cell, dict)]
    cells.sort(key=store.replicates_of)  # the entry with the most replicates is kept
    united = store.stamp() | {
        "study": _JOIN.join(dict.fromkeys(names)) or None,
        "title": next((study["title"] for study in studies if study.get("title")), None),
        "scaling": sorted(words),
    }
    for name in ("order_seed", "sampling"):
        agreed = all(study.get(name) == studies[0].get(name) for study in studies)
        united[name] = studies[0].get(name) if agreed else None
    return united | {"cases": list({str(cell.get("key")): cell for cell in cells}.values())}


def _summarize_output_folder(target: Path, content: _MergedRecords, before: int) -> list[str]:
    count, settings = content.settings.total(), count_of(len(content.settings), "environment")
    apart = ", kept separate: no curve and no comparison mixes them" if len(content.settings) > 1 else ""
    lines = [f"{target}: {count_of(count - before, 'record')} added, {count} in all; {settings}{apart}"]
    if several := sum(records > 1 for records in content.measurements.values()):
        of = f"{count_of(several, 'measurement')} with several records"
        lines.append(f"{of}, of the same case, environment and replicate: the last one counts")
    return lines
