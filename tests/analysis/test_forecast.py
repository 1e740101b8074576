"""Forecasts: predicted curves and what they answer in words, of made-up plans."""

import dataclasses
import itertools

import pytest

from scaling.analysis import forecast
from scaling.analysis.forecast import forecasts, plan_answers, read_plan_file
from tests.support.planned import plan, too_large

TOLD = {"mine": {"scaling": ["strong"], "hardware": {"title": "A machine", "price": 3.6, "memory": 10**9}}}
WEAK = {"mine": TOLD["mine"] | {"scaling": ["weak"]}}


def read(files):
    return {name: read_plan_file(content) for name, content in files.items()}


def of(*plans, told=TOLD):
    (found,) = forecasts(plans, read(told))
    return found


def strong(*times, **fields):
    """Plans of one case on 1, 2, 4, ... devices that take so long."""
    return [plan(seconds, 2**k, **fields) for k, seconds in enumerate(times)]


def only(found):
    (one,) = found
    return one


def test_a_strong_curve_is_one_case_on_several_numbers_of_devices():
    found = of(*strong(8.0, 4.0, 4.0)[::-1])
    curve = only(found.curves)
    assert (found.title, found.price, found.memory, curve.kind) == ("A machine", 3.6, 10**9, "strong")
    assert [(p.devices, p.seconds, p.efficiency) for p in curve.points] == [
        (1, 8.0, 1.0),
        (2, 4.0, 1.0),
        (4, 4.0, 0.5),
    ]
    assert [p.interval for p in curve.points] == [(4.0, 16.0), (2.0, 8.0), (2.0, 8.0)]
    assert "devices" not in curve.name and "points=12" in curve.name


def test_efficiency_stands_against_the_fewest_devices_that_were_planned():
    curve = only(of(plan(2.0, 4), plan(1.0, 16)).curves)
    assert [p.efficiency for p in curve.points] == [1.0, 0.5]


def test_a_weak_curve_has_as_many_points_for_each_device():
    plans = [
        plan(1.0, 1, points=12),
        plan(1.25, 2, points=24),
        plan(2.0, 4, points=48),
        plan(1.0, 8, points=12),
    ]
    curve = only(of(*plans, told=WEAK).curves)
    assert [(p.devices, p.efficiency) for p in curve.points] == [(1, 1.0), (2, 0.8), (4, 0.5)]
    assert curve.kind == "weak" and curve.name.endswith("points/device=12")
    assert len(of(*plans).curves) == 3, "of the same plans, asked for strong scaling"


def test_a_study_of_both_kinds_of_scaling_has_curves_of_both():
    both = {"mine": TOLD["mine"] | {"scaling": ["weak", "strong"]}}
    first, strong_two, weak_two = plan(8.0, 1, points=12), plan(4.0, 2, points=12), plan(8.5, 2, points=24)
    lonely = plan(1.0, 2, points=24, mode="jacrev")
    found = of(first, strong_two, weak_two, lonely, told=both).curves
    assert sorted((c.kind, c.case.mode, [p.seconds for p in c.points]) for c in found) == [
        ("strong", "jacfwd", [8.0, 4.0]), ("strong", "jacrev", [1.0]), ("weak", "jacfwd", [8.0, 8.5])
    ]  # fmt: skip


def test_of_several_meshes_the_fastest_is_drawn_and_modes_have_curves_of_their_own():
    both = [
        plan(seconds, 4, split="both", mesh=mesh)
        for seconds, mesh in ((2.0, "4x1"), (1.0, "2x2"), (3.0, "1x4"))
    ]
    assert only(only(of(*both).curves).points).record.case.mesh == "2x2"
    assert len(of(*strong(1.0, 1.0), *strong(1.0, 1.0, mode="jacrev")).curves) == 2


def test_what_was_not_predicted_or_does_not_fit_is_on_no_curve():
    found = of(*strong(1.0), plan(None, mode="jacrev"), too_large(2 * 10**9, mode="linearize"))
    assert len(found.curves) == 1 and len(found.records) == 3
    assert [record.case.mode for record in found.too_large] == ["linearize"]


def test_the_latest_plan_of_a_hardware_counts_as_a_whole():
    old = [plan(9.0, n, setting="old") for n in (1, 2, 4)]
    new = [plan(1.0, n, setting="new", started="2026-02-01T00:00:00Z") for n in (1, 2)]
    for plans in ([*old, *new], [*new, *old]):
        assert [p.seconds for p in only(of(*plans).curves).points] == [1.0, 1.0]
    again = plan(5.0, 1, setting="new", started="2026-03-01T00:00:00Z")
    assert [p.seconds for p in only(of(*new, again).curves).points] == [5.0, 1.0]


