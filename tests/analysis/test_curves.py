"""What curves.py makes of records whose answers are known beforehand."""

import dataclasses
import subprocess
import sys

import pytest

from scaling.analysis import curves
from scaling.core.case import Case
from tests.support.records import STEADY, only, processes, record, weak


def test_times_of_8_4_and_2_are_speedups_of_1_2_and_4_at_efficiency_1():
    curve = only(curves.scaling_curves([record(4, 2.0), record(1, 8.0), record(2, 4.0)]))
    assert [p.devices for p in curve.points] == [1, 2, 4]
    assert [p.speedup for p in curve.points] == [1, 2, 4]
    assert [(p.efficiency, p.efficiency_low, p.efficiency_high) for p in curve.points] == [(1, 1, 1)] * 3
    assert curve.case.devices == 1 and curve.kind == "strong" and "devices" not in curve.name


def test_the_interval_of_a_speedup_lies_within_what_the_samples_of_both_allow():
    base, fast = [13.0, 10.0, 16.0, 12.0, 14.0, 11.0, 15.0], [6.5, 8.0, 5.0, 7.0, 6.0, 7.5, 5.5]
    plain = record(1, [2 * seconds for seconds in base], api="jit")
    point = next(
        curve
        for curve in curves.scaling_curves([record(1, base), record(2, fast), plain])
        if len(curve.points) == 2
    ).points[1]
    assert (
        point.speedup == 13 / 6.5 and 10 / 8 < point.speedup_low < 1.9 and 2.1 < point.speedup_high < 16 / 5
    )
    assert (point.efficiency_low, point.efficiency_high) == (point.speedup_low / 2, point.speedup_high / 2)
    assert (point.against_jit, point.against_jit_low) == (2 * 13 / 6.5, pytest.approx(2 * point.speedup_low))
    assert (point.low, point.high) == (5.0, 8.0)


def test_too_few_samples_give_a_speedup_without_an_interval():
    point = only(curves.scaling_curves([record(1, 8.0, samples=3), record(2, 4.0, samples=3)])).points[1]
    assert (point.speedup, point.speedup_low, point.low, point.samples) == (2, None, None, 3)


def test_a_series_that_does_not_begin_at_one_device_stands_against_the_fewest_devices_that_were_measured():
    found = curves.scaling_curves(
        [record(2, 4.0), record(4, 2.0), record(8, 2.0), record(1, 8.0, api="pmap")]
    )
    of = {curve.case.api: curve for curve in found}
    points = of["shard_map"].points
    assert [(p.devices, p.speedup, p.ideal, p.efficiency) for p in points] == [
        (2, 1, 1, 1),
        (4, 2, 2, 1),
        (8, 2, 4, 0.5),
    ]
    assert {p.baseline_devices for p in points} == {2} and of[
        "shard_map"
    ].relative == " relative to 2 devices"
    assert of["pmap"].points[0].baseline_devices == 1 and of["pmap"].relative == ""


def test_a_weak_series_from_two_devices_scales_its_speedup_by_the_work_relative_to_two():
    curve = only(curves.scaling_curves(weak()[1:], ("weak",)))
    assert [(p.speedup, p.ideal, p.efficiency) for p in curve.points] == [(1, 1, 1), (1.25, 2, 0.625)]
    assert curve.size.endswith("points=6 for each device")


def test_speedup_also_stands_against_the_best_plain_jit_program_on_one_device():
    plain = [
        record(1, 6.0, api="jit", mode="jacrev"),
        record(1, 9.0, api="jit"),
        record(1, 0.1, api="jit", mode="analytic"),
    ]
    elsewhere = [record(1, 0.2, api="jit", points=13), record(1, 0.3, api="jit", digest="two")]
    found = curves.scaling_curves([record(1, 8.0), record(2, 4.0), *plain, *elsewhere])
    curve = next(c for c in found if len(c.points) == 2)
    assert [p.against_jit for p in curve.points] == [6 / 8, 6 / 4]


def test_a_curve_never_mixes_environments():
    found = curves.scaling_curves([record(1, 8.0), record(2, 4.0, digest="two")])
    assert [(c.environment, [p.devices for p in c.points]) for c in found] == [("one", [1]), ("two", [2])]


@pytest.mark.parametrize(
    "field", [{"mode": "jacrev"}, {"api": "pmap"}, {"split": "seeds"}, {"points": 24}, {"dtype": "float64"}]
)
def test_a_curve_holds_what_differs_in_devices_alone(field):
    assert [len(c.points) for c in curves.scaling_curves([record(1, 8.0), record(2, 4.0, **field)])] == [1, 1]


def test_a_dishonest_record_is_never_drawn_as_scaling():
    found = only(curves.scaling_curves([record(1, 8.0), record(2, 4.0), record(4, 1.0, cores=[0, 1])]))
    assert [p.devices for p in found.points] == [1, 2]


