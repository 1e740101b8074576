"""Check, load and lock a results folder (records, study.json), select its latest records, replace files.

A file is replaced atomically. read_record.py parses each record. `scaling.core.record.Writer` writes the
records of a run.
"""

import codecs
import contextlib
import errno
import fcntl
import json
import os
import shlex
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import scaling
from scaling.core.case import Case, Refusal, from_dict
from scaling.core.formatting import format_count, format_value
from scaling.core.record import SCHEMA, Record, Writer
from scaling.results.read_record import parse_record, require_known_schema

# Of several records of a measurement, the last record with the highest rank is used.
_STATUS_RANK = {"failed": 0, "skipped": 1, "planned": 2, "ok": 2}
MAX_REPLICATES = 10_000  # maximum number of replicates of a study
NAME_SEPARATOR = " + "  # between the names of the studies of a merged folder
_LOCK_SECONDS = 10.0  # maximum time to wait for another run that is about to end
_MAX_NAME_BYTES = 255  # maximum length of a file name on Linux


def parse_results_folder(value: Any) -> Path:
    """Return the value of `results=PATH` as a path. Raise `Refusal` if it cannot be a results folder."""
    is_path = isinstance(value, str | int | float) and not isinstance(value, bool)
    if not is_path or not str(value).strip() or "\0" in str(value):
        raise Refusal(f"results must be a folder, such as results=results/mine, not {format_value(value)}")
    folder = Path(str(value))
    if not next(path for path in (folder, *folder.parents) if os.path.lexists(path)).is_dir():
        raise _not_writable(folder, os.strerror(errno.ENOTDIR))
    refuse_other_files(folder)
    return folder


def refuse_other_files(folder: Path, option: str = "results=") -> None:
    """Raise `Refusal` if the name of a folder is too long, or if its files are not results.

    `option` is the command-line option that the message quotes, such as "results=".
    """
    if any(len(os.fsencode(name)) > _MAX_NAME_BYTES for name in folder.parts):  # before a parent is created
        raise _not_writable(folder, os.strerror(errno.ENAMETOOLONG), option)
    names = {path.name for path in folder.glob("[!.]*") if not path.name.startswith("versus-")}
    if names and "study.json" not in names and not any(name.endswith(".jsonl") for name in names):
        raise Refusal(f"{folder} is not empty and holds no results: give a new folder with {option}PATH")


