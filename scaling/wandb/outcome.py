"""What came of a publish: what the process of wandb said, in numbers and in honest words.

Only what was read back is called published. Knows events and runs; not how either is made.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scaling.core.formatting import count_of
from scaling.wandb.runs import CURVE, STUDY, TrackedRun
from scaling.wandb.settings import TrackingSettings, address

_NAMES = 3  # of runs, at most, in a line


@dataclass(frozen=True)
class PublishedStudy:
    """What a publish did, in numbers and in lines to show. `reason` says why wandb could not do all of it."""

    mode: str  # what was tried: online, offline or disabled
    sent: int = 0  # new on the server, and read back as they are
    before: int = 0  # were there already, as they are
    superseded: int = 0
    differ: int = 0  # were sent, and read back as something else
    kept: int = 0  # written offline
    failed: int = 0
    reason: str | None = None
    lines: tuple[str, ...] = ()

    @property
    def well(self) -> bool:
        """Whether all is where it was asked to be."""
        return self.reason is None and not (self.failed or self.differ)


@dataclass
class PublishOutcome:
    """What the process of wandb said of the runs that it was given."""

    done: dict[str, str] = field(default_factory=dict)  # id -> directory; online: read back
    before: set[str] = field(default_factory=set)
    handed: set[str] = field(default_factory=set)
    differs: dict[str, str] = field(default_factory=dict)  # id -> why
    superseded: list[str] = field(default_factory=list)  # what each is of: a curve or the study
    dashboard: dict[str, str] | None = None
    no_dashboard: str | None = None  # since a package is not installed
    lost_dashboard: str | None = None  # since the server did not take it
    reason: str | None = None

    def hear(self, event: Mapping[str, Any]) -> None:
        if "before" in event:
            self.before.add(event["before"])
        elif "handed" in event:
            self.handed.add(event["handed"])
        elif "differs" in event:
            self.differs[event["differs"]] = event["why"]
        elif "id" in event:
            self.done[event["id"]] = event["directory"]
        elif "superseded" in event:
            self.superseded.append(event["superseded"])
        self.dashboard = event.get("dashboard", self.dashboard)
        self.no_dashboard = event.get("no_dashboard", self.no_dashboard)
        self.lost_dashboard = event.get("lost_dashboard", self.lost_dashboard)
        self.reason = self.reason or event.get("reason") or (event["why"] if "lost" in event else None)

    @property
    def settled(self) -> set[str]:
        """What need not be kept elsewhere: it is there, or the server has something of it."""
        return self.before | self.handed | set(self.done) | set(self.differs)


def told_offline(folder: Path, runs: Sequence[TrackedRun], out: PublishOutcome) -> PublishedStudy:
    """What was written beside the records, in words."""
    failed, disk = len(runs) - len(out.done) - len(out.before), folder / "wandb"
    again = f"`scaling publish {folder}`"
    lines = []
    if out.done:
        kept = count_of(len(out.done), "run")
        lines.append(f"W&B: kept {kept} offline in {disk}; {again} sends them once there is a key")
    if failed:
        lines.append(
            f"W&B: {count_of(failed, 'run')} could not be kept ({out.reason}); the records are whole, {again} tries again"
        )
    if out.before and not out.done and not failed:
        lines.append(f"W&B: nothing new; all {count_of(len(out.before), 'run')} went to {disk} before")
    return PublishedStudy(
        "offline",
        before=len(out.before),
        kept=len(out.done),
        failed=failed,
        reason=out.reason,
        lines=tuple(lines),
    )


def told_online(
    folder: Path,
    runs: Sequence[TrackedRun],
    settings: TrackingSettings,
    out: PublishOutcome,
    second: PublishOutcome,
    earlier: int,
) -> PublishedStudy:
    """The outcome in honest words: what was handed over and not read back is never called published."""
    again, disk, where = f"`scaling publish {folder}`", folder / "wandb", address(settings)
    kept = len(second.done) + len(second.before)
    failed = len(runs) - len(out.settled) - kept - earlier
    unread = len(out.handed - set(out.done) - set(out.differs))
    lines = []
    if out.done or out.before:
        lines.append(f"W&B: published to {where}, read back and equal: {_counts(runs, out)}")
    if out.differs:
        whole = len(out.done)
        lines.append(
            f"W&B: sent {count_of(whole + len(out.differs), 'run')}, {whole} read back as they are, {len(out.differs)} differ: "
            f"{_names(runs, out.differs)}; {again} sends them again"
        )
    if unread:
        lines.append(
            f"W&B: sent {count_of(unread, 'run')} more, which could not be read back ({out.reason}); {again} looks again"
        )
    if kept:
        trouble = "did not take all" if out.settled else "took nothing"
        lines.append(
            f"W&B {trouble} ({out.reason}); kept {count_of(kept, 'run')} offline in {disk}; {again} sends them again"
        )
    if failed:
        reason = second.reason or out.reason
        lines.append(
            f"W&B: {count_of(failed, 'run')} could not be sent ({reason}); the records are whole, {again} tries again"
        )
    if earlier:
        lines.append(
            f"W&B: {count_of(earlier, 'run')} went there before and could not be looked at now ({out.reason})"
        )
    elif out.reason and not (unread or kept or failed):
        lines.append(f"W&B: it came to no end ({out.reason}); {again} goes on")
    if out.dashboard:
        lines.append(f"W&B: dashboard {out.dashboard['workspace']}, report {out.dashboard['report']}")
    if out.no_dashboard:
        lines.append(f"W&B: no dashboard: {out.no_dashboard}")
    if out.lost_dashboard:
        lines.append(f"W&B: the dashboard could not be saved ({out.lost_dashboard}); {again} tries again")
    return PublishedStudy(
        "online", len(out.done), len(out.before), len(out.superseded), len(out.differs), kept, failed,
        out.reason or second.reason or out.lost_dashboard, tuple(lines),
    )  # fmt: skip


def _counts(runs: Sequence[TrackedRun], out: PublishOutcome) -> str:
    """'3 curves new, 1 superseded, 40 as before; the study's own run is new'."""
    curves = {run.id for run in runs if run.job_type == CURVE}
    parts = [f"{count_of(new, 'curve')} new"] if (new := len(curves & set(out.done))) else []
    old_curves = [kind for kind in out.superseded if kind != STUDY]
    parts += [f"{len(old_curves)} superseded"] if old_curves else []
    if old := len(curves & out.before):
        parts.append(f"{old} as before" if new else f"{count_of(old, 'curve')} as before")
    own = [run.id for run in runs if run.job_type != CURVE]
    told = ", ".join(parts)
    if own and own[0] in out.done:
        told += f"{'; ' if told else ''}the study's own run is new"
    return told or "the study's own run is as before"


def _names(runs: Sequence[TrackedRun], differs: Mapping[str, str]) -> str:
    """Which runs, and what is wrong with each; of many the first."""
    told = [f"{run.name} ({differs[run.id]})" for run in runs if run.id in differs]
    return "; ".join(told[:_NAMES]) + (f"; and {len(told) - _NAMES} more" if len(told) > _NAMES else "")
