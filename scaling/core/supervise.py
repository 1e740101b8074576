"""Supervision: jobs run in workers to their end, with a record for each case that a worker could not write.

Lets cases that are to be compared take turns, and replaces a worker that dies. Does not know what is missing (launch.py), nor how
a process is started (seats.py).
"""

import contextlib
import dataclasses
import datetime
import random
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scaling.core import cores, store, worker_group
from scaling.core.case import AUTO, Case, non_default_fields
from scaling.core.record import Record
from scaling.core.schedule import Schedule, ScheduledCase, group_by_problem, process_shape
from scaling.core.settings import RunSettings
from scaling.core.worker_group import RecordNotWritten, Variant, WorkerDied, WorkerGroup
from scaling.study.preflight import user_modules
from scaling.transport.remote import SrunSteps, Within

_TOGETHER = 8  # cases at most that are ready in one process at a time
_FINISH_SECONDS = 60.0  # for a record to be on disk
Listener = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class VariantResults:
    """A side and its folder of results, with what its workers are told of the environment of their cases."""

    side: Variant
    folder: Path
    writer: store.Writer
    environments: dict[tuple, dict[str, Any]]  # by what of it is a case's own; as last told by a worker


@dataclass(frozen=True)
class Site:
    """Where the workers are, here or on other nodes, and what their records and logs are to hold of that."""

    within: Within | None = None
    told: Mapping[str, Any] = field(default_factory=dict)  # for the environment of every record
    errors: Path | None = None  # folder for what workers complain of; None: not kept
    python: str = sys.executable  # of the workers


@dataclass(frozen=True)
class WorkItem:
    """A case to be measured on one side."""

    item: ScheduledCase
    where: int  # place of its side in the run


def run_schedule(
    made: Schedule,
    settings: RunSettings,
    folder: Path,
    lock: int | None,
    listener: Listener,
    beside: tuple[Variant, Path] | None = None,
    site: Site | None = None,
    between: Callable[[], None] | None = None,
) -> None:
    """Put on record what need not run, then run every job to its end, one after another: two at once would time each other.

    beside: another side and its folder; every case is then measured on both, in turns. between: called when a group of cases has
    ended and the next has not begun, so that nothing is being measured.
    """
    site = site or Site()
    sides = [(Variant(python=site.python), folder)] + ([beside] if beside else [])
    around = {of: told | dict(site.told) for of, told in made.environments.items()}
    whole = _Run(
        made, settings, lock, listener, [VariantResults(s, f, store.Writer(f), dict(around)) for s, f in sides], site, between
    )
    for item in (*made.skips, *made.failures):
        status, why = ("failed", item.answer.failure) if item.answer.failure else ("skipped", item.answer.unfit)
        assert why is not None
        for where in range(len(whole.sides)):
            whole.conclude(WorkItem(item, where), status, *why)
    for job in made.jobs:
        whole.supervise(job)


