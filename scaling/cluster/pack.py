"""Packing: which cases share a task, so that each fills a part of its time limit, as earlier records predict.

Knows cases and records; not a scheduler. Cases of one problem, which are compared, are never separated.
"""

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from scaling.core.case import Case
from scaling.core.record import STAGES, Record
from scaling.plan import cost
from scaling.workers.machine import Machine, ProcessShape
from scaling.workers.schedule import Schedule, ScheduledCase, group_by_problem, process_shape
from scaling.workers.settings import RunSettings

_START_SECONDS = 5.0  # for the workers of a job to start
_UNKNOWN_SECONDS = 5.0  # for a case to be built, compiled and checked, where no record says it


@dataclass(frozen=True)
class PackedTask:
    """Jobs that a task runs one after another, the shape that they need, and how long they will take."""

    shape: ProcessShape
    jobs: tuple[tuple[ScheduledCase, ...], ...]
    seconds: float
    foreseen: bool = False  # a plan predicts the time of each case, and none was tried before

    @property
    def items(self) -> list[ScheduledCase]:
        """Return all cases."""
        return [item for job in self.jobs for item in job]


def pack(
    plan: Schedule,
    settings: RunSettings,
    records: Sequence[Record],
    budget: float,
    planned: Sequence[Record] = (),
    nested: bool = False,
) -> list[PackedTask]:
    """Return the jobs of a schedule as tasks, none longer than the budget unless one group of cases is.

    budget: seconds. planned: the records of `scaling plan` for these cases. nested: whether all tasks have
    one shape that holds all others, and run whole curves in all replicates; otherwise each has that of its
    cases.
    """
    known = foreseen_seconds(planned, plan.machine, settings)
    predict = make_predictor(records, settings, known)
    groups = _group_by_curve(plan, settings) if nested else _group_by_shape(plan, settings)
    tasks = [task for shape in groups for task in _fill(shape, groups[shape], predict, budget)]
    if nested:
        tasks = [dataclasses.replace(task, jobs=_in_order_of(plan, task.items)) for task in tasks]
    return [
        dataclasses.replace(task, foreseen=all(i.case.key in known and i.attempt == 1 for i in task.items))
        for task in tasks
    ]


def _group_by_shape(plan: Schedule, settings: RunSettings) -> dict[ProcessShape, list[list[ScheduledCase]]]:
    """Return the cases of each shape, grouped by problem."""
    groups: dict[ProcessShape, list[list[ScheduledCase]]] = defaultdict(list)
    for job in plan.jobs:
        groups[process_shape(job[0].case, plan.machine, settings)] += group_by_problem(job)
    return groups


