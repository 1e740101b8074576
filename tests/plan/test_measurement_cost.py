"""Tests of a plan without compilation: its predicted device-hours, its announcement, and its records."""

import dataclasses
from types import SimpleNamespace

import pytest

from scaling.analysis.forecast import forecasts
from scaling.core.timing import Sampling
from scaling.launcher.run_settings import RunSettings
from scaling.launcher.schedule import PreflightResult
from scaling.plan import plan_study
from scaling.results import store
from tests.support import machines
from tests.support.planned import plan, predicted

STAGES = {"trace_seconds": 0.1, "lower_seconds": 0.2, "compile_seconds": 0.5}
SAMPLING = Sampling(width=0.02, least=7, most=200, seconds=1.0, warm_up=0.05, turns=3)


def settings(replicates=1, **sampling):
    return dataclasses.replace(
        RunSettings(), sampling=dataclasses.replace(SAMPLING, **sampling), replicates=replicates
    )


def case(high, devices=1, **fields):
    return dataclasses.replace(
        plan(high / 2, devices), predicted=predicted(high / 2, high=high), **STAGES | fields
    )


def seconds(record, **options):
    return 3600 * plan_study.device_hours([record], settings(**options), "high")


def test_a_short_case_takes_its_stages_and_the_sampling_time():
    assert seconds(case(0.01)) == pytest.approx(2 + 0.01 + 0.8 + 0.05 + 1.0)


def test_a_long_case_takes_the_minimum_number_of_calls():
    # One checked call, one warm-up call, and seven samples.
    assert seconds(case(10.0)) == pytest.approx(2 + 0.8 + 9 * 10.0)
    assert seconds(case(10.0), turns=9) == pytest.approx(2 + 0.8 + 11 * 10.0), "one sample in each turn"


def test_sampling_ends_after_the_maximum_number_of_calls():
    assert seconds(case(0.001), most=100) == pytest.approx(2 + 0.001 + 0.8 + 0.05 + 0.1)
    assert seconds(case(10.0), turns=9, most=8) == pytest.approx(2 + 0.8 + 10 * 10.0)


def test_device_hours_are_summed_over_devices_and_replicates():
    records = [case(0.001), case(10.0, 64), plan(None, 4)]
    for end in ("low", "high"):
        small, large, unknown = (plan_study.device_hours([each], settings(), end) for each in records)
        total = plan_study.device_hours(records, settings(replicates=5), end)
        assert total == pytest.approx(5 * (small + large)) and unknown == 0
    one, many = (plan_study.device_hours([case(0.001, n)], settings(), "low") for n in (1, 64))
    assert many == pytest.approx(64 * one)


def test_without_any_prediction_the_device_hours_are_unknown():
    records = [plan(None, count) for count in (1, 4)]
    study = SimpleNamespace(
        hardware=SimpleNamespace(name="mine"), keys={each.key for each in records}, settings=settings()
    )
    findings = SimpleNamespace(forecasts=forecasts(records, {}))
    *_, last = plan_study.plan_lines(study, findings)
    assert last == "The device-hours to measure the study are unknown: no case has a predicted time."


def test_a_plan_of_one_case_is_announced_in_the_singular():
    study = SimpleNamespace(
        cases=(SimpleNamespace(outcome=None),), done=0, name="mine",
        hardware=SimpleNamespace(title="TPU v5p"), folder="out",
    )  # fmt: skip
    assert plan_study.describe_work(study) == (
        "mine for TPU v5p: 1 case to compile, 0 already done, 0 skipped; results in out"
    )


def test_a_case_that_another_plan_recorded_after_the_preflight_check_is_not_planned_again(tmp_path):
    record = plan(0.01)
    checked = PreflightResult(record.case, ("skipped", "not_defined", "a reason"), None)
    study = plan_study.PlannedStudy(
        "mine", None, machines.machine(), tmp_path, frozenset(), settings(), (checked,), 0, frozenset(),
        {checked.environment_key: record.environment},
    )  # fmt: skip
    events = []
    for _ in range(2):
        plan_study.run_plan(study, events.append)
    assert len(store.load(tmp_path).plans) == len(events) == 1
