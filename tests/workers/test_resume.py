"""Resuming: what is done does not run again, and what failed does."""

import dataclasses

import pytest

from scaling.core.case import Case
from scaling.study.preflight import PreflightResult
from scaling.workers import schedule
from scaling.workers.machine import Machine
from scaling.workers.run_settings import RunSettings

MACHINE, SETTINGS = Machine("cpu", None, 2), RunSettings()
CASES = [Case("linear", points=points, sizes={"p": 3, "o": 2}, api="jit") for points in (5, 7, 11)]


def plan(records=(), **settings):
    answers = [PreflightResult(case, None, None) for case in CASES]
    return schedule.make_schedule(answers, dataclasses.replace(SETTINGS, **settings), MACHINE, records)


def record_of(make_record, case, status="ok", **fields):
    around = schedule.planned_environment(
        MACHINE, SETTINGS, PreflightResult(case, None, None).environment_key
    )
    made = make_record(status, environment=around, **fields)
    return dataclasses.replace(made, case=case, environment=around)


def keys(made):
    return {item.case.key for job in made.sessions for item in job}


def test_without_records_every_case_runs():
    assert keys(plan()) == {case.key for case in CASES} and plan().done == 0


def test_a_case_that_is_done_does_not_run_again(make_record):
    made = plan([record_of(make_record, CASES[0])])
    assert keys(made) == {case.key for case in CASES[1:]} and made.done == 1


def test_a_case_that_was_skipped_for_good_does_not_run_again(make_record):
    assert CASES[0].key not in keys(plan([record_of(make_record, CASES[0], "skipped", reason="too_large")]))


@pytest.mark.parametrize("reason", ["killed", "timeout", "wrong_answer"])
def test_a_case_that_failed_runs_again_as_the_next_attempt(make_record, reason):
    made = plan([record_of(make_record, CASES[0], "failed", reason=reason)])
    attempts = {item.case.key: item.attempt for job in made.sessions for item in job}
    assert attempts == {CASES[0].key: 2, CASES[1].key: 1, CASES[2].key: 1}


def test_a_replicate_that_is_done_does_not_stand_for_another(make_record):
    made = plan([record_of(make_record, CASES[0], replicate=1)], replicates=2)
    places = {(item.case.key, item.replicate) for job in made.sessions for item in job}
    assert (CASES[0].key, 0) in places and (CASES[0].key, 1) not in places


def test_a_record_of_another_environment_does_not_count(make_record):
    record = record_of(make_record, CASES[0])
    other = record.environment | {"digest": "f" * 12}
    assert CASES[0].key in keys(plan([dataclasses.replace(record, environment=other)]))
