"""Tests of curves.py: curves, speed-ups, weak scaling and fastest methods, of records with known results."""

import dataclasses
import math
import re
import statistics
from dataclasses import replace

import pytest

from scaling.analysis import curves
from scaling.analysis.cases import MEMORY_FIELDS, Subject, method_of
from scaling.analysis.ranking import fastest_methods
from scaling.analysis.timings import pool_processes
from scaling.core.case import Case
from tests.support.records import (
    STEADY,
    curves_of,
    only,
    processes,
    rank,
    record,
    weak,
    weak_refusals,
)


def test_halving_times_give_ideal_speedups_and_efficiency_1():
    curve = only(curves_of([record(4, 2.0), record(1, 8.0), record(2, 4.0)]))
    assert [p.devices for p in curve.points] == [1, 2, 4]
    assert [p.speedup.value for p in curve.points] == [1, 2, 4]
    assert [(p.efficiency.value, p.efficiency.low, p.efficiency.high) for p in curve.points] == [
        (1, 1, 1)
    ] * 3
    assert curve.case.devices == 1 and curve.kind == "strong" and "devices" not in curve.name
    assert "points=12 wrt" in curve.name


def test_interval_of_a_speedup_lies_within_the_range_of_sample_ratios():
    one_device, two_devices = [13.0, 10.0, 16.0, 12.0, 14.0, 11.0, 15.0], [6.5, 8.0, 5.0, 7.0, 6.0, 7.5, 5.5]
    plain = record(1, [2 * seconds for seconds in one_device], api="jit")
    point = next(
        curve
        for curve in curves_of([record(1, one_device), record(2, two_devices), plain])
        if len(curve.points) == 2
    ).points[1]
    assert point.speedup.value == 13 / 6.5 and 10 / 8 < point.speedup.low < 1.9
    assert 2.1 < point.speedup.high < 16 / 5
    assert (point.efficiency.low, point.efficiency.high) == (point.speedup.low / 2, point.speedup.high / 2)
    expected = (2 * 13 / 6.5, pytest.approx(2 * point.speedup.low))
    assert (point.against_jit.value, point.against_jit.low) == expected
    assert point.timing.estimate[1:] == (5.0, 8.0)


def test_too_few_samples_give_a_speedup_without_an_interval():
    point = only(curves_of([record(1, 8.0, samples=3), record(2, 4.0, samples=3)])).points[1]
    assert (point.speedup.value, point.speedup.low, point.timing.estimate.low) == (2, None, None)
    assert len(point.timing.seconds) == 3


def test_speedup_baseline_is_the_smallest_measured_device_count():
    result = curves_of([record(2, 4.0), record(4, 2.0), record(8, 2.0), record(1, 8.0, api="pmap")])
    by_api = {curve.case.api: curve for curve in result}
    points = by_api["shard_map"].points
    assert [
        (p.devices, p.speedup.value, p.devices / p.baseline_devices, p.efficiency.value) for p in points
    ] == [(2, 1, 1, 1), (4, 2, 2, 1), (8, 2, 4, 0.5)]
    assert {p.baseline_devices for p in points} == {2}
    assert by_api["shard_map"].points[0].relative == " relative to 2 devices"
    assert by_api["pmap"].points[0].baseline_devices == 1 and by_api["pmap"].points[0].relative == ""


def test_scaled_speedup_of_a_weak_curve_from_two_devices_is_relative_to_two():
    curve = only(curves_of(weak()[1:], ("weak",)))
    expected = [(2, 1, 1), (4, 1.25, 0.625)]
    assert [(p.devices, p.speedup.value, p.efficiency.value) for p in curve.points] == expected
    assert curve.size.endswith("points=6 for each device")


