"""Merging: results folders of several clusters become one, in which every record has the environment that it was made in.

Records are copied as the lines that they are, into new files: nothing is changed or taken away where they come from, and no file
that is there is written again. What a folder holds already is not copied twice, so that the same command completes a merge that
was interrupted, and adds what has come since. Knows folders and lines; not what is made of them.
"""

import contextlib
import fcntl
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scaling.cluster import submission
from scaling.core import store
from scaling.core.case import Refusal
from scaling.core.formatting import count_of
from scaling.core.record import Record, to_line
from scaling.core.record_reading import from_line

DAMAGED = "damaged"  # a folder for damaged lines
_STUDY = "study.json"
_JOIN = " + "  # between the names of studies that differ
_LAST_WORDS = ("ended", "stopped")  # of a task
_LOCK_SECONDS = 2.0


@dataclass(frozen=True)
class Merged:
    """What came of a merge."""

    output: Path
    records: int  # that were added
    known: int  # that were there before, or stand in two of the folders
    damaged: int  # lines that are no records
    environments: tuple[str, ...]  # of everything in the folder now
    lines: tuple[str, ...]  # all of it in words


@dataclass
class _Kept:
    """What the folder holds so far, to be compared with."""

    records: set[str] = field(default_factory=set)  # digests
    places: dict[tuple, set[str]] = field(
        default_factory=dict
    )  # what counts as the same measurement -> digests of those
    settings: dict[str, None] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)  # digests of damaged lines that were kept apart

    def add(self, record: Record) -> bool:
        """Note a record; whether it was not there before."""
        digest = _digest(to_line(record).encode())
        fresh = digest not in self.records
        self.records.add(digest)
        self.settings.setdefault(record.setting)
        if record.status == "ok":
            self.places.setdefault((record.key, record.setting, record.replicate), set()).add(digest)
        return fresh


def merge(inputs: Sequence[str], output: str) -> Merged:
    """Add the records of these results folders to another, which is made if need be. Bad input is refused before."""
    folders = [store.folder_of(each) for each in inputs]
    if not output.strip():
        raise Refusal(f"--output must be a folder, such as --output results/both, not {output!r}")
    target = Path(output)
    inside = [each for each in folders if each.resolve() in target.resolve().parents]
    if inside:
        raise Refusal(
            f"--output {target} lies inside {inside[0]}, one of the folders to merge: give another folder"
        )
    if len(folders) + target.is_dir() < 2:
        raise Refusal(f"nothing to merge {folders[0]} with: name two results folders or more")
    for path in (path for folder in folders for path in sorted(folder.glob("*.jsonl"))):
        _read(path)  # before anything is written
    _prepare(target)
    with _alone(target):
        return _merge([each for each in folders if each.resolve() != target.resolve()], target)


def _prepare(target: Path) -> None:
    """Make the folder, or refuse one that is something else, or of a newer version."""
    store.check_schemas(target)
    try:
        target.mkdir(parents=True, exist_ok=True)
        there = [
            path.name for path in target.iterdir() if not path.name.startswith(".") and path.name != DAMAGED
        ]
    except OSError as error:
        raise Refusal(
            f"cannot write to {target}: {error.strerror}; give another folder with --output PATH"
        ) from None
    if there and _STUDY not in there and not any(name.endswith(".jsonl") for name in there):
        raise Refusal(f"{target} is not empty and holds no results: give a new folder with --output PATH")


@contextlib.contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Hold the folder, so that no run and no other merge works in it meanwhile."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(store.locked(target, seconds=_LOCK_SECONDS))
        except Refusal:
            raise Refusal(
                f"a run is working in {target}: wait for it, or give another folder with --output PATH"
            ) from None
        except OSError as error:
            raise Refusal(
                f"cannot write to {target}: {error.strerror}; give another folder with --output PATH"
            ) from None
        yield


def _merge(folders: Sequence[Path], target: Path) -> Merged:
    kept, lines, added, known, damaged = _held(target), list[str](), 0, 0, 0
    for folder in folders:
        fresh, again, broken = _bring(folder, target, kept)
        added, known, damaged = added + fresh, known + again, damaged + broken
        lines += _report_folder(folder, fresh, again, broken)
    lines += _unite([target, *folders], target)
    _bring_plans(folders, target)
    lines += _summary(target, kept, added)
    return Merged(target, added, known, damaged, tuple(kept.settings), tuple(lines))


def _held(target: Path) -> _Kept:
    """What a folder holds before anything is added."""
    kept = _Kept()
    loaded = store.load(target)
    for record in (*loaded.records, *loaded.plans):
        kept.add(record)
    for path in (target / DAMAGED).glob("*.txt"):
        kept.broken |= {_digest(line) for line in path.read_bytes().split(b"\n")}
    return kept


def _bring(folder: Path, target: Path, kept: _Kept) -> tuple[int, int, int]:
    """Copy what is new of a folder: how many records were, how many were there before, how many lines are none."""
    counts = [0, 0, 0]
    for path in sorted(folder.glob("*.jsonl")):
        fresh, again, broken = _sorted_out(path, kept)
        _write(target, path, fresh)
        new = [line for line in broken if _digest(line) not in kept.broken]
        _write(target / DAMAGED, path.with_suffix(".txt"), new)
        kept.broken |= {_digest(line) for line in new}
        counts = [sum(pair) for pair in zip(counts, (len(fresh), again, len(broken)), strict=True)]
    return counts[0], counts[1], counts[2]