def _group_by_curve(plan: Schedule, settings: RunSettings) -> dict[ProcessShape, list[list[ScheduledCase]]]:
    """Return all cases grouped by curve, with a shape that has room for each of them."""
    shapes = [process_shape(job[0].case, plan.machine, settings) for job in plan.jobs]
    nodes, each = max(shape.nodes for shape in shapes), max(shape.devices // shape.nodes for shape in shapes)
    groups: dict[tuple, list[ScheduledCase]] = defaultdict(list)
    for item in (item for job in plan.jobs for item in job):
        case = item.case
        sizes = tuple(case.sizes.items())  # points grow along a curve of weak scaling
        curve = (case.workload, case.target, case.variant, sizes, case.wrt, case.dtype, case.precision)
        groups[curve].append(item)
    return {ProcessShape(nodes * each, nodes, nodes): list(groups.values())}


def pack_into_one(tasks: Sequence[PackedTask]) -> list[PackedTask]:
    """Return all tasks as one, for a machine on which only one may run at a time."""
    largest = max((task.shape for task in tasks), key=lambda shape: shape.devices)
    return [
        PackedTask(largest, tuple(job for task in tasks for job in task.jobs), sum(t.seconds for t in tasks))
    ]


def _in_order_of(plan: Schedule, items: Iterable[ScheduledCase]) -> tuple[tuple[ScheduledCase, ...], ...]:
    """Return items by the jobs of the schedule: replicate after replicate, shapes shuffled in each."""
    chosen = set(map(id, items))
    jobs = [tuple(item for item in job if id(item) in chosen) for job in plan.jobs]
    return tuple(job for job in jobs if job)


def _fill(
    shape: ProcessShape,
    groups: Iterable[Sequence[ScheduledCase]],
    predict: Callable[[Case], float],
    budget: float,
) -> list[PackedTask]:
    """Return groups of items as tasks, in order, as many groups to a task as fit its budget in seconds.

    A new job begins with each group that cannot run in the process of the group before.
    """
    tasks: list[PackedTask] = []
    jobs: list[tuple[ScheduledCase, ...]] = []
    total = 0.0
    for group in groups:
        seconds = sum(predict(item.case) for item in group)
        new_process = not jobs or jobs[-1][0].process != group[0].process
        if jobs and total + seconds + _START_SECONDS * new_process > budget:
            tasks.append(PackedTask(shape, tuple(jobs), total))
            jobs, total, new_process = [], 0.0, True
        if new_process:
            jobs.append(())
        jobs[-1] += tuple(group)
        total += seconds + _START_SECONDS * new_process
    return [*tasks, PackedTask(shape, tuple(jobs), total)] if jobs else tasks


def foreseen_seconds(planned: Iterable[Record], machine: Machine, settings: RunSettings) -> dict[str, float]:
    """Return how many seconds each planned case takes on this machine, by key: the longest of several plans.

    If the kind of these devices is not known, plans for any kind of the platform count.
    """
    longest: dict[str, float] = {}
    for record in planned:
        kinds = (machine.device_kind or record.environment["device_kind"], machine.platform)
        if (record.environment["device_kind"], record.environment["platform"]) != kinds:
            continue
        seconds = cost.seconds(record, settings)
        if seconds is not None:
            longest[record.key] = max(seconds, longest.get(record.key, 0.0))
    return longest


def make_predictor(
    records: Sequence[Record], settings: RunSettings, planned: Mapping[str, float]
) -> Callable[[Case], float]:
    """Return a function from a case to the seconds that it will take.

    These are what the case took, or was planned to take, or what a similar case took at most, or a guess.
    """
    measured: dict[str, list[float]] = defaultdict(list)
    similar: dict[tuple, float] = {}
    for record in records:
        seconds = _repeated_seconds(record, settings) if record.status == "ok" else None
        if seconds is not None:
            measured[record.key].append(seconds)
            kind = _compiled_alike(record.case)
            similar[kind] = max(seconds, similar.get(kind, 0.0))
    sampling = settings.sampling
    guess = (_UNKNOWN_SECONDS + sampling.warm_up + sampling.seconds) * sampling.compilations
    timed_out = {record.key for record in records if record.reason == "timeout"}

    def predict(case: Case) -> float:
        if case.key in measured:
            return statistics.median(measured[case.key])
        if case.key in timed_out:  # all that it may take before it is stopped
            return settings.case_seconds
        return planned.get(case.key, similar.get(_compiled_alike(case), guess))

    return predict


def _repeated_seconds(record: Record, settings: RunSettings) -> float | None:
    """Return the seconds that a case would take again, with the samples requested now; None if unknown."""
    stages = [getattr(record, name) for name in STAGES]
    if None in stages:
        return None
    sample = statistics.median(record.seconds) * (record.calls_per_sample or 1)
    least = settings.sampling.least * settings.sampling.compilations * sample
    return sum(stages[:-1]) + max(stages[-1], least)


def _compiled_alike(case: Case) -> tuple:
    """Return what cases have in common that take about as long to compile."""
    return case.workload, case.target, case.mode, case.batch, case.split, case.api, case.engine, case.chunk
