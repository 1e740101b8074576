"""Tests of forecasts: predicted curves of made-up plans, and the sentences that answer from them."""

import dataclasses
import itertools

import pytest

from scaling.analysis.answers import describe_plan, plan_answers
from scaling.analysis.forecast import forecasts, keep_cases
from tests.support.planned import plan, too_large
from tests.support.records import only

FILES = {"mine": {"scaling": ["strong"], "hardware": {"title": "A machine", "memory": 10**9}}}
WEAK = {"mine": FILES["mine"] | {"scaling": ["weak"]}}


def predict(*plans, files=FILES):
    (result,) = forecasts(plans, files)
    return result


def strong(*times, **fields):
    """Return plans of one case on 1, 2, 4, ... devices with these predicted seconds."""
    return [plan(seconds, 2**k, **fields) for k, seconds in enumerate(times)]


def test_strong_curve_is_one_case_on_several_device_counts():
    result = predict(*strong(8.0, 4.0, 4.0)[::-1])
    curve = only(result.curves)
    assert (result.title, curve.kind) == ("A machine", "strong")
    expected = [(1, 8.0, 1.0), (2, 4.0, 1.0), (4, 4.0, 0.5)]
    assert [(p.devices, p.seconds, p.efficiency.value) for p in curve.points] == expected
    assert [p.timing.estimate[1:] for p in curve.points] == [(4.0, 16.0), (2.0, 8.0), (2.0, 8.0)]
    assert "devices" not in curve.name and "points=12" in curve.name


def test_efficiency_is_relative_to_the_smallest_planned_device_count():
    curve = only(predict(plan(2.0, 4), plan(1.0, 16)).curves)
    assert [p.efficiency.value for p in curve.points] == [1.0, 0.5]


def test_weak_curve_has_constant_points_per_device():
    plans = [
        plan(1.0, 1, points=12),
        plan(1.25, 2, points=24),
        plan(2.0, 4, points=48),
        plan(1.0, 8, points=12),
    ]
    curve = only(predict(*plans, files=WEAK).curves)
    assert [(p.devices, p.efficiency.value) for p in curve.points] == [(1, 1.0), (2, 0.8), (4, 0.5)]
    assert curve.kind == "weak" and curve.name.endswith("points/device=12")
    assert len(predict(*plans).curves) == 3, "strong scaling of the same plans"


def test_strong_and_weak_study_has_curves_of_both_kinds():
    both = {"mine": FILES["mine"] | {"scaling": ["weak", "strong"]}}
    first, strong_two, weak_two = plan(8.0, 1, points=12), plan(4.0, 2, points=12), plan(8.5, 2, points=24)
    one_device_count = plan(1.0, 2, points=24, mode="jacrev")
    all_curves = predict(first, strong_two, weak_two, one_device_count, files=both).curves
    assert sorted((c.kind, c.case.mode, [p.seconds for p in c.points]) for c in all_curves) == [
        ("strong", "jacfwd", [8.0, 4.0]), ("strong", "jacrev", [1.0]), ("weak", "jacfwd", [8.0, 8.5])
    ]  # fmt: skip


def test_curve_uses_the_fastest_mesh_and_each_mode_has_its_own_curve():
    meshes = [
        plan(seconds, 4, split="both", mesh=mesh)
        for seconds, mesh in ((2.0, "4x1"), (1.0, "2x2"), (3.0, "1x4"))
    ]
    assert only(only(predict(*meshes).curves).points).timing.case.mesh == "2x2"
    assert len(predict(*strong(1.0, 1.0), *strong(1.0, 1.0, mode="jacrev")).curves) == 2


def test_cases_without_prediction_or_too_large_are_on_no_curve():
    result = predict(*strong(1.0), plan(None, mode="jacrev"), too_large(2 * 10**9, mode="linearize"))
    assert len(result.curves) == 1 and len(result.records) == 3
    assert [record.case.mode for record in result.records if record.reason] == ["linearize"]


def test_latest_plan_of_a_hardware_replaces_earlier_plans():
    old = [plan(9.0, n, setting="old") for n in (1, 2, 4)]
    new = [plan(1.0, n, setting="new", started="2026-02-01T00:00:00Z") for n in (1, 2)]
    for plans in ([*old, *new], [*new, *old]):
        assert [p.seconds for p in only(predict(*plans).curves).points] == [1.0, 1.0]
    same_start = [plan(2.0, n, setting="last") for n in (1, 2)]
    assert [p.seconds for p in only(predict(*old, *same_start).curves).points] == [2.0, 2.0]
    again = plan(5.0, 1, setting="new", started="2026-03-01T00:00:00Z")
    assert [p.seconds for p in only(predict(*new, again).curves).points] == [5.0, 1.0]


