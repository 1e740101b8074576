"""Main program of the process that uploads: send W&B runs, read them back, or write offline copies.

publish.py runs this module in a temporary folder. wandb does not report every failure. Therefore a run counts
as published only after it was read from the server and compared. The config of a run contains a digest of the
content. Each upload has a new run ID, because a second upload with the same ID would duplicate rows.
"""

import contextlib
import dataclasses
import json
import math
import os
import pickle
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import wandb

from scaling.wandb.job import FINISH_FACTOR, JOB_FILE, Fields, PublishJob, TrackedRun, describe_wandb_error
from scaling.worker import die_with_parent

_SUPERSEDED = "superseded"
_THREADS = 8  # most of the time is spent waiting for the server
_POLL_SECONDS = 0.5
_CLOSE_SECONDS = 8.0  # on a busy machine wandb closes its log after `finish` has returned
_COPIES_FOLDER = Path(*sys.argv[1:2])  # folder of the offline copies
_MAX_ROWS = 10_000  # the server returns only part of a longer history
# Prefix of a metric (the part before the slash) -> metric of its x-axis.
_STEP_METRICS = {"time": "devices", "speedup": "devices", "ideal": "devices", "time_by_size": "size"}


def publish_job(job: PublishJob) -> Iterator[Fields]:
    """Upload the W&B runs of a job, write offline copies of runs that were not sent, and yield events.

    An event contains the digest of a run (`run`) and its `state`, such as 'published', or the `reason` for a
    failure.
    """
    wandb.setup()  # before the threads start
    unsent = {run.digest: run for run in job.runs}
    try:
        if job.settings.mode != "offline":
            for event in _publish_online(job):
                unsent.pop(event.get("run", ""), None)
                yield event
    except Exception as error:
        has_key = not isinstance(error, wandb.errors.UsageError)
        if has_key or job.settings.mode != "auto":
            yield {"reason": describe_wandb_error(error)}
    yield from _map_runs(partial(_write_offline_copy, job), unsent.values())
    wandb.teardown()


def _map_runs(function: Callable[[TrackedRun], Fields], runs: Iterable[TrackedRun]) -> Iterator[Fields]:
    """Call `function` with each run in threads, and yield the events that it returns.

    The digest of the run is added to each event. An exception becomes an event that has only a `reason`.
    """

    def make_event(run: TrackedRun) -> Fields:
        try:
            return {"run": run.digest, **function(run)}
        except Exception as error:  # such as a rejected run or a full disk
            return {"reason": f"{run.name}: {describe_wandb_error(error)}"}

    with ThreadPoolExecutor(_THREADS) as pool:
        yield from pool.map(make_event, runs)


def _write_offline_copy(job: PublishJob, run: TrackedRun) -> Fields:
    """Write an offline copy of a run, unless a complete one exists. Return its state as an event."""
    if any(_is_complete(log) for copy in _find_copies(job, run) for log in copy.glob("*.wandb")):
        return {"state": "there before"}
    _remove_copies(job, run)
    _, log = _send_run(job, run, "offline")
    copy = _COPIES_FOLDER / log.parent.name
    copy.mkdir()
    shutil.move(log, copy)
    return {"state": "kept"}


def _find_copies(job: PublishJob, run: TrackedRun) -> list[Path]:
    return list(_COPIES_FOLDER.glob(f"offline-run-*-{run.digest}-{job.destination}-*"))


def _remove_copies(job: PublishJob, run: TrackedRun) -> None:
    for copy in _find_copies(job, run):
        shutil.rmtree(copy, ignore_errors=True)


