"""Check whether a report is up to date. A digest of its inputs is stored with the report.

This module does not import the plotting code.
"""

import contextlib
import hashlib
import os
from pathlib import Path

from scaling.core import environment
from scaling.results import store

_STATE = ".inputs.json"  # file in the folder of the report


def inputs_digest(folder: Path) -> str:
    """Return the hexadecimal SHA-256 digest of a report's inputs.

    The inputs are the folder name, the records, the plans, study.json and the source code of the package.
    """
    digest = hashlib.sha256(os.fsencode(f"{folder.resolve().name} {environment.source()}"))
    for path in sorted([*folder.glob("*.jsonl"), *folder.glob("plan-*.json"), folder / "study.json"]):
        content = b""
        with contextlib.suppress(OSError):
            content = store.read_file(path)
        digest.update(os.fsencode(f"{path.name} {len(content)} ") + content)
    return digest.hexdigest()


def is_current(folder: Path, digest: str) -> bool:
    """Return whether the report of a results folder is complete and was written from inputs with `digest`."""
    report = folder / "report"
    state = store.read_json(report / _STATE)
    files = state.get("files") if isinstance(state, dict) and state.get("digest") == digest else None
    return isinstance(files, list) and all((report / str(name)).is_file() for name in (*files, "index.html"))


def mark_current(folder: Path, digest: str) -> None:
    """Save the digest of the inputs and the names of the report files to report/.inputs.json."""
    report = folder / "report"
    files = sorted(path.name for path in report.iterdir() if path.is_file() and path.name[0] != ".")
    store.write_json(report / _STATE, {"digest": digest, "files": files})
