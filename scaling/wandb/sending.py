"""Send one run, from `init` to `finish`, with everything switched off that wandb would add. Runs in
client.py's process.
"""

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import wandb

from scaling.wandb.client_process import UPLOADS, PublishJob
from scaling.wandb.tracked_run import TrackedRun

ARTIFACT = "records"
_CLOSE_SECONDS = 8.0  # on a busy machine wandb closes its log some time after `finish` has returned


@dataclass(frozen=True, eq=False)
class SentRun:
    """A run that was sent: its id on the server, and where wandb's own copy lies."""

    run: TrackedRun
    id: str
    directory: str  # its name within the folder `wandb`
    files: Path  # the folder of its uploaded files


def send(job: PublishJob, run: TrackedRun, run_id: str) -> SentRun:
    """Send a run under an id. Raises what wandb raises, and OSError if wandb's copy on disk is missing or
    torn.
    """
    lean = wandb.Settings(
        init_timeout=job.timeout, finish_timeout=UPLOADS * job.timeout, finish_timeout_raises=True,
        console="off", silent=True, disable_git=True, disable_code=True, save_code=False, symlink=False,
        x_save_requirements=False, x_disable_stats=True, x_disable_meta=True, x_disable_machine_info=True,
        ignore_globs=("config.yaml", "wandb-summary.json"),  # the server has both without
    )  # fmt: skip
    live = wandb.init(
        id=run_id, name=run.name, group=run.group, job_type=run.job_type, config=run.config, tags=job.tags,
        mode=job.mode,  # type: ignore[arg-type]
        project=job.project, entity=job.entity, dir=os.getcwd(), resume="allow",
        reinit="create_new", settings=lean,
    )  # fmt: skip
    _log(live, run)
    log_file, files = Path(live.settings.sync_file), Path(live.dir)
    live.finish()
    if log_file.parent.parent != Path.cwd() / "wandb":  # wandb goes to /tmp when it cannot write
        raise OSError("wandb could not write to the results folder")
    deadline = time.monotonic() + _CLOSE_SECONDS
    while job.mode == "offline" and not is_whole(log_file):
        if time.monotonic() > deadline:
            raise OSError("wandb's copy on disk is not whole; is the disk full?")
        time.sleep(0.05)
    return SentRun(run, run_id, log_file.parent.name, files)


def _log(live: Any, run: TrackedRun) -> None:
    """Log the rows of a curve, or the tables, figures and records of a study."""
    if run.rows:
        live.define_metric("*", step_metric="devices")
    for row in run.rows:
        live.log(row, step=row["devices"])
    media: dict[str, Any] = {figure_key(path): wandb.Image(path) for path in run.images}
    for name, table in run.tables.items():
        media[name] = wandb.Table(columns=table["columns"], data=table["data"], allow_mixed_types=True)
    if media:
        live.log(media, step=0)
    if run.lines:
        live.log_artifact(records_artifact(run))
    live.summary.update(run.summary)


def figure_key(path: str) -> str:
    """Return the name of a figure in W&B."""
    return f"figures/{Path(path).stem}"


def records_artifact(run: TrackedRun) -> wandb.Artifact:
    """Return the records of a study, line by line, as an artifact: equal lines are the same version."""
    description = "every record of the study, as JSON lines"
    artifact = wandb.Artifact(f"{ARTIFACT}-{run.series}", type=ARTIFACT, description=description)
    with artifact.new_file("records.jsonl", mode="w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in run.lines)
    return artifact


def is_whole(log_file: Path) -> bool:
    """Return whether W&B's own reader finds the end of a run: a full disk cuts the log, and `finish` reports
    nothing.
    """
    options = ["--no-observability", "--json", "--run-file", str(log_file), str(log_file.parent.parent)]
    command = [wandb.util.get_core_path(), "leet", "inspect", *options]
    read = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return '"type":"exit"' in next(iter(read.stdout.strip().splitlines()[-1:]), "")
