"""Publish a results folder, or the finished workloads of a running study, to W&B and report the outcome.

wandb runs in a child process (process.py). Errors of wandb are printed and never stop a study.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scaling.analysis import answer, findings
from scaling.core import store
from scaling.core.formatting import count_of
from scaling.wandb import process
from scaling.wandb.process import PublishJob, reason_of
from scaling.wandb.runs import make_plots, study_runs
from scaling.wandb.settings import TrackingSettings

_LOCK = ".wandb.lock"
_LOCK_SECONDS = 20.0  # a killed process releases the lock within seconds
_TIME_SHARE = 0.05  # the largest fraction of a study's time for publishing
_MAX_REASONS = 3  # number of reasons in one line


@dataclass
class Outcome:
    """The outcome of a publication: the state of each W&B run, reasons for failures, and lines to print."""

    mode: str
    # From run digest to state: published, unchanged, kept, there before, differs, refused, lost (no event).
    states: dict[str, str] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    rest: dict[str, Any] = field(default_factory=dict)  # fields of events, such as page
    lines: tuple[str, ...] = ()

    @property
    def succeeded(self) -> bool:
        """Return whether the publication succeeded without any failure."""
        return not self.reasons


def publish(folder: Path, settings: TrackingSettings, workloads: frozenset[str] | None = None) -> Outcome:
    """Publish the results of a folder that are not on the W&B server yet, and return the outcome.

    Errors are not raised, but stored in the outcome.

    Args:
        workloads: The names of the workloads to publish during a study, or None if the study has ended.
            During a study, the results are only sent to the server, for at most `settings.timeout` seconds.
    """
    outcome = Outcome(settings.mode)
    try:
        if settings.mode != "disabled":
            _publish(folder, settings, workloads, outcome)
    except Exception as error:
        outcome.reasons.append(reason_of(error))
    outcome.lines = tuple(f"W&B: {line}" for line in _outcome_lines(folder, outcome))
    return outcome


def _publish(
    folder: Path, settings: TrackingSettings, workloads: frozenset[str] | None, outcome: Outcome
) -> None:
    loaded, live = store.load(folder), workloads is not None
    records = [r for r in loaded.records if workloads is None or r.case.workload in workloads]
    if not records:
        return
    found = findings.read(folder, loaded=loaded._replace(records=records))
    plots = make_plots(found)
    runs = study_runs(folder, found, plots, records)
    sentences = () if live else tuple(answer.answer_sentences(found))
    job = PublishJob(settings, tuple(runs[:-1] if live else runs), tuple(plots), sentences, live)
    if not job.runs:  # for example if only benchmarks of machine peaks were run
        return
    outcome.states = dict.fromkeys((run.digest for run in job.runs), "lost")
    with store.locked(folder, _LOCK, _LOCK_SECONDS) as lock:  # avoids sending everything twice
        (folder / "wandb").mkdir(exist_ok=True)
        for event in process.run_job(folder, job, lock, settings.timeout if live else math.inf):
            if "run" in event:
                outcome.states[event["run"]] = event["state"]
            if "reason" in event:
                outcome.reasons.append(event["reason"])
            outcome.mode = event.get("mode", outcome.mode)
            outcome.rest |= event


def _outcome_lines(folder: Path, outcome: Outcome) -> Iterator[str]:
    counts, again, copies = Counter(outcome.states.values()), f"`scaling publish {folder}`", folder / "wandb"
    words = (("published", "new"), ("unchanged", "as before"))
    if arrived := [f"{counts[state]} {word}" for state, word in words if counts[state]]:
        old = [f"{count} superseded"] if (count := outcome.rest.get("superseded")) else []
        page = outcome.rest["page"]
        yield f"published to {page}, read back and equal: runs {', '.join([*arrived, *old])}"
    if counts["kept"]:
        yield f"kept {count_of(counts['kept'], 'run')} offline in {copies}; {again} sends them, given a key"
    if counts["there before"]:
        yield f"{count_of(counts['there before'], 'run')} went to the server or to {copies} before"
    if reasons := list(dict.fromkeys(outcome.reasons)):
        more = f"; {len(reasons) - _MAX_REASONS} more" if reasons[_MAX_REASONS:] else ""
        done = "not all arrived" if arrived else "nothing was sent"
        text = f"{done} ({'; '.join(reasons[:_MAX_REASONS])}{more})"
        yield f"{text}; the records in {folder} are whole, {again} tries again"
    elif not outcome.states:
        why = f"there are no records in {folder}" if outcome.mode != "disabled" else "WANDB_MODE is disabled"
        yield f"nothing was sent, {why}"
    if "dashboard" in outcome.rest:
        yield outcome.rest["dashboard"]


@dataclass
class LivePublisher:
    """A callback that publishes the finished workloads of a running study to W&B.

    The study must call the object between measurements. A call does nothing before `next_time`. After an
    error, `next_time` is infinite.
    """

    folder: Path
    settings: TrackingSettings
    replicates: int  # processes per case
    show: Callable[[str], Any]  # function that prints a line
    sent: frozenset[str] = frozenset()  # names of the workloads already passed to `publish`
    next_time: float = field(init=False)  # time of the next publication, as time.monotonic()

    def __post_init__(self) -> None:
        online = self.settings.mode in ("auto", "online")
        self.next_time = time.monotonic() + self.settings.every if online else math.inf

    def __call__(self) -> None:
        began = time.monotonic()
        if began < self.next_time:
            return
        outcome = Outcome("online")
        try:
            if new := finished_workloads(self.folder, self.replicates) - self.sent:
                outcome = publish(self.folder, self.settings, new)
                self.sent |= new
        except Exception as error:  # a file of the folder cannot be read
            outcome.reasons.append(reason_of(error))
        seconds = time.monotonic() - began
        self.next_time = began + seconds + max(self.settings.every, seconds / _TIME_SHARE)
        if outcome.mode == "offline" or not outcome.succeeded:
            self.next_time = math.inf
        if not outcome.succeeded:
            self.show(f"W&B: {outcome.reasons[0]}; it is left alone until the study has ended")


def finished_workloads(folder: Path, replicates: int) -> frozenset[str]:
    """Return the names of the workloads for which every case was skipped or has `replicates` records."""
    study = store.read_json(folder / "study.json")
    cells = study.get("cases", ()) if isinstance(study, dict) else ()
    records = store.latest(store.load(folder).records)
    done = Counter(key for key, _ in {(record.key, record.replicate) for record in records})
    done.update({record.key: replicates for record in records if record.status == "skipped"})
    missing = {cell["case"]["workload"] for cell in cells if done[cell["key"]] < replicates}
    return frozenset(cell["case"]["workload"] for cell in cells) - missing