def test_latest_plan_is_kept_per_workload_source():
    linear = [plan(1.0, n, setting="package") for n in (1, 2)]
    user = [plan(2.0, n, workload="mine", setting="as it is") for n in (1, 2)]
    outdated = [
        plan(9.0, n, workload="mine", setting="as it was", started="2025-01-01T00:00:00Z") for n in (1, 2, 4)
    ]
    for plans in itertools.permutations((linear, user, outdated)):
        result = predict(*itertools.chain(*plans))
        assert sorted((c.case.workload, [p.seconds for p in c.points]) for c in result.curves) == [
            ("linear", [1.0, 1.0]), ("mine", [2.0, 2.0])
        ]  # fmt: skip


def test_every_version_and_set_of_hardware_parameters_is_described():
    def planned(workload, digest, jax):
        record = plan(1.0, workload=workload, setting=workload)
        machine = record.environment["hardware"] | {"digest": digest, "libtpu": "0.1"}
        facts = {"hardware": machine, "versions": {"jax": jax}}
        return dataclasses.replace(record, environment=record.environment | facts)

    one_plan = describe_plan(predict(planned("linear", "a", "0.10.2"), planned("mine", "a", "0.10.2")))
    assert one_plan.startswith("2 cases on 1 device of A processor, compiled with libtpu 0.1, JAX 0.10.2; ")
    two_plans = describe_plan(predict(planned("linear", "a", "0.10.2"), planned("mine", "b", "0.11.0")))
    assert "of A processor, compiled with libtpu 0.1, JAX " in two_plans
    assert "JAX 0.10.2" in two_plans and " or " in two_plans and "JAX 0.11.0" in two_plans


def test_each_hardware_has_a_forecast_even_without_a_plan_file():
    by_hardware = {
        result.hardware: result for result in forecasts([plan(1.0), plan(2.0, hardware="other")], FILES)
    }
    assert set(by_hardware) == {"mine", "other"}
    assert by_hardware["other"].title == "other"


def answers(*plans, files=FILES):
    return plan_answers(predict(*plans, files=files))


def test_forecast_of_one_study_has_only_its_cases_and_its_baseline():
    whole = predict(*strong(8.0, 4.0, 2.5), *strong(1.0, mode="jacrev"))
    keys = {point.timing.case.key for point in whole.curves[0].points[1:]}
    study = keep_cases(whole, keys)
    assert [p.devices for p in only(study.curves).points] == [2, 4] and len(study.records) == 2
    first = plan_answers(study)[0]
    assert "jacrev" not in first and "of 2 devices, and 0.80 on 4 devices" in first


def test_answer_names_the_device_counts_between_which_efficiency_falls_below_half():
    first = answers(*strong(8.0, 4.1, 2.2, 2.0, 1.9))[0]
    assert "jacfwd (vmap)" in first
    assert "1.90 s (0.95 to 3.80) on 16 devices, the fastest planned method" in first
    assert first.endswith(
        "its efficiency falls under 50 % of 1 device between 8 and 16 devices, where it is 0.26."
    )


def test_efficiency_of_exactly_one_half_is_not_below_half():
    assert answers(*strong(8.0, 8.0))[0].endswith(
        "its efficiency is nowhere under 50 % of 1 device, and 0.50 on 2 devices."
    )
    assert "between 1 and 2 devices, where it is 0.49" in answers(*strong(8.0, 8.1))[0]
    assert "50 % of 2 devices between 2 and 8 devices" in answers(plan(1.0, 2), plan(0.9, 8))[0]


def test_single_device_count_is_not_compared():
    assert answers(*strong(8.0))[0].endswith("planned on no other number of devices.")


def test_answer_names_the_fastest_method_overall_and_on_the_most_devices():
    times = {"jacfwd": (8.0, 4.0, 2.0), "jacrev": (1.0, 2.5, 3.0), "analytic": (0.1,)}
    slow_then_fast = [
        with_draws(s, 2**k, [s], mode=mode) for mode, row in times.items() for k, s in enumerate(row)
    ]
    first = answers(*slow_then_fast)[0]
    assert "jacrev (vmap) 1.00 s (0.50 to 2.00) on 1 device, the fastest planned method;" in first
    words = "; jacfwd (vmap) 2.00 s (1.00 to 4.00) on 4 devices, the fastest on that number of devices;"
    assert words in first


def test_device_count_is_not_called_fastest_if_a_smaller_one_is_faster():
    first = answers(*strong(5.0, 6.0))[0]
    assert "5.00 s (2.50 to 10.0) on 1 device, the fastest planned method" in first


def with_draws(seconds, devices, draws, **fields):
    record = plan(seconds, devices, **fields)
    return dataclasses.replace(record, predicted=record.predicted | {"draws": draws})


