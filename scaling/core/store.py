"""The store: records on disk, as JSON lines. What is finished is never lost, whatever is killed when.

Each process appends to a file that no other one appends to, so that a torn last line swallows nothing. A
small file is replaced as a whole, or not at all. Knows folders and lines; not what the numbers mean.
"""

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import scaling
from scaling.core.case import Refusal
from scaling.core.record import SCHEMA, Record, to_line

_WORST = ("failed", "skipped", "planned", "ok")  # statuses, the worst first
_MOST_REPLICATES = 10_000  # that a file may ask for
_LOCK_SECONDS = 10.0  # how long to wait for a run that is going away


class Loaded(NamedTuple):
    """Every record of a folder in the order of files and lines, and what was passed over, as 'file:line:
    why'.

    What was planned for some hardware stands apart: it did not happen.
    """

    records: list[Record]
    damaged: list[str]
    plans: list[Record]


class Writer:
    """Appends records to a new file, which appears with the first; each is on disk when `append` returns."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: int | None = None

    def append(self, record: Record) -> None:
        """Write and fsync one line; raise OSError if that fails, with the file left as it was before."""
        line = (to_line(record) + "\n").encode()
        if self._file is None:
            name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:12]}.jsonl"
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND
            self._file = os.open(self._folder / name, flags, 0o644)
            _sync_folder(self._folder)
        before = os.fstat(self._file).st_size
        try:
            while line:
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, before)
            raise


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def load(folder: Path) -> Loaded:
    """Return every record that can be read. A damaged line is named and passed over, so that its case
    runs again.

    What a newer version of this package wrote is a `Refusal`: to pass over it would be to run it again.
    """
    from scaling.core.record_reading import FutureSchema, from_line  # which a worker does not need

    records: list[Record] = []
    damaged: list[str] = []
    _check_manifests(folder)
    for path in sorted(folder.glob("*.jsonl")):
        try:
            lines = read_file(path).split(b"\n")
        except OSError as error:
            damaged.append(f"{path.name}: {error.strerror}")
            continue
        for number, line in enumerate(lines, 1):
            try:
                if line.strip():
                    records.append(from_line(line.decode()))
            except FutureSchema as future:
                raise _too_new(path, future.schema, future.version) from None
            except json.JSONDecodeError as error:
                damaged.append(f"{path.name}:{number}: {error.msg}")
            except (ValueError, RecursionError) as error:
                damaged.append(f"{path.name}:{number}: {(str(error) or type(error).__name__)[:120]}")
    return Loaded([r for r in records if not r.of_plan], damaged, [r for r in records if r.of_plan])


def latest(records: Iterable[Record]) -> list[Record]:
    """Return one record of each identity: the last that is ok, or else the last skipped, or else the last
    failure.

    Of a peer in several versions, the one that ran last; that it was not installed counts only where it
    never was.
    """
    kept: dict[tuple[str, str, int], Record] = {}
    worth = {"failed": 0, "skipped": 1, "ok": 2, "planned": 2}
    for record in sorted(records, key=lambda r: (r.started_at or "", r.attempt)):
        place = (record.key, record.setting, record.replicate)
        old = kept.get(place, record)
        another = old.identity != record.identity  # version of the peer, or none
        if record.reason != "not_installed" if another else worth[record.status] >= worth[old.status]:
            kept[place] = record
    return list(kept.values())


def results_folder(value: Any) -> Path:
    """Return the folder that `results` names; refuse what can be none, or lies below a file."""
    text = str(value)
    if (
        not isinstance(value, str | int | float)
        or isinstance(value, bool)
        or not text.strip()
        or "\0" in text
    ):
        raise Refusal(f"results must be a folder, such as results=results/mine, not {value!r}")
    folder = Path(text)
    for each in (folder, *folder.parents):
        try:
            each.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise _unwritable(folder, error.strerror) from None
        if not each.is_dir():
            raise _unwritable(folder, os.strerror(errno.ENOTDIR))
        break
    return folder


def _unwritable(folder: Path, why: str | None) -> Refusal:
    return Refusal(f"cannot write to results={folder}: {why}; give another folder with results=PATH")


def states(records: Iterable[Record]) -> dict[tuple[str, int], str]:
    """Return the status of each replicate of each case, by (key, replicate), in the environment where it
    ran last.

    These are what status, report and lint count.
    """
    found: dict[tuple[str, int], tuple[str, str]] = {}  # (key, replicate) -> environment, status
    for record in sorted(latest(records), key=lambda r: (r.started_at or "", r.attempt)):
        place, status = (record.key, record.replicate), record.status
        if found.get(place, ("", ""))[0] == record.setting:
            status = min(found[place][1], status, key=_WORST.index)
        found[place] = record.setting, status
    return {place: status for place, (_, status) in found.items()}


def replicates_of(cell: Mapping[str, Any]) -> int:
    """Return how many replicates of a case study.json expects; 1 where the file does not say."""
    count = cell.get("replicates")
    return min(count, _MOST_REPLICATES) if isinstance(count, int) and count >= 1 else 1


def prepare(folder: Path) -> None:
    """Make a results folder that can be written to; refuse where that is not possible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{uuid.uuid4().hex[:8]}"
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        raise _unwritable(folder, error.strerror) from None


