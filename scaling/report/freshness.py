"""Whether the report of a results folder was written from what the folder holds now.

The report is a function of the records, study.json, the plans and this package. Their digest is kept next to
the report. Does not import what draws the report.
"""

import contextlib
import hashlib
from pathlib import Path

from scaling.core import environment, store

_STATE = ".inputs.json"


def inputs_digest(folder: Path) -> str:
    """Return a digest of everything that the report of a folder is made from."""
    digest = hashlib.sha256(f"{folder.resolve().name} {environment.source()}".encode())
    for path in sorted([*folder.glob("*.jsonl"), *folder.glob("plan-*.json"), folder / "study.json"]):
        content = b""
        with contextlib.suppress(OSError):
            content = store.read_file(path)
        digest.update(f"{path.name} {len(content)} ".encode() + content)
    return digest.hexdigest()


def is_current(folder: Path, digest: str) -> bool:
    """Return whether the report was written from inputs with this digest, and is complete."""
    state = store.read_json(folder / "report" / _STATE)
    if (
        not isinstance(state, dict)
        or state.get("digest") != digest
        or not isinstance(state.get("files"), list)
    ):
        return False
    return all((folder / "report" / str(name)).is_file() for name in (*state["files"], "index.html"))


def mark_current(folder: Path, digest: str) -> None:
    """Note that the report was written from inputs with this digest."""
    files = sorted(path.name for path in (folder / "report").iterdir() if path.name[0] != ".")
    store.write_json(folder / "report" / _STATE, {"digest": digest, "files": files})
