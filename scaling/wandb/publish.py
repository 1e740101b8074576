"""Publish the results of a folder in W&B: all of them, or, while a study runs, the curves that are finished.

wandb itself runs in another process (client_process.py). Whatever it does becomes a line and never costs a
study.
"""

import contextlib
import dataclasses
import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scaling.analysis import answer, findings
from scaling.core import store
from scaling.core.case import Refusal
from scaling.core.formatting import count_of
from scaling.wandb import client_process, ledger
from scaling.wandb.client_process import DashboardContent, PublishJob
from scaling.wandb.outcome import ARRIVED, ON_SERVER, Outcome, PublishedStudy, describe
from scaling.wandb.runs import finished_curves, study_series, tracked_runs
from scaling.wandb.settings import TrackingSettings, base_url, destination, select_mode
from scaling.wandb.tracked_run import TrackedRun

_LOCK = ".wandb.lock"
_LOCK_SECONDS = 20.0  # a killed publication ends within some seconds
_RUNS_AT_A_TIME = 40  # that are sent at most while a study runs
_TIME_SHARE = 0.05  # of a study, at most, that publishing takes
_DEBUG_FILES = ("debug.log", "debug-internal.log", "latest-run", "debug-cli.root.log")  # hold absolute paths


@dataclass(frozen=True)
class _Publication:
    """A results folder that is being published, and what its ledger says."""

    folder: Path
    settings: TrackingSettings
    mode: str
    lock: int  # the descriptor of the folder's lock
    known: ledger.Ledger

    def hand_over(
        self, mode: str, runs: Sequence[TrackedRun], outcome: Outcome, deadline: float = math.inf,
        gone: tuple[str, ...] = (), dashboard: DashboardContent | None = None,
    ) -> None:  # fmt: skip
        """Have wandb's process publish or keep these runs.

        The ledger has the runs before they are sent: where this is killed, their series are superseded later.
        """
        settings, where = self.settings, destination(self.settings, mode)
        job = PublishJob(
            mode, settings.project, where["entity"], base_url(), settings.tags, settings.timeout,
            tuple(runs), gone, dashboard,
        )  # fmt: skip
        try:
            ledger.update(self.folder, self.known, runs, where, {})
            (self.folder / "wandb").mkdir(exist_ok=True)
            for event in client_process.events(self.folder, job, self.lock, deadline):
                outcome.hear(event)
            arrived = {
                name: event.get("directory", "")
                for name, event in outcome.runs.items()
                if event["state"] in ARRIVED[mode]
            }
            ledger.update(self.folder, self.known, runs, where, arrived)
        except (OSError, ValueError) as error:
            outcome.reasons.append(client_process.reason_of(error))
        finally:
            with contextlib.suppress(OSError):
                self._tidy()

    def keep_offline(self, runs: Sequence[TrackedRun], outcome: Outcome) -> None:
        """Write copies of runs, except those that went to the server before or have a copy."""
        sent = ledger.directories(self.known, destination(self.settings, "online"))
        copies = ledger.directories(self.known, destination(self.settings, "offline"))
        new = []
        for run in runs:
            if run.id in sent:
                outcome.hear({"run": run.id, "state": "sent before"})
            elif run.id in copies and (self.folder / "wandb" / copies[run.id]).is_dir():
                outcome.hear({"run": run.id, "state": "kept before"})
            else:
                new.append(run)
        if new:
            self.hand_over("offline", new, outcome)

    def _tidy(self) -> None:
        """Remove what is no copy in the ledger: debug logs, caches, and copies that are torn."""
        disk = self.folder / "wandb"
        kept = {place.get("directory") for entry in self.known.values() for place in entry["places"]}
        extra = [disk / "cache", disk / "artifacts"]
        for path in disk.glob("*run-*-*"):
            extra += [path / "logs", path / "tmp"] if path.name in kept else [path]
        for path in extra:
            shutil.rmtree(path, ignore_errors=True)
        for name in _DEBUG_FILES:
            (disk / name).unlink(missing_ok=True)