@contextlib.contextmanager
def locked(folder: Path, name: str = ".lock", seconds: float = _LOCK_SECONDS) -> Iterator[int]:
    """Hold the folder for one run at a time; yield the lock's descriptor, which a worker inherits."""
    handle = os.open(folder / name, os.O_CREAT | os.O_RDWR, 0o644)
    deadline = time.monotonic() + seconds
    try:
        while not _try_lock(handle):
            if time.monotonic() > deadline:
                words = "wait for it, or give another folder with results=PATH"
                raise Refusal(f"another run is working in {folder}; {words}")
            time.sleep(0.2)
        yield handle
    finally:
        os.close(handle)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def folder_of(path: str) -> Path:
    """Return an existing results folder; refuse any other path and name those that there are."""
    folder, found = Path(path), False
    with contextlib.suppress(OSError, ValueError):  # what cannot be a path
        found = folder.is_dir() and (any(folder.glob("*.jsonl")) or (folder / "study.json").exists())
    if path and found:
        check_schemas(folder)
        return folder
    near = ", ".join(sorted(str(p.parent) for p in Path("results").glob("*/study.json")))
    raise Refusal(f"no results in {path!r}; " + (f"there are {near}" if near else "`scaling run` makes some"))


def check_schemas(folder: Path) -> None:
    """Raise a `Refusal` if a newer version of this package wrote a record or the study of a folder."""
    _check_manifests(folder)
    ours = (
        f'"schema": {SCHEMA},'.encode()
    )  # as this version writes it: a string within a record escapes its quotes
    for path in sorted(folder.glob("*.jsonl")):
        with contextlib.suppress(OSError):
            for line in read_file(path).split(b"\n"):
                if b"schema" in line and ours not in line:
                    _check_schema(path, _parse(line))


def _check_manifests(folder: Path) -> None:
    for path in (folder / "study.json", *sorted(folder.glob("plan-*.json"))):
        _check_schema(path, read_json(path))


def _check_schema(path: Path, value: Any) -> None:
    """Raise a `Refusal` if a mapping read from a file has a schema greater than ours."""
    from scaling.core.record_reading import FutureSchema, refuse_future

    try:
        refuse_future(value)
    except FutureSchema as future:
        raise _too_new(path, future.schema, future.version) from None


def _too_new(path: Path, schema: float, version: str | None) -> Refusal:
    needed = f"ad-scaling {version} or newer" if version else "the version of ad-scaling that wrote it"
    ours = f"ad-scaling {scaling.__version__} reads schema {SCHEMA}"
    return Refusal(
        f"{path} has schema {schema}, {ours}: install {needed}, or give another folder; nothing was changed"
    )


def stamp() -> dict[str, Any]:
    """Return what a file of JSON says of who wrote it: the schema, and the version of this package."""
    return {"schema": SCHEMA, "versions": {"ad_scaling": scaling.__version__}}


def read_file(path: Path) -> bytes:
    """Return the content of a regular file; raise OSError for any other: to read a pipe may never end."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb") as file:
        kind = os.fstat(handle).st_mode
        if not stat.S_ISREG(kind):
            words = os.strerror(errno.EISDIR) if stat.S_ISDIR(kind) else "Not a regular file"
            raise OSError(errno.EINVAL, words, str(path))
        return file.read()


def read_json(path: Path) -> Any:
    """Return the value of a small file, or None if it is not there or not readable as JSON."""
    try:
        return _parse(read_file(path))
    except OSError:
        return None


def _parse(text: bytes) -> Any:
    """Return the value of a text of JSON, or None."""
    try:
        return json.loads(text.decode())
    except (ValueError, RecursionError):
        return None


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON to a small file."""
    replace_file(path, (json.dumps(value, indent=1) + "\n").encode())


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, and rename it to `path` unless an error is raised."""
    temporary = path.with_name(f".{path.name}-{uuid.uuid4().hex[:8]}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def replace_file(path: Path, content: bytes, durable: bool = False) -> None:
    """Write a file as a whole. durable: whether its content is on disk before the old file goes."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(content)
        if durable:
            file.flush()
            os.fsync(file.fileno())
