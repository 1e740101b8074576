"""The hand-over: runs as JSON given to wandb in a process of its own, with a deadline.

wandb can hang, and its state and its environment must not reach a study. `events` is our side of the pipe; `python -m
scaling.tracking.handover` is the other. Does not know what the runs mean.
"""

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scaling.environment import scrub

_START_SECONDS = 60.0  # importing wandb from a slow network disk
_GRACE_SECONDS = 15.0  # what wandb may take on top of its own time limits before it is held to hang
_CLOSE_SECONDS = 8.0  # on a busy machine wandb closes its log some time after `finish` has returned
_UPLOADS = 3  # the end of a run uploads its files: it may take this many times `timeout`
_STEERING = tuple(f"WANDB_{name}" for name in ("RUN_ID", "RUN_GROUP", "RESUME", "SERVICE", "DIR", "SWEEP_ID", "MODE", "DISABLED"))


def events(folder: Path, job: Mapping[str, Any], timeout: float) -> Iterator[dict[str, Any]]:
    """What the other process says, one JSON object a step. The last one holds a reason when it ends early or falls silent."""
    with tempfile.TemporaryFile("w+") as told:
        json.dump(job, told)
        told.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "scaling.tracking.handover"],
            stdin=told,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=_environ(),
            start_new_session=True,
        )
    try:
        assert process.stdout is not None
        yield from _read(process.stdout.fileno(), timeout)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # wandb's own service sees that its parent is gone, and ends
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _read(pipe: int, timeout: float) -> Iterator[dict[str, Any]]:
    """The lines of a pipe as they come, until `end`, a reason, or a silence longer than wandb's own time limits allow."""
    patience = _START_SECONDS + _GRACE_SECONDS
    text = b""
    while True:
        deadline = time.monotonic() + patience
        while b"\n" not in text:
            if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
                yield {"reason": f"wandb fell silent for {patience:g} s"}
                return
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
        patience = (1 + _UPLOADS) * timeout + _GRACE_SECONDS


def _environ() -> dict[str, str]:
    """The environment of the other process: the key stays in it, what would steer wandb elsewhere does not."""
    kept = {name: value for name, value in os.environ.items() if name not in _STEERING}
    old = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return kept | {
        "PYTHONPATH": os.pathsep.join([*old, str(Path(__file__).resolve().parents[2])]),
        "WANDB_ERROR_REPORTING": "false",  # offline means that nothing goes out
        # Tables are staged where a run's log names them by absolute path; this one holds nothing of the user's machine, and
        # keeps an offline copy whole within its folder.
        "WANDB_DATA_DIR": "/proc/self/cwd/wandb/staging",
    }


def reason_of(error: BaseException) -> str:
    """An error in one short line, without a path or a secret."""
    if isinstance(error, ImportError) and error.name == "wandb":
        return "the package wandb is not installed"
    first = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return scrub(first)[:200].rstrip(" .")


# Where runs go.


def _serve() -> None:
    """Be the other process: read a job from standard input, hand over each run, and say so in one JSON line each."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nothing that wandb prints may get between the lines

    def say(**event: Any) -> None:
        print(json.dumps(event), file=channel, flush=True)

    job = json.load(sys.stdin)
    handed_over = 0
    try:
        import wandb

        say(ready=True)
        for run in job["runs"]:
            try:
                say(id=run["id"], directory=_hand_over(wandb, job, run))
                handed_over += 1
            except Exception as error:
                # one run that a server will not take, such as a deleted id, does not stop the others; a server out of
                # reach does, and so does a disk that takes no copy
                late = job["mode"] == "online" and re.search("deadline exceeded|timed out", str(error))
                if late or not handed_over or job["mode"] == "offline":
                    raise TimeoutError(f"no answer from {job['base_url']} in {job['timeout']:g} s") if late else error from None
                say(lost=reason_of(error))
        wandb.teardown()
        say(end=True)
    except BaseException as error:
        say(reason=reason_of(error))


def _hand_over(wandb: Any, job: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    """One run, from init to finish; the name of its directory. Raises what wandb raises, and OSError if the copy is not there."""
    lean = wandb.Settings(
        init_timeout=job["timeout"], finish_timeout=_UPLOADS * job["timeout"], finish_timeout_raises=True,
        console="off", silent=True, disable_git=True, disable_code=True, save_code=False, symlink=False,
        x_save_requirements=False, x_disable_stats=True, x_disable_meta=True, x_disable_machine_info=True,
    )  # fmt: skip
    names = {name: run[name] for name in ("id", "name", "group", "job_type", "config")}
    place = {name: job[name] for name in ("mode", "project", "entity", "tags")}
    live = wandb.init(**names, **place, dir=os.getcwd(), resume="allow", reinit="create_new", settings=lean)
    if run["rows"]:
        live.define_metric("*", step_metric="devices")
    for row in run["rows"]:
        live.log(row, step=row["devices"])
    shown = {f"figures/{Path(path).stem}": wandb.Image(path) for path in run["images"]}
    if run["table"]:
        shown["records"] = wandb.Table(columns=run["table"]["columns"], data=run["table"]["data"], allow_mixed_types=True)
    if shown:
        live.log(shown, step=0)
    live.summary.update(run["summary"])
    copy = Path(live.settings.sync_file)
    live.finish()
    if copy.parent.parent != Path.cwd() / "wandb":  # wandb goes to /tmp when it cannot write
        raise OSError("wandb could not write to the results folder")
    deadline = time.monotonic() + _CLOSE_SECONDS
    while job["mode"] == "offline" and not _is_whole(wandb, copy):
        if time.monotonic() < deadline:
            time.sleep(0.05)
            continue
        raise OSError("wandb's copy on disk is not whole; is the disk full?")
    return copy.parent.name


def _is_whole(wandb: Any, copy: Path) -> bool:
    """Whether W&B's own reader finds the end of a run in its log: a full disk cuts it short, and `finish` says nothing."""
    words = ["leet", "inspect", "--no-observability", "--json", "--run-file", str(copy), str(copy.parent.parent)]
    reader = [wandb.util.get_core_path(), *words]
    read = subprocess.run(reader, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return '"type":"exit"' in next(iter(read.stdout.strip().splitlines()[-1:]), "")


if __name__ == "__main__":
    _serve()
