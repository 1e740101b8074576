"""Scores: how far predictions were from measurements of the same case on the same kind of device, of made-up records."""

import dataclasses
import math

import pytest

from scaling.analysis import curves, score
from tests.support.planned import case_of, plan
from tests.support.records import record


def measured(seconds, devices=1, kind="A processor", **fields):
    """A case that took so long."""
    made = record(devices, seconds, **fields)
    return dataclasses.replace(made, environment=made.environment | {"device_kind": kind})


def plan_scores(plans, records):
    return score.plan_scores(plans, curves.pool_processes(records))


def only(found):
    (one,) = found
    return one


def test_a_ratio_is_what_was_predicted_over_what_was_measured():
    plans = [plan(2.0), plan(3.0, mode="jacrev"), plan(1.0, mode="linearize")]
    found = only(
        plan_scores(plans, [measured(1.0), measured(4.0, mode="jacrev"), measured(1.0, mode="linearize")])
    )
    assert found.hardware == "mine"
    assert found.total.ratios == [0.75, 1.0, 2.0]
    assert (found.total.median_ratio, found.total.error, found.total.worst) == (1.0, 0.25, 2.0)


@pytest.mark.parametrize(("ratios", "worst"), [((0.5, 1.9), 0.5), ((0.4, 2.0), 0.4), ((0.9, 3.0), 3.0)])
def test_the_worst_ratio_is_that_of_the_largest_factor(ratios, worst):
    plans = [plan(ratio, mode=mode) for ratio, mode in zip(ratios, ("jacfwd", "jacrev"), strict=True)]
    found = only(plan_scores(plans, [measured(1.0), measured(1.0, mode="jacrev")]))
    assert found.total.worst == worst


def test_what_lies_in_the_predicted_interval_was_held():
    seconds = {"jacfwd": 0.9, "jacrev": 1.0, "linearize": 2.0, "analytic": 2.1}
    plans = [plan(1.5, low=1.0, high=2.0, mode=mode) for mode in seconds]
    found = only(plan_scores(plans, [measured(took, mode=mode) for mode, took in seconds.items()]))
    assert found.total.coverage == 0.5
    assert {part.method.mode: part.coverage for part in found.parts} == {
        "jacfwd": 0,
        "jacrev": 1,
        "linearize": 1,
        "analytic": 0,
    }


def test_parts_are_those_of_a_workload_and_a_mode():
    plans = [plan(1.0, points=points, mode=mode) for points in (12, 24) for mode in ("jacfwd", "jacrev")]
    records = [measured(float(p), points=p, mode=mode) for p in (12, 24) for mode in ("jacfwd", "jacrev")]
    rbf = {"workload": "rbf", "target": "grad_map", "sizes": {"m": 9}, "wrt": "x"}
    found = only(plan_scores([*plans, plan(1.0, **rbf)], [*records, measured(1.0, **rbf)]))
    assert [(part.workload, part.method.mode, len(part.pairs)) for part in found.parts] == [
        ("linear", "jacfwd", 2), ("linear", "jacrev", 2), ("rbf", "jacfwd", 1)
    ]  # fmt: skip
    assert len(found.total.pairs) == 5 and found.total.workload is None and found.total.method is None


def test_an_order_is_right_where_the_slower_was_predicted_to_be_slower():
    took = {"jacfwd": 1.0, "jacrev": 3.0, "linearize": 9.0}
    for predictions, ordered in (
        ((1.0, 2.0, 3.0), 3),
        ((2.0, 1.0, 3.0), 2),
        ((3.0, 2.0, 1.0), 0),
        ((1.0, 1.0, 2.0), 2),
    ):
        plans = [plan(seconds, mode=mode) for mode, seconds in zip(took, predictions, strict=True)]
        found = only(plan_scores(plans, [measured(seconds, mode=mode) for mode, seconds in took.items()]))
        assert (found.ordered, found.comparable) == (ordered, 3)


def test_the_order_of_two_that_are_near_or_of_other_problems_is_not_asked_after():
    near = only(
        plan_scores([plan(1.0), plan(2.0, mode="jacrev")], [measured(2.0), measured(1.0, mode="jacrev")])
    )
    assert (near.ordered, near.comparable) == (0, 0)
    for other in ({"points": 24}, {"devices": 2}, {"dtype": "float64"}):
        plans = [plan(1.0), plan(2.0, mode="jacrev", **other)]
        found = only(plan_scores(plans, [measured(9.0), measured(1.0, mode="jacrev", **other)]))
        assert len(found.total.pairs) == 2 and found.comparable == 0


def test_the_order_of_two_that_were_measured_in_other_environments_is_not_asked_after():
    found = only(
        plan_scores(
            [plan(1.0), plan(2.0, mode="jacrev")], [measured(9.0), measured(1.0, mode="jacrev", digest="two")]
        )
    )
    assert len(found.total.pairs) == 2 and found.comparable == 0


def test_what_is_under_ten_empty_calls_is_left_out():
    plans = [plan(1.0), plan(1.0, mode="jacrev")]
    found = only(
        plan_scores(
            plans, [measured(0.99, floor_seconds=0.1), measured(1.0, mode="jacrev", floor_seconds=0.1)]
        )
    )
    assert [pair.timing.case.mode for pair in found.total.pairs] == ["jacrev"]
    assert plan_scores(plans[:1], [measured(0.99, floor_seconds=0.1)]) == []


def test_another_kind_of_device_another_case_and_shared_cores_are_no_match():
    assert plan_scores([plan(1.0)], [measured(1.0, kind="Another")]) == []
    assert plan_scores([plan(1.0)], [measured(1.0, points=24)]) == []
    assert plan_scores([plan(1.0)], [measured(1.0, cores=[0, 1])]) == []
    assert plan_scores([plan(None)], [measured(1.0)]) == [], "it was not predicted"
    assert only(plan_scores([plan(1.0)], [measured(1.0)])).total.ratios == [1.0]


def test_every_hardware_has_scores_of_its_own():
    plans = [plan(1.0, hardware="one"), plan(3.0, hardware="two", kind="Another")]
    found = plan_scores(plans, [measured(1.0), measured(1.5, kind="Another", digest="two")])
    assert {one.hardware: one.total.ratios for one in found} == {"one": [1.0], "two": [2.0]}


@pytest.mark.parametrize("turned", [False, True])
def test_of_two_plans_of_a_case_the_later_counts(turned):
    plans = [plan(5.0, setting="old"), plan(2.0, setting="new", started="2026-02-01T00:00:00Z")]
    found = only(plan_scores(plans[::-1] if turned else plans, [measured(1.0)]))
    assert found.total.ratios == [2.0]


def test_a_ratio_is_of_the_median_of_all_processes():
    records = [measured(seconds, replicate=k) for k, seconds in enumerate((1.0, 4.0, 2.0))]
    found = only(plan_scores([plan(1.0)], records))
    assert found.total.ratios == [0.5] and math.isclose(found.total.error, 0.5)
    assert found.total.pairs[0].timing.case == case_of()
