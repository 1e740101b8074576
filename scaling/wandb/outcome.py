"""The outcome of a publish: the events of wandb's process in numbers and in words.

Only what was read back is called published.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scaling.core.formatting import count_of
from scaling.wandb.settings import TrackingSettings, project_page
from scaling.wandb.tracked_run import CURVE, STUDY, TrackedRun
from scaling.workers.child_process import Event

_NAMES = 3  # of runs, at most, in a line
ON_SERVER = ("unchanged", "published", "differs", "sent")  # states of runs that need no copy
ARRIVED = {"online": ("unchanged", "published"), "offline": ("kept",)}  # states of runs for the ledger


@dataclass(frozen=True)
class PublishedStudy:
    """What a publish did, in numbers of runs and in lines to show. `reason` says why wandb could not do all
    of it.
    """

    mode: str  # online, offline or disabled
    sent: int = 0  # new on the server, and read back as they are
    before: int = 0  # were there already
    superseded: int = 0
    differ: int = 0  # were sent, and read back as something else
    kept: int = 0  # written offline
    failed: int = 0
    reason: str | None = None
    lines: tuple[str, ...] = ()

    @property
    def well(self) -> bool:
        """Return whether all is where it was asked to be."""
        return self.reason is None and not (self.failed or self.differ)


@dataclass
class Outcome:
    """The last event about each run, and what else the process of wandb reported."""

    runs: dict[str, Event] = field(default_factory=dict)  # run id -> event with its state
    superseded: list[str] = field(default_factory=list)  # kinds of runs
    reasons: list[str] = field(default_factory=list)  # for what could not be done
    dashboard: Event = field(default_factory=dict)

    def hear(self, event: Event) -> None:
        """Take in an event of the process."""
        if "run" in event:
            self.runs[event["run"]] = event
        if event.get("state") == "refused" or "reason" in event:
            self.reasons.append(event.get("why") or event["reason"])
        if "superseded" in event:
            self.superseded.append(event["superseded"])
        self.dashboard |= {name: value for name, value in event.items() if "dashboard" in name}

    def state(self, run: TrackedRun) -> str:
        """Return the state of a run; "" if nothing is known of it."""
        return self.runs.get(run.id, {}).get("state", "")


def describe(
    folder: Path, runs: Sequence[TrackedRun], settings: TrackingSettings, mode: str, outcome: Outcome
) -> PublishedStudy:
    """Return what was done for these runs."""
    online, counts = mode == "online", Counter(map(outcome.state, runs))
    kept, failed = counts["kept"], counts[""] + counts["refused"]
    there = counts["kept before"] + counts["sent before"]
    if online:
        kept, there = kept + counts["kept before"], counts["unchanged"]
        lines = _describe_online(folder, runs, settings, outcome, counts, kept, failed)
    else:
        lines = _describe_offline(folder, outcome, kept, failed, there)
    return PublishedStudy(
        mode, counts["published"], there, len(outcome.superseded), counts["differs"], kept, failed,
        next(iter(outcome.reasons), None) or outcome.dashboard.get("lost_dashboard"), lines,
    )  # fmt: skip


def _describe_offline(folder: Path, outcome: Outcome, kept: int, failed: int, there: int) -> tuple[str, ...]:
    again, disk = f"`scaling publish {folder}`", folder / "wandb"
    new, reason = f"kept {count_of(kept, 'run')} offline in {disk}", "".join(outcome.reasons[-1:])
    lost = f"{count_of(failed, 'run')} could not be kept ({reason})"
    return _select(
        (kept, f"{new}; {again} sends them once there is a key"),
        (failed, f"{lost}; the records are whole, {again} tries again"),
        (
            not kept and not failed,
            f"nothing new; all {count_of(there, 'run')} went to {disk} or the server before",
        ),
    )


def _describe_online(
    folder: Path, runs: Sequence[TrackedRun], settings: TrackingSettings, outcome: Outcome,
    counts: Counter[str], kept: int, failed: int,
) -> tuple[str, ...]:  # fmt: skip
    again, reason = f"`scaling publish {folder}`", "".join(outcome.reasons[:1])
    sent, unread, known = counts["published"], counts["sent"], counts["sent before"]
    differ = [
        f"{run.name} ({outcome.runs[run.id]['why']})" for run in runs if outcome.state(run) == "differs"
    ]
    names = "; ".join(differ[:_NAMES]) + (
        f"; and {len(differ) - _NAMES} more" if len(differ) > _NAMES else ""
    )
    read = f"{sent} read back as they are, {len(differ)} differ: {names}"
    copies = f"kept {count_of(kept, 'run')} offline in {folder / 'wandb'}"
    trouble = "did not take all" if any(counts[state] for state in ON_SERVER) else "took nothing"
    interrupted = reason and not (unread or kept or failed or known)
    shown: Any = outcome.dashboard.get("dashboard", {})
    lost = outcome.dashboard.get("lost_dashboard")
    return _select(
        (sent or counts["unchanged"],
         f"published to {project_page(settings)}, read back and equal: {_count_new(runs, outcome)}"),
        (differ, f"sent {count_of(sent + len(differ), 'run')}, {read}; {again} sends them again"),
        (unread, f"sent {count_of(unread, 'run')} more, which could not be read back ({reason}); "
         f"{again} looks again"),
        (kept, f"{trouble} ({reason}); {copies}; {again} sends them again"),
        (failed, f"{count_of(failed, 'run')} could not be sent ({''.join(outcome.reasons[-1:])}); "
         f"the records are whole, {again} tries again"),
        (known, f"{count_of(known, 'run')} went there before and could not be looked at now ({reason})"),
        (interrupted, f"it came to no end ({reason}); {again} goes on"),
        (shown, f"dashboard {shown.get('workspace')}, report {shown.get('report')}"),
        ("no_dashboard" in outcome.dashboard, f"no dashboard: {outcome.dashboard.get('no_dashboard')}"),
        (lost, f"the dashboard could not be saved ({lost}); {again} tries again"),
    )  # fmt: skip


def _select(*lines: tuple[Any, str]) -> tuple[str, ...]:
    """Return the lines whose condition holds."""
    return tuple(
        f"W&B {text}" if text.startswith(("took", "did")) else f"W&B: {text}"
        for shown, text in lines
        if shown
    )


def _count_new(runs: Sequence[TrackedRun], outcome: Outcome) -> str:
    """Return a text such as '3 curves new, 1 superseded, 40 as before; the study's own run is new'."""
    states = Counter((run.job_type, outcome.state(run)) for run in runs)
    new, unchanged = states[CURVE, "published"], states[CURVE, "unchanged"]
    superseded = sum(kind != STUDY for kind in outcome.superseded)
    parts = [
        f"{count_of(new, 'curve')} new" if new else "",
        f"{superseded} superseded" if superseded else "",
        f"{unchanged if new else count_of(unchanged, 'curve')} as before" if unchanged else "",
    ]
    curves = ", ".join(filter(None, parts))
    study = "the study's own run is new" if states[STUDY, "published"] else ""
    return "; ".join(filter(None, (curves, study))) or "the study's own run is as before"