@dataclass
class _Run:
    """What a run carries from case to case."""

    made: Schedule
    settings: RunSettings
    lock: int | None
    listener: Listener
    sides: list[VariantResults]
    site: Site = field(default_factory=Site)
    between: Callable[[], None] | None = None
    owner: str = field(default_factory=lambda: uuid.uuid4().hex[:12])  # of the cores that its workers have
    seats: int = 0  # so far
    exhausted: list[WorkItem] = field(default_factory=list)  # that ran out of memory

    def supervise(self, job: Sequence[ScheduledCase]) -> None:
        """Run a job in workers, and in fresh ones after each that dies, until every item has a record on every side."""
        waiting = [
            [WorkItem(item, where) for item in group for where in range(len(self.sides))] for group in _group_comparable(job)
        ]
        failed: set[int] = set()  # sides that did not start, once
        while waiting:
            with contextlib.ExitStack() as stack:
                table: dict[int, WorkerGroup] = {}
                where = 0
                held = stack.enter_context(self._claim(job))
                try:
                    for where in {ticket.where for group in waiting for ticket in group}:
                        table[where] = stack.enter_context(self._seat(job, self.sides[where], held))
                except WorkerDied as lost:
                    if where in failed or lost.reason == "not_as_asked":  # what did not start twice would not again either
                        waiting = self._give_up(waiting, where, lost.reason, str(lost) or "the worker did not start")
                    failed.add(where)
                    continue
                while waiting:
                    left, fresh = _InterleavedCases(self, table, waiting.pop(0)).measure()
                    waiting[:0] = left
                    if self.between and not left:
                        self.between()
                    if fresh:
                        break

    def _give_up(self, waiting: list[list[WorkItem]], where: int, reason: str, text: str) -> list[list[WorkItem]]:
        """Put the cases of a side on record as failed; those of the others are left."""
        for ticket in [ticket for group in waiting for ticket in group if ticket.where == where]:
            self.conclude(ticket, "failed", reason, text)
        kept = [[ticket for ticket in group if ticket.where != where] for group in waiting]
        return [group for group in kept if group]

    def _claim(self, job: Sequence[ScheduledCase]) -> contextlib.AbstractContextManager[list[int] | None]:
        """The cores of a job on this host, for both sides of it; in a step, each worker claims its own where it runs."""
        if self.made.machine.platform != "cpu" or not self.settings.bind or self.site.within:
            return contextlib.nullcontext()
        return cores.claimed(job[0].case.devices, self.owner, self._wait_for_cores)

    def _wait_for_cores(self, by: list[int]) -> None:
        """Pass on that cores are waited for. by: the processes that hold them."""
        self.listener({"event": "waiting", "by": by})

    def _seat(
        self, job: Sequence[ScheduledCase], where: VariantResults, held: list[int] | None
    ) -> contextlib.AbstractContextManager[WorkerGroup]:
        first, machine = job[0].case, self.made.machine
        shape = process_shape(first, machine, self.settings)
        header = {
            "results": str(where.folder.resolve()),
            "platform": machine.platform,
            "device_kind": machine.device_kind,
            "x64": first.dtype == "float64",
            "bind": self.settings.bind,
            "cores": held,
            "owner": self.owner,
            "oversubscribe": self.settings.oversubscribe,
            "asked": self.settings.processes,
            "order_seed": self.settings.order_seed,
            "sampling": dataclasses.asdict(self.settings.sampling),
            "beside": dict(self.site.told),
        }
        self.seats += 1
        errors = self.site.errors / f"worker-{self.seats}.log" if self.site.errors else None
        return worker_group.open_worker_group(
            header, where.side, shape, machine.platform, self.lock, self.site.within, errors, self._wait_for_cores
        )

    def conclude(self, ticket: WorkItem, status: str, reason: str, text: str) -> None:
        """Put on record, from here, how a case ended."""
        where = self.sides[ticket.where]
        empty = empty_record(ticket.item, self._environment(ticket), self.settings)
        try:
            where.writer.append(dataclasses.replace(empty, status=status, reason=reason, text=text))
        except OSError as error:
            raise RecordNotWritten(error.strerror) from None
        self.hear(ticket, {"event": "end", "status": status, "reason": reason, "text": text, "seconds": []})

    def _environment(self, ticket: WorkItem) -> dict[str, Any]:
        """Return the environment of a case that a worker did not put on record, with the nodes that it was to run on."""
        around = self.sides[ticket.where].environments[ticket.item.answer.around]
        if not isinstance(self.site.within, SrunSteps):
            return around
        count = process_shape(ticket.item.case, self.made.machine, self.settings).nodes
        return around | {"hosts": list(self.site.within.nodes[:count])}

    def hear(self, ticket: WorkItem, event: dict[str, Any]) -> None:
        """Note an event of a case, and pass it on; that of our own side only, of two."""
        if event["event"] == "begin":
            self.sides[ticket.where].environments[ticket.item.answer.around] = event["environment"]
        if event.get("reason") == "out_of_memory":
            self.exhausted.append(ticket)
        if ticket.where == 0 and event["event"] in ("begin", "end"):
            item = ticket.item
            place = {"key": item.case.key, "replicate": item.replicate, "attempt": item.attempt, "seat": self.seats}
            self.listener(event | place)

    def smaller(self, ticket: WorkItem) -> Case | None:
        """A neighbour, no larger in anything, that ran out of memory on the same side."""
        theirs = (other.item.case for other in self.exhausted if other.where == ticket.where)
        return next((case for case in theirs if _no_larger(case, ticket.item.case)), None)


class _WorkerSpoilt(Exception):
    """A case has ended, and left its worker in a state in which no other can be measured."""


