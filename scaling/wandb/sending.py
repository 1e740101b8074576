"""Sending: one run from `init` to `finish`, as lean as wandb can be asked to be. Used in the process of client.py alone."""

import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling.wandb.client_process import UPLOADS

ARTIFACT = "records"
_CLOSE_SECONDS = 8.0  # on a busy machine wandb closes its log some time after `finish` has returned


@dataclass(frozen=True)
class Sent:
    """A run that was handed over: under which id, and where wandb's own copy lies."""

    id: str
    directory: str  # its name within the folder `wandb`
    files: Path  # what was uploaded of it


def send(wandb: Any, job: Mapping[str, Any], run: Mapping[str, Any], name: str) -> Sent:
    """Hand over one run under this id. Raises what wandb raises, and OSError if the copy on disk is not there or not whole."""
    lean = wandb.Settings(
        init_timeout=job["timeout"], finish_timeout=UPLOADS * job["timeout"], finish_timeout_raises=True,
        console="off", silent=True, disable_git=True, disable_code=True, save_code=False, symlink=False,
        x_save_requirements=False, x_disable_stats=True, x_disable_meta=True, x_disable_machine_info=True,
        ignore_globs=("config.yaml", "wandb-summary.json"),  # the server has both without
    )  # fmt: skip
    words = {key: run[key] for key in ("name", "group", "job_type", "config")}
    place = {key: job[key] for key in ("mode", "project", "entity", "tags")}
    live = wandb.init(
        **words, **place, id=name, dir=os.getcwd(), resume="allow", reinit="create_new", settings=lean
    )
    if run["rows"]:
        live.define_metric("*", step_metric="devices")
    for row in run["rows"]:
        live.log(row, step=row["devices"])
    shown = {key: wandb.Image(path) for path, key in ((path, key_of(path)) for path in run["images"])}
    for key, table in run["tables"].items():
        shown[key] = wandb.Table(columns=table["columns"], data=table["data"], allow_mixed_types=True)
    if shown:
        live.log(shown, step=0)
    if run["lines"]:
        live.log_artifact(artifact(wandb, run))
    live.summary.update(run["summary"])
    copy = Path(live.settings.sync_file)
    files = Path(live.dir)
    live.finish()
    if copy.parent.parent != Path.cwd() / "wandb":  # wandb goes to /tmp when it cannot write
        raise OSError("wandb could not write to the results folder")
    deadline = time.monotonic() + _CLOSE_SECONDS
    while job["mode"] == "offline" and not is_whole(wandb, copy):
        if time.monotonic() > deadline:
            raise OSError("wandb's copy on disk is not whole; is the disk full?")
        time.sleep(0.05)
    return Sent(name, copy.parent.name, files)


def key_of(path: str) -> str:
    """What a figure is called in W&B."""
    return f"figures/{Path(path).stem}"


def artifact(wandb: Any, run: Mapping[str, Any]) -> Any:
    """The records of a study, line by line, as an artifact: the same lines are the same version."""
    made = wandb.Artifact(
        f"{ARTIFACT}-{run['series']}", type=ARTIFACT, description="every record of the study, as JSON lines"
    )
    with made.new_file("records.jsonl", mode="w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in run["lines"])
    return made


def is_whole(wandb: Any, copy: Path) -> bool:
    """Whether W&B's own reader finds the end of a run in its log: a full disk cuts it short, and `finish` says nothing."""
    words = [
        "leet",
        "inspect",
        "--no-observability",
        "--json",
        "--run-file",
        str(copy),
        str(copy.parent.parent),
    ]
    reader = [wandb.util.get_core_path(), *words]
    read = subprocess.run(reader, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return '"type":"exit"' in next(iter(read.stdout.strip().splitlines()[-1:]), "")
