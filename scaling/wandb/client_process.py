"""The hand-over: a job as JSON given to wandb in a process of its own, with a deadline. This is our side of the pipe.

wandb can hang, and its state and its environment must not reach a study. The other side is client.py. Does not know what the
runs mean.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scaling.core.environment import scrub

UPLOADS = 3  # the end of a run uploads its files: it may take this many times `timeout`
_START_SECONDS = 60.0  # importing wandb from a slow network disk
_GRACE_SECONDS = 15.0  # what wandb may take on top of its own time limits before it is held to hang
_STEERING = tuple(f"WANDB_{name}" for name in ("RUN_ID", "RUN_GROUP", "RESUME", "SERVICE", "DIR", "SWEEP_ID", "MODE", "DISABLED"))


def events(
    folder: Path, job: Mapping[str, Any], lock: int, timeout: float, deadline: float | None = None
) -> Iterator[dict[str, Any]]:
    """What the other process says, one JSON object a step. The last one holds a reason when it ends early or falls silent.

    lock: the descriptor of the folder's lock. The other process inherits it, and holds the lock until it ends if we are killed.
    deadline: seconds after which it is ended, whatever it does.
    """
    with tempfile.TemporaryFile("w+") as told:
        json.dump(job, told)
        told.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "scaling.wandb.client"],
            stdin=told,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=_environ(job["mode"]),
            start_new_session=True,
            pass_fds=(lock,),
        )
    try:
        assert process.stdout is not None
        yield from _read(process.stdout.fileno(), timeout, deadline)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # wandb's own service sees that its parent is gone, and ends
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _read(pipe: int, timeout: float, deadline: float | None) -> Iterator[dict[str, Any]]:
    """The lines of a pipe as they come, until `end`, a reason, or a silence longer than wandb's own time limits allow."""
    patience = _START_SECONDS + _GRACE_SECONDS
    last = time.monotonic() + deadline if deadline is not None else None
    text = b""
    while True:
        until = time.monotonic() + patience
        while b"\n" not in text:
            now = time.monotonic()
            if last is not None and now > last:
                yield {"reason": f"it took more than {deadline:g} s"}
                return
            if now > until:
                yield {"reason": f"wandb fell silent for {patience:g} s"}
                return
            if not select.select([pipe], [], [], max(0.0, min(until, last or until) - now))[0]:
                continue
            part = os.read(pipe, 65536)
            if not part:
                yield {"reason": "the process of wandb died"}
                return
            text += part
        line, _, text = text.partition(b"\n")
        event = json.loads(line)
        yield event
        if "reason" in event or "end" in event:
            return
        patience = (1 + UPLOADS) * timeout + _GRACE_SECONDS


def _environ(mode: str) -> dict[str, str]:
    """The environment of the other process: the key stays in it, what would steer wandb elsewhere does not."""
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
    """An error in one short line, without a path or a secret."""
    if isinstance(error, ImportError) and error.name == "wandb":
        return "the package wandb is not installed"
    first = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return scrub(first)[:200].rstrip(" .")
