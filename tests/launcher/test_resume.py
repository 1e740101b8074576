"""Tests of resuming a study: finished cases do not run again, and failed cases do."""

import dataclasses

import pytest

from scaling.core.case import Case
from scaling.launcher import schedule
from scaling.launcher.machine import Machine
from scaling.launcher.run_settings import RunSettings
from scaling.study.preflight import PreflightResult

MACHINE, SETTINGS = Machine("cpu", None, 2), RunSettings()
CASES = [Case("linear", points=points, sizes={"p": 3, "o": 2}, api="jit") for points in (5, 7, 11)]


def make_plan(records=(), **settings):
    answers = [PreflightResult(case, None, None) for case in CASES]
    return schedule.make_schedule(answers, dataclasses.replace(SETTINGS, **settings), MACHINE, records)


def record_case(make_record, case, status="ok", **fields):
    environment = schedule.planned_environment(
        MACHINE, SETTINGS, PreflightResult(case, None, None).environment_key
    )
    record = make_record(status, environment=environment, **fields)
    return dataclasses.replace(record, case=case, environment=environment)


def scheduled_keys(plan):
    return {item.case.key for job in plan.sessions for item in job}


def test_without_records_every_case_runs():
    assert scheduled_keys(make_plan()) == {case.key for case in CASES} and make_plan().done == 0


def test_a_finished_case_does_not_run_again(make_record):
    plan = make_plan([record_case(make_record, CASES[0])])
    assert scheduled_keys(plan) == {case.key for case in CASES[1:]} and plan.done == 1


def test_a_case_that_was_skipped_permanently_does_not_run_again(make_record):
    assert CASES[0].key not in scheduled_keys(
        make_plan([record_case(make_record, CASES[0], "skipped", reason="too_large")])
    )


@pytest.mark.parametrize("reason", ["killed", "timeout", "wrong_answer"])
def test_a_failed_case_runs_again_as_the_next_attempt(make_record, reason):
    record = record_case(make_record, CASES[0], "failed", reason=reason)
    plan = make_plan([record, record])  # as if its file had been copied within the folder
    attempts = {item.case.key: item.attempt for job in plan.sessions for item in job}
    assert attempts == {CASES[0].key: 2, CASES[1].key: 1, CASES[2].key: 1}


def test_a_finished_replicate_does_not_replace_another(make_record):
    plan = make_plan([record_case(make_record, CASES[0], replicate=1)], replicates=2)
    scheduled = {(item.case.key, item.replicate) for job in plan.sessions for item in job}
    assert (CASES[0].key, 0) in scheduled and (CASES[0].key, 1) not in scheduled


def test_a_record_of_another_environment_is_ignored(make_record):
    record = record_case(make_record, CASES[0])
    other = record.environment | {"digest": "f" * 12}
    assert CASES[0].key in scheduled_keys(make_plan([dataclasses.replace(record, environment=other)]))


@pytest.mark.parametrize(
    ("reason", "is_tried_again"), [("timeout", True), ("out_of_memory", True), ("wrong_answer", False)]
)
def test_a_submitted_case_runs_again_if_its_failure_may_have_had_an_outer_cause(
    make_record, reason, is_tried_again
):
    record = record_case(make_record, CASES[0], "failed", reason=reason)
    assert (CASES[0].key in scheduled_keys(make_plan([record], attempts=2))) == is_tried_again
    assert CASES[0].key not in scheduled_keys(make_plan([record], attempts=1))
