"""Upload W&B runs to the server and read them back to verify them, or write offline copies.

process.py starts a child process that runs this module in the results folder. wandb does not report every
failure, so a run counts as published only after it was read back and compared. Each upload gets a new run ID
to avoid duplicate rows. A digest in the config of a run identifies its content.
"""

import contextlib
import dataclasses
import math
import os
import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import wandb

from scaling.core import store
from scaling.wandb.process import UPLOADS, PublishJob, reason_of
from scaling.wandb.tracked_run import STEP_METRICS, TrackedRun

_LEDGER = Path("wandb.json")  # a dict from destination to the digests of the runs published there
_ARTIFACT, _SUPERSEDED = "records", "superseded"
_UNREACHABLE = "deadline exceeded|[Tt]imed out|did not respond in time|connection refused|giving up"
_THREADS = 8  # most of the time is spent waiting for the server
_POLL_SECONDS = 0.5
_CLOSE_SECONDS = 8.0  # on a busy machine wandb closes its log after `finish` has returned
_MAX_ROWS = 10_000  # the server returns only part of a longer history
_PAGE = 500
Report = Callable[..., None]
Sizes = dict[str, int]  # from path to size in bytes, for the uploaded files of a run


def do_job(job: PublishJob, send_event: Report) -> None:
    """Publish the W&B runs of a job, and write offline copies of runs neither uploaded nor refused.

    No copies are written while the study is still running. Mode `auto` is online if wandb finds an API key
    for its server, and offline otherwise.

    Args:
        send_event: A function that sends its keyword arguments to the parent process.
    """
    server, settings = wandb.setup().settings, job.settings
    url, app = (re.sub("//.*@", "//", address.rstrip("/")) for address in (server.base_url, server.app_url))
    entity, states = settings.entity or server.entity, dict[str, str]()
    where, ledger = f"{url}/{entity}/{settings.project}", store.read_json(_LEDGER) or {}

    def report(run: TrackedRun, state: str, why: str = "") -> None:
        states[run.digest] = state
        send_event(run=run.digest, state=state, **({"reason": f"{run.name}: {why}"} if why else {}))

    try:
        if settings.mode != "offline":
            api = wandb.Api(timeout=math.ceil(settings.timeout))
            entity = entity or api.default_entity
            send_event(mode="online", page=f"{app}/{entity}/{settings.project}")
            job = dataclasses.replace(job, settings=dataclasses.replace(settings, entity=entity))
            _publish_online(api, job, report, send_event)
    except Exception as error:
        if settings.mode == "auto" and isinstance(error, wandb.errors.UsageError):  # there is no API key
            send_event(mode="offline")
        else:
            send_event(reason=reason_of(error))
    arrived = {digest for digest, state in states.items() if state in ("published", "unchanged")}
    for digest in arrived:
        _remove_copies(digest)  # `wandb sync` would send them again
    there = arrived.union(ledger.get(where, ()))
    store.write_json(_LEDGER, ledger | {where: sorted(there)})
    if not job.live:
        rest = [run for run in job.runs if run.digest not in states]
        _map_in_threads(lambda run: _keep_offline_copy(job, run, there, report), rest)
    wandb.teardown()


def _keep_offline_copy(job: PublishJob, run: TrackedRun, there: set[str], report: Report) -> None:
    """Write an offline copy of a W&B run, unless the run was published or a complete copy exists.

    If writing fails, the incomplete copy is removed.

    Args:
        there: The digests of the runs that were published to the server.
    """
    copies = Path("wandb").resolve().glob(f"offline-run-*-{run.digest}-*/*.wandb")
    if run.digest in there or any(map(_is_complete, copies)):
        return report(run, "there before")
    _remove_copies(run.digest)
    try:
        _send_run(job, run, "offline")
    except BaseException:
        _remove_copies(run.digest)
        raise
    return report(run, "kept")


def _remove_copies(digest: str) -> None:
    for copy in Path("wandb").glob(f"offline-run-*-{digest}-*"):
        shutil.rmtree(copy, ignore_errors=True)


