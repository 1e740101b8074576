"""Publishing: the runs of a results folder handed to W&B, all of them or, while a study runs, those that are finished.

Knows what the records make (runs.py), where it went (ledger.py) and what the process of wandb says (handover.py).
"""

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scaling.analysis import answer, findings
from scaling.analysis.findings import Findings
from scaling.core import store
from scaling.core.case import Refusal
from scaling.core.formatting import count_of
from scaling.wandb import client_process, ledger
from scaling.wandb.outcome import PublishedStudy, PublishOutcome, told_offline, told_online
from scaling.wandb.runs import TrackedRun, early, plan, study_series
from scaling.wandb.settings import TrackingSettings, base_url, mode_of, place

_LOCK = ".wandb.lock"
_LOCK_SECONDS = 20.0  # a killed publication ends within some seconds
_EARLY = 40  # runs, at most, that are sent at a time while a study runs


def publish(folder: Path, settings: TrackingSettings) -> PublishedStudy:
    """Show the results of a folder in W&B. Never raises for what wandb does, and adds nothing that is there already."""

    def all_of_it(mode: str, lock: int) -> PublishedStudy:
        loaded = store.load(folder)
        if not loaded.records:
            return PublishedStudy(mode, lines=(f"W&B: there are no records in {folder}",))
        found = findings.read(folder, loaded=loaded)
        runs = plan(folder, found, loaded)
        if mode == "offline":
            return _offline(folder, runs, settings, lock)
        return _online(folder, runs, settings, lock, found if settings.dashboard else None)

    return _guarded(folder, settings, all_of_it)


def publish_early(folder: Path, settings: TrackingSettings, replicates: int) -> PublishedStudy:
    """While a study runs: the curves that are finished, some at a time, within `timeout` seconds; online or not at all."""

    def finished(mode: str, lock: int) -> PublishedStudy:
        known = ledger.read(folder)
        runs = (
            early(folder, replicates, ledger.sent(known, place(settings, mode)), _EARLY)
            if mode == "online"
            else []
        )
        if not runs:
            return PublishedStudy(mode)
        _remember(folder, known, runs, place(settings, mode), {})
        out = _converse(folder, _job(runs, settings, mode), lock, settings.timeout, settings.timeout)
        arrived = dict.fromkeys(out.before, "") | out.done
        reason = _remember(folder, known, runs, place(settings, mode), arrived) or out.reason
        reason = reason or (
            f"{count_of(len(out.differs), 'run')} read back as something else" if out.differs else None
        )
        return PublishedStudy(
            mode, len(out.done), len(out.before), len(out.superseded), len(out.differs), reason=reason
        )

    return _guarded(folder, settings, finished)


def _guarded(
    folder: Path, settings: TrackingSettings, work: Callable[[str, int], PublishedStudy]
) -> PublishedStudy:
    """Publish alone, in the mode that holds, and turn whatever is raised into words: tracking never costs a study."""
    try:
        mode, note = mode_of(settings)
        if mode == "disabled":
            return PublishedStudy(mode, lines=("W&B: nothing was sent, WANDB_MODE is disabled",))
        with _alone(folder) as lock:
            published = work(mode, lock)
        return dataclasses.replace(published, lines=(*note, *published.lines))
    except Exception as error:
        reason = client_process.reason_of(error)
        line = f"W&B: nothing was sent ({reason}); the records in {folder} are whole"
        return PublishedStudy(settings.mode, reason=reason, lines=(line,))


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[int]:
    """Yield the descriptor of a lock on a folder: two publications at once would send everything twice."""
    with contextlib.ExitStack() as stack:
        try:
            lock = stack.enter_context(store.locked(folder, _LOCK, _LOCK_SECONDS))
        except Refusal:
            raise RuntimeError("this folder is being published already") from None
        yield lock


def _online(
    folder: Path, runs: Sequence[TrackedRun], settings: TrackingSettings, lock: int, shown: Findings | None
) -> PublishedStudy:
    """Bring the server to where the records are; what it did not take is kept offline, where a later publish finds it.

    The ledger has the runs before they are sent: a publication that is killed must leave its series there to be superseded.
    """
    known = ledger.read(folder)
    where = place(settings, "online")
    earlier = ledger.sent(known, where)
    job = _job(runs, settings, "online") | {"gone": ledger.gone(known, runs)}
    job["dashboard"] = _dashboard(folder, shown) if shown else None
    _remember(folder, known, runs, where, {})
    out = _converse(folder, job, lock, settings.timeout, None)
    arrived = dict.fromkeys(out.before, "") | out.done
    out.reason = _remember(folder, known, runs, where, arrived) or out.reason
    left = [run for run in runs if run.id not in out.settled]
    second = _keep(folder, known, [run for run in left if run.id not in earlier], settings, lock)
    return told_online(folder, runs, settings, out, second, len([run for run in left if run.id in earlier]))


