"""Make the runs of a job exist: on the server, where everything is read back, or as copies in the results
folder.

Runs in the process of client.py. Does not know what the runs mean.
"""

import dataclasses
import itertools
import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import wandb

from scaling.wandb.client import OUT_OF_REACH
from scaling.wandb.client_process import DashboardContent, PublishJob, reason_of
from scaling.wandb.comparison import as_list, difference
from scaling.wandb.sending import SentRun, send
from scaling.wandb.tracked_run import TrackedRun

SUPERSEDED = "superseded"
_THREADS = 8  # most of the time is spent waiting for the server
_PAGE = 500
_POLL_SECONDS = 0.5
_ATTEMPTS = 3  # at ids that were deleted, and cannot be used again
SendEvent = Callable[..., None]


def run_job(job: PublishJob, send_event: SendEvent) -> None:
    """Do a job and send an event for each step. Raises what wandb raises when the server cannot be used."""
    if job.mode == "online":
        _publish(job, send_event)
    else:
        _keep(job, send_event)
    wandb.teardown()


def _keep(job: PublishJob, send_event: SendEvent) -> None:
    """Write a copy of every run; the first failure ends it, since a full disk takes none."""

    def write(run: TrackedRun) -> None:
        send_event(run=run.id, state="kept", directory=send(job, run, run.id).directory)

    _for_each(write, job.runs)


def _publish(job: PublishJob, send_event: SendEvent) -> None:
    """Send what the server does not have as it should be, read it back, and tag what it supersedes."""
    api = wandb.Api(timeout=max(1, math.ceil(job.timeout)))
    job = dataclasses.replace(job, entity=job.entity or api.default_entity)
    listed = _list_runs(api, job)
    current = _find_unchanged(listed, job, send_event)
    new = [run for run in job.runs if run.series not in current]
    sent = _send_new(new, {stored.id for stored in listed}, job, send_event)
    wrong = _read_back(api, job, sent)
    attempts = {}
    for each in sent:
        if each in wrong:
            attempts[each.run.series, each.run.config["rows"]] = each.id
            send_event(run=each.run.id, state="differs", why=wrong[each])
        else:
            current[each.run.series] = each.id
            send_event(run=each.run.id, state="published")
    if new or len(listed) > len(job.runs):
        _tag_superseded(_list_runs(api, job), job, current, attempts, send_event)
    if job.dashboard is not None:
        _save_dashboard(job, job.dashboard, send_event)


def _list_runs(api: wandb.Api, job: PublishJob) -> list[Any]:
    """Return every run of the study on the server; none where the project does not exist yet."""
    api.flush()  # it caches listings
    filters = {"group": job.runs[0].group}
    listing = api.runs(f"{job.entity}/{job.project}", filters=filters, per_page=_PAGE, lazy=False)
    try:
        return as_list(listing)
    except ValueError as error:
        if "Could not find project" in str(error):
            return []
        raise


def _find_unchanged(listed: Iterable[Any], job: PublishJob, send_event: SendEvent) -> dict[str, str]:
    """Return the runs that need not be sent: series -> id of the run that shows it as it should be."""
    stored: dict[tuple[Any, Any], list[Any]] = {}
    for each in listed:
        stored.setdefault((each.config.get("series"), each.config.get("rows")), []).append(each)
    current: dict[str, str] = {}

    def look_up(run: TrackedRun) -> None:
        candidates = stored.get((run.series, run.config["rows"]), ())
        equal = next((each for each in candidates if difference(each, run) is None), None)
        if equal is not None:
            current[run.series] = equal.id
            send_event(run=run.id, state="unchanged")

    _for_each(look_up, job.runs)
    return current


def _send_new(
    runs: Sequence[TrackedRun], taken: set[str], job: PublishJob, send_event: SendEvent
) -> list[SentRun]:
    """Send runs; one that the server refuses does not stop the others."""
    sent: list[SentRun] = []

    def send_one(run: TrackedRun) -> None:
        numbered = (f"{run.id}-{number}" for number in itertools.count(1))
        free = (name for name in itertools.chain([run.id], numbered) if name not in taken)
        for attempt, name in enumerate(itertools.islice(free, _ATTEMPTS), 1):
            try:
                sent.append(send(job, run, name))
                send_event(run=run.id, state="sent")
                break
            except Exception as error:
                if re.search(OUT_OF_REACH, str(error)):
                    raise
                if "deleted" not in str(error) or attempt == _ATTEMPTS:
                    send_event(run=run.id, state="refused", why=reason_of(error))
                    break

    _for_each(send_one, runs)
    return sent


def _read_back(api: wandb.Api, job: PublishJob, sent: Sequence[SentRun]) -> dict[SentRun, str]:
    """Read runs back until all are as they were sent or time is over; return what differs."""
    deadline = time.monotonic() + job.timeout
    pending = list(sent)
    while pending:
        listed = {stored.id: stored for stored in _list_runs(api, job)}

        def check(each: SentRun, listed: dict[str, Any] = listed) -> str | None:
            return difference(listed[each.id], each.run, each) if each.id in listed else "not there"

        wrong = {each: why for each, why in zip(pending, _for_each(check, pending), strict=True) if why}
        if time.monotonic() > deadline:
            return wrong
        pending = list(wrong)
        time.sleep(_POLL_SECONDS if pending else 0)
    return {}


def _tag_superseded(
    listed: Iterable[Any], job: PublishJob, current: dict[str, str], attempts: dict[tuple[str, str], str],
    send_event: SendEvent,
) -> None:  # fmt: skip
    """Tag the runs that newer ones replace, and those of series that the results no longer have.

    attempts: (series, rows) -> id of the last attempt at a run that differs; earlier attempts are superseded.
    """

    def tag(stored: Any) -> None:
        series, rows = stored.config.get("series"), stored.config.get("rows")
        newest = current.get(series, attempts.get((series, rows), stored.id))
        superseded = series in job.gone or newest != stored.id
        if superseded == (SUPERSEDED in stored.tags):
            return
        stored.load(
            force=True
        )  # what was listed lacks the client's own part of the config, and an update drops it
        stored.tags = [each for each in stored.tags if each != SUPERSEDED] + [SUPERSEDED] * superseded
        stored.update()
        if superseded:
            send_event(superseded=stored.config.get("kind"))

    _for_each(tag, listed)


def _save_dashboard(job: PublishJob, content: DashboardContent, send_event: SendEvent) -> None:
    """Save the workspace and the report; a failure does not concern the runs."""
    try:
        from scaling.wandb import dashboard  # imports wandb_workspaces, which is optional

        send_event(dashboard=dashboard.save(str(job.entity), job.project, content))
    except ImportError as error:
        if str(error.name).partition(".")[0] != "wandb_workspaces":
            raise
        send_event(no_dashboard="it needs a package more: pip install 'ad-scaling[dashboard]'")
    except Exception as error:
        send_event(lost_dashboard=reason_of(error))


def _for_each(function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """Return the results of a function for each item, computed by several threads; the first error cancels
    the rest.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(function, items))