def test_replicates_are_processes_and_a_failure_before_a_success_counts_nothing():
    failed = record(2, status="failed", reason="killed", attempt=1, started_at="2026-01-01T00:00:00Z")
    then = record(2, 4.0, attempt=2, started_at="2026-01-02T00:00:00Z", samples=50)
    again = record(2, 6.0, replicate=1)
    timing = only(curves.pool_processes([failed, then, again]))
    assert timing.replicates == 2 and {tuple(r.seconds) for r in timing.records} == {
        (4.0,) * 50,
        (6.0,) * STEADY,
    }
    assert len(timing.seconds) == 50 + STEADY
    assert timing.median == 5 and timing.interval[0] < 1 < 9 < timing.interval[1]  # two processes know little


def test_a_ratio_is_paired_where_both_took_turns_in_the_same_processes():
    drift = (1.0, 1.4, 0.8, 1.2)
    modes = {"jacfwd": 2.0, "jacrev": 3.0}
    apart = [
        record(seconds=s * d, mode=mode, replicate=i)
        for i, d in enumerate(drift)
        for mode, s in modes.items()
    ]
    paired = [dataclasses.replace(each, block=f"block {each.replicate}") for each in apart]
    loose, tight = only(curves.fastest_methods(apart)), only(curves.fastest_methods(paired))
    assert loose.ratio == pytest.approx(1.5) and not loose.sure
    assert tight.ratio == pytest.approx(1.5) and tight.sure and tight.ratio_high == pytest.approx(1.5)


def test_a_weak_curve_has_the_efficiency_of_its_first_time_over_each():
    curve = only(curves.scaling_curves(weak(), ("weak",)))
    assert [p.efficiency for p in curve.points] == [1, 0.8, 0.5]
    assert [p.speedup for p in curve.points] == [1, 1.6, 2]
    assert [p.points for p in curve.points] == [6, 12, 24] and curve.name.endswith("points/device=6")
    assert curves.weak_refusals(weak()) == []


def test_weak_curves_are_made_only_where_the_study_asks_for_them():
    assert {c.kind for c in curves.scaling_curves(weak(), ("strong",))} == {"strong"}
    assert {c.kind for c in curves.scaling_curves(weak(), ("strong", "weak"))} == {"strong", "weak"}


