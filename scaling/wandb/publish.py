"""Publish a results folder to W&B in a child process (remote.py), and return the result as an `Outcome`.

wandb could hang, print, or change signal handlers and environment variables. The child process receives a
pickled `PublishJob`, and sends events as lines of JSON. An event has the digest (`run`) and the `state` of a
W&B run, or the `reason` for a failure. An error of W&B never stops a study.
"""

import base64
import contextlib
import os
import pickle
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scaling.analysis import findings, summary
from scaling.core.formatting import format_count, list_first
from scaling.results import store
from scaling.wandb.job import FINISH_FACTOR, PublishJob, TrackingSettings, describe_error
from scaling.wandb.runs import digest_of, make_plots, study_runs
from scaling.workers.child_process import ChildProcess, Event

_LOCK_SECONDS = 20.0  # timeout of the lock; a killed process releases it within seconds
_START_SECONDS = 60.0  # timeout of importing wandb, even from a slow network disk
_GRACE_SECONDS = 15.0  # added to the time limits of wandb, because wandb may exceed them
_CHILD_ENVIRONMENT = {  # environment variables of the child process
    "WANDB_ERROR_REPORTING": "false",  # nothing may be sent in offline mode
    "WANDB_SILENT": "true",
    "WANDB_DATA_DIR": "/proc/self/cwd/wandb/staging",  # keeps paths of this machine out of the log of a run
    "WANDB_CACHE_DIR": "/proc/self/cwd/wandb/cache",
}
# The variables WANDB_... that the child process keeps. wandb may send the values of other variables.
_PASSED = ("API_KEY", "BASE_URL", "ENTITY", "CONFIG_DIR", "HTTP_PROXY", "HTTPS_PROXY", "INSECURE_DISABLE_SSL")


@dataclass(frozen=True)
class Outcome:
    """The outcome of a publication to W&B, with the state of each run and the lines to print."""

    states: Mapping[str, str]  # digest -> published, unchanged, kept, there before, differs, lost (no event)
    succeeded: bool  # whether no failure was reported
    lines: tuple[str, ...]  # text for the console


def publish(folder: Path, settings: TrackingSettings, loaded: store.Loaded | None = None) -> Outcome:
    """Publish a results folder to W&B, or write offline copies. Errors are reported in the result."""
    events: list[Event] = []
    try:
        events.extend(_publish(folder, settings, loaded))
    except Exception as error:
        events.append({"reason": describe_error(error)})
    states = {event["run"]: event["state"] for event in events if "run" in event}
    reasons = list(dict.fromkeys(event["reason"] for event in events if event.get("reason")))
    fields = {name: value for event in events for name, value in event.items()}
    lines = tuple(f"W&B: {line}" for line in _format_outcome(folder, settings.mode, states, reasons, fields))
    return Outcome(states, not reasons, lines)


def _publish(folder: Path, settings: TrackingSettings, loaded: store.Loaded | None) -> Iterator[Event]:
    loaded = loaded or store.load(folder)
    if settings.mode == "disabled" or not loaded.records:
        return
    results = findings.read(folder, loaded=loaded)
    plots = make_plots(results)
    runs = [replace(run, tags=(*settings.tags, *run.tags)) for run in study_runs(results, plots, folder)]
    destination = digest_of((settings.project, settings.entity, settings.tags))[:6]
    sentences = tuple(summary.answer_sentences(results))
    job = PublishJob(settings, tuple(runs), tuple(plots), sentences, destination)
    yield from ({"run": run.digest, "state": "lost"} for run in runs)  # until another event replaces it
    with store.locked(folder, ".wandb.lock", _LOCK_SECONDS) as lock:  # no two processes publish at once
        (folder / "wandb").mkdir(exist_ok=True)
        yield from _run_job(folder / "wandb", job, lock)


def _run_job(copies: Path, job: PublishJob, lock: int) -> Iterator[Event]:
    """Publish a job in a child process. Yield events such as {"run": digest, "state": "published"}.

    If the child process fails or sends nothing, the last event contains the error message as `reason`.
    Offline copies go to `copies`. The child process holds `lock`, a file descriptor, until it ends.
    """
    passed_variables = [name for name in os.environ if not name.startswith("WANDB_") or name[6:] in _PASSED]
    encoded_job = base64.b64encode(pickle.dumps(job)).decode()
    command = [sys.executable, "-P", "-m", "scaling.wandb.remote", str(copies.resolve()), str(os.getpid())]
    timeout = _START_SECONDS + _GRACE_SECONDS
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work_folder:  # wandb leaves files in it
        environ = {k: os.environ[k] for k in passed_variables} | _CHILD_ENVIRONMENT | {"TMPDIR": work_folder}
        child = ChildProcess(command, stdin_text=encoded_job, cwd=work_folder, env=environ, pass_fds=(lock,))
        with contextlib.closing(child):
            while (event := child.receive(timeout)) is not None:
                if event.get("event") == "exit":
                    if event["status"]:
                        _, text, last_line = child.explain_exit(event["status"])
                        yield {"reason": f"the process of wandb {text}: {last_line}".rstrip(" :")}
                    return
                yield event
                timeout = (1 + FINISH_FACTOR) * job.settings.timeout + _GRACE_SECONDS
            yield {"reason": f"wandb fell silent for {timeout:g} s"}


def _format_outcome(
    folder: Path, mode: str, states: Mapping[str, str], reasons: Sequence[str], fields: Mapping[str, Any]
) -> Iterator[str]:
    """Yield lines that state how many W&B runs were published or kept offline, and why others failed.

    `states` maps the digest of each run to its state. `fields` contains other values, such as 'dashboard'.
    """
    counts, copies_folder = Counter(states.values()), folder / "wandb"
    command = f"`{store.format_command('publish', folder)}`"
    arrived = counts["published"] + counts["unchanged"] > 0
    if arrived:
        superseded = fields.get("superseded", 0)
        totals = {"new": counts["published"], "as before": counts["unchanged"], "superseded": superseded}
        runs = ", ".join(f"{count} {state}" for state, count in totals.items() if count)
        yield f"published to {fields['page']}, read back and equal: runs {runs}"
    if counts["kept"]:
        kept_runs = format_count(counts["kept"], "run")
        yield f"kept {kept_runs} offline in {copies_folder}; {command} sends them, given a key"
    if counts["there before"]:
        yield f"{format_count(counts['there before'], 'run')} went to {copies_folder} before"
    if reasons:
        failure = "not all arrived" if arrived or counts["differs"] else "nothing was sent"
        failure += f" ({list_first(reasons, 3)})"
        yield f"{failure}; the records in {folder} are whole, {command} tries again"
    elif mode == "disabled":
        yield "nothing was sent, because the mode is disabled"
    elif not states:
        yield f"nothing was sent, there are no records in {folder}"
    if "dashboard" in fields:
        yield fields["dashboard"]
