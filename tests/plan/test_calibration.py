"""Tests of calibration: rates of this machine from measured ceilings, without the dispatch latency."""

import dataclasses

import numpy as np
import pytest
import yaml

from scaling.analysis.timings import pool_processes
from scaling.core.case import Refusal
from scaling.plan import plan_study, time_model
from scaling.plan.hardware import from_config
from scaling.plan.time_model import collective_cost
from tests.support.ceilings import CALL, COLLECTIVE, SPEEDS, all_of, ceiling
from tests.support.made_up import case_of, machine, timed
from tests.support.paths import CONF

FILE = CONF / "hardware" / "cpu.yaml"
DEFAULT = from_config(yaml.safe_load(FILE.read_text()))


def calibrate(*records):
    return time_model.calibrate(DEFAULT, pool_processes(records))


def test_rates_are_work_per_second_of_the_ceilings_without_dispatch_latency():
    (rates,) = calibrate(*all_of()).rates
    assert rates.devices == 1
    assert rates.products["float32"] == pytest.approx(
        dict.fromkeys(("highest", "high", "default"), SPEEDS["matmul"])
    )
    for name in ("arithmetic", "transcendental"):
        assert getattr(rates, name)["float32"] == pytest.approx(SPEEDS[name])
        assert getattr(rates, name)["bfloat16"] == pytest.approx(SPEEDS[name]), (
            "bfloat16 is converted to float32"
        )
        assert getattr(rates, name)["float64"] is None
    assert set(rates.call_seconds.values()) == {CALL}
    assert rates.kernel_seconds == 0 and rates.network == ()


def test_each_size_of_a_copy_has_its_own_bandwidth():
    (rates,) = calibrate(*all_of()).rates
    # Four rows of k float32 numbers, read and written.
    assert np.array(rates.bandwidth) == pytest.approx(
        np.array([(32 * 2**16, 8e9), (32 * 2**18, 4e9), (32 * 2**20, 1e9)])
    )


def test_at_most_half_of_a_ceiling_is_attributed_to_dispatch_latency():
    tiny = ceiling("copy", 1, speed=1e12)
    (rates,) = calibrate(*all_of(), tiny).rates
    assert rates.bandwidth[0] == pytest.approx((32, 2 * 32 / tiny.seconds[0]))


def test_the_fastest_measurement_of_each_dtype_is_its_ceiling():
    double = [
        ceiling("matmul", 512, 2e10, dtype="float64"),
        ceiling("arithmetic", 2**18, 1e9, dtype="float64"),
    ]
    (rates,) = calibrate(*all_of(), ceiling("matmul", 64, 1e9), *double).rates
    assert rates.products["float32"]["high"] == pytest.approx(SPEEDS["matmul"])
    assert rates.products["float64"]["high"] == pytest.approx(2e10) and rates.arithmetic[
        "float64"
    ] == pytest.approx(1e9)
    assert rates.products["bfloat16"]["high"] is None, "products in bfloat16 have a rate of their own"


def test_every_device_count_has_its_own_rates_and_network():
    hardware = calibrate(*all_of(), *all_of(2, 0.8), *all_of(8, 0.5))
    assert [rates.devices for rates in hardware.rates] == [1, 2, 8]
    assert [hardware.rates_at(n).devices for n in (1, 2, 3, 7, 8, 64)] == [1, 2, 2, 2, 8, 8]
    assert [rates.arithmetic["float32"] / SPEEDS["arithmetic"] for rates in hardware.rates] == pytest.approx(
        [1, 0.8, 0.5]
    )
    sum_of_two = collective_cost("all-reduce", 2048, 2, hardware.rates_at(2).network)
    # An all-reduce over two devices takes the measured time.
    assert sum_of_two.sum() == pytest.approx(2048 / (0.8 * SPEEDS["all_reduce"]) + COLLECTIVE - CALL)
    assert collective_cost("all-reduce", 1e9, 8, hardware.rates_at(8).network)[1] == pytest.approx(
        1e9 / (0.5 * SPEEDS["all_reduce"])
    )