@dataclass
class _InterleavedCases:
    """Cases that take turns, each prepared in its seat before the first of them is sampled."""

    run: _Run
    table: dict[int, WorkerGroup]
    tickets: list[WorkItem]
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    spent: dict[WorkItem, float] = field(default_factory=lambda: defaultdict(float))  # seconds
    asked: tuple[WorkItem, str] = field(init=False)  # last, and what for
    held: set[WorkItem] = field(default_factory=set)  # prepared, and in its worker's memory
    ended: set[WorkItem] = field(default_factory=set)
    later: set[ScheduledCase] = field(default_factory=set)  # that did not fit beside others

    @property
    def alone(self) -> bool:
        """Whether it is one case."""
        return len({ticket.item for ticket in self.tickets}) == 1

    def measure(self) -> tuple[list[list[WorkItem]], bool]:
        """Bring every ticket to its end. Returns groups of those that are left, and whether they need fresh workers."""
        first = self.tickets[0].item
        rng = random.Random(f"{self.run.settings.order_seed} {first.case.key} {first.replicate}")
        ready, enough = list(self.tickets), dict[WorkItem, bool]()
        rng.shuffle(ready)
        try:
            for ticket in ready:
                self._prepare(ticket)
            while ready := self._going_on():
                rng.shuffle(ready)
                for ticket in ready:
                    enough[ticket] = self._ask(ticket, "turn").get("enough", True)
                ready = self._going_on()
                wanting = {ticket.item for ticket in ready if not enough[ticket]}
                for ticket in [ticket for ticket in ready if ticket.item not in wanting]:  # both sides at once
                    self._ask(ticket, "finish")
        except WorkerDied as lost:
            asked, what = self.asked
            if what == "finish" and self._written(asked):
                self.ended.add(asked)
                return self._left(), True
            if lost.reason == "out_of_memory" and not self.alone:  # what others held may be what it lacked
                self.later.add(asked.item)
                return self._left(), True
            words = str(lost) or f"no end after {self.run.settings.case_seconds:g} s (case_seconds)"
            words = ": ".join([*user_modules(asked.item.case), words])
            self.run.conclude(asked, "failed", lost.reason, words)
            self.ended.add(asked)
            return self._left(), True
        except _WorkerSpoilt:
            return self._left(), True
        return self._left(), False

    def _going_on(self) -> list[WorkItem]:
        """Tickets that are ready for a turn. What did not fit beside others is taken back on both sides: a pair is never torn."""
        for ticket in self.tickets:
            if ticket.item in self.later and ticket in self.held:
                self._ask(ticket, "forget")
        return [ticket for ticket in self.tickets if ticket not in self.ended and ticket.item not in self.later]

    def _left(self) -> list[list[WorkItem]]:
        """Groups of tickets that have not ended: what did not fit beside others, each by itself."""
        left = [ticket for ticket in self.tickets if ticket not in self.ended]
        together = [ticket for ticket in left if ticket.item not in self.later]
        alone = [
            [ticket for ticket in left if ticket.item == item]
            for item in dict.fromkeys(t.item for t in left)
            if item in self.later
        ]
        return [group for group in (together, *alone) if group]

    def _written(self, ticket: WorkItem) -> bool:
        """Whether a worker that died while it finished a case had written the record."""
        records = store.load(self.run.sides[ticket.where].folder).records
        return any((r.key, r.replicate, r.block) == (ticket.item.case.key, ticket.item.replicate, self.name) for r in records)

    def _prepare(self, ticket: WorkItem) -> None:
        if other := self.run.smaller(ticket):
            self.run.conclude(ticket, "skipped", "dominated", f"{other.key} ran out of memory, and this is no smaller")
            self.ended.add(ticket)
            return
        item = ticket.item
        self._ask(
            ticket, "prepare", case=non_default_fields(item.case), order=item.order, attempt=item.attempt, replicate=item.replicate,
            engine=dict(item.answer.engine), block=self.name, alone=self.alone, known=self._known(ticket),
            workload_digest=item.answer.workload_digest if ticket.where == 0 else None,
        )  # fmt: skip

    def _known(self, ticket: WorkItem) -> dict[str, Any] | None:
        """The blocks that another replicate of a case with chunk=auto was found to fit in, on the same side."""
        if ticket.item.case.chunk != AUTO:
            return None
        key = ticket.item.case.key
        found = [r.blocks for r in store.load(self.run.sides[ticket.where].folder).records if r.key == key and r.blocks]
        return found[-1] if found else None

    def _ask(self, ticket: WorkItem, what: str, **more: Any) -> dict[str, Any]:
        """Have something done for a case, within what is left of its time."""
        self.asked, began, event = (ticket, what), time.monotonic(), {}
        left = _FINISH_SECONDS if what in ("finish", "forget") else self.run.settings.case_seconds - self.spent[ticket]
        for event in self.table[ticket.where].ask({"do": what, "key": ticket.item.case.key} | more, max(left, 0.001)):
            self.run.hear(ticket, event)
        self.spent[ticket] += time.monotonic() - began
        if event["event"] == "end":
            self.ended.add(ticket)
        if event["event"] == "later":
            self.later.add(ticket.item)
        if event.get("spoilt"):
            raise _WorkerSpoilt
        (self.held.add if event["event"] in ("ready", "turn") else self.held.discard)(ticket)
        return event


def _group_comparable(job: Sequence[ScheduledCase]) -> list[list[ScheduledCase]]:
    """Items of the same problem together, so many at most."""
    return [group[start : start + _TOGETHER] for group in group_by_problem(job) for start in range(0, len(group), _TOGETHER)]


def _no_larger(one: Case, other: Case) -> bool:
    """Whether a case is as another, or smaller in points or sizes."""
    if dataclasses.replace(one, points=1, sizes={}) != dataclasses.replace(other, points=1, sizes={}):
        return False
    both = [(one.points, other.points), *((one.sizes[name], other.sizes.get(name, 0)) for name in one.sizes)]
    return all(mine <= theirs for mine, theirs in both)


def empty_record(item: ScheduledCase, environment: dict[str, Any], settings: RunSettings) -> Record:
    """The record of a case that this process knows the end of."""
    return Record(
        item.case, "failed", environment, order=item.order, order_seed=settings.order_seed, attempt=item.attempt,
        replicate=item.replicate, started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
    )  # fmt: skip
