"""Tests of scores: ratios of predicted to measured times of the same case on the same kind of device, of made-up records."""

import dataclasses
import math

import pytest

from scaling.analysis import answers, forecast
from scaling.analysis.timings import pool_processes
from tests.support.planned import plan
from tests.support.records import only, record

MODES = ("jacfwd", "jacrev", "linearize", "analytic")


def measured(seconds, devices=1, kind="A processor", **fields):
    row = record(devices, seconds, **fields)
    return dataclasses.replace(row, environment=row.environment | {"device_kind": kind})


def plan_scores(plans, records):
    return forecast.plan_scores(plans, pool_processes(records))


def score_of(plans, records):
    return only(plan_scores(plans, records))


def by_mode(make, seconds, **fields):
    """Return a plan or a record of each of some modes with these seconds."""
    return [make(s, mode=mode, **fields) for mode, s in zip(MODES, seconds, strict=False)]


def test_ratio_is_the_predicted_over_the_measured_time():
    result = score_of(by_mode(plan, (2.0, 3.0, 1.0)), by_mode(measured, (1.0, 4.0, 1.0)))
    assert result.hardware == "mine"
    assert sorted(result.ratios) == [0.75, 1.0, 2.0] and result.error == 0.25
    assert "the median prediction is 1.00x what was measured" in answers.describe_score(result)


def test_worst_ratio_is_the_one_farthest_from_one_as_a_factor():
    for ratios, worst in (((0.5, 1.9), "0.50x"), ((0.4, 2.0), "0.40x"), ((0.9, 3.0), "3.00x")):
        result = score_of(by_mode(plan, ratios), by_mode(measured, (1.0, 1.0)))
        assert f"the worst ratio {worst}, " in answers.describe_score(result)


def test_coverage_counts_measured_times_within_the_predicted_interval():
    plans = by_mode(plan, (1.5,) * 4, low=1.0, high=2.0)
    assert score_of(plans, by_mode(measured, (0.9, 1.0, 2.0, 2.1))).coverage == 0.5


def test_times_below_ten_empty_calls_are_omitted():
    plans = by_mode(plan, (1.0, 1.0))
    assert score_of(plans, by_mode(measured, (0.99, 1.0), floor_seconds=0.1)).ratios == [1.0]
    assert plan_scores(plans[:1], [measured(0.99, floor_seconds=0.1)]) == []


def test_plans_match_only_the_same_case_and_device_kind_without_shared_cores():
    assert plan_scores([plan(1.0)], [measured(1.0, kind="Another")]) == []
    assert plan_scores([plan(1.0)], [measured(1.0, points=24)]) == []
    assert plan_scores([plan(1.0)], [measured(1.0, cores=[0, 1])]) == []
    assert plan_scores([plan(None)], [measured(1.0)]) == [], "it was not predicted"
    assert score_of([plan(1.0)], [measured(1.0)]).ratios == [1.0]


def test_each_hardware_has_its_own_scores():
    plans = [plan(1.0, hardware="one"), plan(3.0, hardware="two", kind="Another")]
    scores = plan_scores(plans, [measured(1.0), measured(1.5, kind="Another", digest="two")])
    assert {result.hardware: result.ratios for result in scores} == {"one": [1.0], "two": [2.0]}


@pytest.mark.parametrize("reverse", [False, True])
def test_latest_plan_of_a_case_is_scored(reverse):
    plans = [plan(5.0, setting="old"), plan(2.0, setting="new", started="2026-02-01T00:00:00Z")]
    result = score_of(plans[::-1] if reverse else plans, [measured(1.0)])
    assert result.ratios == [2.0]


def test_measured_time_is_the_median_over_processes():
    records = [measured(seconds, replicate=k) for k, seconds in enumerate((1.0, 4.0, 2.0))]
    result = score_of([plan(1.0)], records)
    assert result.ratios == [0.5] and math.isclose(result.error, 0.5)
