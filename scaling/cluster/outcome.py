"""What became of submissions: the state of every task, as the scheduler tells it, or remembered, or told by the task itself.

Knows how to ask and what to keep; not how it is shown.
"""

import contextlib
import os
import signal
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scaling import machine, store
from scaling.cluster import slurm, submission, task
from scaling.cluster.settings import SLURM
from scaling.cluster.slurm import State
from scaling.cluster.submission import Entry, Submission
from scaling.launch import NOT_BEGUN

UNKNOWN = "UNKNOWN"  # the state of a task whose scheduler is not asked
_STATES = "states.json"  # of a submission: what became of the tasks that have ended, after the scheduler has forgotten them
_REASONS = {
    "TIMEOUT": ("timeout", "its job came to its time limit ({minutes:g} min, cluster.time) while it ran"),
    "DEADLINE": ("timeout", "its job came to its deadline while it ran"),
    "PREEMPTED": ("preempted", "its job had to give way to another while it ran"),
    "NODE_FAIL": ("node_failed", "a node of its job failed while it ran"),
    "BOOT_FAIL": ("node_failed", "a node of its job did not start"),
    "CANCELLED": ("cancelled", "its job was cancelled while it ran"),
    "OUT_OF_MEMORY": ("out_of_memory", "its job took more memory than it had asked for while it ran"),
}
_NOBODYS = ("CANCELLED", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "LOST")  # states that are no fault of a case that had not begun


@dataclass(frozen=True)
class Seen:
    """A task and what is known of it."""

    submission: Submission
    entry: Entry
    state: State

    @property
    def open(self) -> bool:
        """Whether it waits or runs, or may, where nobody could be asked."""
        return self.state.live or self.state.name == UNKNOWN


def look(results: Path, asking: bool = True) -> list[Seen]:
    """Every task that was submitted for a folder of results; what has ended is remembered. A `Refusal` if nobody answers.

    asking: False asks no scheduler; what is not remembered, nor told by the task itself, is then `UNKNOWN`.
    """
    seen: list[Seen] = []
    for made in submission.all_of(results):
        kept = store.read_json(made.folder / _STATES) or {}
        known = {name: State(**told["state"]) for name, told in kept.items()}
        open_ones = [entry for entry in made.entries if entry.name not in known]
        found = _asked(made, open_ones, asking)
        seen += [Seen(made, entry, known.get(entry.name) or found[entry.name]) for entry in made.entries]
        if ended := {name: state for name, state in found.items() if not state.live and state.name != UNKNOWN}:
            _keep(made, {name: {"state": asdict(state), "settled": False} for name, state in ended.items()})
    return seen


def _asked(made: Submission, entries: Sequence[Entry], asking: bool) -> dict[str, State]:
    """The states of tasks of which no end is known yet."""
    if not entries:
        return {}
    if made.host != machine.node_name() and made.kind != SLURM:
        asking = False  # its processes are another host's
    elif made.kind != SLURM:
        return {entry.name: _told_locally(entry) for entry in entries}
    if not asking:
        told = {entry.name: _told_by_itself(entry) for entry in entries}
        return {name: state if state.name == "COMPLETED" else State(UNKNOWN, state.node) for name, state in told.items()}
    jobs = {entry.name: entry.job or _job_of(entry) for entry in entries}
    known = slurm.states([job for job in jobs.values() if job])
    between = State("PENDING", reason="being submitted")  # or whoever did it died before the job was noted
    if None in jobs.values() and (made.young or slurm.named(made.name)):
        known |= {"": between}
    return {entry.name: known.get(jobs[entry.name] or "") or _told_by_itself(entry) for entry in entries}


def _told_locally(entry: Entry) -> State:
    """A task of this machine: whether the process that keeps it is still there."""
    last = _last(entry)
    if _process(entry):
        return State("RUNNING" if last else "PENDING", last.get("node", ""))
    return _told_by_itself(entry)


def _process(entry: Entry) -> int | None:
    """The process that runs a task of this machine, or else the one that keeps it; None if neither is there any more."""
    mark = str(entry.folder.resolve()).encode()  # the number may be another's by now
    return next((int(pid) for pid in (_last(entry).get("pid"), entry.job) if pid and mark in _command(pid)), None)


