"""Check whether a written report is up to date with the records, the plans and the source code.

A digest of these inputs is stored with the report. This module does not import the plotting code.
"""

import contextlib
import hashlib
from pathlib import Path

from scaling.core import environment
from scaling.results import store

_STATE = ".inputs.json"


def inputs_digest(folder: Path) -> str:
    """Return the SHA-256 digest of the inputs of a report as hexadecimal digits.

    The inputs are the folder name, the records, the plans, study.json and the source code of the package.
    """
    digest = hashlib.sha256(f"{folder.resolve().name} {environment.source()}".encode())
    for path in sorted([*folder.glob("*.jsonl"), *folder.glob("plan-*.json"), folder / "study.json"]):
        content = b""
        with contextlib.suppress(OSError):
            content = store.read_file(path)
        digest.update(f"{path.name} {len(content)} ".encode() + content)
    return digest.hexdigest()


def is_current(folder: Path, digest: str) -> bool:
    """Return whether the report in a folder is complete and was written from inputs with this digest."""
    state = store.read_json(folder / "report" / _STATE)
    if (
        not isinstance(state, dict)
        or state.get("digest") != digest
        or not isinstance(state.get("files"), list)
    ):
        return False
    return all((folder / "report" / str(name)).is_file() for name in (*state["files"], "index.html"))


def mark_current(folder: Path, digest: str) -> None:
    """Save the digest of the inputs and the names of the report files to report/.inputs.json."""
    files = sorted(path.name for path in (folder / "report").iterdir() if path.name[0] != ".")
    store.write_json(folder / "report" / _STATE, {"digest": digest, "files": files})