def _read(path: Path) -> bytes:
    try:
        return store.read_file(path)
    except OSError as error:
        raise Refusal(
            f"cannot read {path}: {error.strerror}; make it readable or move it away, and merge again"
        ) from None


def _sorted_out(path: Path, kept: _Kept) -> tuple[list[bytes], int, list[bytes]]:
    """Of the lines of a file: the records that are new, how many are not, and what is no record."""
    fresh, again, broken = [], 0, []
    for line in _read(path).split(b"\n"):
        if not line.strip():
            continue
        try:
            new = kept.add(from_line(line.decode()))
        except (ValueError, RecursionError):
            broken.append(line)
            continue
        if new:
            fresh.append(line)
        else:
            again += 1
    return fresh, again, broken


def _write(folder: Path, like: Path, lines: Sequence[bytes]) -> None:
    """A new file of these lines, on disk as a whole or not at all: under its own name, or with a digest where that is taken."""
    if not lines:
        return
    folder.mkdir(exist_ok=True)
    content = b"\n".join(lines) + b"\n"
    numbered = like.with_stem(f"{like.stem}-{_digest(content)[:12]}").name
    store.replace_file(
        folder / (numbered if (folder / like.name).exists() else like.name), content, durable=True
    )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# In words.


def _report_folder(folder: Path, fresh: int, again: int, broken: int) -> list[str]:
    """What came of one folder, and what is still to come from it."""
    words = [f"{count_of(fresh, 'record')} added", *([f"{again} there before"] if again else [])]
    words += [f"{count_of(broken, 'damaged line')} kept apart in {DAMAGED}/"] if broken else []
    lines = [f"{folder}: {', '.join(words)}"]
    if variants := sorted(path.name for path in folder.glob("versus-*") if path.is_dir()):
        lines.append(f"{folder}: the other variant of its comparison is not copied: {', '.join(variants)}")
    if tasks := _open_tasks(folder):
        lines.append(
            f"{folder}: {count_of(tasks, 'task')} of its jobs may still run; jobs are not copied, merge again when they are over"
        )
    elif _running(folder):
        lines.append(f"{folder}: a run is working there; merge again when it is over")
    return lines


def _open_tasks(folder: Path) -> int:
    """Return how many tasks of a folder have not reported their end. Asks no scheduler, and writes nothing down."""
    last = [
        [event["event"] for event in submission.journal(entry.path)][-1:]
        for made in submission.all_of(folder)
        for entry in made.entries
    ]
    return sum(word[0] not in _LAST_WORDS if word else True for word in last)


def _running(folder: Path) -> bool:
    """Whether a run of this host holds a folder."""
    try:
        with (folder / ".lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError:
        return False


def _bring_plans(folders: Sequence[Path], target: Path) -> None:
    """Copy what plans say of their hardware, where the target has none of its name."""
    for path in (path for folder in folders for path in sorted(folder.glob("plan-*.json"))):
        if not (target / path.name).exists() and (study := store.read_json(path)) is not None:
            store.write_json(target / path.name, study)


def _unite(folders: Sequence[Path], target: Path) -> list[str]:
    """Write what was asked for in any of the folders; what differs between them in words."""
    studies = [
        (folder, study) for folder in folders if isinstance(study := store.read_json(folder / _STUDY), dict)
    ]
    if not studies:
        return []
    united, lines = _united([study for _, study in studies]), []
    for name in ("title", "sampling"):
        if len({json.dumps(study.get(name), sort_keys=True) for _, study in studies}) > 1:
            kept = f"{united['title']!r} is kept" if name == "title" else "none is kept"
            lines.append(f"the studies differ in their {name}: {kept}")
    if united != store.read_json(target / _STUDY):
        store.write_json(target / _STUDY, united)
    return lines


def _united(studies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One study of several: the cases of all, each once, and every kind of scaling; a setting only where all agree on it."""
    names = dict.fromkeys(
        part for study in studies if study.get("study") for part in str(study["study"]).split(_JOIN)
    )
    kinds = [study.get("scaling") or "strong" for study in studies]
    listed = [study["cases"] for study in studies if isinstance(study.get("cases"), list)]
    cells = sorted(
        (cell for each in listed for cell in each if isinstance(cell, dict)), key=store.replicates_of
    )
    cases = {str(cell.get("key")): cell for cell in cells}  # with the most replicates that a study expects
    same = {name: studies[0].get(name) for name in ("order_seed", "sampling")}
    return store.stamp() | {
        "study": _JOIN.join(names) or None,
        "title": next((study["title"] for study in studies if study.get("title")), None),
        "scaling": sorted(
            {str(word) for kind in kinds for word in (kind if isinstance(kind, list) else [kind])}
        ),
        **{
            name: value if all(study.get(name) == value for study in studies) else None
            for name, value in same.items()
        },
        "cases": list(cases.values()),
    }


def _summary(target: Path, kept: _Kept, added: int) -> list[str]:
    """What the folder holds now, and what of it cannot stand side by side."""
    apart = ", kept apart: no curve and no comparison mixes them" if len(kept.settings) > 1 else ""
    records, settings = (
        f"{count_of(added, 'record')} added, {len(kept.records)} in all",
        count_of(len(kept.settings), "environment"),
    )
    lines = [f"{target}: {records}; {settings}{apart}"]
    if several := sum(len(digests) > 1 for digests in kept.places.values()):
        of = count_of(several, "measurement")
        lines.append(
            f"of {of} there are several records, of the same case, environment and replicate: the last one counts"
        )
    return lines