def test_speedup_is_also_computed_against_the_best_jit_program_on_one_device():
    plain = [
        record(1, 6.0, api="jit", mode="jacrev"),
        record(1, 9.0, api="jit"),
        record(1, 0.1, api="jit", mode="analytic"),
    ]
    other_problems = [record(1, 0.2, api="jit", points=13), record(1, 0.3, api="jit", digest="two")]
    result = curves_of([record(1, 8.0), record(2, 4.0), *plain, *other_problems])
    curve = next(c for c in result if len(c.points) == 2)
    assert [p.against_jit.value for p in curve.points] == [6 / 8, 6 / 4]


@pytest.mark.parametrize(
    ("kind", "points", "expected"),
    [
        ("strong", {1: 1.0, 2: 0.55, 4: 0.325, 8: 0.2125}, ["", "0.100", "0.100", "0.100"]),  # 0.1 + 0.9 / n
        (
            "weak",
            {1: 1.0, 2: 1 / 0.9, 4: 1 / 0.85},
            ["", "0.200", "0.200"],
        ),  # a scaled speed-up of n - 0.2 (n - 1)
        ("strong", {1: 1.0, 2: 0.4, 4: 2.0}, ["", "", ""]),  # above the ideal, and slower than one device
        ("strong", {2: 1.0, 4: 0.6}, ["", ""]),  # two devices are the baseline
    ],
)
def test_serial_part_is_that_of_the_law_that_the_speedup_obeys(kind, points, expected):
    records = [record(d, s, points=6 * d if kind == "weak" else 24) for d, s in points.items()]
    curve = only(curves_of([replace(r, flops=1e6, compulsory_bytes=1000) for r in records], (kind,)))
    texts = [curves.format_serial_part(curve, point) for point in curve.points]
    assert [text.partition(" (")[0] for text in texts] == expected


@pytest.mark.parametrize(
    ("two_devices", "floor", "text"),
    [
        (
            [0.5, 0.52, 0.49, 0.51, 0.48, 0.5, 0.5],
            0.001,
            r"0 \(0 to 0.0\d+\)",
        ),  # the interval contains the ideal
        ([0.4, 0.9, 0.6, 1.1, 0.7, 0.5, 0.8], 0.001, r"not determined \(0(\.\d+)? to 1\.00\)"),
        ([0.6, 0.6], 0.001, ""),  # too few samples
        (
            [0.98, 1.1, 0.99, 1.08, 0.97, 1.05, 1.02],
            0.001,
            r"1\.00 \(0\.\d+ to 1\.00\)",
        ),  # the interval contains 1
        ([0.9] * 7, (0.1, 0.9), ""),  # an empty call
        ([0.9] * 7, (1.0, 0.1), ""),  # an empty call on one device
    ],
)
def test_serial_part_has_the_interval_of_the_speedup_between_0_and_1(two_devices, floor, text):
    floors = floor if isinstance(floor, tuple) else (floor, floor)
    rows = zip((1, 2), ([1.0] * 7, two_devices), floors, strict=True)
    curve = only(curves_of([record(d, times, floor_seconds=each) for d, times, each in rows]))
    assert re.fullmatch(text, curves.format_serial_part(curve, curve.points[1]))


def test_a_curve_never_mixes_environments():
    result = curves_of([record(1, 8.0), record(2, 4.0, digest="two")])
    assert [(c.environment, [p.devices for p in c.points]) for c in result] == [("one", [1]), ("two", [2])]


@pytest.mark.parametrize(
    "field", [{"mode": "jacrev"}, {"api": "pmap"}, {"split": "seeds"}, {"points": 24}, {"dtype": "float64"}]
)
def test_records_of_a_curve_differ_only_in_the_number_of_devices(field):
    assert [len(c.points) for c in curves_of([record(1, 8.0), record(2, 4.0, **field)])] == [1, 1]


def test_oversubscribed_records_are_on_no_curve():
    curve = only(curves_of([record(1, 8.0), record(2, 4.0), record(4, 1.0, cores=[0, 1])]))
    assert [p.devices for p in curve.points] == [1, 2]


