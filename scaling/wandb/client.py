"""The process that wandb runs in: `python -m scaling.wandb.client` reads a job and says what it did, one JSON line each.

Compares the job's runs with what the server has, hands over what is new, reads it back, tags what it supersedes, and saves the
dashboard. Does not know what the runs mean.
"""

import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from scaling.wandb import readback, sending
from scaling.wandb.client_process import reason_of

_AT_A_TIME = 8  # runs: a server far away is waited for most of the time
_OUT_OF_REACH = "deadline exceeded|[Tt]imed out|did not respond in time|connection refused|giving up"
_ATTEMPTS = 3  # at an id that was deleted, and cannot be used again
Say = Callable[..., None]
Fields = Mapping[str, Any]


def serve() -> None:
    """Read a job from standard input, do it, and say so."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nothing that wandb prints may get between the lines
    lock = threading.Lock()

    def say(**event: Any) -> None:
        with lock:
            print(json.dumps(event), file=channel, flush=True)

    job = json.load(sys.stdin)
    try:
        import wandb

        say(ready=True)
        (_online if job["mode"] == "online" else _offline)(wandb, job, say)
        wandb.teardown()
        say(end=True)
    except BaseException as error:
        say(reason=_reason(error, job))


def _offline(wandb: Any, job: Fields, say: Say) -> None:
    """Write every run into a folder of its own; the first that fails ends it, since a full disk takes none."""

    def one(run: Fields) -> None:
        say(id=run["id"], directory=sending.send(wandb, job, run, run["id"]).directory)

    _each(one, job["runs"])


def _online(wandb: Any, job: Fields, say: Say) -> None:
    """Bring the server to where the records are, and look whether it is there."""
    server = readback.connect(wandb, job)
    there = server.listing()
    current = _as_before(server, there, job, say)
    todo = [run for run in job["runs"] if run["series"] not in current]
    new, differing = _new(server, todo, {run.id for run in there}, job, say)
    if todo or len(there) > len(job["runs"]):
        _supersede(server, job, current | new, differing, say)
    if job["dashboard"] is not None:
        _dashboard(server, job, say)


def _as_before(
    server: readback.TrackingServer, there: Iterable[Any], job: Fields, say: Say
) -> dict[str, str]:
    """What need not be sent: series -> the id of the run that shows it as it should be."""
    known: dict[tuple[Any, Any], list[Any]] = {}
    for old in there:
        known.setdefault((old.config.get("series"), old.config.get("rows")), []).append(old)
    current: dict[str, str] = {}

    def look(run: Fields) -> None:
        for old in known.get((run["series"], run["config"]["rows"]), ()):
            if readback.difference(server, old, run) is None:
                current[run["series"]] = old.id
                say(before=run["id"])
                return

    _each(look, job["runs"])
    return current


def _new(
    server: readback.TrackingServer, todo: Sequence[Fields], taken: set[str], job: Fields, say: Say
) -> tuple[dict[str, str], dict[tuple[str, str], str]]:
    """Hand over and read back. Return series -> id of what is as it should be, and (series, rows) -> id of what differs."""
    sent: dict[str, sending.Sent] = {}  # id in the plan -> what was sent

    def give(run: Fields) -> None:
        try:
            sent[run["id"]] = _send(server.wandb, job, run, taken)
            say(handed=run["id"])
        except Exception as error:
            if re.search(_OUT_OF_REACH, str(error)):
                raise
            say(
                lost=run["id"], why=reason_of(error)
            )  # one that the server will not take does not stop the others

    _each(give, todo)
    wrong = readback.settle(server, [(run, sent[run["id"]]) for run in todo if run["id"] in sent])
    current: dict[str, str] = {}
    differing: dict[tuple[str, str], str] = {}
    for run in (run for run in todo if run["id"] in sent):
        if run["id"] in wrong:
            differing[run["series"], run["config"]["rows"]] = sent[run["id"]].id
            say(differs=run["id"], why=wrong[run["id"]])
        else:
            current[run["series"]] = sent[run["id"]].id
            say(id=run["id"], directory="")
    return current, differing


def _send(wandb: Any, job: Fields, run: Fields, taken: set[str]) -> sending.Sent:
    """Hand a run over under its own id, or under one that no other run has or had."""
    numbers = (
        number for number in range(len(taken) + _ATTEMPTS) if _numbered(run["id"], number) not in taken
    )
    error: Exception | None = None
    for number, _ in zip(numbers, range(_ATTEMPTS), strict=False):
        try:
            return sending.send(wandb, job, run, _numbered(run["id"], number))
        except Exception as problem:
            error = problem
            if "deleted" not in str(problem):
                break
    assert error is not None
    raise error


def _numbered(name: str, number: int) -> str:
    return name if number == 0 else f"{name}-{number}"


def _supersede(
    server: readback.TrackingServer,
    job: Fields,
    current: Mapping[str, str],
    differing: Mapping[tuple[str, str], str],
    say: Say,
) -> None:
    """Tag the runs that newer ones replace, earlier attempts at a run that differs, and runs of series that no longer exist."""

    def one(run: Any) -> None:
        series = run.config.get("series")
        attempt = differing.get((series, run.config.get("rows")), run.id)
        old = series in job["gone"] or current.get(series, attempt) != run.id
        if readback.tag(run, old) and old:
            say(superseded=run.config.get("kind"))

    _each(one, server.listing())


def _dashboard(server: readback.TrackingServer, job: Fields, say: Say) -> None:
    """Save the workspace and the report; their trouble is not that of the runs."""
    try:
        from scaling.wandb import dashboard

        say(dashboard=dashboard.save(server.entity, job["project"], job["dashboard"]))
    except ImportError as error:
        if str(error.name).partition(".")[0] != "wandb_workspaces":
            raise
        say(no_dashboard="it needs a package more: pip install 'ad-scaling[dashboard]'")
    except Exception as error:
        say(lost_dashboard=reason_of(error))


def _each(function: Callable[[Fields], None], items: Iterable[Any]) -> None:
    """Do a thing for each, several at a time; what one of them raises is raised, and those not begun are left."""
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        futures = [pool.submit(function, item) for item in items]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _reason(error: BaseException, job: Fields) -> str:
    """Why it ended, as a person would say it."""
    text, host = str(error), job["base_url"]
    if job["mode"] == "offline":
        return reason_of(error)
    if re.search("not logged in|[Uu]nauthorized|API key", text):
        return f"{host} does not accept the key; see WANDB_API_KEY or `wandb login`"
    if re.search(_OUT_OF_REACH, text):
        return f"no answer from {host} in {job['timeout']:g} s"
    return reason_of(error)


if __name__ == "__main__":
    serve()