def test_predicting_the_ceilings_gives_their_measured_times():
    hardware = dataclasses.replace(calibrate(*all_of()), attained=(1.0, 1.0), asking=(1.0, 1.0), jitter=1e-9)
    case = case_of("linear", api="jit")
    for kernel, target, amount in (
        ({"products": 10**9}, "matmul", 10**9),
        ({"divisions": 10**7}, "transcendental", 10**7),
    ):
        prediction = time_model.estimate_time(case, hardware, [kernel], [])
        assert prediction.seconds == pytest.approx(CALL + amount / SPEEDS[target], rel=1e-4)


@pytest.mark.parametrize("records", [[], [timed(np.random.default_rng(0), case_of("linear"), 1.0)]])
def test_calibration_without_ceilings_is_rejected_with_the_fix(records):
    with pytest.raises(Refusal) as refusal:
        calibrate(*records)
    message = str(refusal.value)
    assert "hardware=cpu" in message and "scaling run study=linear" in message
    assert "hardware.ceilings=results/linear" in message


@pytest.mark.parametrize("missing", ["copy", "call"])
def test_calibration_without_a_copy_or_an_empty_call_is_rejected(missing):
    records = [record for record in all_of() if record.case.target != missing]
    with pytest.raises(Refusal, match="hardware=cpu needs the measured ceilings `copy` and `call`"):
        calibrate(*records)
    both = [record for record in all_of(2) if record.case.devices == 2]
    assert [rates.devices for rates in calibrate(*records, *both).rates] == [2], (
        "other device counts keep their rates"
    )


def test_without_matmul_and_all_reduce_only_their_rates_are_unknown():
    records = [record for record in all_of(2) if record.case.target not in ("matmul", "all_reduce")]
    (rates,) = calibrate(*records).rates
    assert rates.products["float32"]["high"] is None and rates.network == ()


def test_oversubscribed_records_are_not_ceilings():
    cores = {"platform": "cpu", "cores": [0, 1]}
    shared = [dataclasses.replace(record, environment=record.environment | cores) for record in all_of()]
    with pytest.raises(Refusal, match="ceilings `copy` and `call`, which are missing"):
        calibrate(*shared)


def test_the_ceilings_of_the_latest_environment_are_used():
    old, new = all_of(share=2.0, digest="old"), all_of(digest="new", started="2026-02-01T00:00:00Z")
    for records in ([*old, *new], [*new, *old]):
        hardware = calibrate(*records)
        assert hardware.rates[0].arithmetic["float32"] == pytest.approx(SPEEDS["arithmetic"])
        assert hardware.device_kind == "A processor of new"


def test_the_digest_of_a_calibrated_machine_depends_on_its_ceilings():
    assert calibrate(*all_of()).digest == calibrate(*all_of()).digest != calibrate(*all_of(share=0.9)).digest


def test_a_calibrated_machine_does_not_contain_the_path_of_its_ceilings():
    given = from_config(DEFAULT.config | {"ceilings": "/home/someone/results"})
    calibrated = time_model.calibrate(given, pool_processes(all_of()))
    assert "someone" not in str(calibrated.config) and calibrated.digest == calibrate(*all_of()).digest


def test_synthetic_records_of_a_machine_can_be_calibrated():
    rng = np.random.default_rng(0)
    hardware = calibrate(*(record for devices in (1, 2, 64) for record in machine(rng, devices)))
    assert [rates.devices for rates in hardware.rates] == [1, 2, 64]


@pytest.mark.parametrize("memory", [None, 5e8])
def test_a_cpu_has_the_memory_of_its_file_or_a_share_of_what_is_free(memory, tmp_path, monkeypatch):
    monkeypatch.setattr(plan_study.time_model, "calibrate", lambda hardware, timings: hardware)
    monkeypatch.setattr(plan_study.environment, "available_bytes", lambda: 9e9)
    monkeypatch.setattr(plan_study.cores, "usable_cores", lambda: [0, 1, 2])
    cpu = from_config(DEFAULT.config | {"memory": memory})
    assert plan_study._calibrate_cpu(cpu, tmp_path).memory == (memory or 3e9)
