"""Packing: which cases share a task, so that each task fills a part of its time, as long as earlier records say that they take.

Knows items and records; not a scheduler. What is compared (cases of one problem) is never torn apart.
"""

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from scaling.core.case import Case
from scaling.core.record import Record
from scaling.plan import cost
from scaling.workers.machine import Machine, ProcessShape
from scaling.workers.schedule import Schedule, ScheduledCase, group_by_problem, process_shape
from scaling.workers.settings import RunSettings

_START_SECONDS = 5.0  # for workers of a job to start, where there is nothing to learn it from
_UNKNOWN_SECONDS = 5.0  # for a case to be built, compiled and checked, likewise
_STAGES = (
    "trace_seconds",
    "lower_seconds",
    "compile_seconds",
    "first_seconds",
    "check_seconds",
    "sampling_seconds",
)


@dataclass(frozen=True)
class PackedTask:
    """Jobs that a task runs one after another, the shape that they need, and how long they will take."""

    shape: ProcessShape
    jobs: tuple[tuple[ScheduledCase, ...], ...]
    seconds: float
    foreseen: bool = False  # a plan says how long each of its cases takes, and none was tried before

    @property
    def items(self) -> list[ScheduledCase]:
        """All of its cases."""
        return [item for job in self.jobs for item in job]


def tasks(
    made: Schedule,
    settings: RunSettings,
    records: Sequence[Record],
    budget: float,
    planned: Sequence[Record] = (),
) -> list[PackedTask]:
    """The jobs of a plan as tasks of one shape each, none longer than the budget (seconds) unless a single problem is.

    planned: what `scaling plan` has said of these cases.
    """
    predict = predictor(records, settings, foreseen(planned, made.machine, settings))
    by_shape: dict[ProcessShape, list[list[ScheduledCase]]] = defaultdict(list)
    for job in made.jobs:
        by_shape[process_shape(job[0].case, made.machine, settings)] += group_by_problem(job)
    made_of = [task for shape, groups in by_shape.items() for task in _filled(shape, groups, predict, budget)]
    return [_marked(task, foreseen(planned, made.machine, settings)) for task in made_of]


