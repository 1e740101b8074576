"""What became of submissions: the state of every task, as the scheduler tells it, or remembered, or told by the task itself.

Knows how to ask and what to keep; not how it is shown.
"""

import contextlib
import dataclasses
import math
import os
import signal
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scaling.cluster import slurm, submission, task
from scaling.cluster.settings import LOCAL, SLURM
from scaling.cluster.slurm import JobState
from scaling.cluster.submission import Submission, SubmittedTask
from scaling.core import environment, store
from scaling.core.case import Refusal
from scaling.core.record import Record
from scaling.workers import transport
from scaling.workers.schedule import NOT_BEGUN

UNKNOWN = "UNKNOWN"  # the state of a task whose scheduler is not asked
_STATES = "states.json"  # of a submission: what became of the tasks that have ended, after the scheduler has forgotten them
_REASONS = {
    "TIMEOUT": (
        "timeout",
        "its job came to its time limit ({minutes:g} min, cluster.time) while it ran; cluster.time={more:g} gives it more",
    ),
    "DEADLINE": ("timeout", "its job came to its deadline while it ran"),
    "PREEMPTED": ("preempted", "its job had to give way to another while it ran"),
    "NODE_FAIL": ("node_failed", "a node of its job failed while it ran"),
    "BOOT_FAIL": ("node_failed", "a node of its job did not start"),
    "CANCELLED": ("cancelled", "its job was cancelled while it ran"),
    "OUT_OF_MEMORY": ("out_of_memory", "its job took more memory than it had asked for while it ran"),
}
_LOG_BYTES = 65536  # of the end of a job's log
_BY_LOG = {
    "timeout": "TIMEOUT",
    "preempted": "PREEMPTED",
    "node_failed": "NODE_FAIL",
    "out_of_memory": "OUT_OF_MEMORY",
}
_FRAMES = (
    " ",
    "Traceback",
    "subprocess.CalledProcessError",
    "submitit",
    "srun: Job step",
    "slurmstepd",
    "Command '[",
)  # not the reason itself
_NOBODYS = (
    "CANCELLED",
    "PREEMPTED",
    "NODE_FAIL",
    "BOOT_FAIL",
    "LOST",
)  # states that are no fault of a case that had not begun


@dataclass(frozen=True)
class TaskState:
    """A task and what is known of it."""

    submission: Submission
    entry: SubmittedTask
    state: JobState

    @property
    def open(self) -> bool:
        """Whether it waits or runs, or may, where nobody could be asked."""
        return self.state.live or self.state.name == UNKNOWN


def look_up(results: Path, asking: bool = True) -> list[TaskState]:
    """Every task that was submitted for a folder of results; what has ended is remembered. A `Refusal` if nobody answers.

    asking: False asks no scheduler; what is not remembered, nor told by the task itself, is then `UNKNOWN`.
    """
    seen: list[TaskState] = []
    for made in submission.all_of(results):
        kept = store.read_json(made.folder / _STATES) or {}
        noted = {entry.name for entry in made.entries if entry.job}
        made = _with_jobs(made, kept, asking)
        known = {name: JobState(**told["state"]) for name, told in kept.items()}
        open_ones = [entry for entry in made.entries if entry.name not in known]
        found = _asked(made, open_ones, asking, noted)
        seen += [TaskState(made, entry, known.get(entry.name) or found[entry.name]) for entry in made.entries]
        unsure = (UNKNOWN, "LOST") if made.kind == SLURM else (UNKNOWN,)  # accounting may know more later
        if ended := {
            name: state for name, state in found.items() if not state.live and state.name not in unsure
        }:
            _keep(made, {name: {"state": asdict(state), "settled": False} for name, state in ended.items()})
    return seen


def _asked(
    made: Submission, entries: Sequence[SubmittedTask], asking: bool, noted: Collection[str]
) -> dict[str, JobState]:
    """The states of tasks of which no end is known yet. noted: the tasks whose job the launcher lived to note."""
    if not entries:
        return {}
    if made.host != environment.node_name() and made.kind != SLURM:
        asking = False  # its processes are another host's
    elif made.kind != SLURM:
        return {entry.name: _told_locally(entry) for entry in entries}
    if not asking:
        told = {entry.name: _told_by_itself(entry, made.kind) for entry in entries}
        return {
            name: state if state.name == "COMPLETED" else JobState(UNKNOWN, state.node)
            for name, state in told.items()
        }
    known = slurm.states([entry.job for entry in entries if entry.job])
    between = JobState("PENDING", reason="being submitted")
    new = {e.name for e in entries if e.name not in noted and (e.job or made.young) and not _last(e)}
    return {
        e.name: known.get(e.job or "") or (between if e.name in new else _told_by_itself(e, made.kind))
        for e in entries
    }


def _with_jobs(made: Submission, kept: Mapping[str, Any], asking: bool) -> Submission:
    """Return a submission with the jobs of those tasks too whose launcher died before it noted them."""
    if made.kind != SLURM or all(entry.job or entry.name in kept for entry in made.entries):
        return made
    jobs = {entry.name: entry.job or _job_of(entry) for entry in made.entries}
    if asking and None in jobs.values():
        jobs |= _jobs_by_name(made, jobs)
    return dataclasses.replace(
        made, entries=tuple(dataclasses.replace(e, job=jobs[e.name]) for e in made.entries)
    )