@pytest.mark.parametrize(
    "work, word",
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
def test_work_that_is_not_shown_to_be_constant_is_refused_the_word_weak(work, word):
    assert curves.scaling_curves(weak(work), ("weak",)) == []
    sentence = only(curves.weak_refusals(weak(work)))
    assert word in sentence and "points/device=6" in sentence


def test_weak_scaling_is_judged_by_compulsory_bytes_and_not_by_what_the_optimised_program_moves():
    kernels = [dataclasses.replace(each, hbm_bytes=1e3 * each.case.devices) for each in weak()]
    assert curves.scaling_curves(kernels, ("weak",))
    of = (((1e6, 1e3), (1e6, 1e3), (1e6, 2e3)), {"hbm_bytes": 1e3})
    assert curves.scaling_curves(weak(of[0], **of[1]), ("weak",)) == []


def test_an_old_record_has_its_compulsory_bytes_from_its_arguments_and_its_result_and_says_so():
    old = ((1e6, None),) * 3
    assert curves.scaling_curves(weak(old, argument_bytes=400, output_bytes=600), ("weak",))
    uneven = [
        dataclasses.replace(r, argument_bytes=400, output_bytes=600 * r.case.devices) for r in weak(old)
    ]
    words = "compulsory_bytes (derived: argument_bytes + output_bytes) per device are 1000 on 1 and 2800 on 4 devices"
    assert words in only(curves.weak_refusals(uneven))


def test_work_within_one_percent_is_constant():
    assert curves.scaling_curves(weak(((1e6, 1e3), (1.009e6, 1e3), (1e6, 0.995e3))), ("weak",))


def test_the_fastest_way_is_sure_where_the_intervals_are_apart():
    found = only(curves.fastest_methods(processes(("jacfwd", 2.0), ("jacrev", 3.0), ("analytic", 1.0))))
    assert (found.first.case.mode, found.second.case.mode, found.sure) == ("jacfwd", "jacrev", True)
    assert found.ratio == pytest.approx(1.5) and found.doubts == ()
    assert found.by_hand == 2 and [t.case.mode for t in found.others] == ["analytic"]


@pytest.mark.parametrize("fields, words", [
    ({"floor_seconds": 0.21}, "under ten empty calls"),
    ({"floor_seconds": 0.11}, "they differ by less than ten empty calls"),
    ({"marked": {"foreign_load": [0]}}, "foreign load"),
    ({"marked": {"throttled": [0]}}, "throttled"),
])  # fmt: skip
def test_what_lint_doubts_is_never_sure(fields, words):
    found = only(curves.fastest_methods(processes(("jacfwd", 2.0), ("jacrev", 3.0), **fields)))
    assert found.distinguished and not found.sure and found.doubts == (words,)


def test_one_process_is_never_sure():
    found = only(curves.fastest_methods([record(seconds=2.0), record(seconds=3.0, mode="jacrev")]))
    assert found.distinguished and not found.sure and found.doubts == ("one process",)


def test_a_time_under_that_of_an_empty_call_makes_no_mode_the_fastest():
    found = only(curves.fastest_methods(processes(("jacfwd", 6e-6), ("jacrev", 3.0), floor_seconds=9e-6)))
    assert found.empty and not found.distinguished and not found.sure


def test_the_fastest_way_is_not_sure_where_they_overlap_or_where_samples_are_few():
    wide = [1.3, 1.0, 1.6, 1.1, 1.5, 1.2, 1.4]
    assert not only(
        curves.fastest_methods([record(seconds=wide), record(seconds=[s + 0.1 for s in wide], mode="jacrev")])
    ).sure
    assert not only(
        curves.fastest_methods(
            [record(seconds=1.0, samples=3), record(seconds=9.0, samples=3, mode="jacrev")]
        )
    ).sure


def test_the_runner_up_is_another_mode_and_not_another_api():
    found = only(
        curves.fastest_methods(
            [record(seconds=2.0), record(seconds=2.1, api="pmap"), record(seconds=5.0, batch="whole")]
        )
    )
    assert found.second.case.batch == "whole"
    alone = only(curves.fastest_methods([record(seconds=2.0), record(seconds=2.1, api="pmap")]))
    assert alone.second is None and alone.ratio is None and not alone.sure


@pytest.mark.parametrize(
    "field", [{"digest": "two"}, {"points": 24}, {"devices": 2}, {"target": "forward"}, {"data_seed": 1}]
)
def test_only_the_same_problem_in_the_same_place_competes(field):
    assert len(curves.fastest_methods([record(seconds=2.0), record(seconds=3.0, **field)])) == 2


def test_the_value_alone_is_no_derivative_mode():
    assert curves.fastest_methods([record(mode="value", target="forward")]) == []


def test_sizes_that_move_together_count_as_one():
    rows = [
        record(sizes={"m": n, "d": 1}, points=n, mode=mode)
        for n in (4, 8, 16)
        for mode in ("jacfwd", "jacrev")
    ]
    panel = only(curves.size_sweeps(rows))
    assert (panel.swept, panel.held) == ("points = m", "d=1")
    assert [size for size, _ in panel.lines[curves.Method("jacrev", "vmap")]] == [4, 8, 16] and len(
        panel.lines
    ) == 2


def test_the_size_with_the_most_values_is_swept_and_the_others_tell_the_panels_apart():
    rows = [record(sizes={"p": p, "o": o}, points=12) for p in (4, 8, 16) for o in (2, 5)]
    assert [(p.swept, p.held) for p in curves.size_sweeps(rows)] == [
        ("p", "points=12 o=2"),
        ("p", "points=12 o=5"),
    ]


def test_one_size_is_no_panel():
    assert curves.size_sweeps([record(), record(mode="jacrev")]) == []
    rows = [record(sizes={"p": p, "o": o}) for p, o in ((4, 2), (8, 2), (16, 2), (4, 5))]
    assert only(curves.size_sweeps(rows)).held == "points=12 o=2"


def test_reading_a_study_never_imports_jax():
    code = "import sys, scaling.analysis.curves, scaling.report.figures, scaling.report.write_report; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_one_seed_at_a_time_is_one():
    assert curves.method_of(Case("linear", chunk=1)).name == "jacfwd (vmap), 1 seed at a time"
    assert curves.method_of(Case("linear", chunk=2)).name == "jacfwd (vmap), 2 seeds at a time"


@pytest.mark.parametrize("fields, name", [
    ({"seeds": "colored"}, "jacfwd (vmap), colored seeds"),
    ({"mode": "mixed", "forward": "a+b"}, "mixed (vmap), forward by a+b"),
    ({"chunk": "auto", "memory_limit": 2 * 10**9}, "jacfwd (vmap), chunk=auto, within 2.00 GB"),
    ({"block": 1, "storage": "host"}, "jacfwd (vmap), 1 point at a time, kept on the host"),
    ({"mode": "jacrev", "remat": "dots_saveable"}, "jacrev (vmap), dots_saveable"),
])  # fmt: skip
def test_a_way_is_told_from_every_other_by_its_name(fields, name):
    way = curves.method_of(Case("linear", **fields))
    assert way.name == name and (way.without_memory_setting.name != name) is bool(way.memory_setting)


def test_a_sum_of_the_jacobian_is_another_problem_than_all_of_it():
    of = [record(1, 4.0, api="jit"), record(1, 8.0, reduce="gram"), record(2, 4.0, reduce="gram")]
    assert [(c.case.reduce, c.points[0].against_jit) for c in curves.scaling_curves(of)] == [
        (None, 1.0),
        ("gram", None),
    ]
    assert [row.first.case.reduce for row in curves.fastest_methods(of)] == [None, "gram", "gram"]
    assert curves.family_key(of[0].case) != curves.family_key(of[1].case)
    assert curves.family_name(of[1].case) == "linear jacobian by W reduce=gram"
