"""Run wandb in a child process that receives a job on standard input and sends events as JSON lines.

wandb can hang, print, and change signal handlers and the environment, and none of this may affect a study.
An event about a run has its digest as `run` and its `state`. Other events have a `reason` for a failure, and
the last event has `end`.
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

UPLOADS = 3  # finishing a run uploads its files and may take this many times `timeout`
_START_SECONDS = 60.0  # timeout of importing wandb, even from a slow network disk
_GRACE_SECONDS = 15.0  # the time by which wandb may exceed its own limits
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
    """The job of the child process: the runs to publish online, or to copy to the results folder."""

    settings: TrackingSettings
    runs: tuple[TrackedRun, ...]
    plots: tuple[Plot, ...]  # the plots of the dashboard
    sentences: tuple[str, ...]
    live: bool  # the study is running: online only and without a dashboard


def run_job(folder: Path, job: PublishJob, lock: int, seconds: float = math.inf) -> Iterator[Event]:
    """Yield the events of the child process.

    The last event has a `reason` if the process crashed, exceeded its time, or sent nothing for too long.

    Args:
        folder: The results folder, in which the process runs.
        job: The job of the process.
        lock: The file descriptor of the lock of the folder, which the process inherits.
        seconds: The time limit of the process.
    """
    paths = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    environ = os.environ | _ENVIRON
    environ["PYTHONPATH"] = os.pathsep.join([*paths, str(Path(__file__).resolve().parents[2])])
    for name in _LEFT_OUT:  # variables that redirect wandb
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
    """Remove everything but offline copies of runs: caches, and debug logs, which contain absolute paths."""
    copies = list(disk.glob("offline-run-*"))
    needed = [*copies, disk / "staging"] if copies else []
    extra = [path for path in disk.glob("*") if path not in needed]
    for path in [*extra, *(copy / name for copy in copies for name in ("logs", "tmp"))]:
        with contextlib.suppress(OSError):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def reason_of(error: BaseException) -> str:
    """Return the message of an exception as one short line, without paths or secrets."""
    first = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return scrub(first)[:200].rstrip(" .")


def main() -> None:
    """Read the job from standard input, publish it, and send the events to standard output."""
    channel = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # wandb must not print between the events

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
