"""Tests of packing cases into tasks: each case once, tasks within the time budget, comparable cases in the same task."""

import dataclasses
import random
from collections import Counter

import pytest

from scaling.cluster import pack
from scaling.core.case import Case, Refusal, problem_fields
from scaling.core.record import STAGES
from scaling.core.timing import Sampling
from scaling.launcher import schedule
from scaling.launcher.machine import ONE_PER_DEVICE, Machine, ProcessShape
from scaling.launcher.run_settings import RunSettings
from scaling.launcher.schedule import PreflightResult

NODES = Machine("cpu", None, 4, nodes=4, name="of partition main", remote=True)


@pytest.fixture
def make_plan():
    """Make a schedule of cases that differ in workload, mode, size, device count, dtype and engine, and its settings."""

    def make(replicates=1, machine=NODES):
        cases = [
            Case(workload, points=48 * n, mode=mode, devices=devices, dtype=dtype, engine=engine)
            for workload in ("rbf", "poisson")
            for n in (1, 2, 3)
            for mode in ("jacfwd", "jacrev", "linearize")
            for devices in (1, 2, 8)
            for dtype, engine in (("float32", "jax"), ("float64", "jax"), ("float32", "autograd"))
            if engine == "jax" or devices == 1
        ]
        settings = RunSettings(replicates=replicates, attempts=3)
        results = [PreflightResult(case, None, None) for case in cases]
        return schedule.make_schedule(results, settings, machine, []), settings

    return make


def count_items(tasks):
    return Counter(item.replicate_key for task in tasks for item in task.scheduled_cases)


@pytest.mark.parametrize("budget", [0.0, 20.0, 100.0, 1e9])
@pytest.mark.parametrize("nested", [False, True])
def test_every_case_is_in_exactly_one_task_for_any_budget(make_plan, nested, budget):
    plan, settings = make_plan(replicates=3)
    tasks = pack.pack(plan, settings, [], budget, nested=nested)
    assert count_items(tasks) == {item.replicate_key: 1 for job in plan.sessions for item in job}


@pytest.mark.parametrize("budget", [0.0, 20.0, 100.0, 1e9])
def test_a_task_has_one_shape_fits_its_budget_and_does_not_split_a_problem(make_plan, budget):
    plan, settings = make_plan()
    tasks = pack.pack(plan, settings, [], budget)
    for task in tasks:
        shapes = {schedule.process_shape(item.case, NODES, settings) for item in task.scheduled_cases}
        assert shapes == {task.shape}
        problems = {(problem_fields(item.case), item.case.engine) for item in task.scheduled_cases}
        assert task.seconds <= budget or len(problems) == 1
    counts = Counter(
        (problem_fields(i.case), i.case.engine, i.case.devices)
        for t in tasks
        for i in {id(i): i for i in t.scheduled_cases}.values()
    )
    assert all(
        sum((problem_fields(i.case), i.case.engine, i.case.devices) == key for i in task.scheduled_cases) in (0, count)
        for key, count in counts.items() for task in tasks
    )  # fmt: skip
    if budget == 1e9:
        assert len(tasks) == len({task.shape for task in tasks})


def test_each_session_of_a_task_contains_cases_of_one_process(make_plan):
    plan, settings = make_plan(replicates=2)
    for task in pack.pack(plan, settings, [], 100.0):
        for job in schedule.group_by_process(task.scheduled_cases):
            kinds = {(i.replicate, i.case.engine, i.case.devices, i.case.dtype == "float64") for i in job}
            assert len(kinds) == 1


def test_nested_tasks_contain_complete_curves_in_every_block(make_plan):
    plan, settings = make_plan(replicates=3)
    tasks = pack.pack(plan, settings, [], 200.0, nested=True)
    assert len(tasks) > 1 and {task.shape for task in tasks} == {ProcessShape(8, 2, 2)}
    for task in tasks:
        keys = {dataclasses.replace(item.case, devices=1).key for item in task.scheduled_cases}
        every = (item for session in plan.sessions for item in session)
        expected = {i.replicate_key for i in every if dataclasses.replace(i.case, devices=1).key in keys}
        assert expected == {item.replicate_key for item in task.scheduled_cases}
        blocks = [job[0].replicate for job in schedule.group_by_process(task.scheduled_cases)]
        assert blocks == sorted(blocks)


