"""The answers of the last examination of a study, kept in its results folder, so that an unchanged study need not start JAX.

Only studies of built-in workloads on JAX are kept: their answers follow from the cells, this package and the installed
packages. What a user's module answers may depend on anything.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scaling.core import environment, store
from scaling.core.case import to_dict
from scaling.study.grid import GridCell
from scaling.workers.examined import user_modules

_FILE = ".examined.json"
_READ_BY_JAX = ("JAX_", "XLA_")  # environment variables, by how they begin
Answer = dict[str, Any]


def cache_key(cells: Sequence[GridCell]) -> str | None:
    """Return a digest of what the answers about these cells follow from; None where they may depend on more."""
    if any(cell.case.engine != "jax" or user_modules(cell.case) for cell in cells):
        return None
    installed = sorted((each.name or "", each.version) for each in importlib.metadata.distributions())
    variables = sorted(item for item in os.environ.items() if item[0].startswith(_READ_BY_JAX))
    parts = [[to_dict(cell.case), cell.scaling] for cell in cells], installed, variables, environment.source()
    return _digest(parts)


def load_answers(folder: Path, key: str | None) -> list[Answer] | None:
    """Return the answers that were kept under a key; None where there are none, or they are damaged."""
    kept = store.read_json(folder / _FILE)
    if key is None or not isinstance(kept, dict) or kept.get("key") != key:
        return None
    answers = kept.get("answers")
    return answers if kept.get("digest") == _digest(answers) else None


def save_answers(folder: Path, key: str | None, answers: Sequence[Answer]) -> None:
    """Keep the answers of a study all of whose cases were examined; a full disk loses the answers, not the run."""
    if key is None or any("failure" in answer or "refusal" in answer for answer in answers):
        return
    if any(
        answer["unfit"] and answer["unfit"][0] == "too_large" for answer in answers
    ):  # depends on the machine
        return
    with contextlib.suppress(OSError):
        store.write_json(folder / _FILE, {"key": key, "digest": _digest(answers), "answers": list(answers)})


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
