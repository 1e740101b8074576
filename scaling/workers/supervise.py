"""Supervision: jobs run in workers to their end, with a record for each case that a worker could not write.

Interleaves the turns of cases that are to be compared, and replaces a worker that dies. Does not know which
cases are missing (schedule.py), nor how a process is started (worker_group.py).
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
from typing import TYPE_CHECKING, Any

from scaling.core import store
from scaling.core.case import AUTO, Case, non_default_fields, user_modules
from scaling.core.record import Record
from scaling.workers import cores, worker_group
from scaling.workers.schedule import Schedule, ScheduledCase, group_by_problem, process_shape
from scaling.workers.settings import RunSettings
from scaling.workers.worker_group import RecordNotWritten, Variant, WorkerDied, WorkerGroup

if TYPE_CHECKING:
    from scaling.workers.transport import Transport

_MOST_INTERLEAVED = 8  # cases that are prepared in one process at a time
_FINISH_SECONDS = 60.0  # for a record to be on disk
Listener = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class VariantResults:
    """A variant, its folder of results, and the environments of its cases."""

    variant: Variant
    folder: Path
    writer: store.Writer
    environments: dict[tuple, dict[str, Any]]  # by `Examined.environment_key`; as a worker last described it


@dataclass(frozen=True)
class Site:
    """Where the workers run, and what their records and logs contain of it."""

    transport: "Transport | None" = None  # None: this host
    environment: Mapping[str, Any] = field(default_factory=dict)  # for the environment of every record
    log_folder: Path | None = None  # for the standard error of workers; None: not kept
    python: str = sys.executable  # of the workers


@dataclass(frozen=True)
class WorkItem:
    """A case to be measured with one variant."""

    item: ScheduledCase
    variant: int  # index of the variant in the run


Groups = list[list[WorkItem]]


def run_schedule(
    schedule: Schedule, settings: RunSettings, folder: Path, lock: int | None, listener: Listener,
    baseline: tuple[Variant, Path] | None = None, site: Site | None = None,
    between: Callable[[], None] | None = None,
) -> None:  # fmt: skip
    """Record what need not run, then run every job to its end, one after another: two at once would disturb
    each other.

    baseline: another variant and its folder; every case is then measured with both, in interleaved turns.
    between: is called when a group of cases has ended and the next has not begun, so that nothing is being
    measured.

    """
    site = site or Site()
    variants = [(Variant(python=site.python), folder), *([baseline] if baseline else [])]
    environments = {key: known | dict(site.environment) for key, known in schedule.environments.items()}
    results = [VariantResults(each, path, store.Writer(path), dict(environments)) for each, path in variants]
    run = _Run(schedule, settings, lock, listener, results, site, between)
    for item in (*schedule.skips, *schedule.failures):
        status = "failed" if item.answer.failure else "skipped"
        reason, text = item.answer.failure or item.answer.unfit or ("error", "")
        for variant in range(len(results)):
            run.conclude(WorkItem(item, variant), status, reason, text)
    for job in schedule.jobs:
        run.supervise(job)


def empty_record(item: ScheduledCase, environment: dict[str, Any], settings: RunSettings) -> Record:
    """Return a record, without any result, of a case whose end this process knows."""
    return Record(
        item.case, "failed", environment, order=item.order, order_seed=settings.order_seed,
        attempt=item.attempt, replicate=item.replicate,
        started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
    )  # fmt: skip


@dataclass
class _Run:
    """The state of a run that lasts from case to case."""

    schedule: Schedule
    settings: RunSettings
    lock: int | None
    listener: Listener
    results: list[VariantResults]
    site: Site
    between: Callable[[], None] | None
    owner: str = field(default_factory=lambda: uuid.uuid4().hex[:12])  # of the cores that its workers use
    groups_started: int = 0
    exhausted: list[WorkItem] = field(default_factory=list)  # that ran out of memory

    def supervise(self, job: Sequence[ScheduledCase]) -> None:
        """Run a job in workers until each item has a record of each variant.

        A worker that dies is replaced.
        """
        waiting = self._group_comparable(job)
        failed: set[int] = set()  # variants whose workers did not start, once
        while waiting:
            with contextlib.ExitStack() as stack:
                workers: dict[int, WorkerGroup] = {}
                claimed = stack.enter_context(self._claim_cores(job))
                for variant in {work.variant for group in waiting for work in group}:
                    try:
                        workers[variant] = stack.enter_context(self._open_workers(job, variant, claimed))
                    except WorkerDied as death:
                        if variant in failed or death.reason == "not_as_asked":  # it would not start again
                            waiting = self._fail_variant(waiting, variant, death)
                        failed.add(variant)
                        break
                else:
                    self._measure_groups(waiting, workers)

    def _group_comparable(self, job: Sequence[ScheduledCase]) -> Groups:
        """Group the items of a job by problem, each with all variants.

        A group has at most `_MOST_INTERLEAVED` items.
        """
        variants, step = range(len(self.results)), _MOST_INTERLEAVED
        return [
            [WorkItem(item, variant) for item in group[start : start + step] for variant in variants]
            for group in group_by_problem(job)
            for start in range(0, len(group), step)
        ]

    def _measure_groups(self, waiting: Groups, workers: dict[int, WorkerGroup]) -> None:
        """Measure groups from `waiting` until none is left or a worker must be replaced."""
        usable = True
        while waiting and usable:
            group = _InterleavedCases(self, workers, waiting.pop(0))
            usable = group.measure()
            remaining = group.remaining()
            waiting[:0] = remaining
            if self.between and not remaining:
                self.between()

    def _fail_variant(self, waiting: Groups, variant: int, death: WorkerDied) -> Groups:
        """Record the cases of a variant as failed; return the groups without them."""
        for work in [work for group in waiting for work in group if work.variant == variant]:
            self.conclude(work, "failed", death.reason, str(death) or "the worker did not start")
        kept = [[work for work in group if work.variant != variant] for group in waiting]
        return [group for group in kept if group]

    def _claim_cores(
        self, job: Sequence[ScheduledCase]
    ) -> contextlib.AbstractContextManager[list[int] | None]:
        """Claim the cores of a job on this host for all variants.

        On other nodes, each worker claims its own cores.
        """
        if self.schedule.machine.platform != "cpu" or not self.settings.bind or self.site.transport:
            return contextlib.nullcontext()
        return cores.claimed(job[0].case.devices, self.owner, self._report_wait)

    def _report_wait(self, by: list[int]) -> None:
        """Tell the listener that a job waits for cores. by: the processes that hold them."""
        self.listener({"event": "waiting", "by": by})

    def _open_workers(
        self, job: Sequence[ScheduledCase], variant: int, claimed: list[int] | None
    ) -> contextlib.AbstractContextManager[WorkerGroup]:
        first, machine, settings = job[0].case, self.schedule.machine, self.settings
        results, folder = self.results[variant], self.site.log_folder
        header = {
            "results": str(results.folder.resolve()), "platform": machine.platform,
            "device_kind": machine.device_kind, "x64": first.dtype == "float64", "bind": settings.bind,
            "cores": claimed, "owner": self.owner, "oversubscribe": settings.oversubscribe,
            "asked": settings.processes, "order_seed": settings.order_seed,
            "sampling": dataclasses.asdict(settings.sampling), "beside": dict(self.site.environment),
        }  # fmt: skip
        self.groups_started += 1
        log = folder / f"worker-{self.groups_started}.log" if folder else None
        return worker_group.open_worker_group(
            header, results.variant, process_shape(first, machine, settings), machine.platform, self.lock,
            self.site.transport, log, self._report_wait,
        )  # fmt: skip

    def conclude(self, work: WorkItem, status: str, reason: str, text: str) -> None:
        """Record, from this process, how a case ended, with the nodes that it was to run on."""
        results = self.results[work.variant]
        environment = results.environments[work.item.answer.environment_key]
        if self.site.transport:
            count = process_shape(work.item.case, self.schedule.machine, self.settings).nodes
            hosts = self.site.transport.host_names(count)
            environment = environment | ({"hosts": hosts} if hosts else {})
        record = empty_record(work.item, environment, self.settings)
        try:
            results.writer.append(dataclasses.replace(record, status=status, reason=reason, text=text))
        except OSError as error:
            raise RecordNotWritten(error.strerror) from None
        self.note(work, {"event": "end", "status": status, "reason": reason, "text": text, "seconds": []})

    def note(self, work: WorkItem, event: dict[str, Any]) -> None:
        """Note an event of a case; pass those of the first variant to the listener."""
        item = work.item
        if event["event"] == "begin":
            self.results[work.variant].environments[item.answer.environment_key] = event["environment"]
        if event.get("reason") == "out_of_memory":
            self.exhausted.append(work)
        if work.variant == 0 and event["event"] in ("begin", "end"):
            identity = {"key": item.case.key, "replicate": item.replicate, "attempt": item.attempt}
            self.listener(event | identity | {"seat": self.groups_started})


@dataclass
class _InterleavedCases:
    """Cases whose turns are interleaved; all are prepared before the first of them is sampled."""

    run: _Run
    workers: dict[int, WorkerGroup]  # by variant
    items: list[WorkItem]
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    seconds_used: dict[WorkItem, float] = field(default_factory=lambda: defaultdict(float))
    last_order: tuple[WorkItem, str] = field(init=False)
    prepared: set[WorkItem] = field(default_factory=set)  # and in the memory of their worker
    ended: set[WorkItem] = field(default_factory=set)
    postponed: set[ScheduledCase] = field(default_factory=set)  # did not fit into memory with the others

    @property
    def single(self) -> bool:
        """Return whether there is one case only."""
        return len({work.item for work in self.items}) == 1

    def measure(self) -> bool:
        """Finish every item unless a worker must be replaced; return whether the workers can go on."""
        try:
            self._take_turns()
        except WorkerDied as death:
            self._handle_death(death)
            return False
        return True

    def remaining(self) -> Groups:
        """Return groups of the unfinished items.

        Each postponed case is a separate group, at the end.
        """
        groups: dict[ScheduledCase | None, list[WorkItem]] = {None: []}
        for work in self.items:
            if work not in self.ended:
                groups.setdefault(work.item if work.item in self.postponed else None, []).append(work)
        return [group for group in groups.values() if group]

    def _take_turns(self) -> None:
        """Prepare all items, then take turns until all have enough samples.

        Each round has a new random order.
        """
        first = self.items[0].item
        rng = random.Random(f"{self.run.settings.order_seed} {first.case.key} {first.replicate}")
        ready, enough = list(self.items), dict[WorkItem, bool]()
        rng.shuffle(ready)
        for work in ready:
            self._prepare(work)
        while ready := self._active_items():
            rng.shuffle(ready)
            for work in ready:
                enough[work] = self._ask(work, "turn").get("enough", True)
            active = self._active_items()
            unfinished = {work.item for work in active if not enough[work]}
            for work in active:
                if work.item not in unfinished:  # all variants of a case at once
                    self._ask(work, "finish")

    def _active_items(self) -> list[WorkItem]:
        """Return the items to take a turn.

        An item that did not fit is withdrawn in all variants, to keep pairs complete.
        """
        for work in self.items:
            if work.item in self.postponed and work in self.prepared:
                self._ask(work, "forget")
        return [work for work in self.items if work not in self.ended and work.item not in self.postponed]

    def _handle_death(self, death: WorkerDied) -> None:
        """Record the case in which a worker died, unless it has a record.

        A case that shared memory with others is postponed instead.
        """
        work, order = self.last_order
        if work in self.ended:
            return
        here = work.item.replicate, self.name
        written = order == "finish" and any((r.replicate, r.block) == here for r in self._records(work))
        if death.reason == "out_of_memory" and not self.single and not written:
            self.postponed.add(work.item)  # other cases may have held the memory that it lacked
            return
        if not written:
            text = str(death) or f"no end after {self.run.settings.case_seconds:g} s (case_seconds)"
            self.run.conclude(work, "failed", death.reason, ": ".join([*user_modules(work.item.case), text]))
        self.ended.add(work)

    def _records(self, work: WorkItem) -> list[Record]:
        """Return the records of a case with its variant."""
        records = store.load(self.run.results[work.variant].folder).records
        return [record for record in records if record.key == work.item.case.key]

    def _prepare(self, work: WorkItem) -> None:
        """Have a case built and checked, unless a neighbour, no larger in any size, ran out of memory."""
        item = work.item
        exhausted = (other.item.case for other in self.run.exhausted if other.variant == work.variant)
        if smaller := next((other for other in exhausted if _is_no_larger(other, item.case)), None):
            text = f"{smaller.key} ran out of memory, and this is no smaller"
            self.run.conclude(work, "skipped", "dominated", text)
            self.ended.add(work)
            return
        others = self._records(work) if item.case.chunk == AUTO else []  # of other replicates
        self._ask(
            work, "prepare", case=non_default_fields(item.case), order=item.order, attempt=item.attempt,
            replicate=item.replicate, engine=dict(item.answer.engine), block=self.name, alone=self.single,
            known=next((record.blocks for record in reversed(others) if record.blocks), None),
            workload_digest=item.answer.workload_digest if work.variant == 0 else None,
        )  # fmt: skip

    def _ask(self, work: WorkItem, action: str, **fields: Any) -> dict[str, Any]:
        """Send an order for a case, and return its answer, within the time that remains for the case."""
        self.last_order, began, event = (work, action), time.monotonic(), {}
        remaining = self.run.settings.case_seconds - self.seconds_used[work]
        seconds = _FINISH_SECONDS if action in ("finish", "forget") else max(remaining, 0.001)
        request = {"do": action, "key": work.item.case.key} | fields
        for event in self.workers[work.variant].ask(request, seconds):
            self.run.note(work, event)
        self.seconds_used[work] += time.monotonic() - began
        (self.prepared.add if event["event"] in ("ready", "turn") else self.prepared.discard)(work)
        if event["event"] == "end":
            self.ended.add(work)
        if event["event"] == "later":
            self.postponed.add(work.item)
        if event.get("spoilt"):  # the case ended, and no other can be measured in this worker
            raise WorkerDied("spoilt", "")
        return event


def _is_no_larger(one: Case, other: Case) -> bool:
    """Return whether a case equals another, or is smaller in points or sizes only."""
    if dataclasses.replace(one, points=1, sizes={}) != dataclasses.replace(other, points=1, sizes={}):
        return False
    sizes = all(size <= other.sizes.get(name, 0) for name, size in one.sizes.items())
    return one.points <= other.points and sizes