def test_workloads_of_ones_own_are_planned_beside_others():
    linear = [plan(1.0, n, setting="package") for n in (1, 2)]
    own = [plan(2.0, n, workload="mine", setting="as it is") for n in (1, 2)]
    before = [
        plan(9.0, n, workload="mine", setting="as it was", started="2025-01-01T00:00:00Z") for n in (1, 2, 4)
    ]
    for plans in itertools.permutations((linear, own, before)):
        found = of(*itertools.chain(*plans))
        assert sorted((c.case.workload, [p.seconds for p in c.points]) for c in found.curves) == [
            ("linear", [1.0, 1.0]), ("mine", [2.0, 2.0])
        ]  # fmt: skip
    other = [dataclasses.replace(r, environment=r.environment | {"source": "another"}) for r in own]
    older = [dataclasses.replace(r, started_at="2024-01-01T00:00:00Z") for r in other]
    assert {record.case.workload for record in of(*linear, *older).records} == {"linear"}, "of other code"


def test_every_hardware_has_a_forecast_of_its_own_and_may_have_no_file():
    found = {each.hardware: each for each in forecasts([plan(1.0), plan(2.0, hardware="other")], read(TOLD))}
    assert set(found) == {"mine", "other"}
    assert (found["other"].title, found["other"].price, found["other"].memory) == ("other", None, None)


def test_only_some_cases_can_be_asked_after():
    found = of(*strong(8.0, 4.0), *strong(1.0, mode="jacrev"))
    keys = {point.record.key for point in found.curves[0].points[1:]}
    fewer = forecast.keep_cases(found, keys)
    assert [p.devices for p in only(fewer.curves).points] == [2] and len(fewer.records) == 1


def said(*plans, told=TOLD, deadline=None):
    return plan_answers(of(*plans, told=told), deadline)


def test_efficiency_falls_under_a_half_between_two_counts():
    first = said(*strong(8.0, 4.1, 2.2, 2.0, 1.9))[0]
    assert (
        "jacfwd (vmap)" in first
        and "1.90 s (0.95 to 3.80) on 16 devices, the fastest planned method" in first
    )
    assert first.endswith(
        "its efficiency falls under 50 % of 1 device between 8 and 16 devices (26 % there)."
    )


def test_efficiency_at_a_half_is_not_under_it():
    assert said(*strong(8.0, 8.0))[0].endswith(
        "its efficiency is 50 % of 1 device there, and nowhere under 50 %."
    )
    assert "between 1 and 2 devices (49 % there)" in said(*strong(8.0, 8.1))[0]
    assert "50 % of 2 devices between 2 and 8 devices" in said(plan(1.0, 2), plan(0.9, 8))[0]


def test_one_count_is_compared_with_nothing():
    assert said(*strong(8.0))[0].endswith("planned on no other number of devices.")


def test_the_fastest_way_is_that_of_all_counts_and_the_one_on_the_most_devices_stands_beside_it():
    slow_then_fast = [
        *strong(8.0, 4.0, 2.0),
        *strong(1.0, 2.5, 3.0, mode="jacrev"),
        *strong(0.1, mode="analytic"),
    ]
    first, cheap = said(*slow_then_fast)[:2]
    assert "jacrev (vmap) 1.00 s (0.50 to 2.00) on 1 device, the fastest planned method;" in first
    assert "; jacfwd (vmap) 2.00 s (1.00 to 4.00) on 4 devices, the fastest on as many devices;" in first
    assert "the cheapest is jacrev (vmap) on 1 device" in cheap


def test_no_count_is_called_the_fastest_where_another_one_is_cheaper_and_faster():
    first, cheap = said(*strong(5.0, 6.0))[:2]
    assert "5.00 s (2.50 to 10.0) on 1 device, the fastest planned method" in first
    assert "the cheapest is jacfwd (vmap) on 1 device" in cheap


def test_counts_that_the_same_machines_do_not_tell_apart_are_a_tie():
    def drawn(seconds, devices, draws):
        record = plan(seconds, devices)
        return dataclasses.replace(record, predicted=record.predicted | {"draws": draws})

    tied = [drawn(2.0, 1, [1.0, 2.0, 3.0]), drawn(1.9, 2, [1.1, 1.9, 2.8])]
    assert (
        "on 2 devices, the fastest planned method, not distinguished from jacfwd (vmap) 2.00 s"
        in said(*tied)[0]
    )
    apart = [drawn(2.0, 1, [1.0, 2.0, 3.0]), drawn(1.9, 2, [0.9, 1.9, 2.8])]
    assert "not distinguished" not in said(*apart)[0]


def test_within_twice_the_least_time_the_cheapest_count_is_told_with_its_price():
    # 8, 4.4, 2.4, 1.3: within 2.6 s four devices cost 9.6 device-seconds, eight 10.4.
    cheap = said(*strong(8.0, 4.4, 2.4, 1.3))[1]
    hours = 2.4 * 4 / 3600 * 1e6
    assert "within twice the least time (2.60 s) the cheapest is jacfwd (vmap) on 4 devices" in cheap
    ends = f"({hours / 2:.0f} to {hours * 2:.0f})"
    assert (
        f"{hours:.0f} {ends} device-hours for a million calls, {hours * 3.6:.0f} at the price given." in cheap
    )
    unpriced = {"mine": {"hardware": {"price": None}}}
    assert said(*strong(8.0), told=unpriced)[1].endswith("device-hours for a million calls.")


