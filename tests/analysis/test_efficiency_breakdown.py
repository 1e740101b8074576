"""Tests of the efficiency breakdown (baselines.py): the losses of curves whose losses are known."""

import pytest

from scaling.analysis import curves
from scaling.analysis.baselines import efficiency_breakdowns, measured_rates
from scaling.analysis.timings import pool_processes

STEADY = 9  # samples


@pytest.fixture
def breakdowns_of(make_record):
    """Return a function from rows (devices, seconds, fields) and machine peaks to the efficiency breakdowns of their curve."""

    def break_down(records, peaks=(), kind="strong", points=12):
        rows = []
        for devices, seconds, fields in records:
            total_points = points * devices if kind == "weak" else points
            fastest = fields.pop("least", seconds)
            rows.append(make_record(devices=devices, points=total_points, seconds=[seconds] * STEADY, seconds_min=[fastest] * STEADY,
                                    **{"flops": 1e6, "compulsory_bytes": 1000} | fields))  # fmt: skip
        (curve,) = curves.scaling_curves(pool_processes(rows), [kind])
        return efficiency_breakdowns(curve, measured_rates(pool_processes([*rows, *peaks])))

    return break_down


@pytest.fixture
def all_reduce_peak(make_record):
    """Return the machine peak of an all-reduce of 40 bytes per device over two devices in one second."""
    case = {
        "workload": "ceiling",
        "target": "all_reduce",
        "mode": "value",
        "sizes": {"k": 10, "terms": 1},
        "points": 2,
    }
    return make_record(devices=2, seconds=[1.0] * STEADY, **case)


def parts(breakdown):
    return breakdown.communication, breakdown.imbalance, breakdown.dispatch, breakdown.serial


def test_losses_of_a_device_count_sum_to_one_minus_its_efficiency(breakdowns_of, all_reduce_peak):
    (breakdown,) = breakdowns_of([(1, 1.0, {"floor_seconds": 0.1}),
                    (2, 0.75, {"floor_seconds": 0.15, "least": 0.6, "collective_bytes": 2})], [all_reduce_peak])  # fmt: skip
    assert breakdown.point.devices == 2
    assert sum(parts(breakdown)) == pytest.approx(1 - 1 / (2 * 0.75))
    assert parts(breakdown) == pytest.approx(
        (0.05 / 0.75, 0.1, 0.2 - 0.1 / 1.5, 1 / 3 - 0.05 / 0.75 - 0.1 - 0.2 + 0.1 / 1.5)
    )


def test_unmeasured_losses_are_none_and_part_of_the_remainder(breakdowns_of):
    (breakdown,) = breakdowns_of([(1, 1.0, {}), (2, 0.75, {"floor_seconds": 0.1, "collective_bytes": 8})])
    assert parts(breakdown) == (None, None, None, pytest.approx(1 / 3))


def test_case_without_communication_has_no_communication_loss(breakdowns_of, all_reduce_peak):
    for peaks in ([], [all_reduce_peak]):
        assert breakdowns_of([(1, 1.0, {}), (2, 0.75, {"collective_bytes": 0})], peaks)[0].communication == 0
    assert breakdowns_of([(1, 1.0, {}), (2, 0.75, {})], [all_reduce_peak])[0].communication is None


def test_peak_of_another_device_count_is_not_used(breakdowns_of, all_reduce_peak):
    several = breakdowns_of(
        [(1, 1.0, {}), (2, 0.75, {"collective_bytes": 8}), (4, 0.5, {"collective_bytes": 8})],
        [all_reduce_peak],
    )
    assert [breakdown.communication for breakdown in several] == [pytest.approx(0.2 / 0.75), None]


def test_losses_of_a_weak_curve_sum_to_its_added_time(breakdowns_of):
    (breakdown,) = breakdowns_of(
        [(1, 1.0, {"floor_seconds": 0.1}), (2, 1.25, {"floor_seconds": 0.2})], kind="weak"
    )
    assert breakdown.dispatch == pytest.approx(0.2 / 1.25 - 0.8 * 0.1)
    assert breakdown.dispatch + breakdown.serial == pytest.approx(1 - 0.8)


def test_constant_dispatch_latency_is_dispatch_loss_and_no_serial_loss(breakdowns_of):
    times = {devices: 0.01 + 0.99 / devices for devices in (1, 2, 4, 8)}
    breakdowns = breakdowns_of(
        [(devices, seconds, {"floor_seconds": 0.01}) for devices, seconds in times.items()], points=24
    )
    assert [breakdown.serial for breakdown in breakdowns] == pytest.approx([0.0] * 3)
    assert all(breakdown.dispatch > 0 for breakdown in breakdowns)


def test_superlinear_speedup_has_a_negative_serial_loss(breakdowns_of):
    (breakdown,) = breakdowns_of([(1, 1.0, {}), (2, 0.4, {})])
    assert breakdown.serial == pytest.approx(-0.25)


def test_breakdown_is_rejected_if_an_empty_call_takes_longer_than_the_case(breakdowns_of):
    """The dispatch share of the first case would be 460 %."""
    assert breakdowns_of([(1, 1.0, {"floor_seconds": 0.1}), (2, 0.1, {"floor_seconds": 0.46})]) == []
    assert breakdowns_of([(1, 1.0, {"floor_seconds": 1.1}), (2, 0.75, {"floor_seconds": 0.1})]) == []
    times = [
        (1, 1.0, {"floor_seconds": 0.1}),
        (2, 0.75, {"floor_seconds": 0.2}),
        (4, 0.1, {"floor_seconds": 0.2}),
    ]
    assert [breakdown.point.devices for breakdown in breakdowns_of(times)] == [2]


def test_curve_without_one_device_has_no_breakdown(breakdowns_of):
    assert breakdowns_of([(2, 1.0, {}), (4, 0.75, {})]) == []