def _publish_online(job: PublishJob) -> Iterator[Fields]:
    """Upload and verify missing W&B runs, tag superseded runs, save the dashboard. Yield events."""
    account, settings = wandb.setup().settings, job.settings
    api = wandb.Api(timeout=math.ceil(settings.timeout))
    entity = settings.entity or account.entity or api.default_entity
    app_url = re.sub("//.*@", "//", account.app_url.rstrip("/"))
    yield {"page": f"{app_url}/{entity}/{settings.project}"}
    job = dataclasses.replace(job, settings=dataclasses.replace(settings, entity=entity))
    current_ids: dict[str, str] = {}  # series -> ID of its correct run on the server
    wrong_ids: set[str] = set()  # the IDs of uploaded runs with wrong content
    for event in _map_runs(partial(_publish_run, api, job, _list_runs(api, job)), job.runs):
        if event.get("state") == "differs":
            wrong_ids.add(event["id"])
        elif "state" in event:
            current_ids[event["series"]] = event["id"]
        yield event
    with ThreadPoolExecutor(_THREADS) as pool:
        tagged = pool.map(partial(_update_tag, current_ids, wrong_ids), _list_runs(api, job))
        yield {"superseded": sum(tagged)}
    if settings.dashboard:
        yield _save_dashboard(job, current_ids)


def _publish_run(api: wandb.Api, job: PublishJob, listed: Sequence[Any], run: TrackedRun) -> Fields:
    """Upload a W&B run unless the server has an equal one. Return an event with its state, series and ID.

    `listed` contains the runs on the server. The state is 'unchanged' if one of them equals `run`. Otherwise,
    `run` is uploaded and read back. The state is then 'published' if it is equal, and otherwise 'differs'.
    """
    for stored in listed:
        if stored.config.get("digest") == run.digest and not _first_difference(run, stored):
            _remove_copies(job, run)  # `wandb sync` would send them again
            return {"state": "unchanged", "series": run.series, "id": stored.id}
    run_id, _ = _send_run(job, run, "online")
    difference, deadline = "it is not there", time.monotonic() + job.settings.timeout
    while difference and time.monotonic() < deadline:  # a run appears after a delay
        time.sleep(_POLL_SECONDS)
        with contextlib.suppress(ValueError, wandb.errors.CommError):
            stored = api.run(f"{job.settings.entity}/{job.settings.project}/{run_id}")
            stored.load(force=True)  # the run may be from the cache
            difference = _first_difference(run, stored)
    if difference:
        reason = f"{run.name}: what was read back differs in {difference}"
        return {"state": "differs", "id": run_id, "reason": reason}
    _remove_copies(job, run)
    return {"state": "published", "series": run.series, "id": run_id}


def _list_runs(api: wandb.Api, job: PublishJob) -> list[Any]:
    api.flush()  # discard cached listings
    path, filters = f"{job.settings.entity}/{job.settings.project}", {"group": job.runs[0].config["study"]}
    try:
        page = api.runs(path, filters=filters, per_page=500, lazy=False)
        return [run for run in page]  # noqa: C416  `list()` would query the length, and hide its exceptions
    except ValueError as error:
        if "Could not find project" in str(error):
            return []
        raise


def _send_run(job: PublishJob, run: TrackedRun, mode: str) -> tuple[str, Path]:
    """Send a run to W&B with `mode` 'online' or 'offline'. Return its new ID and the path of its log."""
    settings = job.settings
    wandb_settings = wandb.Settings(
        init_timeout=settings.timeout, finish_timeout=FINISH_FACTOR * settings.timeout,
        finish_timeout_raises=True, console="off", silent=True, disable_git=True, disable_code=True,
        save_code=False, symlink=False, x_save_requirements=False, x_disable_stats=True, x_disable_meta=True,
        x_disable_machine_info=True, ignore_globs=("config.yaml", "wandb-summary.json"),  # sent anyway
    )  # fmt: skip
    wandb_run = wandb.init(
        id=f"{run.digest}-{job.destination}-{uuid.uuid4().hex[:6]}", name=run.name, config=run.config,
        group=run.config["study"], job_type=run.config["kind"], tags=run.tags,
        mode=mode, project=settings.project, entity=settings.entity,  # type: ignore[arg-type]
        dir=os.getcwd(), reinit="create_new", settings=wandb_settings,
    )  # fmt: skip
    for prefix, x_metric in _STEP_METRICS.items():
        wandb_run.define_metric(f"{prefix}/*", step_metric=x_metric)
    for step, row in enumerate(run.rows):
        wandb_run.log(row, step=step)
    wandb_run.summary.update(run.summary)
    log = Path(wandb_run.settings.sync_file)
    wandb_run.finish()
    deadline = time.monotonic() + _CLOSE_SECONDS
    while mode == "offline" and not _is_complete(log):
        if time.monotonic() > deadline:
            raise OSError("wandb's copy on disk is not whole; is the disk full?")
        time.sleep(0.05)
    return wandb_run.id, log