def _command(pid: Any) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _told_by_itself(entry: Entry) -> State:
    """What a task wrote of its own end; one that wrote none is lost."""
    last = _last(entry)
    node = last.get("node", "")
    if not last:
        return State("LOST", reason="it never began, and the scheduler has forgotten it")
    ends = {"ended": "COMPLETED", "stopped": "CANCELLED"}
    return State(ends.get(last["last"], "LOST"), node, reason="" if last["last"] in ends else "it ended without a word")


def _last(entry: Entry) -> dict[str, Any]:
    """What a task said when it last began, with its last word; nothing if it never did."""
    last: dict[str, Any] = {}
    for event in submission.journal(entry.path):
        last = event | {"last": "started"} if event["event"] == "started" else last | {"last": event["event"]}
    return last


def _job_of(entry: Entry) -> str | None:
    """The job of a task that was handed over by somebody who did not live to note it."""
    return _last(entry).get("job")


def _keep(made: Submission, more: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):  # a reader may not be allowed to write
        store.write_json(made.folder / _STATES, (store.read_json(made.folder / _STATES) or {}) | dict(more))


def settle(results: Path, seen: Sequence[Seen]) -> int:
    """Put on record, once for each task that has ended, what it had begun and not brought to an end; how many cases that is."""
    kept = {made.folder: store.read_json(made.folder / _STATES) or {} for made in {one.submission for one in seen}}
    fresh = [one for one in seen if not one.open and not _told_of(kept, one).get("settled")]
    records = store.load(results).records if fresh else []
    count = 0
    for one in fresh:
        begun = any(event["event"] == "begin" for event in submission.journal(one.entry.path))
        if ended := ending(one, begun):
            count += task.lost(results, records, one.entry.path, submission.read(one.entry.path), *ended)
    for made in {one.submission for one in fresh}:  # last: done again, it writes nothing twice
        mine = [one for one in fresh if one.submission == made]
        _keep(made, {one.entry.name: {"state": asdict(one.state), "settled": True} for one in mine})
    return count


def _told_of(kept: Mapping[Path, Mapping[str, Any]], one: Seen) -> Mapping[str, Any]:
    return kept[one.submission.folder].get(one.entry.name, {})


def ending(one: Seen, begun: bool) -> tuple[str, str, bool] | None:
    """Why what a task left without an end has none, as a reason and in words, and whether all is meant that it was to run.

    begun: whether any case of it ever was. None: the task came to its own end, or none of its cases is to blame for it.
    """
    name = one.state.name
    if name in (_NOBODYS if not begun else ("COMPLETED",)):
        return None
    if not begun:
        return "killed", f"its job ended ({name.lower()}) before its first case: `scaling logs` shows why", True
    reason, text = _REASONS.get(name, ("killed", f"its job ended ({name.lower()}) while it ran"))
    return reason, text.format(minutes=one.entry.minutes), False


def cancelled(seen: Sequence[Seen]) -> bool:
    """Whether a task of the last submission was cancelled: somebody does not want it."""
    return any(one.state.name == "CANCELLED" for one in _last_submission(seen))


def refused(seen: Sequence[Seen]) -> bool:
    """Whether a task of the last submission did not get what it had asked for: another like it would not either."""
    events = (event for one in _last_submission(seen) for event in submission.journal(one.entry.path))
    return any(event.get("reason") == NOT_BEGUN for event in events)


def _last_submission(seen: Sequence[Seen]) -> list[Seen]:
    return [one for one in seen if one.submission == seen[-1].submission]


def queued(seen: Iterable[Seen]) -> set[tuple[str, int]]:
    """What tasks that wait or run, or may for all that is known here, are to bring, as (key, replicate)."""
    return {item.place for one in seen if one.open for item in submission.read(one.entry.path).items}


def cancel(seen: Iterable[Seen]) -> int:
    """End the tasks that wait or run; how many these are."""
    live: dict[Path, list[Seen]] = defaultdict(list)
    for one in seen:
        if one.state.live:
            live[one.submission.folder].append(one)
    for several in live.values():
        if several[0].submission.kind == SLURM:
            known = [job for one in several if (job := one.entry.job or _job_of(one.entry))]
            slurm.cancel(known or slurm.named(several[0].submission.name))
        else:
            for one in several:
                with contextlib.suppress(OSError):
                    if process := _process(one.entry):
                        os.kill(process, signal.SIGTERM)
    return sum(map(len, live.values()))