def test_replicates_are_processes_and_failed_attempts_before_a_success_are_ignored():
    failed = record(2, status="failed", reason="killed", attempt=1, started_at="2026-01-01T00:00:00Z")
    success = record(2, 4.0, attempt=2, started_at="2026-01-02T00:00:00Z", samples=50)
    other_process = record(2, 6.0, replicate=1)
    timing = only(pool_processes([failed, success, other_process]))
    assert len(timing.records) == 2 and {tuple(r.seconds) for r in timing.records} == {
        (4.0,) * 50,
        (6.0,) * STEADY,
    }
    assert len(timing.seconds) == 50 + STEADY
    # Two processes give a wide interval.
    assert timing.median == pytest.approx(math.sqrt(24))
    assert timing.estimate.low < 1 < 9 < timing.estimate.high


def test_ratio_is_paired_if_both_cases_took_turns_in_the_same_processes():
    drift = (1.0, 1.4, 0.8, 1.2)
    modes = {"jacfwd": 2.0, "jacrev": 3.0}
    unpaired = [
        record(seconds=s * d, mode=mode, replicate=i)
        for i, d in enumerate(drift)
        for mode, s in modes.items()
    ]
    paired = [dataclasses.replace(row, block=f"block {row.replicate}") for row in unpaired]
    without_pairs, with_pairs = (only(rank(unpaired)), only(rank(paired)))
    assert without_pairs.ratio.value == pytest.approx(1.5) and without_pairs.certainty != "sure"
    assert with_pairs.ratio.value == pytest.approx(1.5)
    assert with_pairs.certainty == "sure"
    assert with_pairs.ratio.high == pytest.approx(1.5)


def test_weak_efficiency_is_the_first_time_over_the_time_of_each_device_count():
    curve = only(curves_of(weak(), ("weak",)))
    assert [p.efficiency.value for p in curve.points] == [1, 0.8, 0.5]
    assert [p.speedup.value for p in curve.points] == [1, 1.6, 2]
    assert [p.timing.case.points for p in curve.points] == [6, 12, 24] and curve.name.endswith(
        "points/device=6"
    )
    assert weak_refusals(weak()) == []


def test_weak_curves_are_made_only_if_the_study_requests_them():
    assert {c.kind for c in curves_of(weak(), ("strong",))} == {"strong"}
    assert {c.kind for c in curves_of(weak(), ("strong", "weak"))} == {"strong", "weak"}


def test_strong_scaling_of_two_sizes_is_not_refused_as_weak_scaling():
    """With split=seeds, 12 points on one device and 24 on two have the same points per device, but not the same bytes."""
    grid = [
        record(d, 4.0 / d, points=p, split="seeds", work=(1e6 * p / d, 1e3 * p))
        for p in (12, 24)
        for d in (1, 2)
    ]
    assert weak_refusals(grid, ["strong", "weak"]) == []
    assert len(weak_refusals(grid, ["weak"])) == 1
    larger = record(2, 4.0, points=48, split="seeds", work=(2.4e7, 4.8e4))
    sentence = only(weak_refusals([*grid, larger], ["strong", "weak"]))
    assert "points/device=24" in sentence


@pytest.mark.parametrize(
    "work, reason",
    [
        (
            ((1e6, 1e3), (1.005e6, 1e3), (1.02e6, 1e3)),
            "flops per device are 1e+06 on 1 and 1.02e+06 on 4 devices",
        ),
        (
            ((1e6, 1e3), (1e6, 1e3), (1e6, 1.5e3)),
            "compulsory_bytes per device are 1000 on 1 and 1500 on 4 devices",
        ),
        (((1e6, 1e3), (None, 1e3), (1e6, 1e3)), "flops per device were not counted on 2 devices"),
        (
            ((1e6, 1e3), (1e6, None), (1e6, None)),
            "compulsory_bytes per device were not counted on 2, 4 devices",
        ),
    ],
)
def test_weak_scaling_without_constant_work_per_device_is_rejected_with_a_reason(work, reason):
    assert curves_of(weak(work), ("weak",)) == []
    sentence = only(weak_refusals(weak(work)))
    assert reason in sentence and "points/device=6" in sentence