def _offline(
    folder: Path, runs: Sequence[TrackedRun], settings: TrackingSettings, lock: int
) -> PublishedStudy:
    known = ledger.read(folder)
    out = _keep(folder, known, runs, settings, lock)
    return told_offline(folder, runs, out)


def _keep(
    folder: Path, known: dict[str, Any], runs: Sequence[TrackedRun], settings: TrackingSettings, lock: int
) -> PublishOutcome:
    """Write runs offline, those that do not lie there yet."""
    where = place(settings, "offline")
    before = {run.id for run in runs if ledger.kept_offline(folder, known, run, where)}
    todo = [run for run in runs if run.id not in before]
    if not todo:
        return PublishOutcome(before=before)
    _remove_unfinished(folder / "wandb", todo, ledger.directories(known))
    out = _converse(folder, _job(todo, settings, "offline"), lock, settings.timeout, None)
    out.before = before
    out.reason = _remember(folder, known, todo, where, out.done) or out.reason
    return out


def _remember(
    folder: Path,
    known: dict[str, Any],
    runs: Iterable[TrackedRun],
    where: dict[str, Any],
    done: Mapping[str, str],
) -> str | None:
    """Write the ledger; why it could not be written."""
    try:
        ledger.remember(folder, known, runs, where, done)
    except OSError as error:
        return f"{ledger.NAME} could not be written: {error.strerror}"
    return None


def _converse(
    folder: Path, job: Mapping[str, Any], lock: int, timeout: float, deadline: float | None
) -> PublishOutcome:
    """Give a job to the process of wandb and hear what it says, whatever ends it."""
    out = PublishOutcome()
    disk = folder / "wandb"
    before = set(disk.glob("offline-run-*-*"))
    try:
        disk.mkdir(exist_ok=True)
        for event in client_process.events(folder, job, lock, timeout, deadline):
            out.hear(event)
    except (OSError, ValueError) as error:
        out.reason = client_process.reason_of(error)
    finally:
        with contextlib.suppress(OSError):
            _tidy(disk, set(disk.glob("*run-*-*")) - before, set(out.done.values()) - {""})
    return out


def _remove_unfinished(disk: Path, runs: Iterable[TrackedRun], kept: set[str]) -> None:
    """Remove the offline copies of runs that are not in the ledger: a killed publication left them, and they may be torn."""
    for run in runs:
        for path in disk.glob(f"offline-run-*-{run.id}"):
            if path.name not in kept:
                shutil.rmtree(path, ignore_errors=True)


def _tidy(disk: Path, fresh: Iterable[Path], kept: set[str]) -> None:
    """Take away what is not an offline copy: wandb's debug logs, which hold absolute paths, its caches, and torn copies."""
    for path in fresh:
        for extra in [path / "logs", path / "tmp"] if path.name in kept else [path]:
            shutil.rmtree(extra, ignore_errors=True)
    for name in ("cache", "artifacts"):
        shutil.rmtree(disk / name, ignore_errors=True)
    for name in ("debug.log", "debug-internal.log", "latest-run", "debug-cli.root.log"):
        (disk / name).unlink(missing_ok=True)


def _job(runs: Sequence[TrackedRun], settings: TrackingSettings, mode: str) -> dict[str, Any]:
    """What the other process needs to know, as JSON."""
    where = place(settings, mode) | {"base_url": base_url(), "tags": settings.tags, "group": runs[0].group}
    return where | {
        "timeout": settings.timeout,
        "dashboard": None,
        "gone": [],
        "runs": [dataclasses.asdict(run) for run in runs],
    }


def _dashboard(folder: Path, found: Findings) -> dict[str, Any]:
    """What the dashboard says in words, and which panels it has something for."""
    kinds = sorted({curve.kind for curve in found.curves})
    figures = sorted(path.stem for path in folder.glob("report/*.png"))
    told = {"study": found.name, "digest": study_series(found.name), "kinds": kinds, "figures": figures}
    return told | {"sentences": answer.answer_sentences(found)}
