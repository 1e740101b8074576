"""Where losses.py says that efficiency goes, of curves whose losses are known."""

import pytest

from scaling.analysis import curves
from scaling.analysis.efficiency_breakdown import EfficiencyBreakdown, count_refused, efficiency_breakdowns

STEADY = 9  # samples


@pytest.fixture
def lost(make_record):
    """The losses of a curve: the times and other fields of its records by devices, and the ceilings beside them."""

    def lost_by(records, ceilings=(), kind="strong", points=12):
        made = []
        for devices, seconds, fields in records:
            share = points * devices if kind == "weak" else points
            least = fields.pop("least", seconds)
            made.append(make_record(devices=devices, points=share, seconds=[seconds] * STEADY, seconds_min=[least] * STEADY,
                                    **{"flops": 1e6, "compulsory_bytes": 1000} | fields))  # fmt: skip
        (curve,) = curves.scaling_curves(made, [kind])
        return efficiency_breakdowns(curve, curves.pool_processes([*made, *ceilings]))

    return lost_by


@pytest.fixture
def sums(make_record):
    """A sum over two devices of 40 bytes each in a second."""
    case = {
        "workload": "ceiling",
        "target": "all_reduce",
        "mode": "value",
        "sizes": {"k": 10, "terms": 1},
        "points": 2,
    }
    return make_record(devices=2, seconds=[1.0] * STEADY, **case)


def parts(loss):
    return loss.communication, loss.imbalance, loss.dispatch, loss.serial


def test_the_losses_of_a_point_add_up_to_what_its_efficiency_lacks(lost, sums):
    (loss,) = lost([(1, 1.0, {"floor_seconds": 0.1}),
                    (2, 0.75, {"floor_seconds": 0.15, "least": 0.6, "collective_bytes": 2})], [sums])  # fmt: skip
    assert loss.devices == 2
    assert sum(parts(loss)) == pytest.approx(1 - 1 / (2 * 0.75))
    assert parts(loss) == pytest.approx(
        (0.05 / 0.75, 0.1, 0.2 - 0.1 / 1.5, 1 / 3 - 0.05 / 0.75 - 0.1 - 0.2 + 0.1 / 1.5)
    )


def test_what_was_not_measured_is_none_and_stays_in_the_rest(lost):
    (loss,) = lost([(1, 1.0, {}), (2, 0.75, {"floor_seconds": 0.1, "collective_bytes": 8})])
    assert loss == EfficiencyBreakdown(2, None, None, None, pytest.approx(1 / 3))


def test_what_sends_nothing_loses_nothing_by_it_whether_or_not_a_ceiling_was_measured(lost, sums):
    for ceilings in ([], [sums]):
        assert lost([(1, 1.0, {}), (2, 0.75, {"collective_bytes": 0})], ceilings)[0].communication == 0
    assert lost([(1, 1.0, {}), (2, 0.75, {})], [sums])[0].communication is None


def test_a_ceiling_on_other_devices_says_nothing(lost, sums):
    several = lost(
        [(1, 1.0, {}), (2, 0.75, {"collective_bytes": 8}), (4, 0.5, {"collective_bytes": 8})], [sums]
    )
    assert [loss.communication for loss in several] == [pytest.approx(0.2 / 0.75), None]


def test_a_weak_curve_loses_what_it_takes_longer(lost):
    (loss,) = lost([(1, 1.0, {"floor_seconds": 0.1}), (2, 1.25, {"floor_seconds": 0.2})], kind="weak")
    assert loss.dispatch == pytest.approx(0.2 / 1.25 - 0.8 * 0.1)
    assert loss.dispatch + loss.serial == pytest.approx(1 - 0.8)


def test_the_same_asking_on_ever_shorter_work_is_dispatch_and_nothing_serial(lost):
    times = {devices: 0.01 + 0.99 / devices for devices in (1, 2, 4, 8)}
    found = lost(
        [(devices, seconds, {"floor_seconds": 0.01}) for devices, seconds in times.items()], points=24
    )
    assert [loss.serial for loss in found] == pytest.approx([0.0] * 3) and all(
        loss.dispatch > 0 for loss in found
    )


def test_devices_that_gain_have_less_than_no_serial_part(lost):
    (loss,) = lost([(1, 1.0, {}), (2, 0.4, {})])
    assert loss.serial == pytest.approx(-0.25)


def test_a_breakdown_is_refused_where_an_empty_call_takes_longer_than_the_case(lost, make_record):
    """Its share would be 460 % of the time."""
    assert lost([(1, 1.0, {"floor_seconds": 0.1}), (2, 0.1, {"floor_seconds": 0.46})]) == ()
    assert lost([(1, 1.0, {"floor_seconds": 1.1}), (2, 0.75, {"floor_seconds": 0.1})]) == ()
    times = [
        (1, 1.0, {"floor_seconds": 0.1}),
        (2, 0.75, {"floor_seconds": 0.2}),
        (4, 0.1, {"floor_seconds": 0.2}),
    ]
    assert [loss.devices for loss in lost(times)] == [2]
    made = [make_record(devices=d, points=12, seconds=[s] * STEADY, **fields) for d, s, fields in times]
    assert [count_refused(curve) for curve in curves.scaling_curves(made)] == [1]


def test_without_the_same_program_on_one_device_nothing_is_told(lost):
    assert lost([(2, 1.0, {}), (4, 0.75, {})]) == ()
