"""Run a `Schedule` in workers: alternate samples, replace dead workers, record failed and too large cases."""

import contextlib
import dataclasses
import random
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scaling.core.case import AUTO, Case, non_default_fields, user_modules
from scaling.core.grouping import group_by
from scaling.core.record import Writer, outcome_fields, to_line
from scaling.launcher import cores, worker_group
from scaling.launcher.run_settings import RunSettings
from scaling.launcher.schedule import (
    Environment,
    Environments,
    Schedule,
    ScheduledCase,
    find_identities,
    group_by_problem,
    process_shape,
)
from scaling.launcher.worker_group import AllocationLost, Transport, Variant, WorkerDied, WorkerGroup
from scaling.results import store

_MAX_INTERLEAVED = 8  # number of cases that are prepared in one process at the same time
_FINISH_SECONDS = 60.0  # minimum time to finish a case, even if `case_seconds` is shorter
_DOES_NOT_FIT = ("too_large", "out_of_memory")  # reasons of a case that may fit if no other is in memory
# The entries of an environment that depend on the program, not on the machine.
_FIELDS_OF_PROGRAM = ("versions", "xla_flags", "commit", "dirty", "source", "workload_digest")
Listener = Callable[[dict[str, Any]], None]  # called with events such as {"event": "begin", "key": ...}


@dataclass(frozen=True)
class VariantResults:
    """A worker program (`Variant`), its results folder, and the environments in its records."""

    variant: Variant
    folder: Path
    writer: Writer
    environments: dict[tuple, dict[str, Any]]  # `environment_key` -> last reported or planned environment


@dataclass(frozen=True)
class WorkerOptions:
    """Options to start worker processes, and fields that are added to the environment of each record."""

    transport: Transport | None = None  # how to start workers on other nodes, or None for this host
    environment: Mapping[str, Any] = field(default_factory=dict)  # fields to add to every environment
    log_folder: Path | None = None  # folder for the standard error of the workers, or None
    python: str = sys.executable  # Python interpreter of the workers


@dataclass(eq=False)
class WorkItem:
    """A case to measure with one of the compared programs (`Variant`), and the state of this measurement."""

    scheduled: ScheduledCase
    variant: int  # index of the variant: 0 for this program, 1 for the baseline of a comparison
    # "waiting", "prepared" (in the memory of its worker), "ended" (has a record), or "postponed" (is too
    # large to be in memory with others)
    state: str = "waiting"
    seconds_used: float = 0.0  # time used so far, limited by `case_seconds`


Groups = list[list[WorkItem]]  # each group contains the cases that are sampled in alternation


def run_schedule(
    schedule: Schedule,
    settings: RunSettings,
    folder: Path,
    lock: int | None,
    listener: Listener,
    baseline: tuple[Variant, Path] | None = None,
    options: WorkerOptions | None = None,
) -> None:
    """Run all cases of a schedule in worker processes, and write a record of each case.

    `lock` is the file descriptor that holds the lock on the results folder `folder`. In a comparison,
    `baseline` contains the `Variant` to compare with and its results folder. Each case then runs in both
    variants, their samples alternate, and each variant has its own record. `listener` receives the event
    "waiting" if a worker waits for CPU cores, and the events "begin" and "end" of each case, except for the
    baseline.
    """
    options = options or WorkerOptions()
    variants = [(Variant(python=options.python), folder), *([baseline] if baseline else [])]
    environments = {key: env | dict(options.environment) for key, env in schedule.environments.items()}
    results = [
        VariantResults(variant, path, Writer(path), _expected_environments(environments, variant))
        for variant, path in variants
    ]
    run = _Run(schedule, settings, lock, listener, results, options)
    for scheduled in (*schedule.skips, *schedule.failures):
        assert scheduled.preflight.outcome is not None
        for variant in range(len(results)):
            run.record_without_result(WorkItem(scheduled, variant), *scheduled.preflight.outcome)
    for session in schedule.sessions:
        run.supervise(session)


