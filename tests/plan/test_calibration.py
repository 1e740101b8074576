"""Calibration: the rates of this machine are what its ceilings did in a second, less what asking took."""

import dataclasses

import numpy as np
import pytest
import yaml

from scaling.analysis import curves
from scaling.core.case import Refusal
from scaling.plan import calibration, time_model
from scaling.plan.hardware import from_config
from scaling.plan.network import collective
from tests.support.ceilings import CALL, COLLECTIVE, SPEEDS, all_of, ceiling
from tests.support.made_up import case_of, machine, timed
from tests.support.paths import CONF

FILE = CONF / "hardware" / "cpu.yaml"
DEFAULT = from_config(yaml.safe_load(FILE.read_text()))


def calibrated(*records):
    return calibration.calibrate(DEFAULT, curves.pool_processes(records))


def test_rates_are_what_the_ceilings_did_in_a_second_less_what_asking_took():
    (rates,) = calibrated(*all_of()).rates
    assert rates.devices == 1
    assert rates.products["float32"] == pytest.approx(
        dict.fromkeys(("highest", "high", "default"), SPEEDS["matmul"])
    )
    for field, target in (("arithmetic", "arithmetic"), ("divisions", "division"), ("transcendental", "transcendental"),
                          ("reductions", "reduction")):  # fmt: skip
        assert getattr(rates, field)["float32"] == pytest.approx(SPEEDS[target])
        assert getattr(rates, field)["bfloat16"] == pytest.approx(SPEEDS[target]), (
            "it is converted on the way"
        )
        assert getattr(rates, field)["float64"] is None
    assert rates.turned == pytest.approx(SPEEDS["transpose"])
    assert rates.empty_call("jit") == rates.empty_call("pmap") == CALL
    assert rates.kernel_seconds == 0 and rates.network == ()


def test_a_copy_of_each_size_has_a_bandwidth_of_its_own():
    (rates,) = calibrated(*all_of()).rates
    # Four rows of k float32, read and written.
    assert np.array(rates.bandwidth) == pytest.approx(
        np.array([(32 * 2**16, 8e9), (32 * 2**18, 4e9), (32 * 2**20, 1e9)])
    )


def test_no_more_than_half_of_a_ceiling_is_taken_for_asking():
    tiny = ceiling("copy", 1, speed=1e12)
    (rates,) = calibrated(*all_of(), tiny).rates
    assert rates.bandwidth[0] == pytest.approx((32, 2 * 32 / tiny.seconds[0]))


def test_the_faster_of_two_measurements_is_the_ceiling_and_dtypes_have_their_own():
    double = [
        ceiling("matmul", 512, 2e10, dtype="float64"),
        ceiling("arithmetic", 2**18, 1e9, dtype="float64"),
    ]
    (rates,) = calibrated(*all_of(), ceiling("matmul", 64, 1e9), *double).rates
    assert rates.products["float32"]["high"] == pytest.approx(SPEEDS["matmul"])
    assert rates.products["float64"]["high"] == pytest.approx(2e10) and rates.arithmetic[
        "float64"
    ] == pytest.approx(1e9)
    assert rates.products["bfloat16"]["high"] is None, "a product in it is another"


def test_every_number_of_devices_has_its_own_rates_and_its_network():
    found = calibrated(*all_of(), *all_of(2, 0.8), *all_of(8, 0.5))
    assert [rates.devices for rates in found.rates] == [1, 2, 8]
    assert [found.rates_at(n).devices for n in (1, 2, 3, 7, 8, 64)] == [1, 2, 2, 2, 8, 8]
    assert [rates.turned / SPEEDS["transpose"] for rates in found.rates] == pytest.approx([1, 0.8, 0.5])
    sum_of_two = collective("all-reduce", 2048, 2, found.rates_at(2).network)
    # A sum over two takes what it took when it was measured.
    assert sum_of_two.seconds == pytest.approx(2048 / (0.8 * SPEEDS["all_reduce"]) + COLLECTIVE - CALL)
    assert collective("all-reduce", 1e9, 8, found.rates_at(8).network).transfer == pytest.approx(
        1e9 / (0.5 * SPEEDS["all_reduce"])
    )


def test_a_plan_of_the_ceilings_themselves_gives_their_times():
    hardware = dataclasses.replace(calibrated(*all_of()), attained=(1.0, 1.0), asking=(1.0, 1.0), jitter=1e-9)
    case = case_of("linear", api="jit")
    for kernel, target, amount in (
        ({"products": 10**9}, "matmul", 10**9),
        ({"divisions": 10**7}, "division", 10**7),
    ):
        found = time_model.estimate(case, hardware, [kernel], [])
        assert found.seconds == pytest.approx(CALL + amount / SPEEDS[target], rel=1e-4)


@pytest.mark.parametrize("records", [[], [timed(np.random.default_rng(0), case_of("linear"), 1.0)]])
def test_without_ceilings_it_is_refused_with_the_fix(records):
    with pytest.raises(Refusal) as refusal:
        calibrated(*records)
    words = str(refusal.value)
    assert (
        "hardware=cpu" in words
        and "scaling run study=linear" in words
        and "hardware.ceilings=results/linear" in words
    )


@pytest.mark.parametrize("missing", ["copy", "call"])
def test_without_a_copy_or_an_empty_call_it_is_refused(missing):
    records = [record for record in all_of() if record.case.target != missing]
    with pytest.raises(Refusal, match="hardware=cpu: no copy and empty call were measured"):
        calibrated(*records)
    both = [record for record in all_of(2) if record.case.devices == 2]
    assert [rates.devices for rates in calibrated(*records, *both).rates] == [2], (
        "what is known of others stays"
    )


def test_without_a_product_or_a_sum_over_devices_those_alone_are_not_known():
    some = [record for record in all_of(2) if record.case.target not in ("matmul", "all_reduce")]
    (rates,) = calibrated(*some).rates
    assert rates.products["float32"]["high"] is None and rates.network == () and rates.turned


def test_what_shared_its_cores_is_no_ceiling():
    cores = {"platform": "cpu", "cores": [0, 1]}
    shared = [dataclasses.replace(record, environment=record.environment | cores) for record in all_of()]
    with pytest.raises(Refusal, match="there are none"):
        calibrated(*shared)


def test_the_ceilings_of_the_environment_that_was_measured_last_count():
    old, new = all_of(share=2.0, digest="old"), all_of(digest="new", started="2026-02-01T00:00:00Z")
    for records in ([*old, *new], [*new, *old]):
        found = calibrated(*records)
        assert found.rates[0].turned == pytest.approx(SPEEDS["transpose"])
        assert found.device_kind == "A processor of new"


def test_other_ceilings_are_another_machine_and_the_same_ones_the_same():
    assert (
        calibrated(*all_of()).digest == calibrated(*all_of()).digest != calibrated(*all_of(share=0.9)).digest
    )


def test_made_up_machines_are_machines():
    draw = np.random.default_rng(0)
    found = calibrated(*(record for devices in (1, 2, 64) for record in machine(draw, devices)))
    assert [rates.devices for rates in found.rates] == [1, 2, 64]
