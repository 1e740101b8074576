"""The launcher: which cases are missing, in which processes they run, and a record for each that a process could not write.

Groups cases by the process they need, starts a worker for each group and replaces it when it dies. Does not import JAX.
"""

import contextlib
import dataclasses
import datetime
import json
import os
import queue
import random
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from scaling import environment, store
from scaling.case import Case, Refusal, to_dict
from scaling.preflight import Answer
from scaling.record import Record
from scaling.sampling import Sampling

_AS_OF_NOW = ("not_offered", "not_installed")  # may end with what is installed on the machine
_START_SECONDS = 300.0  # for a worker to import JAX and open its devices
Listener = Callable[[dict[str, Any]], None]


class Unwritable(OSError):
    """A record could not be written; the run stops, and what was written stays."""


@dataclass(frozen=True)
class Settings:
    """How a study is run, apart from what it is."""

    sampling: Sampling = field(default_factory=Sampling)
    bind: bool = True
    oversubscribe: bool = False
    case_seconds: float = 600.0
    order_seed: int = 0


@dataclass(frozen=True)
class Item:
    """A case to run, with its place in the order and the number of this attempt."""

    answer: Answer
    order: int
    attempt: int


@dataclass(frozen=True)
class Plan:
    """What a run will do: items by process, the skips to put on record, and how many cases have a good record already."""

    jobs: tuple[tuple[Item, ...], ...]
    skips: tuple[Item, ...]
    done: int
    platform: str
    environments: dict[tuple, dict[str, Any]]  # by what of it is a case's own: a user's workload, a peer's versions

    @property
    def missing(self) -> int:
        """How many cases will run."""
        return sum(len(job) for job in self.jobs)


def plan(answers: Sequence[Answer], records: Sequence[Record], settings: Settings) -> Plan:
    """What is missing, in shuffled order, by process."""
    platform = environment.platform()
    kind = None if platform == "cpu" else environment.probe()["device_kind"]
    variables = environment.variables(platform)
    bound_to: list[int] | None = [] if settings.bind and platform == "cpu" else None
    environments = {
        (digest, engine): environment.describe(platform, kind, variables, digest, bound_to, dict(engine))
        for digest, engine in {answer.around for answer in answers}
    }
    good = {record.identity for record in records if record.good and record.reason not in _AS_OF_NOW}
    told = {record.identity for record in records if record.reason in _AS_OF_NOW}
    attempts = Counter(record.identity for record in records)
    shuffled = list(answers)
    random.Random(settings.order_seed).shuffle(shuffled)
    jobs: dict[tuple[str, int, bool], list[Item]] = {}
    skips, done = [], 0
    for order, answer in enumerate(shuffled):
        identity = (answer.case.key, environments[answer.around]["digest"], 0)
        if platform != "cpu" and answer.case.engine != "jax" and not answer.unfit:
            unfit = "not_offered", f"{answer.case.engine} runs on a CPU here, and so does JAX beside it with JAX_PLATFORMS=cpu"
            answer = dataclasses.replace(answer, unfit=unfit)
        item = Item(answer, order, attempts[identity] + 1)
        if identity in good or (answer.unfit and identity in told):
            done += 1
        elif answer.unfit:
            skips.append(item)
        else:
            # On a CPU the number of devices is that of the cores a process is bound to; x64 changes float32 programs too; a peer
            # may abort, and brings threads of its own.
            jobs.setdefault((answer.case.engine, answer.case.devices, answer.case.dtype == "float64"), []).append(item)
    return Plan(tuple(tuple(job) for job in jobs.values()), tuple(skips), done, platform, environments)


def enough(devices: Iterable[int], settings: Settings) -> None:
    """Refuse more devices than there are, before anything starts."""
    counts, platform = sorted(set(devices)), environment.platform()
    has = len(environment.cores()) if platform == "cpu" else environment.probe()["devices"]
    if counts[-1] <= has or (platform == "cpu" and settings.oversubscribe):
        return
    here = f"{has} core{'s' * (has != 1)}" if platform == "cpu" else f"{has} {platform} device{'s' * (has != 1)}"
    take = ",".join(str(count) for count in counts if count <= has) or "1"
    more = "; oversubscribe=true checks more without drawing them as scaling" if platform == "cpu" else ""
    raise Refusal(f"devices={counts[-1]} are more than the {here} here: take devices=[{take}]{more}")


def run(made: Plan, settings: Settings, folder: Path, lock: int, listener: Listener) -> None:
    """Put the skips on record, then run every job to its end, one after another: two at once would time each other."""
    writer = store.Writer(folder)
    for item in made.skips:
        assert item.answer.unfit is not None
        reason, words = item.answer.unfit
        _append(writer, dataclasses.replace(_blank(item, made, settings), status="skipped", reason=reason, text=words))
        listener(
            {"event": "end", "key": item.answer.case.key, "status": "skipped", "reason": reason, "text": words, "seconds": []}
        )
    for job in made.jobs:
        _supervise(list(job), made, settings, folder, lock, writer, listener)


