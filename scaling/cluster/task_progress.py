"""Tallies: how far each task has come, case by case, as its own journal tells it.

Knows journals and the files of tasks; not records, nor how anything is shown.
"""

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from scaling.cluster import submission
from scaling.cluster.job_state import TaskState
from scaling.cluster.submission import SubmittedTask

Place = tuple[str, int]  # (key, replicate)
_WAITS = (
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "SPECIAL_EXIT",
    "RESV_DEL_HOLD",
)


@dataclass(frozen=True)
class TaskAttempt:
    """An attempt at a case in one run of a task. It has no end while it runs, or when its task ended first."""

    task: SubmittedTask
    run: int
    key: str
    replicate: int
    attempt: int
    job: str | None
    nodes: tuple[str, ...]
    seats: tuple[int, ...]  # the workers that had it, one after another: N of worker-N.log
    began_at: str | None = None
    ended_at: str | None = None
    status: str | None = None
    reason: str | None = None
    text: str | None = None

    @property
    def place(self) -> Place:
        """What it is an attempt at."""
        return self.key, self.replicate

    @property
    def identity(self) -> tuple[str, int, int]:
        """The same with its number, as a record has it."""
        return self.key, self.replicate, self.attempt


@dataclass(frozen=True)
class TaskProgress:
    """A task, and what it has told so far."""

    seen: TaskState
    attempts: tuple[TaskAttempt, ...]
    runs: int  # how often it has started
    node: str
    began_at: str | None  # when it last started
    last_at: str | None  # when it last said a thing
    blocked: str = ""  # what it waits for since, in words

    @property
    def entry(self) -> SubmittedTask:
        """The task."""
        return self.seen.entry

    @property
    def ended(self) -> set[Place]:
        """What has come to an end."""
        return {attempt.place for attempt in self.attempts if attempt.ended_at}

    @property
    def open(self) -> bool:
        """Whether it waits or runs, or may, where nobody could be asked."""
        return self.seen.open

    @property
    def waits(self) -> bool:
        """Whether it has not started, or is to start again."""
        return self.seen.state.name in _WAITS

    @property
    def running(self) -> list[TaskAttempt]:
        """What runs now."""
        if not self.open or self.waits:
            return []
        return [attempt for attempt in self.attempts if attempt.run == self.runs and not attempt.ended_at]

    @property
    def torn(self) -> list[TaskAttempt]:
        """The last attempt at each case that has begun and come to no end."""
        last = {attempt.place: attempt for attempt in self.attempts}
        return [attempt for attempt in last.values() if not attempt.ended_at]

    @property
    def seconds(self) -> float | None:
        """How long it has run, by its own words; None if it never has."""
        if self.began_at is None:
            return None
        until = None if self.open else self.last_at
        return since(self.began_at, until)


def progress_of(seen: Iterable[TaskState]) -> list[TaskProgress]:
    """What each of these tasks has told."""
    return [_tally(one) for one in seen]


def _tally(seen: TaskState) -> TaskProgress:
    attempts: dict[tuple, dict[str, Any]] = {}
    started: dict[str, Any] = {}
    run, last_at, blocked = 0, None, ""
    for event in submission.journal(seen.entry.path):
        run, last_at = event["run"], event.get("at")
        blocked = str(event.get("text")) if event["event"] == "waiting" else ""
        if event["event"] == "started":
            started = event
        if event["event"] not in ("begin", "end"):
            continue
        key, replicate, number = str(event.get("key")), event.get("replicate", 0), event.get("attempt", 1)
        made = attempts.setdefault((run, key, replicate, number), {
            "run": run, "key": key, "replicate": replicate, "attempt": number, "job": started.get("job") or seen.entry.job,
            "nodes": tuple(started.get("nodes", ())), "seats": (),
        })  # fmt: skip
        if (seat := event.get("seat")) not in (None, *made["seats"]):
            made["seats"] += (seat,)
        if event["event"] == "begin":
            made.setdefault("began_at", event.get("at"))
        else:
            made["ended_at"] = event.get("at")
            made |= {name: event.get(name) for name in ("status", "reason", "text")}
    told = tuple(TaskAttempt(seen.entry, **made) for made in attempts.values())
    return TaskProgress(
        seen,
        told,
        run,
        seen.state.node or str(started.get("node") or ""),
        started.get("at"),
        last_at,
        blocked,
    )


def since(at: str, until: str | None = None) -> float | None:
    """Seconds from a time of a journal to another, or to now; None where it is no time."""
    try:
        began = datetime.datetime.fromisoformat(at)
        ended = datetime.datetime.fromisoformat(until) if until else datetime.datetime.now(datetime.UTC)
        return max(0.0, (ended - began).total_seconds())
    except (TypeError, ValueError):
        return None