def _expected_environments(environments: Environments, variant: Variant) -> dict[tuple, Environment]:
    """Return the environments to record for `variant` before its workers report the actual environments.

    `environments` are the planned environments of this program. If `variant` is another program, the fields
    that may differ are None, and the name of `variant` replaces the digests.
    """
    if variant.name in (Variant.name, "self"):
        return dict(environments)
    unknown = dict.fromkeys(_FIELDS_OF_PROGRAM) | dict.fromkeys(("digest", "setting"), variant.name)
    return {key: environment | unknown for key, environment in environments.items()}


@dataclass
class _Run:
    """The arguments of `run_schedule`, and the state that changes during the run."""

    schedule: Schedule
    settings: RunSettings
    lock: int | None
    listener: Listener
    results: list[VariantResults]
    options: WorkerOptions
    owner: str = field(default_factory=lambda: uuid.uuid4().hex[:12])  # identifies the claims on cores
    groups_started: int = 0  # number of worker groups that were started
    out_of_memory: list[WorkItem] = field(default_factory=list)  # cases that ran out of memory

    def supervise(self, session: Sequence[ScheduledCase]) -> None:
        """Measure the cases of a session, which share worker processes. Replace workers that die."""
        first_case, waiting_groups = session[0].case, self._group_by_problem(session)
        while waiting_groups:
            with contextlib.ExitStack() as stack:
                claimed_cores = self._claim_cores(stack, first_case.devices)
                workers: dict[int, WorkerGroup] = {}
                for variant in {work.variant for group in waiting_groups for work in group}:
                    try:
                        workers[variant] = self._start_workers(stack, first_case, variant, claimed_cores)
                    except WorkerDied as death:
                        waiting_groups = self._fail_variant(waiting_groups, variant, death)
                all_alive = True
                while waiting_groups and all_alive:
                    all_alive, remaining = _InterleavedCases(self, workers, waiting_groups.pop(0)).measure()
                    waiting_groups[:0] = remaining

    def _claim_cores(self, stack: contextlib.ExitStack, count: int) -> list[int] | None:
        """Claim `count` CPU cores until `stack` is closed, and return them.

        Return None if no cores are claimed here, as on a GPU or for workers on other nodes.
        """
        is_on_cpu = self.schedule.machine.platform == "cpu"
        if self.options.transport or not self.settings.bind or not is_on_cpu:  # other nodes claim their own
            return None
        try:
            return stack.enter_context(cores.claim_cores(count, self.owner, self._report_wait))
        except TimeoutError as error:
            raise AllocationLost(str(error)) from None

    def _group_by_problem(self, session: Sequence[ScheduledCase]) -> Groups:
        """Return groups of up to eight cases with the same derivative, each case once per variant."""
        variants, size = range(len(self.results)), _MAX_INTERLEAVED
        return [
            [
                WorkItem(scheduled, variant)
                for scheduled in cases[start : start + size]
                for variant in variants
            ]
            for cases in group_by_problem(session)
            for start in range(0, len(cases), size)
        ]

    def _fail_variant(self, waiting: Groups, variant: int, death: WorkerDied) -> Groups:
        for work in [work for group in waiting for work in group if work.variant == variant]:
            self.record_without_result(work, "failed", death.reason, str(death) or "the worker did not start")
        groups = [[work for work in group if work.variant != variant] for group in waiting]
        return [group for group in groups if group]

    def _report_wait(self, text: str) -> None:
        self.listener({"event": "waiting", "text": text})

    def _start_workers(
        self,
        stack: contextlib.ExitStack,
        first_case: Case,
        variant: int,
        claimed_cores: list[int] | None,
        is_retry: bool = False,
    ) -> WorkerGroup:
        """Start the workers for `first_case` and for the other cases that may share its workers.

        If the workers do not start, try once more, unless `is_retry` is true. The workers end when `stack` is
        closed. `variant` is an index into `self.results`. `claimed_cores` contains the CPU cores for the
        workers, or is None if no cores are claimed.
        """
        machine, settings, options = self.schedule.machine, self.settings, self.options
        results, shape = self.results[variant], process_shape(first_case, machine, settings)
        header = {
            "platform": machine.platform, "device_kind": machine.device_kind,
            "x64": first_case.dtype == "float64", "bind": settings.bind, "cores": claimed_cores,
            "owner": self.owner, "oversubscribe": settings.oversubscribe,
            "requested_processes": settings.processes,
            "order_seed": settings.order_seed, "sampling": dataclasses.asdict(settings.sampling),
            "environment": dict(options.environment),
        }  # fmt: skip
        self.groups_started += 1
        log = options.log_folder and options.log_folder / f"worker-{self.groups_started}.log"
        group = worker_group.open_worker_group(
            header, results.variant, shape, self.lock, options.transport, log, self._report_wait
        )
        try:
            return stack.enter_context(group)
        except FileNotFoundError as error:  # srun or ssh is missing
            text = f"{error.filename} is not installed on this host, or its folder is not in PATH"
            raise AllocationLost(text) from None
        except WorkerDied as death:
            if is_retry or death.reason == "not_as_asked":  # a retry would fail too
                raise
            return self._start_workers(stack, first_case, variant, claimed_cores, is_retry=True)

    def record_without_result(self, work: WorkItem, status: str, reason: str, text: str) -> None:
        """Write a "failed" or "skipped" record of a case that was not measured, and report its end."""
        environment = self.results[work.variant].environments[work.scheduled.preflight.environment_key]
        if self.options.transport:
            count = process_shape(work.scheduled.case, self.schedule.machine, self.settings).nodes
            environment = environment | {"hosts": list(self.options.transport.nodes[:count])}
        record = work.scheduled.record_without_result(environment, self.settings, status, reason, text)
        self.append_record(work, {"event": "end", "line": to_line(record)} | outcome_fields(record))

    def append_record(self, work: WorkItem, event: dict[str, Any]) -> None:
        """Write the record that the event "end" of a case contains, and report the end of the case."""
        self.results[work.variant].writer.append(event.pop("line"))
        work.state = "ended"
        if event["reason"] == "out_of_memory":
            self.out_of_memory.append(work)
        self.notify(work, event)

    def notify(self, work: WorkItem, event: dict[str, Any]) -> None:
        """Pass the event "begin" or "end" of a case to the listener, except for a baseline."""
        if work.variant == 0:
            scheduled = work.scheduled
            identity = {
                "key": scheduled.case.key,
                "replicate": scheduled.replicate,
                "attempt": scheduled.attempt,
            }
            self.listener(event | identity | {"seat": self.groups_started})