def test_weak_scaling_is_judged_by_compulsory_bytes_not_by_measured_traffic():
    growing_traffic = [dataclasses.replace(row, hbm_bytes=1e3 * row.case.devices) for row in weak()]
    assert curves_of(growing_traffic, ("weak",))
    growing_work = weak(((1e6, 1e3), (1e6, 1e3), (1e6, 2e3)), hbm_bytes=1e3)
    assert curves_of(growing_work, ("weak",)) == []


def test_compulsory_bytes_of_old_records_are_derived_from_arguments_and_outputs():
    uncounted = ((1e6, None),) * 3
    assert curves_of(weak(uncounted, argument_bytes=400, output_bytes=600), ("weak",))
    uneven = [
        dataclasses.replace(r, argument_bytes=400, output_bytes=600 * r.case.devices) for r in weak(uncounted)
    ]
    reason = "compulsory_bytes per device are 1000 on 1 and 2800 on 4 devices"
    assert reason in only(weak_refusals(uneven))


def test_work_within_one_percent_counts_as_constant():
    assert curves_of(weak(((1e6, 1e3), (1.009e6, 1e3), (1e6, 0.995e3))), ("weak",))


def test_fastest_method_is_sure_if_the_intervals_do_not_overlap():
    ranking = only(rank(processes(("jacfwd", 2.0), ("jacrev", 3.0), ("analytic", 1.0))))
    expected = ("jacfwd", "jacrev", "sure")
    assert (ranking.fastest.case.mode, ranking.runner_up.case.mode, ranking.certainty) == expected
    assert ranking.ratio.value == pytest.approx(1.5) and ranking.doubts == ()


@pytest.mark.parametrize("fields, doubt", [
    ({"floor_seconds": 0.21}, "under 10x the overhead of a call"),
    ({"floor_seconds": 0.11}, "the times differ by under 10x the overhead of a call"),
    ({"marked": {"foreign_load": [0]}}, "load of other processes"),
    ({"marked": {"throttled": [0]}}, "throttled"),
])  # fmt: skip
def test_fastest_method_is_not_sure_if_lint_would_object(fields, doubt):
    ranking = only(rank(processes(("jacfwd", 2.0), ("jacrev", 3.0), **fields)))
    assert ranking.distinguished and ranking.certainty != "sure" and ranking.doubts == (doubt,)


@pytest.mark.parametrize("mode", ["jacfwd", "jacrev"])
def test_comparison_with_a_time_of_one_process_is_not_sure(mode):
    records = processes(("jacfwd", 2.0), ("jacrev", 3.0))
    few = [each for each in records if each.case.mode != mode or not each.replicate]
    assert only(rank(few)).doubts == ("measured in one process",)


def test_fastest_method_must_be_distinguished_from_every_other_not_only_from_the_next():
    wide = [record(seconds=s, mode="linearize", replicate=i) for i, s in enumerate((0.7, 1.06, 1.6))]
    near = processes(("jacfwd", 1.0), ("jacrev", 1.05))
    ranking = only(rank([*near, *wide]))
    assert (ranking.fastest.case.mode, ranking.runner_up.case.mode) == ("jacfwd", "linearize")
    assert not ranking.distinguished and ranking.certainty != "sure"
    assert only(rank(near)).certainty == "sure"


def test_fastest_method_is_the_one_with_the_shortest_geometric_mean_of_its_processes():
    rows = {
        "jacfwd": (1.0, 1.0, 1.0, 1.0, 1.0),
        "linearize": (0.8, 1.2, 1.005, 1.1, 0.9),
        "jacrev": (0.9, 0.9, 1.01, 0.9, 0.9),
    }
    levels = (1.0, 1.5, 2.0, 2.6, 3.3)
    records = [
        dataclasses.replace(record(seconds=level * factors[i], mode=mode, replicate=i), block=f"b{i}")
        for i, level in enumerate(levels)
        for mode, factors in rows.items()
    ]
    timings = pool_processes(records)
    samples = {t.case.mode: statistics.median(t.seconds) for t in timings}
    assert sorted(samples, key=samples.get) == list(rows)
    assert only(fastest_methods(timings)).fastest.case.mode == "jacrev"


