"""Tests of the cost of measuring a plan: the predicted time equals a computation by hand."""

import dataclasses

import pytest

from scaling.core.timing import Sampling
from scaling.plan import measurement_cost
from scaling.workers.run_settings import RunSettings
from tests.support.planned import plan, predicted

STAGES = {"trace_seconds": 0.1, "lower_seconds": 0.2, "compile_seconds": 0.5}
SAMPLING = Sampling(width=0.02, least=7, most=200, seconds=1.0, warm_up=0.05, turns=3, compilations=1)


def settings(replicates=1, **sampling):
    return dataclasses.replace(
        RunSettings(), sampling=dataclasses.replace(SAMPLING, **sampling), replicates=replicates
    )


def case(high, devices=1, **fields):
    return dataclasses.replace(
        plan(high / 2, devices), predicted=predicted(high / 2, high=high), **STAGES | fields
    )


def test_a_short_case_takes_its_stages_and_the_sampling_time():
    assert measurement_cost.measurement_seconds(case(0.001), settings()) == pytest.approx(
        2 + 0.001 + 0.8 + 0.05 + 1.0
    )


def test_a_long_case_takes_the_minimum_number_of_calls():
    # One checked call, one warm-up call, and seven samples.
    assert measurement_cost.measurement_seconds(case(10.0), settings()) == pytest.approx(2 + 0.8 + 9 * 10.0)


def test_each_compilation_is_sampled_separately():
    assert measurement_cost.measurement_seconds(case(0.001), settings(compilations=3)) == pytest.approx(
        2 + 0.001 + 3 * (0.8 + 0.05 + 1.0)
    )


def test_device_hours_are_summed_over_devices_and_replicates():
    records = [case(0.001), case(10.0, 64), plan(None, 4)]
    *hours, unknown = measurement_cost.device_hours(records, settings(replicates=5))
    for end, hours_taken in zip(("low", "high"), hours, strict=True):
        small, large = (
            measurement_cost.measurement_seconds(record, settings(), end) for record in records[:2]
        )
        assert hours_taken == pytest.approx(5 * (small + 64 * large) / 3600)
    assert (
        unknown == 1
        and measurement_cost.measurement_seconds(records[2], settings()) is None
        and measurement_cost.device_hours([], settings()) == (0, 0, 0)
    )