@dataclass
class _InterleavedCases:
    """Cases that are sampled in turns, after all of them have been compiled and checked."""

    run: _Run
    workers: dict[int, WorkerGroup]  # index of the variant -> its workers
    items: list[WorkItem]  # the cases of the group, once for each variant
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:12])  # field `block` of the records
    last_request: WorkItem = field(init=False)  # the case of the last request

    def measure(self) -> tuple[bool, Groups]:
        """Measure the cases. Return whether all workers are alive, and the unfinished cases in groups.

        Each postponed case is a group of its own. The other unfinished cases form one group.
        """
        all_alive = True
        try:
            self._prepare_and_sample()
        except WorkerDied as death:
            all_alive = False
            self._handle_death(death)
        unfinished = [work for work in self.items if work.state != "ended"]
        groups = group_by(
            unfinished, lambda work: work.scheduled if self._is_postponed(work.scheduled) else None
        )
        # Cases that run alone are last.
        ordered = sorted(groups.values(), key=lambda group: self._is_postponed(group[0].scheduled))
        return all_alive, [[WorkItem(work.scheduled, work.variant) for work in group] for group in ordered]

    def _is_postponed(self, scheduled: ScheduledCase) -> bool:
        # A case that is postponed for one of the compared variants is postponed for all of them.
        return any(work.scheduled == scheduled and work.state == "postponed" for work in self.items)

    def _has_single_case(self) -> bool:
        return len({work.scheduled for work in self.items}) == 1

    def _prepare_and_sample(self) -> None:
        """Prepare all cases, then take samples of the cases in turn until every case has enough samples."""
        first = self.items[0].scheduled
        rng = random.Random(f"{self.run.settings.order_seed} {first.case.key} {first.replicate}")
        shuffled = list(self.items)
        rng.shuffle(shuffled)
        for work in shuffled:
            self._prepare(work)
        while active := self._active_items():
            rng.shuffle(active)
            replies = [(work, self._request(work, "turn")) for work in active]
            unfinished = {work.scheduled for work, reply in replies if not reply.get("enough", True)}
            for work in self._active_items():
                if work.scheduled not in unfinished:  # all variants of a case finish together
                    self._request(work, "finish")

    def _active_items(self) -> list[WorkItem]:
        """Remove postponed cases from the memory of their workers, and return the cases that need samples."""
        for work in self.items:
            if work.state == "prepared" and self._is_postponed(work.scheduled):
                self._request(work, "finish")
        return [work for work in self.items if work.state == "prepared"]

    def _handle_death(self, death: WorkerDied) -> None:
        """Record the case of a dead worker as failed, or postpone it if it may fit alone in memory."""
        work = self.last_request
        if death.reason == "out_of_memory" and not self._has_single_case():
            work.state = "postponed"
            return
        cause = str(death) or f"timed out after {self.run.settings.case_seconds:g} s (case_seconds)"
        text = ": ".join([*user_modules(work.scheduled.case), cause])
        self.run.record_without_result(work, "failed", death.reason, text)

    def _prepare(self, work: WorkItem) -> None:
        """Ask the workers to compile and check a case, or skip a case that is too large.

        A case is too large if the same case, or one with smaller sizes or fewer points, ran out of memory.
        """
        scheduled = work.scheduled
        oom_cases = (
            other.scheduled.case for other in self.run.out_of_memory if other.variant == work.variant
        )
        if smaller_case := next((case for case in oom_cases if _is_no_larger(case, scheduled.case)), None):
            text = f"{smaller_case.key} ran out of memory, and this case is no smaller"
            self.run.record_without_result(work, "skipped", "dominated", text)
            return
        # Other environments may have other memory.
        here = {(): self.run.results[work.variant].environments[scheduled.preflight.environment_key]}
        earlier = (
            store.load(self.run.results[work.variant].folder).records if scheduled.case.chunk == AUTO else []
        )
        known_blocks = [
            record.blocks
            for record in earlier
            if record.key == scheduled.case.key and record.blocks and find_identities(record, here)
        ]
        self._request(
            work, "prepare", case=non_default_fields(scheduled.case), order=scheduled.order,
            attempt=scheduled.attempt,
            replicate=scheduled.replicate, engine=dict(scheduled.preflight.engine), block=self.name,
            known=next(reversed(known_blocks), None),
            workload_digest=scheduled.preflight.workload_digest if work.variant == 0 else None,
        )  # fmt: skip

    def _request(self, work: WorkItem, action: str, **fields: Any) -> dict[str, Any]:
        """Send a request about a case to its workers, and return the event with which they reply.

        `action` is "prepare", "turn", or "finish". Raise `WorkerDied` if no reply arrives.
        """
        self.last_request, workers, event = work, self.workers[work.variant], {}
        least = _FINISH_SECONDS if action == "finish" else 0.001
        seconds = max(self.run.settings.case_seconds - work.seconds_used, least)
        request = {"do": action, "key": work.scheduled.case.key} | fields
        for event in workers.request(request, seconds):
            if event["event"] == "begin":
                environments = self.run.results[work.variant].environments
                environments[work.scheduled.preflight.environment_key] = event["environment"]
                self.run.notify(work, event)
        work.seconds_used += seconds - workers.seconds_left
        may_fit_alone = event.get("reason") in _DOES_NOT_FIT and not self._has_single_case()
        if event["event"] != "end":
            work.state = "prepared"
        elif may_fit_alone or self._is_postponed(work.scheduled):
            work.state = "postponed"
        else:
            self.run.append_record(work, event)
        return event


def _is_no_larger(first: Case, second: Case) -> bool:
    """Return whether two cases are equal except that `first` may have fewer points or smaller sizes."""
    is_comparable = dataclasses.replace(first, points=second.points, sizes=second.sizes) == second
    no_larger_sizes = all(size <= second.sizes.get(name, 0) for name, size in first.sizes.items())
    return is_comparable and first.points <= second.points and no_larger_sizes