def test_a_prediction_is_the_recorded_or_scaled_time_or_an_estimate(make_record):
    records = [
        make_record(points=n, seconds=(1e-3,) * 3, **dict.fromkeys(STAGES, n / 6)) for n in (6, 12, 60)
    ]
    predict = pack.make_predictor(records, RunSettings(Sampling(seconds=3.0)))
    assert predict(records[1].case) == pytest.approx(12)
    assert predict(dataclasses.replace(records[1].case, points=24)) == pytest.approx(60)
    assert predict(dataclasses.replace(records[1].case, mode="jacrev")) > 3.0


@pytest.mark.parametrize(
    ("devices", "processes", "shape"),
    [(1, None, (1, 1, 1)), (4, None, (4, 1, 1)), (8, None, (8, 2, 2)), (6, None, (6, 2, 2)), (9, None, (9, 3, 3)),
     (8, ONE_PER_DEVICE, (8, 2, 8)), (8, 4, (8, 2, 4)), (1, 4, (1, 1, 1)), (5, None, (5, 5, 5))],
)  # fmt: skip
def test_devices_use_as_few_nodes_as_possible(devices, processes, shape):
    assert NODES.shape(devices, processes) == ProcessShape(*shape)


@pytest.mark.parametrize(
    ("devices", "processes", "message"),
    [
        (32, None, "devices=32 exceed the 16 cores (4 nodes of 4) of partition main: use devices=[1]"),
        (5, None, "devices=5 do not divide evenly over 4 nodes of 4 of partition main: use devices=[1]"),
        (8, 1, "devices=8 do not divide evenly over processes=1 on 2 nodes"),
        (6, 4, "devices=6 do not divide evenly over processes=4 on 2 nodes"),
    ],
)
def test_devices_or_processes_that_a_cluster_cannot_provide_are_rejected(devices, processes, message):
    with pytest.raises(Refusal) as refusal:
        NODES.check_device_counts([1, devices], processes, oversubscribe=True)
    assert message in str(refusal.value)


def test_thousands_of_random_cases_are_each_packed_once():
    rng = random.Random(1)
    cases = {
        Case(rng.choice(["rbf", "linear"]), points=16 * rng.randint(1, 99), mode=rng.choice(["jacfwd", "jacrev"]),
             devices=rng.choice([1, 2, 4, 8, 16]), dtype=rng.choice(["float32", "float64"]))
        for _ in range(4000)
    }  # fmt: skip
    settings = RunSettings(attempts=3)
    plan = schedule.make_schedule([PreflightResult(case, None, None) for case in cases], settings, NODES, [])
    tasks = pack.pack(plan, settings, [], 900.0)
    assert count_items(tasks) == {(case.key, 0): 1 for case in cases}
    assert len(tasks) <= 2 * sum(task.seconds for task in tasks) / 900 + len({task.shape for task in tasks})


@pytest.mark.parametrize(
    ("counts", "shape"),
    [((4, 6), ProcessShape(8, 2, 2)), ((1, 8), ProcessShape(8, 2, 2)), ((10, 12), ProcessShape(20, 5, 5))],
)
def test_a_nested_task_has_enough_nodes_for_each_step(counts, shape):
    """Four devices on one node and six on two need two nodes of four: the largest count alone is not enough."""
    machine = dataclasses.replace(NODES, nodes=8)
    answers = [PreflightResult(Case("rbf", points=120, devices=count), None, None) for count in counts]
    settings = RunSettings(replicates=3, attempts=3)
    plan = schedule.make_schedule(answers, settings, machine, [])
    (task,) = pack.pack(plan, settings, [], 1e9, nested=True)
    assert task.shape == shape


def test_a_prediction_covers_the_number_of_samples_requested_now(make_record):
    record = make_record(points=6, seconds=(2.0,) * 7, calls_per_sample=1, **dict.fromkeys(STAGES, 14.0))
    assert pack.make_predictor([record], RunSettings(Sampling(least=7)))(record.case) == pytest.approx(84)
    assert pack.make_predictor([record], RunSettings(Sampling(least=100)))(record.case) == pytest.approx(
        70 + 200
    )


def test_a_case_that_timed_out_is_predicted_to_take_the_full_time_limit(make_record):
    failed = make_record("failed", points=6, reason="timeout", text="its job came to its time limit")
    settings = RunSettings(case_seconds=900.0)
    assert pack.make_predictor([failed], settings)(failed.case) == 900.0
    assert pack.make_predictor([failed], settings)(dataclasses.replace(failed.case, points=12)) < 900.0