def _jobs_by_name(made: Submission, jobs: Mapping[str, str | None]) -> dict[str, str]:
    """Return the jobs of the one array that was handed over and not noted, by task, from the name of its jobs.

    The launcher hands over arrays in the order of their tasks and notes each before the next.
    """
    noted = {entry.job.partition("_")[0] for entry in made.entries if entry.job}
    array = [entry for entry in made.entries if not entry.job]
    array = [entry for entry in array if entry.shape == array[0].shape]
    found: dict[str, str] = {}
    for job in (*slurm.named(made.name), *slurm.remembered(made.name, made.made_at)):
        number, _, index = job.partition("_")
        place = int(index or 0)
        if number not in noted and place < len(array) and jobs[array[place].name] is None:
            found.setdefault(array[place].name, job)
    return found


def _told_locally(entry: SubmittedTask) -> JobState:
    """A task of this machine: whether the process that keeps it is still there."""
    last = _last(entry)
    if _process(entry):
        return JobState("RUNNING" if last else "PENDING", last.get("node", ""))
    return _told_by_itself(entry, LOCAL)


def _process(entry: SubmittedTask) -> int | None:
    """The process that runs a task of this machine, or else the one that keeps it; None if neither is there any more."""
    mark = str(entry.folder.resolve()).encode()  # the number may be another's by now
    return next(
        (int(pid) for pid in (_last(entry).get("pid"), entry.job) if pid and mark in _command(pid)), None
    )


def _command(pid: Any) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _told_by_itself(entry: SubmittedTask, kind: str) -> JobState:
    """What a task, or the log of its job, says of its end; one of which nobody says anything is lost."""
    last = _last(entry)
    node = last.get("node", "")
    if not last:
        return JobState("LOST", reason="it never began, and the scheduler has forgotten it")
    if last["last"] == "ended":
        return JobState("COMPLETED", node)
    if name := _ended_by_log(entry):
        return JobState(name, node)
    if last["last"] != "stopped":
        return JobState("LOST", node, reason="it ended without a word")
    if text := last.get("text"):
        return JobState("FAILED", node, reason=text)
    if kind == SLURM:
        return JobState("LOST", node, reason="it was stopped, and neither Slurm nor its log says why")
    return JobState("CANCELLED", node)


def _ended_by_log(entry: SubmittedTask) -> str | None:
    """Return the state in which Slurm ended a job, by the log of the job; None where the log does not say."""
    for line in reversed(_log(entry)):
        if why := transport.explain_failure([line]):
            return _BY_LOG[why[0]]
        if "CANCELLED AT" in line:
            return "CANCELLED"
    return None


def _log(entry: SubmittedTask, kind: str = "err") -> list[str]:
    """Return the last lines of what the job of a task and Slurm wrote about it, on standard error (err) or output (out)."""
    lines: list[str] = []
    job = entry.job or _job_of(entry)
    for path in sorted((entry.folder / "log").glob(f"{job}_*log.{kind}")) if job else ():
        with contextlib.suppress(OSError), path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_BYTES))
            lines += file.read().decode(errors="replace").splitlines()
    return lines


def _last(entry: SubmittedTask) -> dict[str, Any]:
    """What a task said when it last began, with its last word; nothing if it never did."""
    last: dict[str, Any] = {}
    for event in submission.journal(entry.path):
        text = {"text": event.get("text")} if event["event"] == "stopped" else {}
        last = (
            event | {"last": "started"}
            if event["event"] == "started"
            else last | {"last": event["event"]} | text
        )
    return last


def _job_of(entry: SubmittedTask) -> str | None:
    """The job of a task that was handed over by somebody who did not live to note it."""
    return _last(entry).get("job")


def _keep(made: Submission, more: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):  # a reader may not be allowed to write
        store.write_json(made.folder / _STATES, (store.read_json(made.folder / _STATES) or {}) | dict(more))


def record_lost_cases(results: Path, seen: Sequence[TaskState]) -> int:
    """Put on record, once for each task that has ended, what it had begun and not brought to an end; how many cases that is."""
    fresh = _unsettled(seen)
    records = store.load(results).records if fresh else []
    count = 0
    for one in fresh:
        if ended := explain_end(one, _has_begun(one)):
            count += task.lost(results, records, one.entry.path, submission.read(one.entry.path), *ended)
    for made in {one.submission for one in fresh}:  # last: done again, it writes nothing twice
        mine = [one for one in fresh if one.submission == made]
        _keep(made, {one.entry.name: {"state": asdict(one.state), "settled": True} for one in mine})
    return count


