"""Start a child process that runs wandb, send it a job, and receive its events as lines of JSON.

wandb can hang, print, and change signal handlers and the environment. The child process protects the study
from these effects. An event about a W&B run contains the digest of the run as `run`, and a `state`. Any event
may contain the `reason` for a failure. The last event of the child process contains `end`.
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
from scaling.wandb.settings import TrackingSettings
from scaling.wandb.tracked_run import Plot, TrackedRun
from scaling.workers.child_process import ChildProcess, Event

UPLOADS = 3  # finishing a run uploads its files, which may take this many times `timeout`
_START_SECONDS = 60.0  # timeout of importing wandb, even from a slow network disk
_GRACE_SECONDS = 15.0  # added to the limits of wandb, which it may exceed
_ENVIRON = {
    "WANDB_ERROR_REPORTING": "false",  # nothing may be sent in offline mode
    "WANDB_SILENT": "true",
    # The log of a run contains absolute paths of tables and artifacts. These paths reveal nothing about the
    # user's machine, and an offline copy stays complete within its folder.
    "WANDB_DATA_DIR": "/proc/self/cwd/wandb/staging",
    "WANDB_CACHE_DIR": "/proc/self/cwd/wandb/cache",
    "WANDB_ARTIFACT_DIR": "/proc/self/cwd/wandb/artifacts",
}
_REDIRECTS = ("RUN_ID", "RUN_GROUP", "RESUME", "SERVICE", "DIR", "SWEEP_ID", "MODE", "DISABLED", "TAGS")


@dataclass(frozen=True)
class PublishJob:
    """The input of the child process: settings, and the W&B runs, plots and sentences to publish."""

    settings: TrackingSettings
    runs: tuple[TrackedRun, ...]
    plots: tuple[Plot, ...]  # the plots of the dashboard
    sentences: tuple[str, ...]
    live: bool  # whether the study is still running: publish only online and without a dashboard


def run_job(folder: Path, job: PublishJob, lock: int, seconds: float = math.inf) -> Iterator[Event]:
    """Run a job in a child process and yield its events, such as {"run": digest, "state": "published"}.

    If the process crashes, exceeds its time, or sends nothing for too long, the last event contains a
    `reason`.

    Args:
        folder: The results folder, which is the working directory of the process.
        lock: The file descriptor of the folder's lock file, which the process inherits.
        seconds: The maximum duration of the process.
    """
    paths = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    environ = os.environ | _ENVIRON
    environ["PYTHONPATH"] = os.pathsep.join([*paths, str(Path(__file__).resolve().parents[2])])
    for name in _REDIRECTS:  # variables that redirect wandb
        environ.pop(f"WANDB_{name}", None)
    text = base64.b64encode(pickle.dumps(job)).decode()
    command = [sys.executable, "-P", "-m", "scaling.wandb.process"]
    process = ChildProcess(command, tagged=False, cwd=folder, env=environ, stdin_text=text, pass_fds=(lock,))
    max_wait, deadline = _START_SECONDS + _GRACE_SECONDS, time.monotonic() + seconds
    try:
        while (event := process.receive(max(0.0, min(max_wait, deadline - time.monotonic())))) is not None:
            crashed = "event" in event
            yield {"reason": "the process of wandb died"} if crashed else event
            if crashed or "end" in event:
                return
            max_wait = (1 + UPLOADS) * job.settings.timeout + _GRACE_SECONDS
        late, silent = time.monotonic() >= deadline, f"wandb fell silent for {max_wait:g} s"
        yield {"reason": f"it took more than {seconds:g} s" if late else silent}
    finally:
        process.close()
        _remove_caches_and_logs(folder / "wandb")


def _remove_caches_and_logs(wandb_folder: Path) -> None:
    """Remove the files that wandb has written to a folder, except offline copies of runs.

    The logs and temporary files in the copies are removed too, because the logs contain absolute paths.
    """
    copies = list(wandb_folder.glob("offline-run-*"))
    needed = [*copies, wandb_folder / "staging"] if copies else []
    extra = [path for path in wandb_folder.glob("*") if path not in needed]
    for path in [*extra, *(copy / name for copy in copies for name in ("logs", "tmp"))]:
        with contextlib.suppress(OSError):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def reason_of(error: BaseException) -> str:
    """Return an exception's message as one line of up to 200 characters, without secrets or folder names."""
    first = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return scrub(first)[:200].rstrip(" .")


def main() -> None:
    """Read a `PublishJob` from standard input, publish it, and print its events as lines of JSON."""
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
