"""The process in which wandb runs: it receives a job as JSON, sends events, and has a deadline.

wandb can hang, and its state and its environment must not reach a study. The program of the process is client.py. Does not know
what the runs mean.
"""

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scaling.core.environment import scrub
from scaling.workers.child_process import ChildProcess, Event

UPLOADS = 3  # the end of a run uploads its files: it may take this many times `timeout`
_START_SECONDS = 60.0  # importing wandb from a slow network disk
_GRACE_SECONDS = 15.0  # what wandb may take on top of its own time limits before it is held to hang
_STEERING = tuple(
    f"WANDB_{name}"
    for name in ("RUN_ID", "RUN_GROUP", "RESUME", "SERVICE", "DIR", "SWEEP_ID", "MODE", "DISABLED")
)


def events(
    folder: Path, job: Mapping[str, Any], lock: int, timeout: float, deadline: float | None = None
) -> Iterator[Event]:  # fmt: skip
    """Yield the events of the process. The last one has a reason when it ends early or sends nothing for too long.

    lock: the descriptor of the folder's lock, which the process inherits. deadline: seconds after which it is ended.
    """
    process = ChildProcess(
        [sys.executable, "-P", "-m", "scaling.wandb.client"], stdin_text=json.dumps(job), tagged=False,
        cwd=folder, env=_environ(job["mode"]), pass_fds=(lock,),
    )  # fmt: skip
    patience = _START_SECONDS + _GRACE_SECONDS
    last = time.monotonic() + deadline if deadline is not None else math.inf
    with contextlib.closing(process):
        while True:
            event = process.receive(max(0.0, min(patience, last - time.monotonic())))
            if event is None:
                ended = time.monotonic() >= last
                reason = (
                    f"it took more than {deadline:g} s" if ended else f"wandb fell silent for {patience:g} s"
                )
                event = {"reason": reason}
            elif event.get("event") == "exit":
                event = {"reason": "the process of wandb died"}
            yield event
            if "reason" in event or "end" in event:
                return
            patience = (1 + UPLOADS) * timeout + _GRACE_SECONDS


def _environ(mode: str) -> dict[str, str]:
    """Return the environment of the process: with the key, without what would direct wandb elsewhere."""
    staging = "wandb/staging" if mode == "offline" else "wandb/cache/staging"
    kept = {name: value for name, value in os.environ.items() if name not in _STEERING}
    old = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return kept | {
        "PYTHONPATH": os.pathsep.join([*old, str(Path(__file__).resolve().parents[2])]),
        "WANDB_ERROR_REPORTING": "false",  # offline means that nothing goes out
        "WANDB_SILENT": "true",
        # Tables and artifacts are staged where a run's log names them by absolute path; this one holds nothing of the user's
        # machine, and keeps an offline copy whole within its folder.
        "WANDB_DATA_DIR": f"/proc/self/cwd/{staging}",
        "WANDB_CACHE_DIR": "/proc/self/cwd/wandb/cache",
        "WANDB_ARTIFACT_DIR": "/proc/self/cwd/wandb/artifacts",
    }


def reason_of(error: BaseException) -> str:
    """Return an error as one short line, without a path or a secret."""
    if isinstance(error, ImportError) and error.name == "wandb":
        return "the package wandb is not installed"
    first = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return scrub(first)[:200].rstrip(" .")