def nested(
    made: Schedule,
    settings: RunSettings,
    records: Sequence[Record],
    budget: float,
    planned: Sequence[Record] = (),
) -> list[PackedTask]:
    """The same as tasks of one shape that holds all others: each runs whole curves, in all replicates."""
    predict = predictor(records, settings, foreseen(planned, made.machine, settings))
    shapes = [process_shape(job[0].case, made.machine, settings) for job in made.jobs]
    nodes, each = max(shape.nodes for shape in shapes), max(shape.devices // shape.nodes for shape in shapes)
    largest = ProcessShape(nodes * each, nodes, nodes)  # in which every step finds room
    together: dict[tuple, list[ScheduledCase]] = defaultdict(list)
    for item in (item for job in made.jobs for item in job):
        together[_curve(item.case)].append(item)
    filled = _filled(largest, list(together.values()), predict, budget)
    blocks = [dataclasses.replace(task, jobs=_blocks(task.items, made)) for task in filled]
    return [_marked(task, foreseen(planned, made.machine, settings)) for task in blocks]


def _marked(task: PackedTask, known: Mapping[str, float]) -> PackedTask:
    """The task, foreseen if all of its cases are and none was tried before."""
    return dataclasses.replace(
        task, foreseen=all(item.case.key in known and item.attempt == 1 for item in task.items)
    )


def foreseen(planned: Iterable[Record], machine: Machine, settings: RunSettings) -> dict[str, float]:
    """How long each case takes that was planned for the devices of this machine, by its key; for its platform if these are
    not known. Of several, the longest."""
    took: dict[str, float] = {}
    for record in planned:
        same = record.environment["device_kind"] == machine.device_kind if machine.device_kind else True
        if (
            same
            and record.environment["platform"] == machine.platform
            and (long := cost.seconds(record, settings)) is not None
        ):
            took[record.key] = max(long, took.get(record.key, 0.0))
    return took


def _curve(case: Case) -> tuple:
    """What stays the same along a curve: the problem, or the points of a device where these are the same (weak scaling)."""
    return (
        case.workload,
        case.target,
        case.variant,
        tuple(case.sizes.items()),
        case.wrt,
        case.dtype,
        case.precision,
    )


def _blocks(items: Iterable[ScheduledCase], made: Schedule) -> tuple[tuple[ScheduledCase, ...], ...]:
    """Items by the jobs of the plan that they are from, in its order: replicate after replicate, shapes shuffled in each."""
    mine = set(map(id, items))
    jobs = [tuple(item for item in job if id(item) in mine) for job in made.jobs]
    return tuple(job for job in jobs if job)


def _filled(
    shape: ProcessShape,
    groups: Iterable[list[ScheduledCase]],
    predict: Callable[[Case], float],
    budget: float,
) -> list[PackedTask]:
    """Groups in their order, as many to a task as fit its time; a job ends where what a process has in common ends."""
    made: list[PackedTask] = []
    jobs: list[list[ScheduledCase]] = []
    total = 0.0
    for group in groups:
        long = sum(predict(item.case) for item in group)
        fresh = not jobs or jobs[-1][0].process != group[0].process
        if jobs and total + long + _START_SECONDS * fresh > budget:
            made.append(PackedTask(shape, tuple(map(tuple, jobs)), total))
            jobs, total, fresh = [], 0.0, True
        if fresh:
            jobs.append([])
        jobs[-1] += group
        total += long + _START_SECONDS * fresh
    return [*made, PackedTask(shape, tuple(map(tuple, jobs)), total)] if jobs else made


def predictor(
    records: Sequence[Record], settings: RunSettings, planned: Mapping[str, float] | None = None
) -> Callable[[Case], float]:
    """A function from a case to the seconds that it will take: those that it took, or was planned to take, or another like it
    took at most, or a guess."""
    exact: dict[str, list[float]] = defaultdict(list)
    alike: dict[tuple, list[float]] = defaultdict(list)
    for record in records:
        if record.status == "ok" and (took := _seconds_of(record, settings)) is not None:
            exact[record.key].append(took)
            alike[_likeness(record.case)].append(took)
    guess = (
        _UNKNOWN_SECONDS + settings.sampling.warm_up + settings.sampling.seconds
    ) * settings.sampling.compilations
    timed_out = {record.key for record in records if record.reason == "timeout"}

    def seconds(case: Case) -> float:
        if case.key in exact:
            return statistics.median(exact[case.key])
        if case.key in timed_out:  # all that it may take before it is stopped
            return settings.case_seconds
        if planned and case.key in planned:
            return planned[case.key]
        like = alike.get(_likeness(case))
        return max(like) if like else guess

    return seconds


def _seconds_of(record: Record, settings: RunSettings) -> float | None:
    """Return the seconds that a case would take again, with as many samples as are asked for now; None if not all are known."""
    stages = [getattr(record, name) for name in _STAGES]
    if None in stages:
        return None
    *fixed, sampling = stages
    sample = statistics.median(record.seconds) * (record.calls_per_sample or 1)
    return sum(fixed) + max(sampling, settings.sampling.least * settings.sampling.compilations * sample)


def _likeness(case: Case) -> tuple:
    """Cases that differ in sizes, points and devices alone are compiled alike."""
    return case.workload, case.target, case.mode, case.batch, case.split, case.api, case.engine, case.chunk


def as_one(several: Sequence[PackedTask]) -> list[PackedTask]:
    """All of them as one task, where nothing may run beside another."""
    largest = max((task.shape for task in several), key=lambda shape: shape.devices)
    jobs, seconds = tuple(job for task in several for job in task.jobs), sum(task.seconds for task in several)
    return [PackedTask(largest, jobs, seconds)]