def _publish_online(api: wandb.Api, job: PublishJob, report: Report, send_event: Report) -> None:
    """Upload the runs that the server lacks or stores differently, verify them, and tag superseded runs.

    If requested, the dashboard is saved too.
    """
    listed = _list_runs(api, job)
    current: dict[str, str] = {}  # from series to ID of its correct run on the server
    sent: dict[str, tuple[TrackedRun, Sizes]] = {}  # from run ID on the server to (run, file sizes)

    def publish_run(run: TrackedRun) -> None:
        for stored in listed:
            if stored.config.get("digest") == run.digest and not _first_difference(stored, run, {}):
                current[run.series] = stored.id
                return report(run, "unchanged")
        try:
            run_id, sizes = _send_run(job, run, "online")
            sent[run_id] = run, sizes
        except Exception as error:  # a rejected run does not stop the others
            if re.search(_UNREACHABLE, str(error)):
                raise
            report(run, "refused", reason_of(error))

    _map_in_threads(publish_run, job.runs)
    wrong = dict.fromkeys(sent, "it is not there")
    deadline = time.monotonic() + job.settings.timeout
    while wrong and time.monotonic() < deadline:  # runs appear after a delay
        time.sleep(_POLL_SECONDS)
        listed = _list_runs(api, job)
        there = [stored for stored in listed if stored.id in wrong]
        found = _map_in_threads(lambda stored: _first_difference(stored, *sent[stored.id]), there)
        wrong |= {stored.id: why for stored, why in zip(there, found, strict=True)}
        wrong = {run_id: why for run_id, why in wrong.items() if why}
    for run_id, (run, _) in sent.items():
        if run_id in wrong:
            report(run, "differs", f"what was read back differs in {wrong[run_id]}")
        else:
            current[run.series] = run_id
            report(run, "published")
    changes = _map_in_threads(lambda stored: _update_tag(stored, current, wrong.keys()), listed)
    send_event(superseded=sum(changes))
    if job.settings.dashboard and not job.live:
        send_event(**_save_dashboard(job, current))


def _list_runs(api: wandb.Api, job: PublishJob) -> list[Any]:
    api.flush()  # discard cached listings
    path, filters = f"{job.settings.entity}/{job.settings.project}", {"group": job.runs[0].group}
    try:
        return _as_list(api.runs(path, filters=filters, per_page=_PAGE, lazy=False))
    except ValueError as error:
        if "Could not find project" in str(error):
            return []
        raise


def _send_run(job: PublishJob, run: TrackedRun, mode: str) -> tuple[str, Sizes]:
    """Log a run with wandb, and return its new ID and a dict from media file path to size in bytes.

    Exceptions of wandb are passed on. Raise `OSError` if wandb's copy on disk is missing or incomplete.

    Args:
        mode: 'online' to upload the run, or 'offline' to write a copy to disk.
    """
    settings = job.settings
    lean = wandb.Settings(
        init_timeout=settings.timeout, finish_timeout=UPLOADS * settings.timeout, finish_timeout_raises=True,
        console="off", silent=True, disable_git=True, disable_code=True, save_code=False, symlink=False,
        x_save_requirements=False, x_disable_stats=True, x_disable_meta=True, x_disable_machine_info=True,
        ignore_globs=("config.yaml", "wandb-summary.json"),  # the server has both anyway
    )  # fmt: skip
    live = wandb.init(
        id=f"{run.digest}-{uuid.uuid4().hex[:6]}", name=run.name, group=run.group, job_type=run.job_type,
        config=run.config, tags=(*settings.tags, *run.tags), mode=mode,  # type: ignore[arg-type]
        project=settings.project, entity=settings.entity, dir=os.getcwd(), reinit="create_new", settings=lean,
    )  # fmt: skip
    for quantity, x in STEP_METRICS.items():
        live.define_metric(f"{quantity}/*", step_metric=x)
    for step, row in enumerate(run.rows):
        live.log(row, step=step)
    media: dict[str, Any] = {name: wandb.Image(path) for name, path in run.images.items()}
    for name, (columns, rows) in run.tables.items():
        media[name] = wandb.Table(columns=[*columns], data=rows, allow_mixed_types=True)
    if media:
        live.log(media, step=len(run.rows))
    if run.lines:
        live.log_artifact(_records_artifact(run))
    live.summary.update(run.summary)
    log, files = Path(live.settings.sync_file), Path(live.dir)
    live.finish()
    if log.parent.parent != Path.cwd() / "wandb":  # wandb falls back to /tmp if it cannot write
        raise OSError("wandb could not write to the results folder")
    deadline = time.monotonic() + _CLOSE_SECONDS
    while mode == "offline" and not _is_complete(log):
        if time.monotonic() > deadline:
            raise OSError("wandb's copy on disk is not whole; is the disk full?")
        time.sleep(0.05)
    paths = (path for path in files.rglob("media/**/*") if path.is_file())
    return live.id, {path.relative_to(files).as_posix(): path.stat().st_size for path in paths}