def create_results(folder: Path, option: str = "results=") -> None:
    """Create a results folder if it does not exist.

    Raise `Refusal` if the folder is not writable, or if its records cannot be read. `option` is the
    command-line option that the message quotes, such as "results=".
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()  # raises if it cannot be created
    except OSError as error:
        raise _not_writable(folder, error.strerror, option) from None
    for path in (folder / "study.json", *folder.glob("*.jsonl")):  # cases of unreadable files would run again
        if path.is_file() and not os.access(path, os.R_OK):
            reason = f"{path} cannot be read: {os.strerror(errno.EACCES)}"
            raise Refusal(f"{reason}; make it readable, or give another folder with {option}PATH")


def _not_writable(folder: Path, reason: str | None, option: str = "results=") -> Refusal:
    return Refusal(f"cannot write to {option}{folder}: {reason}; give another folder with {option}PATH")


def require_results_folder(path: str) -> Path:
    """Return `path` as a `Path`, or raise `Refusal` if it is not a readable results folder."""
    folder = Path(path)
    with contextlib.suppress(OSError, ValueError):  # not a valid path
        if path and (any(folder.glob("*.jsonl")) or (folder / "study.json").exists()):
            return folder
    alternatives = ", ".join(sorted(str(path.parent) for path in Path("results").glob("*/study.json")))
    hint = f"there are {alternatives}" if alternatives else "`scaling run` makes some"
    raise Refusal(f"no results in {path!r} that this user can read; {hint}")


def require_writable(path: Path) -> None:
    """Raise `Refusal` if this process cannot create a file in the folder `path`.

    If the folder does not exist, its parent folder is checked instead.
    """
    existing = path if path.exists() else path.parent
    if not os.access(existing, os.W_OK | os.X_OK):
        raise Refusal(f"cannot write to {existing}: change the permissions, or give a copy of {path.parent}")


def no_records_error(action: str, folder: Path, damaged: Sequence[str]) -> Refusal:
    """Return the exception to raise if a results folder contains no record to export, publish or load.

    `action` is "export", "publish" or "load". `damaged` contains a message for each line that cannot be read.
    """
    lines = format_count(len(damaged), "damaged line")
    ignored = f"; ignored: {lines}, the first {damaged[0]}" if damaged else ""
    return Refusal(f"no record to {action} in {str(folder)!r}{ignored}; `scaling run` makes some")


def refuse_newer_schema(folder: Path) -> None:
    """Raise `Refusal` if a newer ad-scaling wrote a record, a plan or study.json in a results folder.

    Commands call this before they write anything. It is several times as fast as `load`, which also checks
    the fields of the records.
    """
    for path in (*sorted(folder.glob("*.jsonl")), folder / "study.json", *sorted(folder.glob("plan-*.json"))):
        with contextlib.suppress(OSError):  # a file that is absent or cannot be read
            content = read_file(path)
            for text in content.split(b"\n") if path.suffix == ".jsonl" else [content]:
                require_known_schema(parse_json(text), path)


class Loaded(NamedTuple):
    """The records and plans in a results folder, and messages about lines that cannot be read."""

    records: list[Record]  # the records of runs
    damaged: list[str]  # a message "file:line: reason" for each line that cannot be read
    plans: list[Record]  # the records of `scaling plan`, which are predictions

    @property
    def unreadable_files(self) -> list[str]:
        """Return the messages in `damaged` about whole .jsonl files, without messages about single lines."""
        return [text for text in self.damaged if text.split(": ")[0].endswith(".jsonl")]


def load(folder: Path) -> Loaded:
    """Read the records and plans in a results folder.

    Raise `Refusal` if a newer ad-scaling wrote a record, a plan or study.json.
    """
    records: list[Record] = []
    damaged: list[str] = []
    for path in sorted(folder.glob("*.jsonl")):
        try:
            record_lines = read_file(path).split(b"\n")
        except OSError as error:
            damaged.append(f"{path.name}: {_describe_read_error(error)}")
            continue
        for line_number, record_line in enumerate(record_lines, 1):
            try:
                if record_line.strip():
                    records.append(parse_record(record_line.decode(), path))
            except Refusal:
                raise
            except (ValueError, RecursionError) as error:
                damaged.append(f"{path.name}:{line_number}: {_describe_read_error(error)}")
    for path in (folder / "study.json", *sorted(folder.glob("plan-*.json"))):
        content = read_json(path)
        require_known_schema(content, path)
        if path.name != "study.json" and not isinstance(content, dict):
            damaged.append(
                f"{path.name}: no mapping in JSON; repeat the `scaling plan` command, which writes it again"
            )
    plans = [record for record in records if record.is_prediction]
    return Loaded([record for record in records if not record.is_prediction], damaged, plans)


def _describe_read_error(error: Exception) -> str:
    """Return why a line or a file cannot be read, as text of at most 120 characters without a file name."""
    if isinstance(error, UnicodeDecodeError | json.JSONDecodeError | RecursionError):
        return "not a complete line of JSON, as after an interrupted write or copy"
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__)[:120]


def format_command(command: str, folder: Path) -> str:
    """Return a shell command for a results folder, such as "scaling report 'results/my study'"."""
    path = f"./{folder}" if str(folder).startswith("-") else str(folder)  # otherwise, it would be an option
    return f"scaling {command} {shlex.quote(path)}"


def sort_by_start(records: Iterable[Record]) -> list[Record]:
    """Return records sorted by start time, and by attempt number if the times are equal."""
    return sorted(records, key=lambda record: (record.started_at or "", record.attempt))


def latest_records(records: Iterable[Record]) -> list[Record]:
    """Return one record for each combination of case, environment and replicate.

    If a combination has several records, return the last one with the best status. The best statuses are "ok"
    and "planned", followed by "skipped" and then "failed".
    """
    selected: dict[tuple[str, str, int], Record] = {}
    for record in sort_by_start(records):
        measurement = (record.key, record.setting, record.replicate)
        previous = selected.get(measurement, record)
        if previous.identity == record.identity:
            replaces = _STATUS_RANK[record.status] >= _STATUS_RANK[previous.status]
        else:  # another version of a peer (another AD library): the last installed one is used
            replaces = record.reason != "not_installed"
        if replaces:
            selected[measurement] = record
    return list(selected.values())


def current_records(records: Iterable[Record], folder: Path) -> list[Record]:
    """Return the records that `latest_records` selects, without outdated failures of the preflight check.

    A failed check is outdated if study.json in `folder` lists cases, but not the case of the failed record.
    """
    newest = latest_records(records)
    study = read_study(folder, newest).cases
    return [record for record in newest if not study or record.key in study or not _is_failed_check(record)]


def _is_failed_check(record: Record) -> bool:
    case = record.case  # a successful check fills in `target`, and `wrt` unless the target is a value
    is_complete = case.target is not None and (case.ad_mode.is_value or case.wrt is not None)
    return record.status == "failed" and not is_complete


def newest_by_replicate(records: Iterable[Record]) -> dict[tuple[str, int], Record]:
    """Return a dict that maps (case key, replicate number) to the newest record of this replicate.

    `records` must be records that `current_records` returned.
    """
    return {(record.key, record.replicate): record for record in sort_by_start(records)}


def keep_newest_environments(records: Sequence[Record]) -> list[Record]:
    """Return the records that were measured in the newest environment of their workload.

    The newest environment of a workload is the environment of its record that started last. It is determined
    separately for the records of failed preflight checks.
    """
    subject = lambda record: (record.case.workload, _is_failed_check(record))  # noqa: E731
    newest = {subject(record): record.setting for record in sort_by_start(records)}
    return [record for record in records if record.setting == newest[subject(record)]]


def count_replicates(entry: Mapping[str, Any]) -> int:
    """Return the number of replicates of a case, or 1 if the number is invalid.

    `entry` is the dict that study.json contains for the case.
    """
    count = entry.get("replicates")
    return min(count, MAX_REPLICATES) if isinstance(count, int) and count >= 1 else 1


class Study(NamedTuple):
    """The content of study.json in a results folder, which lists the cases of the last study."""

    content: dict[str, Any]  # {} if the file is absent or cannot be read
    cases: dict[str, tuple[Case, int]]  # key -> (case, number of replicates)
    problem: str  # why the file cannot be read, or ""


def read_study(folder: Path, records: Iterable[Record] = ()) -> Study:
    """Return the content of study.json in a results folder as a `Study`.

    To save time, a case that `records` contain is taken from them and not parsed again.
    """
    path, known_cases = folder / "study.json", {record.key: record.case for record in records}
    content, cases = read_json(path) if path.exists() else {}, dict[str, tuple[Case, int]]()
    try:
        for entry in content.get("cases", []):
            known_case = known_cases.get(entry.get("key"))
            case = known_case or from_dict(entry["case"])
            cases[entry["key"] if known_case else case.key] = case, count_replicates(entry)
    except (Refusal, TypeError, KeyError, AttributeError):
        is_denied = path.exists() and not os.access(path, os.R_OK)
        fix = "make it readable" if is_denied else "repeat the `scaling run` command, which writes it again"
        return Study({}, {}, f"study.json cannot be read: missing cases are unknown; {fix}")
    return Study(content, cases, "")


@contextlib.contextmanager
def lock_folder(folder: Path, name: str = ".lock", seconds: float = _LOCK_SECONDS) -> Iterator[int]:
    """Lock the file `name` in a folder until the context exits, and yield its file descriptor.

    Raise `Refusal` if another process holds the lock for `seconds`, or if the file system does not support
    locks.
    """
    path = folder / name
    is_foreign = path.exists() and not os.access(path, os.W_OK)  # created by another user of the folder
    descriptor = os.open(path, os.O_RDONLY if is_foreign else os.O_CREAT | os.O_RDWR, 0o666)
    deadline, is_locked = time.monotonic() + seconds, False
    try:
        while not is_locked:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_locked = True
            except BlockingIOError:
                if time.monotonic() > deadline:
                    message = f"another run is working in {folder}; wait for it, or give another folder"
                    raise Refusal(message) from None
                time.sleep(0.2)
            except OSError as error:  # no support for locks, or no permission to write a file on NFS
                fix = "give a folder on a file system with locks (flock), in which you may write this file"
                raise Refusal(f"cannot lock {path}: {error.strerror}; {fix}") from None
        yield descriptor
    finally:
        os.close(descriptor)


def append_records(folder: Path, records: Iterable[Record]) -> None:
    """Write records to a new file in a results folder."""
    writer = Writer(folder)
    for record in records:
        writer.append(record)


def schema_and_version() -> dict[str, Any]:
    """Return the version of the record format and of this package, as entries for a JSON file."""
    return {"schema": SCHEMA, "versions": {"ad_scaling": scaling.__version__}}


def read_file(path: Path) -> bytes:
    """Return the content of a regular file, or raise OSError for any other file, such as a pipe."""
    if path.exists() and not (path.is_file() or path.is_dir()):  # opening a pipe would block
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    return path.read_bytes().removeprefix(codecs.BOM_UTF8)  # an editor may have added it


def read_json(path: Path) -> Any:
    """Return the value of a JSON file, or None if the file is unreadable or not valid JSON."""
    try:
        return parse_json(read_file(path))
    except OSError:
        return None


def parse_json(text: bytes) -> Any:
    """Return the value of `text`, which is JSON in UTF-8, or None if it is not valid JSON."""
    try:
        return json.loads(text.decode())
    except (ValueError, RecursionError):
        return None


def write_json(path: Path, value: Any) -> None:
    """Write a value to a JSON file atomically."""
    replace_file(path, (json.dumps(value, indent=1) + "\n").encode())


def write_files(folder: Path, contents: Mapping[str, bytes]) -> list[Path]:
    """Write files to a folder, which is created if it is missing, and return their paths.

    `contents` maps each file name to the content of the file.
    """
    paths = [folder / name for name in contents]
    for path, content in zip(paths, contents.values(), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
    return paths


def replace_file(path: Path, content: bytes) -> None:
    """Replace the content of a file atomically, after the new content is flushed to disk."""
    temporary_path = path.with_name(f".{path.name}-{uuid.uuid4().hex[:8]}")
    try:
        with temporary_path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary_path, path)
    except OSError as error:
        if error.filename in (None, str(temporary_path)):  # a failed write does not set `filename`
            error.filename = str(path)
        raise
    finally:
        with contextlib.suppress(OSError):  # does not exist, or the file system is read-only
            temporary_path.unlink()