def _is_complete(log: Path) -> bool:
    """Return whether a wandb log is complete. The last entry of a complete log is an exit record."""
    options = ["--no-observability", "--json", "--run-file", str(log), str(log.parent.parent)]
    command = [wandb.util.get_core_path(), "leet", "inspect", *options]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return '"type":"exit"' in result.stdout.strip().rpartition("\n")[2]


def _first_difference(run: TrackedRun, stored: Any) -> str:
    """Return which part of `run` differs from the run `stored` in W&B, such as 'config', or '' if equal."""
    try:
        if stored.state != "finished":
            return "state"
        history = sorted(stored.history(samples=_MAX_ROWS, pandas=False), key=lambda row: row["_step"])
        rows = [{name: value for name, value in row.items() if name[0] != "_"} for row in history]
        summary = {name: stored.summary_metrics.get(name) for name in run.summary}
        is_equal = {
            "name": (stored.name, stored.group) == (run.name, run.config["study"]),
            "tags": {*run.tags} <= {*stored.tags},
            "config": run.config.items() <= stored.config.items(),
            "summary": summary == run.summary,
            "rows": rows == run.rows,
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        return "form"  # the run on the server has an unexpected structure
    return next((name for name, equal in is_equal.items() if not equal), "")


def _update_tag(current_ids: Mapping[str, str], wrong_ids: Collection[str], stored: Any) -> bool:
    """Add or remove the tag 'superseded' of the W&B run `stored`. Return whether the tag was added.

    A run is superseded if its ID is in `wrong_ids`, or if `current_ids` maps its series to another ID.
    """
    current_id = current_ids.get(stored.config.get("series"))
    is_superseded = stored.id in wrong_ids or current_id not in (None, stored.id)
    if is_superseded == (_SUPERSEDED in stored.tags) or not (current_id or is_superseded):
        return False
    stored.load(force=True)  # the listed config is incomplete, and `update` would save it
    stored.tags = [tag for tag in stored.tags if tag != _SUPERSEDED] + [_SUPERSEDED] * is_superseded
    stored.update()
    return is_superseded


def _save_dashboard(job: PublishJob, current_ids: Mapping[str, str]) -> Fields:
    try:
        from scaling.wandb import dashboard  # imports wandb_workspaces, which is optional

        return {"dashboard": dashboard.save(job, current_ids)}
    except ModuleNotFoundError:
        return {"dashboard": "no dashboard: it needs wandb-workspaces: pip install 'ad-scaling[dashboard]'"}
    except Exception as error:
        return {"reason": f"the dashboard could not be saved: {describe_wandb_error(error)}"}


def main() -> None:
    """Publish the pickled `PublishJob` in the working directory, and write events as lines of JSON."""
    die_with_parent(int(sys.argv[2]))
    event_stream = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # wandb must not print between the events
    for event in publish_job(pickle.loads(Path(JOB_FILE).read_bytes())):
        os.write(event_stream, f"{json.dumps({'event': 'progress', **event})}\n".encode())
    os._exit(0)  # wandb could hang at exit


if __name__ == "__main__":
    main()