def publish(folder: Path, settings: TrackingSettings) -> PublishedStudy:
    """Show the results of a folder in W&B. Never raises for what wandb does, and adds nothing that is there
    already.
    """

    def publish_all(publication: _Publication) -> PublishedStudy:
        mode, loaded = publication.mode, store.load(folder)
        if not loaded.records:
            return PublishedStudy(mode, lines=(f"W&B: there are no records in {folder}",))
        found, outcome = findings.read(folder, loaded=loaded), Outcome()
        runs = tracked_runs(folder, found, loaded.records)
        if mode == "online":
            content = DashboardContent(
                found.name, study_series(found.name), sorted({curve.kind for curve in found.curves}),
                sorted(path.stem for path in folder.glob("report/*.png")), answer.answer_sentences(found),
            )  # fmt: skip
            gone = ledger.removed_series(publication.known, runs)
            publication.hand_over(
                mode, runs, outcome, gone=gone, dashboard=content if settings.dashboard else None
            )
        publication.keep_offline([run for run in runs if outcome.state(run) not in ON_SERVER], outcome)
        return describe(folder, runs, settings, mode, outcome)

    return _publish_alone(folder, settings, publish_all)


def publish_finished(folder: Path, settings: TrackingSettings, replicates: int) -> PublishedStudy:
    """Publish curves that a running study has finished, within `timeout` seconds; online or not at all."""

    def publish_new(publication: _Publication) -> PublishedStudy:
        if publication.mode != "online":
            return PublishedStudy(publication.mode)
        sent = ledger.directories(publication.known, destination(settings, "online"))
        runs = finished_curves(folder, replicates, sent, _RUNS_AT_A_TIME)
        outcome = Outcome()
        if runs:
            publication.hand_over("online", runs, outcome, settings.timeout)
        return describe(folder, runs, settings, "online", outcome)

    return _publish_alone(folder, settings, publish_new)


def _publish_alone(
    folder: Path, settings: TrackingSettings, work: Callable[[_Publication], PublishedStudy]
) -> PublishedStudy:
    """Publish under the folder's lock, since two publications at once would send everything twice."""
    try:
        mode, warnings = select_mode(settings)
        if mode == "disabled":
            return PublishedStudy(mode, lines=("W&B: nothing was sent, WANDB_MODE is disabled",))
        with contextlib.ExitStack() as stack:
            try:
                lock = stack.enter_context(store.locked(folder, _LOCK, _LOCK_SECONDS))
            except Refusal:
                raise RuntimeError("this folder is being published already") from None
            published = work(_Publication(folder, settings, mode, lock, ledger.read(folder)))
        return dataclasses.replace(published, lines=(*warnings, *published.lines))
    except Exception as error:
        reason = client_process.reason_of(error)
        line = f"W&B: nothing was sent ({reason}); the records in {folder} are whole"
        return PublishedStudy(settings.mode, reason=reason, lines=(line,))


@dataclass
class LivePublisher:
    """Called by a study whenever nothing is measured; publishes finished curves now and then, and after
    trouble no more.
    """

    folder: Path
    settings: TrackingSettings
    replicates: int
    show: Callable[[str], Any]
    next_time: float = field(init=False)

    def __post_init__(self) -> None:
        self.next_time = time.monotonic() + self.settings.every

    def __call__(self) -> None:
        began = time.monotonic()
        if began < self.next_time:
            return
        published = publish_finished(self.folder, self.settings, self.replicates)
        took = time.monotonic() - began
        self.next_time = began + took + max(self.settings.every, took / _TIME_SHARE)
        if not published.well:
            self.next_time = math.inf
            reason = published.reason or f"{count_of(published.differ, 'run')} read back as something else"
            self.show(f"W&B: {reason}; it is left alone until the study has ended")