@pytest.mark.parametrize("files", [FILES, WEAK], ids=["strong", "weak"])
def test_methods_that_simulated_machines_do_not_distinguish_are_tied(files):
    tied, slower = ([1.0, 2.0, 3.0], [1.5, 2.5, 3.5])
    for draws, is_tied in ((tied, True), (slower, False)):
        other = with_draws(2.0, 2, draws, mode="jacrev")
        line = answers(with_draws(2.0, 2, tied), other, files=files)[0]
        assert ("fastest planned method, not distinguished from jacrev (vmap) 2.00 s" in line) == is_tied


def test_device_counts_that_simulated_machines_do_not_distinguish_are_tied():
    one = with_draws(2.0, 1, [1.0, 2.0, 3.0])
    tied = answers(one, with_draws(1.9, 2, [1.1, 1.9, 2.8]))[0]
    assert "on 2 devices, the fastest planned method, not distinguished from jacfwd (vmap) 2.00 s" in tied
    assert "not distinguished" not in answers(one, with_draws(1.9, 2, [0.9, 1.9, 2.8]))[0]


def test_efficiency_interval_is_computed_over_the_same_simulated_machines():
    same_machines = [with_draws(8.0, 1, [8.0, 16.0, 24.0]), with_draws(5.0, 2, [5.0, 10.0, 15.0])]
    (curve,) = predict(*same_machines).curves
    assert curve.points[1].efficiency[1:] == pytest.approx((0.8, 0.8)), (
        "a machine that is slow for both leaves the efficiency unchanged"
    )
    assert "and 0.80 (0.80 to 0.80) on 2 devices" in answers(*same_machines)[0]
    other_machines = [same_machines[0], with_draws(5.0, 2, [5.0, 20.0, 15.0])]
    _, low, high = predict(*other_machines).curves[0].points[1].efficiency
    assert 0.39 < low < 0.45 and high == pytest.approx(0.8)
    assert predict(*strong(8.0, 5.0)).curves[0].points[1].efficiency[1:] == (None, None)


def test_each_problem_has_its_own_answer():
    lines = answers(*strong(8.0, 4.0), *strong(80.0, 40.0, points=24), *strong(80.0, 40.0, mode="jacrev"))
    assert len(lines) == 2
    assert "points=12" in lines[0] and "points=24" in lines[1]


def test_weak_scaling_has_answers():
    plans = [plan(s, n, points=12 * n) for s, n in ((1.0, 1), (1.5, 2), (2.5, 4))]
    more_points = [plan(s, n, points=24 * n) for s, n in ((2.0, 2), (2.0, 4))]
    lines = answers(*plans, *more_points, files=WEAK)
    assert len(lines) == 2
    assert "points/device=12" in lines[0] and "between 2 and 4 devices, where it is 0.40" in lines[0]
    assert "points/device=24" in lines[1] and "of 2 devices, and 1.00 on 4 devices" in lines[1]


def test_first_case_to_run_out_of_memory_is_reported_with_its_bytes():
    one_case = answers(*strong(1.0), too_large(3 * 10**9, mode="jacrev"))[-1]
    assert one_case.startswith("Out of memory on up to 1 device: ") and "jacrev" in one_case
    assert one_case.endswith("needs 3.00 GB, a device has 1.00 GB.")
    two_cases = answers(
        *strong(1.0), too_large(3 * 10**9, devices=2), too_large(9 * 10**9, devices=4, mode="jacrev")
    )[-1]
    assert two_cases.startswith("Out of memory on up to 4 devices: ") and "devices=4" in two_cases
    assert "needs 9.00 GB" in two_cases
    assert two_cases.endswith("; in all, 2 cases do not fit.")


def test_case_closest_to_the_memory_capacity_is_reported_if_all_fit():
    nearly_full = plan(1.0, mode="jacrev", peak_bytes=9 * 10**8, capacity_bytes=10**9)
    line = answers(*strong(1.0, peak_bytes=10**8, capacity_bytes=10**9), nearly_full)[-1]
    assert line.startswith("Every compiled case fits") and "jacrev" in line
    assert line.endswith("900 MB of 1.00 GB (90 %).")
    assert not any("fits" in line for line in answers(*strong(1.0))), "memory is unknown"


def test_not_everything_fits_if_a_planned_case_failed():
    planned = strong(1.0, peak_bytes=10**8, capacity_bytes=10**9)
    (failed,) = strong(None, mode="jacrev", peak_bytes=10**8, capacity_bytes=10**9)
    failed = dataclasses.replace(failed, status="failed", reason="out_of_memory", text="it ran out")
    line = answers(*planned, failed)[-1]
    assert line.startswith("Out of memory on up to 1 device: ") and line.endswith("devices=1: it ran out.")
    line = answers(*planned, dataclasses.replace(failed, reason="error"))[-1]
    assert line.startswith("Every compiled case fits; ")


@pytest.mark.parametrize("status", ["failed", "skipped"])
def test_failed_and_skipped_plans_give_no_answer(status):
    assert answers(dataclasses.replace(plan(None), status=status, reason="error")) == []
