"""Validate the value of `results=PATH` before a study starts, and create that folder."""

import errno
import os
import uuid
from pathlib import Path
from typing import Any

from scaling.core.case import Refusal


def parse_results(value: Any) -> Path:
    """Return the value of `results=PATH` as a path. Raise `Refusal` if no folder can have this path."""
    is_path = isinstance(value, str | int | float) and not isinstance(value, bool)
    if not is_path or not str(value).strip() or "\0" in str(value):
        raise Refusal(f"results must be a folder, such as results=results/mine, not {value!r}")
    folder = Path(str(value))
    for path in (folder, *folder.parents):
        try:
            path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise _not_writable(folder, error.strerror) from None
        if not path.is_dir():
            raise _not_writable(folder, os.strerror(errno.ENOTDIR))
        break
    return folder


def create_results(folder: Path) -> None:
    """Create the results folder. Raise `Refusal` if it is not writable or has unreadable result files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{uuid.uuid4().hex[:8]}"
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        raise _not_writable(folder, error.strerror) from None
    for path in (folder / "study.json", *folder.glob("*.jsonl")):  # else their cases would run again
        if path.is_file() and not os.access(path, os.R_OK):
            reason = f"{path} cannot be read: {os.strerror(errno.EACCES)}"
            raise Refusal(f"{reason}; make it readable, or give another folder with results=PATH")


def _not_writable(folder: Path, reason: str | None) -> Refusal:
    return Refusal(f"cannot write to results={folder}: {reason}; give another folder with results=PATH")
