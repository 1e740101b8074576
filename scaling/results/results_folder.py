"""Check the results folder that a user names: whether it exists, contains results, and can be written."""

import contextlib
import errno
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scaling.core.case import Refusal
from scaling.core.formatting import format_count, format_value


def parse_results(value: Any) -> Path:
    """Return the value of `results=PATH` as a path, or raise `Refusal` if it cannot be a results folder."""
    is_path = isinstance(value, str | int | float) and not isinstance(value, bool)
    if not is_path or not str(value).strip() or "\0" in str(value):
        raise Refusal(f"results must be a folder, such as results=results/mine, not {format_value(value)}")
    folder = Path(str(value))
    if not next(path for path in (folder, *folder.parents) if os.path.lexists(path)).is_dir():
        raise _not_writable(folder, os.strerror(errno.ENOTDIR))
    refuse_other_files(folder)
    return folder


def refuse_other_files(folder: Path, option: str = "results=") -> None:
    """Raise `Refusal` if a folder contains files but no results. The message quotes `option`."""
    names = {path.name for path in folder.glob("[!.]*") if not path.name.startswith("versus-")}
    if names and "study.json" not in names and not any(name.endswith(".jsonl") for name in names):
        raise Refusal(f"{folder} is not empty and holds no results: give a new folder with {option}PATH")


def create_results(folder: Path, option: str = "results=") -> None:
    """Create a results folder if it does not exist.

    Raise `Refusal` if the folder is not writable or its results cannot be read. The message quotes `option`,
    the option that selects the folder, such as "results=".
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

    If the folder does not exist, check its parent folder instead.
    """
    existing = path if path.exists() else path.parent
    if not os.access(existing, os.W_OK | os.X_OK):
        raise Refusal(f"cannot write to {existing}: change the permissions, or give a copy of {path.parent}")


def no_records(action: str, folder: Path, damaged: Sequence[str]) -> Refusal:
    """Return a `Refusal` for a results folder that contains no record to export or publish.

    `action` is "export" or "publish". `damaged` contains a message for each line that cannot be read.
    """
    lines = format_count(len(damaged), "damaged line")
    ignored = f"; ignored: {lines}, the first {damaged[0]}" if damaged else ""
    return Refusal(f"no record to {action} in {str(folder)!r}{ignored}; `scaling run` makes some")