def _supervise(
    items: list[Item], made: Plan, settings: Settings, folder: Path, lock: int, writer: store.Writer, listener: Listener
) -> None:
    """Run items in a worker, and in a fresh one after each that dies, until every item has a record."""
    while items:
        running: Item | None = None
        ended = "the worker ended early"
        with _worker(items, made, settings, folder, lock) as (events, errors):
            while True:
                try:
                    event = events.get(timeout=settings.case_seconds if running else _START_SECONDS)
                except queue.Empty:
                    ended = "timeout"
                    break
                if event["event"] == "exit":
                    status = event["status"]
                    ended = f"the process {f'ended with status {status}' if status >= 0 else f'was killed by signal {-status}'}"
                    break
                if event["event"] == "unwritable":
                    raise Unwritable(event["text"])
                listener(event)
                running = items[0] if event["event"] == "begin" else None
                if event["event"] == "end":
                    items.pop(0)
            last = _last_line(errors)
        if not items:
            return
        lost = [running] if running else items  # a worker that cannot even start would not start again either
        for item in list(lost):
            reason = "timeout" if ended == "timeout" else "killed" if running else "error"
            words = (
                f"no end after {settings.case_seconds:g} s (case_seconds)"
                if reason == "timeout"
                else f"{ended}: {last}".rstrip(": ")
            )
            _append(writer, dataclasses.replace(_blank(item, made, settings), reason=reason, text=words))
            key = item.answer.case.key
            listener({"event": "end", "key": key, "status": "failed", "reason": reason, "text": words, "seconds": []})
            items.remove(item)


@contextlib.contextmanager
def _worker(
    items: Sequence[Item], made: Plan, settings: Settings, folder: Path, lock: int
) -> Iterator[tuple["queue.Queue[Any]", TextIO]]:
    """A worker on these items: a queue of its events, ended by its exit status, and what it writes to standard error."""
    first = items[0].answer.case
    job = {
        "parent": os.getpid(),
        "lock": lock,
        "results": str(folder.resolve()),
        "platform": made.platform,
        "devices": first.devices,
        "x64": first.dtype == "float64",
        "bind": settings.bind,
        "order_seed": settings.order_seed,
        "sampling": dataclasses.asdict(settings.sampling),
        "items": [
            {
                "case": to_dict(i.answer.case), "order": i.order, "attempt": i.attempt,
                "workload_digest": i.answer.workload_digest, "engine": dict(i.answer.engine),
            }
            for i in items
        ],
    }  # fmt: skip
    events: queue.Queue[Any] = queue.Queue()
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "scaling.worker", "/dev/stdin"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, pass_fds=(lock,),
            env=os.environ | environment.variables(made.platform),
        )  # fmt: skip
        reader = threading.Thread(target=_read, args=(process, json.dumps(job), events), daemon=True)
        reader.start()
        try:
            yield events, errors
        finally:
            process.kill()
            process.wait()
            reader.join()


def _read(process: subprocess.Popen, job: str, events: "queue.Queue[Any]") -> None:
    """Hand a worker its job and pass its events on; a line that is none (torn by its death) is left out."""
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(job)
        process.stdin.close()
    for line in process.stdout:
        with contextlib.suppress(ValueError):
            events.put(json.loads(line))
    events.put({"event": "exit", "status": process.wait()})


def _last_line(errors: TextIO) -> str:
    errors.seek(0, os.SEEK_END)
    errors.seek(max(0, errors.tell() - 4096))
    lines = [line.strip() for line in errors.read().splitlines() if line.strip()]
    return environment.scrub(lines[-1])[:300] if lines else ""


def _blank(item: Item, made: Plan, settings: Settings) -> Record:
    """The record of a case that this process knows the end of."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    where = made.environments[item.answer.around]
    return Record(
        item.answer.case, "failed", where, order=item.order, order_seed=settings.order_seed, attempt=item.attempt, started_at=now
    )


def _append(writer: store.Writer, record: Record) -> None:
    try:
        writer.append(record)
    except OSError as error:
        raise Unwritable(error.strerror) from None


def manifest(name: str, title: str | None, scaling: Sequence[str], cases: Sequence[Case], settings: Settings) -> dict[str, Any]:
    """What study.json says: the study that the folder was last asked for, so that what is missing can be told."""
    return {
        "study": name,
        "title": title,
        "scaling": sorted(set(scaling)),
        "order_seed": settings.order_seed,
        "cases": [{"key": case.key, "case": to_dict(case)} for case in cases],
    }