def unrecorded(seen: Sequence[TaskState], records: Sequence[Record]) -> list[Record]:
    """Return the records that `settle` would write now. Readers count these too, and write nothing."""
    found: list[Record] = []
    for one in _unsettled(seen):
        if ended := explain_end(one, _has_begun(one)):
            with contextlib.suppress(Refusal):  # the file of the task is gone
                found += task.lost_records(records, one.entry.path, submission.read(one.entry.path), *ended)
    return found


def unrecorded_in(results: Path) -> list[Record]:
    """Return the same for a folder; where the scheduler does not answer, by what is known without it."""
    if not (results / submission.FOLDER).is_dir():
        return []
    try:
        seen = look_up(results)
    except Refusal:
        seen = look_up(results, asking=False)
    return unrecorded(seen, store.load(results).records)


def _unsettled(seen: Sequence[TaskState]) -> list[TaskState]:
    """Return the tasks that have ended and whose lost cases are not on record for sure."""
    kept = {
        made.folder: store.read_json(made.folder / _STATES) or {} for made in {one.submission for one in seen}
    }
    return [
        one
        for one in seen
        if not one.open and not kept[one.submission.folder].get(one.entry.name, {}).get("settled")
    ]


def _has_begun(one: TaskState) -> bool:
    """Return whether a task has begun any case."""
    return any(event["event"] == "begin" for event in submission.journal(one.entry.path))


def explain_end(one: TaskState, begun: bool) -> tuple[str, str, bool] | None:
    """Why what a task left without an end has none, as a reason and in words, and whether all is meant that it was to run.

    begun: whether any case of it ever was. None: the task came to its own end, or none of its cases is to blame for it.
    """
    name = one.state.name
    if name in (_NOBODYS if not begun else ("COMPLETED",)):
        return None
    if name not in _REASONS and (by_log := _ended_by_log(one.entry)):
        name = by_log
    code = f", {one.state.reason}" if one.state.reason.startswith("exit code") else ""
    if not begun:
        words = last_words(one.entry)
        why = f": {words}; `scaling logs` shows more" if words else ": `scaling logs` shows why"
        text = f"its job ended ({name.lower()}{code}) before its first case{why}"
        return "timeout" if name == "TIMEOUT" else "killed", text, True
    if name not in _REASONS:
        words = last_words(one.entry)
        return (
            "killed",
            f"its job ended ({name.lower()}{code}) while it ran{f': {words}' if words else ''}",
            False,
        )
    reason, text = _REASONS[name]
    return reason, text.format(minutes=one.entry.minutes, more=math.ceil(2 * one.entry.minutes)), False


def last_words(entry: SubmittedTask) -> str:
    """Return why a task ended, by its own journal or by the last line of its job's log; nothing if neither says."""
    if text := _last(entry).get("text"):
        return str(text)
    if text := _failed_setup(_log(entry)):
        return text
    for kind in ("err", "out"):
        lines = [line for line in _log(entry, kind) if line.strip() and not line.startswith(_FRAMES)]
        if lines:
            return environment.last_line("\n".join(lines), "")[:300]
    return ""


def _failed_setup(lines: Sequence[str]) -> str:
    """Return which setup line ended a job, with what the job had written before; nothing if none did."""
    marks = [number for number, line in enumerate(lines) if line.startswith(submission.SETUP_FAILED)]
    if not marks:
        return ""
    before = lines[marks[-2] + 1 if len(marks) > 1 else 0 : marks[-1]]
    written = " ".join(" ".join(before).split())
    message = f"; the log says: {written}" if written else ""
    return environment.scrub(f"{lines[marks[-1]].removeprefix('scaling: ')}{message}")[:500]


def cancelled(seen: Sequence[TaskState]) -> bool:
    """Whether a task of the last submission was cancelled: somebody does not want it."""
    return any(one.state.name == "CANCELLED" for one in _last_submission(seen))


def refused(seen: Sequence[TaskState]) -> bool:
    """Whether a task of the last submission did not get what it had asked for: another like it would not either."""
    events = (event for one in _last_submission(seen) for event in submission.journal(one.entry.path))
    return any(event.get("reason") == NOT_BEGUN for event in events)


def _last_submission(seen: Sequence[TaskState]) -> list[TaskState]:
    return [one for one in seen if one.submission == seen[-1].submission]


def queued(seen: Iterable[TaskState]) -> set[tuple[str, int]]:
    """What tasks that wait or run, or may for all that is known here, are to bring, as (key, replicate)."""
    return {item.place for one in seen if one.open for item in submission.read(one.entry.path).items}


def cancel(seen: Iterable[TaskState]) -> int:
    """End the tasks that wait or run; how many these are."""
    live: dict[Path, list[TaskState]] = defaultdict(list)
    for one in seen:
        if one.state.live:
            live[one.submission.folder].append(one)
    for several in live.values():
        if several[0].submission.kind == SLURM:
            known = [one.entry.job for one in several if one.entry.job]
            slurm.cancel(
                known if len(known) == len(several) else [*known, *slurm.named(several[0].submission.name)]
            )
        else:
            for one in several:
                with contextlib.suppress(OSError):
                    if process := _process(one.entry):
                        os.kill(process, signal.SIGTERM)
    return sum(map(len, live.values()))
