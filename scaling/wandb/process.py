"""The process in which wandb runs: it receives a job on standard input and sends events as JSON lines.

wandb can hang, print, and change signals and its environment; none of it may reach a study. Events about a
run have its digest in `run` and its `state`; others a `reason` for what failed; the last has `end`.
"""

import base64
import contextlib
import json
import math
import os
import pickle
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling.core.environment import scrub
from scaling.wandb.plots import Plot
from scaling.wandb.runs import TrackedRun
from scaling.wandb.settings import TrackingSettings
from scaling.workers.child_process import ChildProcess, Event

UPLOADS = 3  # the end of a run uploads its files: it may take this many times `timeout`
_START_SECONDS = 60.0  # importing wandb from a slow network disk
_GRACE_SECONDS = 15.0  # by which wandb may exceed its own time limits
_ENVIRON = {
    "WANDB_ERROR_REPORTING": "false",  # an offline publish must send nothing
    "WANDB_SILENT": "true",
    # The log of a run names staged tables and artifacts by absolute path. This path holds nothing of the
    # user's machine, and an offline copy stays complete within its folder.
    "WANDB_DATA_DIR": "/proc/self/cwd/wandb/staging",
    "WANDB_CACHE_DIR": "/proc/self/cwd/wandb/cache",
    "WANDB_ARTIFACT_DIR": "/proc/self/cwd/wandb/artifacts",
}
_LEFT_OUT = ("RUN_ID", "RUN_GROUP", "RESUME", "SERVICE", "DIR", "SWEEP_ID", "MODE", "DISABLED", "TAGS")


@dataclass(frozen=True)
class PublishJob:
    """What the process is to do: make these runs exist, online or as copies in the results folder."""

    settings: TrackingSettings
    runs: tuple[TrackedRun, ...]
    plots: tuple[Plot, ...]  # of the dashboard
    sentences: tuple[str, ...]
    live: bool  # while the study runs: online or not at all, and without a dashboard


def run_job(folder: Path, job: PublishJob, lock: int, seconds: float = math.inf) -> Iterator[Event]:
    """Yield the events of the process. The last one has a reason when it died, took too long or fell silent.

    lock: the descriptor of the folder's lock, which the process inherits.
    """
    paths = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    environ = os.environ | _ENVIRON
    environ["PYTHONPATH"] = os.pathsep.join([*paths, str(Path(__file__).resolve().parents[2])])
    for name in _LEFT_OUT:  # variables that direct wandb elsewhere
        environ.pop(f"WANDB_{name}", None)
    text = base64.b64encode(pickle.dumps(job)).decode()
    command = [sys.executable, "-P", "-m", "scaling.wandb.process"]
    process = ChildProcess(command, tagged=False, cwd=folder, env=environ, stdin_text=text, pass_fds=(lock,))
    patience, deadline = _START_SECONDS + _GRACE_SECONDS, time.monotonic() + seconds
    try:
        while (event := process.receive(max(0.0, min(patience, deadline - time.monotonic())))) is not None:
            died = "event" in event
            yield {"reason": "the process of wandb died"} if died else event
            if died or "end" in event:
                return
            patience = (1 + UPLOADS) * job.settings.timeout + _GRACE_SECONDS
        late, silent = time.monotonic() >= deadline, f"wandb fell silent for {patience:g} s"
        yield {"reason": f"it took more than {seconds:g} s" if late else silent}
    finally:
        process.close()
        _tidy(folder / "wandb")


def _tidy(disk: Path) -> None:
    """Remove all that is no offline copy of a run: caches, and debug logs, which hold absolute paths."""
    copies = list(disk.glob("offline-run-*"))
    needed = [*copies, disk / "staging"] if copies else []
    extra = [path for path in disk.glob("*") if path not in needed]
    for path in [*extra, *(copy / name for copy in copies for name in ("logs", "tmp"))]:
        with contextlib.suppress(OSError):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def reason_of(error: BaseException) -> str:
    """Return an error as one short line, without a path or a secret."""
    first = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return scrub(first)[:200].rstrip(" .")


def main() -> None:
    """Do the job on standard input."""
    channel = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nothing that wandb prints may come between the events

    def send_event(**event: Any) -> None:
        os.write(channel, f"{json.dumps(event)}\n".encode())

    job: PublishJob = pickle.loads(base64.b64decode(sys.stdin.read()))
    try:
        from scaling.wandb import remote  # imports wandb

        remote.do_job(job, send_event)
    except BaseException as error:
        send_event(reason=reason_of(error))
    send_event(end=True)


if __name__ == "__main__":
    main()