def test_fastest_method_is_not_sure_with_one_process():
    ranking = only(rank([record(seconds=2.0), record(seconds=3.0, mode="jacrev")]))
    assert ranking.distinguished and ranking.certainty != "sure"
    assert ranking.doubts == ("measured in one process",)


def test_time_below_an_empty_call_makes_no_method_the_fastest():
    ranking = only(rank(processes(("jacfwd", 6e-6), ("jacrev", 3.0), floor_seconds=9e-6)))
    assert ranking.is_empty_call and not ranking.distinguished and ranking.certainty != "sure"


def test_fastest_method_is_not_sure_if_intervals_overlap_or_samples_are_few():
    wide = [1.3, 1.0, 1.6, 1.1, 1.5, 1.2, 1.4]
    overlapping = [record(seconds=wide), record(seconds=[s + 0.1 for s in wide], mode="jacrev")]
    few = [record(seconds=1.0, samples=3), record(seconds=9.0, samples=3, mode="jacrev")]
    for records in (overlapping, few):
        assert only(rank(records)).certainty != "sure"


def test_runner_up_is_another_mode_not_another_api():
    ranking = only(
        rank([record(seconds=2.0), record(seconds=2.1, api="pmap"), record(seconds=5.0, batch="whole")])
    )
    assert ranking.runner_up.case.batch == "whole"
    two_apis = only(rank([record(seconds=2.0), record(seconds=2.1, api="pmap")]))
    assert two_apis.runner_up is None and two_apis.ratio is None and two_apis.certainty != "sure"


@pytest.mark.parametrize(
    "field", [{"digest": "two"}, {"points": 24}, {"devices": 2}, {"target": "forward"}, {"data_seed": 1}]
)
def test_methods_compete_only_on_the_same_problem_devices_and_environment(field):
    assert len(rank([record(seconds=2.0), record(seconds=3.0, **field)])) == 2


def test_value_is_not_a_derivative_mode():
    assert rank([record(mode="value", target="forward")]) == []


def test_method_name_states_the_number_of_seeds_per_chunk():
    assert method_of(Case("linear", chunk=1)).name == "jacfwd (vmap), 1 seed at a time"
    assert method_of(Case("linear", chunk=2)).name == "jacfwd (vmap), 2 seeds at a time"


@pytest.mark.parametrize("fields, name", [
    ({"seeds": "colored"}, "jacfwd (vmap), colored seeds"),
    ({"mode": "mixed", "forward": "a+b"}, "mixed (vmap), forward by a+b"),
    ({"chunk": "auto", "memory_limit": 2 * 10**9}, "jacfwd (vmap), chunk=auto, within 2.00 GB"),
    ({"block": 1, "storage": "host"}, "jacfwd (vmap), 1 point at a time, kept on the host"),
    ({"mode": "jacrev", "remat": "dots_saveable"}, "jacrev (vmap), dots_saveable"),
])  # fmt: skip
def test_method_name_states_every_setting(fields, name):
    method = method_of(Case("linear", **fields))
    assert method.name == name and (method.base.name != name) is bool({*fields} & {*MEMORY_FIELDS})


def test_reduction_of_the_jacobian_is_a_different_problem():
    records = [record(1, 4.0, api="jit"), record(1, 8.0, reduce="gram"), record(2, 4.0, reduce="gram")]
    whole, gram = curves_of(records)
    assert whole.case.reduce is None and whole.points[0].against_jit.value == 1.0
    assert gram.case.reduce == "gram" and gram.points[0].against_jit is None
    assert [row.fastest.case.reduce for row in rank(records)] == [None, "gram", "gram"]
    subjects = [Subject(r.case, "", True) for r in records]
    assert subjects[0].family_key != subjects[1].family_key
    assert subjects[1].family == "linear jacobian by W reduce=gram"
