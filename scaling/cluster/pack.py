"""Predict the run times of cases, and pack cases into tasks (one task per job) that fit a time limit."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from scaling.core.case import Case
from scaling.core.grouping import group_by
from scaling.core.record import STAGES, Record
from scaling.launcher.machine import ProcessShape
from scaling.launcher.run_settings import RunSettings
from scaling.launcher.schedule import Schedule, ScheduledCase, group_by_problem, process_shape

_START_SECONDS = 5.0  # time to start the workers of a group
_BUILD_SECONDS = 5.0  # default time to build, compile, and check a case
Groups = dict[ProcessShape, list[list[ScheduledCase]]]  # shape of a task -> groups of cases


@dataclass(frozen=True)
class PackedTask:
    """A task: the cases that one job runs one after another, and their total predicted run time."""

    shape: ProcessShape
    scheduled_cases: Sequence[ScheduledCase]
    seconds: float  # predicted run time


def pack(
    schedule: Schedule, settings: RunSettings, records: Sequence[Record], budget: float, nested: bool = False
) -> list[PackedTask]:
    """Pack the cases of a schedule into tasks, and return the tasks. Each task runs in one job.

    A task contains one group of cases, or several groups that take at most `budget` seconds together. Run
    times are predicted from `records`.

    If `nested` is true, a group contains all cases of one function, on any number of devices. Otherwise, a
    group contains the cases of one problem (function, inputs, derivative). All cases of a task then have the
    same numbers of devices, nodes and processes.
    """
    predict = make_predictor(records, settings)
    groups = (_group_by_function if nested else _group_by_shape)(schedule, settings)
    return [task for shape in groups for task in _fill_tasks(shape, groups[shape], predict, budget)]


def _group_by_shape(schedule: Schedule, settings: RunSettings) -> Groups:
    groups: Groups = defaultdict(list)
    for session in schedule.sessions:
        groups[process_shape(session[0].case, schedule.machine, settings)] += group_by_problem(session)
    return groups


def _group_by_function(schedule: Schedule, settings: RunSettings) -> Groups:
    """Return {shape: groups}: one group of cases for each function, and one shape that fits all cases."""

    def function_key(scheduled: ScheduledCase) -> tuple:
        case = scheduled.case
        sizes = tuple(case.sizes.items())  # without the number of points, which grows under weak scaling
        return case.workload, case.target, case.variant, sizes, case.wrt, case.dtype, case.precision

    shapes = [process_shape(session[0].case, schedule.machine, settings) for session in schedule.sessions]
    nodes = max(shape.nodes for shape in shapes)
    per_node = max(shape.devices // shape.nodes for shape in shapes)
    items = [scheduled for session in schedule.sessions for scheduled in session]
    return {ProcessShape(nodes * per_node, nodes, nodes): list(group_by(items, function_key).values())}


def _fill_tasks(
    shape: ProcessShape,
    groups: Iterable[Sequence[ScheduledCase]],
    predict: Callable[[Case], float],
    budget: float,
) -> Iterator[PackedTask]:
    """Combine consecutive groups of cases into tasks of at most `budget` seconds, and yield the tasks.

    A group that takes longer than `budget` is a task of its own. `predict` returns the run time of a case in
    seconds.
    """
    cases, seconds = list[ScheduledCase](), 0.0
    for group in groups:
        group_seconds = _START_SECONDS + sum(predict(scheduled.case) for scheduled in group)
        if cases and seconds + group_seconds > budget:
            yield PackedTask(shape, cases, seconds)
            cases, seconds = [], 0.0
        cases += group
        seconds += group_seconds
    if cases:
        yield PackedTask(shape, cases, seconds)


def make_predictor(records: Sequence[Record], settings: RunSettings) -> Callable[[Case], float]:
    """Return a function that predicts the run time of a case in seconds, based on earlier records.

    The prediction is the first of these values that is available:
    - the median over the "ok" records of the case
    - `settings.case_seconds`, if the case timed out
    - the maximum over the "ok" records of similar cases
    - a default that depends on the sampling settings
    """
    sampling = settings.sampling
    default = _BUILD_SECONDS + sampling.warm_up + sampling.seconds
    measured: dict[str, list[float]] = defaultdict(list)
    similar: dict[tuple, list[float]] = defaultdict(list)
    for record in records:
        stages = [getattr(record, name) for name in STAGES]
        if record.status == "ok" and None not in stages:
            sample_seconds = statistics.median(record.seconds) * (record.calls_per_sample or 1)
            sampling_seconds = max(stages[-1], sampling.least * sample_seconds)
            for run_times in (measured[record.key], similar[_similarity_key(record.case)]):
                run_times.append(sum(stages[:-1]) + sampling_seconds)
    timed_out = {record.key for record in records if record.reason == "timeout"}

    def predict(case: Case) -> float:
        if case.key in measured:
            return statistics.median(measured[case.key])
        if case.key in timed_out:
            return settings.case_seconds
        return max(similar.get(_similarity_key(case), [default]))

    return predict


def _similarity_key(case: Case) -> tuple:
    return case.workload, case.target, case.mode, case.batch, case.split, case.api, case.engine, case.chunk