def _records_artifact(run: TrackedRun) -> wandb.Artifact:
    """Return a W&B artifact that contains the records of a study as lines of JSON.

    W&B creates no new version of the artifact if the lines have not changed.
    """
    artifact = wandb.Artifact(f"{_ARTIFACT}-{run.series}", _ARTIFACT, "every record, as JSON lines")
    with artifact.new_file("records.jsonl", mode="w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in run.lines)
    return artifact


def _is_complete(log: Path) -> bool:
    """Return whether a wandb log file contains the end of its run.

    The check is needed because `finish` reports no error if the disk is full.
    """
    options = ["--no-observability", "--json", "--run-file", str(log), str(log.parent.parent)]
    command = [wandb.util.get_core_path(), "leet", "inspect", *options]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return '"type":"exit"' in next(iter(result.stdout.strip().splitlines()[-1:]), "")


def _first_difference(stored: Any, run: TrackedRun, sizes: Sizes) -> str:
    """Return the name of the first part of a run that differs on the server, such as 'summary'.

    Return '' if there is no difference, and 'form' if the run on the server has an unexpected structure.

    Args:
        stored: The run on the server.
        run: The expected content.
        sizes: A dict from media file path to size in bytes, or {} to skip this comparison.
    """
    try:
        return next((name for name, is_equal in _comparisons(stored, run, sizes) if not is_equal), "")
    except (ValueError, TypeError, KeyError, AttributeError):
        return "form"


def _comparisons(stored: Any, run: TrackedRun, sizes: Sizes) -> Iterator[tuple[str, bool]]:
    yield "state", stored.state == "finished"
    yield "name", (stored.name, stored.group) == (run.name, run.group)
    yield "config", run.config.items() <= stored.config.items()
    yield "summary", all(stored.summary_metrics.get(name) == value for name, value in run.summary.items())
    history = sorted(stored.history(samples=_MAX_ROWS, pandas=False), key=lambda row: row["_step"])
    rows = [{name: value for name, value in row.items() if name[0] != "_"} for row in history]
    media = rows.pop() if (run.images or run.tables) and rows else {}
    yield "rows", rows == run.rows and media.keys() == {*run.images, *run.tables}
    if sizes:
        there = {file.name: file.size for file in _as_list(stored.files(per_page=_PAGE))}
        yield "files", sizes.items() <= there.items()
    if run.lines:
        expected, found = (_ARTIFACT, _records_artifact(run).digest, "COMMITTED"), []
        with contextlib.suppress(AssertionError):  # the client cannot list an unfinished upload (0.31)
            artifacts = _as_list(stored.logged_artifacts(per_page=_PAGE))
            found = [(item.type, item.digest, item.state) for item in artifacts]
        yield "records", expected in found


def _update_tag(stored: Any, current: dict[str, str], wrong: Iterable[str]) -> bool:
    """Add or remove the tag 'superseded' of a run on the server, and return whether the tag was added.

    A run is superseded if a newer run replaces it or if its content is wrong.

    Args:
        stored: The run on the server.
        current: A dict from the series of a run (see `TrackedRun`) to the ID of its newest run.
        wrong: The IDs of the runs with wrong content.
    """
    newest = current.get(stored.config.get("series"))
    superseded = stored.id in wrong or newest not in (None, stored.id)
    if superseded == (_SUPERSEDED in stored.tags) or not (newest or superseded):
        return False
    stored.load(force=True)  # an update drops the client's part of the config, which a listing lacks
    stored.tags = [tag for tag in stored.tags if tag != _SUPERSEDED] + [_SUPERSEDED] * superseded
    stored.update()
    return superseded


def _save_dashboard(job: PublishJob, current: dict[str, str]) -> dict[str, str]:
    try:
        from scaling.wandb import dashboard  # imports wandb_workspaces, which is optional

        return {"dashboard": dashboard.save(job, current)}
    except ModuleNotFoundError:
        return {"dashboard": "no dashboard: it needs a package more: pip install 'ad-scaling[dashboard]'"}
    except Exception as error:
        return {"reason": f"the dashboard could not be saved: {reason_of(error)}"}


def _as_list(page: Any) -> list[Any]:
    return [item for item in page]  # noqa: C416  `list()` would query the length, and hide its exceptions


def _map_in_threads(function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(function, items))
