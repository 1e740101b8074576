"""The process in which wandb runs, seen from outside: it receives a job, sends events, and has a deadline.

wandb can hang, and neither its state nor its environment may reach a study. The process runs client.py.
"""

import contextlib
import dataclasses
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scaling.core.environment import scrub
from scaling.wandb.tracked_run import TrackedRun
from scaling.workers.child_process import ChildProcess, Event

UPLOADS = 3  # the end of a run uploads its files: it may take this many times `timeout`
_START_SECONDS = 60.0  # importing wandb from a slow network disk
_GRACE_SECONDS = 15.0  # by which wandb may exceed its own time limits
_STEERING = {
    f"WANDB_{name}"
    for name in ("RUN_ID", "RUN_GROUP", "RESUME", "SERVICE", "DIR", "SWEEP_ID", "MODE", "DISABLED")
}


@dataclass(frozen=True)
class DashboardContent:
    """What the workspace and the report of a study show."""

    study: str
    digest: str  # of the name of the study
    kinds: list[str]  # of curves
    figures: list[str]
    sentences: list[str]


@dataclass(frozen=True)
class PublishJob:
    """What the process is to do: make these runs exist, online or as copies in the results folder."""

    mode: str
    project: str
    entity: str | None
    base_url: str
    tags: tuple[str, ...]
    timeout: float
    runs: tuple[TrackedRun, ...]
    gone: tuple[str, ...] = ()  # series that the results no longer have
    dashboard: DashboardContent | None = None

    @classmethod
    def from_json(cls, text: str) -> "PublishJob":
        """Return the job that was written as the JSON of its fields."""
        fields = json.loads(text)
        fields["runs"] = tuple(TrackedRun(**run) for run in fields["runs"])
        if fields["dashboard"]:
            fields["dashboard"] = DashboardContent(**fields["dashboard"])
        return cls(**fields)


def events(folder: Path, job: PublishJob, lock: int, deadline: float = math.inf) -> Iterator[Event]:
    """Yield the events of the process. The last one has a reason when it ends early or sends nothing for too
    long.

    lock: the descriptor of the folder's lock, which the process inherits. deadline: seconds until it is
    killed.
    """
    command = [sys.executable, "-P", "-m", "scaling.wandb.client"]
    process = ChildProcess(
        command, stdin_text=json.dumps(dataclasses.asdict(job)), tagged=False, cwd=folder,
        env=_environ(job.mode), pass_fds=(lock,),
    )  # fmt: skip
    patience, last = _START_SECONDS + _GRACE_SECONDS, time.monotonic() + deadline
    with contextlib.closing(process):
        while True:
            event = process.receive(max(0.0, min(patience, last - time.monotonic())))
            if event is None:
                late = time.monotonic() >= last
                reason = (
                    f"it took more than {deadline:g} s" if late else f"wandb fell silent for {patience:g} s"
                )
                event = {"reason": reason}
            elif event.get("event") == "exit":
                event = {"reason": "the process of wandb died"}
            yield event
            if "reason" in event or "end" in event:
                return
            patience = (1 + UPLOADS) * job.timeout + _GRACE_SECONDS


def _environ(mode: str) -> dict[str, str]:
    """Return the environment of the process: with the key, without variables that direct wandb elsewhere."""
    staging = "wandb/staging" if mode == "offline" else "wandb/cache/staging"
    paths = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {name: value for name, value in os.environ.items() if name not in _STEERING} | {
        "PYTHONPATH": os.pathsep.join([*paths, str(Path(__file__).resolve().parents[2])]),
        "WANDB_ERROR_REPORTING": "false",  # an offline publish must send nothing
        "WANDB_SILENT": "true",
        # The log of a run names staged tables and artifacts by absolute path. This path holds nothing of the
        # user's machine, and an offline copy stays complete within its folder.
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
