"""Parse `results=PATH`, create the results folder, and refuse a folder that cannot be used for results."""

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

from scaling.core.case import Refusal
from scaling.core.formatting import format_value


def parse_results(value: Any) -> Path:
    """Return the value of `results=PATH` as a path, or raise `Refusal` if it cannot be a results folder."""
    is_path = isinstance(value, str | int | float) and not isinstance(value, bool)
    if not is_path or not str(value).strip() or "\0" in str(value):
        raise Refusal(f"results must be a folder, such as results=results/mine, not {format_value(value)}")
    folder = Path(str(value))
    try:
        existing = next(path for path in (folder, *folder.parents) if path.exists() or path.is_symlink())
    except OSError as error:  # such as a name that is too long
        raise _not_writable(folder, error.strerror) from None
    if not existing.is_dir():
        raise _not_writable(folder, os.strerror(errno.ENOTDIR))
    require_results(folder)
    return folder


def require_results(folder: Path, option: str = "results=") -> None:
    """Raise `Refusal` if a folder contains files but no results."""
    names = {path.name for path in folder.glob("[!.]*") if not path.name.startswith("versus-")}
    if names and "study.json" not in names and not any(name.endswith(".jsonl") for name in names):
        raise Refusal(f"{folder} is not empty and holds no results: give a new folder with {option}PATH")


def create_results(folder: Path, option: str = "results=") -> None:
    """Create a results folder if it does not exist.

    Raise `Refusal` if the folder is not writable or its results cannot be read. `option` is the option that
    selects the folder, for the error message: "results=" or "--output ".
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