def test_within_a_deadline_the_cheapest_count_of_any_way_is_told():
    plans = [*strong(8.0, 4.4, 2.4, 1.3), *strong(9.0, 4.2, 3.0, 2.0, mode="jacrev")]
    # The upper end of each interval, which is twice the middle here, must be in time.
    assert (
        "within a deadline of 8.60 s the cheapest is jacrev (vmap) on 2 devices"
        in said(*plans, deadline=8.6)[1]
    )
    assert (
        "within a deadline of 17.0 s the cheapest is jacfwd (vmap) on 1 device:"
        in said(*plans, deadline=17.0)[1]
    )
    assert said(*plans, deadline=2.5)[1].endswith("within the deadline of 2.50 s by the end of its interval.")


def test_an_efficiency_has_the_interval_of_the_machines_that_both_were_drawn_on():
    one, two = strong(8.0, 5.0)
    drawn = [
        dataclasses.replace(
            record, predicted=record.predicted | {"draws": [record.predicted["seconds"] * k for k in scales]}
        )
        for record, scales in ((one, (1.0, 2.0, 3.0)), (two, (1.0, 2.0, 3.0)))
    ]
    (curve,) = of(*drawn).curves
    assert curve.points[1].efficiency_interval == pytest.approx((0.8, 0.8)), (
        "what is slow for both changes nothing"
    )
    assert "80 %, 80 % to 80 %" in said(*drawn)[0]
    apart = [drawn[0], dataclasses.replace(two, predicted=two.predicted | {"draws": [5.0, 20.0, 15.0]})]
    low, high = of(*apart).curves[0].points[1].efficiency_interval
    assert 0.39 < low < 0.45 and high == pytest.approx(0.8)
    assert of(one, two).curves[0].points[1].efficiency_interval is None


def test_every_problem_is_answered_for_itself():
    lines = said(*strong(8.0, 4.0), *strong(80.0, 40.0, points=24), *strong(80.0, 40.0, mode="jacrev"))
    assert len(lines) == 4
    assert "points=12" in lines[0] and "points=24" in lines[2]


def test_weak_scaling_is_answered_too():
    plans = [plan(s, n, points=12 * n) for s, n in ((1.0, 1), (1.5, 2), (2.5, 4))]
    other = [plan(s, n, points=24 * n) for s, n in ((2.0, 2), (2.0, 4))]
    lines = said(*plans, *other, told=WEAK)
    assert len(lines) == 4
    assert "points/device=12" in lines[0] and "between 2 and 4 devices (40 % there)" in lines[0]
    assert "points/device=24" in lines[2] and "its efficiency is 100 % of 2 devices" in lines[2]


def test_what_runs_out_of_memory_first_is_said_with_its_figures():
    alone = said(*strong(1.0), too_large(3 * 10**9, mode="jacrev"))[-1]
    assert alone.startswith("First to run out of memory: ") and "jacrev" in alone
    assert alone.endswith("needs 3.00 GB, a device has 1.00 GB.")
    several = said(
        *strong(1.0), too_large(3 * 10**9, devices=2), too_large(9 * 10**9, devices=4, mode="jacrev")
    )[-1]
    assert (
        "devices=4" in several
        and "needs 9.00 GB" in several
        and several.endswith("; 2 cases do not fit in all.")
    )


def test_where_everything_fits_the_nearest_is_said():
    near = plan(1.0, mode="jacrev", peak_bytes=9 * 10**8, capacity_bytes=10**9)
    line = said(*strong(1.0, peak_bytes=10**8, capacity_bytes=10**9), near)[-1]
    assert (
        line.startswith("Everything fits") and "jacrev" in line and line.endswith("900 MB of 1.00 GB (90 %).")
    )
    assert not any("fits" in line for line in said(*strong(1.0))), "nothing is known of memory"


def test_where_formula_begins_is_said():
    beyond = plan(0.1, 1000, by="formula")
    plans = [*strong(8.0, 4.0), beyond]
    assert said(*plans)[-1] == (
        "Up to 2 devices programs were compiled; beyond, from 1,000 devices on, communication and waiting are formula alone."
    )
    assert [point.by_formula for point in only(of(*plans).curves).points] == [False, False, True]
    assert not any("formula" in line for line in said(*strong(8.0, 4.0)))


@pytest.mark.parametrize("status", ["failed", "skipped"])
def test_what_came_to_nothing_answers_nothing(status):
    assert said(dataclasses.replace(plan(None), status=status, reason="error")) == []
