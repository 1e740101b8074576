"""Tests of the time model: predictions equal a computation by hand, and sampled waiting equals a simulation of devices."""

import dataclasses
import math

import numpy as np
import pytest

from scaling.core.case import Case
from scaling.plan import time_model
from scaling.plan.time_model import collective_cost
from tests.support.machines import (
    ARITHMETIC,
    BANDWIDTH,
    CALL,
    KERNEL,
    PRODUCTS,
    TRANSCENDENTAL,
    machine,
)

INSTRUCTIONS = 36 * TRANSCENDENTAL  # instructions per second of a mixture, as in an exponential
NOISY = {"jitter": 0.05, "stragglers": {"share": 0.01, "slowdown": 1.5}}


def case(devices=1, **fields):
    return Case("linear", sizes={"p": 4, "o": 2}, points=8 * devices, devices=devices, **fields)


def estimate(kernels, messages=(), devices=1, hardware=None, **fields):
    """Return the prediction, or the message that states why there is none."""
    try:
        hardware = hardware or machine()
        return time_model.estimate_time(case(devices, **fields), hardware, kernels, messages)
    except time_model.UnknownTime as reason:
        return str(reason)


def seconds(*kernels, **options):
    """Return the predicted seconds of the kernels without the dispatch latency."""
    prediction = estimate(kernels, **options)
    calls = CALL + KERNEL * sum(kernel.get("times", 1) for kernel in kernels)
    assert prediction.call == pytest.approx(calls)
    return prediction.seconds - calls


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ({"bytes": 4000}, 4000 / BANDWIDTH),
        ({"products": 10**6}, 10**6 / PRODUCTS),
        ({"bytes": 4000, "products": 10**6}, 10**6 / PRODUCTS),  # the longer of the two
        ({"bytes": 10**6, "products": 10**6}, 10**6 / BANDWIDTH),
        ({"arithmetic": 300, "divisions": 500, "transcendentals": 700},
         300 / ARITHMETIC + 1200 / TRANSCENDENTAL),
        ({"bytes": 4000, "times": 7}, 7 * 4000 / BANDWIDTH),
        # The executed instructions of a CPU contain all kinds of operations.
        ({"operations": 900, "arithmetic": 3000, "products": 10**6, "bytes": 8}, 900 / INSTRUCTIONS),
    ],
)  # fmt: skip
def test_a_kernel_takes_the_maximum_of_its_memory_and_compute_time(kernel, expected):
    assert seconds(kernel) == pytest.approx(expected, rel=1e-5)


def test_times_of_kernels_and_messages_are_added():
    first, second = {"bytes": 4000, "products": 9}, {"products": 10**5, "times": 3.0}
    assert seconds(first, second) == pytest.approx(seconds(first) + seconds(second), rel=1e-5)
    message = {"kind": "all-reduce", "bytes": 10**5, "group": 4, "times": 5.0}
    with_message = estimate([first], [message], devices=4)
    expected = 5 * collective_cost("all-reduce", 1e5, 4, machine().rates[0].network).sum()
    assert with_message.communication == pytest.approx(expected)
    assert with_message.seconds - estimate([first], devices=4).seconds == pytest.approx(expected)


def test_on_a_cpu_memory_and_compute_time_overlap_partly_and_the_overhead_is_added():
    memory, compute, overhead = {"bytes": 10**6}, {"products": 10**5}, {"overhead": 700}
    for parts in ((memory, compute), (memory | {"bytes": 10**7}, compute)):
        expected = math.hypot(*map(seconds, parts)) + seconds(overhead)
        assert seconds(parts[0] | parts[1] | overhead) == pytest.approx(expected, rel=1e-5)


def test_instructions_of_a_cpu_have_the_higher_rate_of_exponentials_and_arithmetic():
    for transcendental, rate in ((TRANSCENDENTAL, INSTRUCTIONS), (1.0, ARITHMETIC), (None, ARITHMETIC)):
        by_dtype = dict.fromkeys(["float32", "float64"], transcendental)
        rates = dataclasses.replace(machine().rates[0], transcendental=by_dtype)
        hardware = dataclasses.replace(machine(), rates=(rates,))
        assert seconds({"operations": 900}, hardware=hardware) == pytest.approx(900 / rate, rel=1e-5)


def test_overhead_is_a_time_that_does_not_depend_on_the_rates_or_the_dtype():
    for dtype, arithmetic in (("float32", ARITHMETIC), ("float64", ARITHMETIC), ("float32", 9 * ARITHMETIC)):
        rates = dataclasses.replace(
            machine().rates[0], arithmetic=dict.fromkeys(["float32", "float64"], arithmetic)
        )
        hardware = dataclasses.replace(machine(), rates=(rates,))
        assert seconds({"overhead": 9 * 10**8}, dtype=dtype, hardware=hardware) == pytest.approx(
            9e-4, rel=0.1
        )


def test_the_time_of_a_message_depends_on_its_group_size():
    few, many = ([{"kind": "all-reduce", "bytes": 10**5, "group": n}] for n in (2, 64))
    assert estimate([], few, devices=64).communication < estimate([], many, devices=64).communication


@pytest.mark.parametrize(
    ("kernel", "bound"),
    [
        ({"bytes": 10**6, "products": 1}, "memory"),
        ({"bytes": 8, "transcendentals": 900}, "transcendentals"),
        ({"bytes": 8, "overhead": 90_000}, "overhead"),
        ({}, None),
    ],
)
def test_the_bound_is_the_kind_of_work_that_takes_longest(kernel, bound):
    assert estimate([kernel]).bound == bound


def test_bandwidth_is_interpolated_between_measured_sizes():
    default = machine()
    table = ((1e4, 8e9), (1e6, 2e9))
    hardware = dataclasses.replace(default, rates=(dataclasses.replace(default.rates[0], bandwidth=table),))
    for size, speed in ((10, 8e9), (1e4, 8e9), (1e5, 4e9), (1e6, 2e9), (1e9, 2e9)):
        assert seconds({"bytes": size}, hardware=hardware) == pytest.approx(size / speed, rel=1e-5, abs=1e-15)


def test_rates_are_those_of_the_device_count_or_the_next_smaller_one():
    default = machine()
    rates = [
        dataclasses.replace(default.rates[0], devices=n, bandwidth=((0.0, BANDWIDTH / n),)) for n in (1, 4)
    ]
    hardware = dataclasses.replace(default, rates=tuple(rates))
    for devices, factor in ((1, 1), (3, 1), (4, 4), (9, 4)):
        assert seconds({"bytes": 4000}, hardware=hardware, devices=devices) == pytest.approx(
            factor * 4000 / BANDWIDTH, rel=1e-5
        )


def test_dispatch_latency_depends_on_the_api():
    default = machine()
    rates = dataclasses.replace(default.rates[0], call_seconds={"": 1e-3, "jit": 1e-5})
    hardware = dataclasses.replace(default, rates=(rates,))
    assert estimate([], hardware=hardware, api="jit").seconds == pytest.approx(1e-5)
    assert estimate([], hardware=hardware, api="pmap").seconds == pytest.approx(1e-3)


WORK = [{"bytes": 10**6, "products": 10**7}, {"transcendentals": 5000, "times": 3}]


def test_the_interval_contains_the_median_and_widens_with_uncertainty():
    widths = []
    for attained in ([1.0, 1.0], [0.8, 1.0], [0.4, 1.0], [0.1, 1.0]):
        prediction = estimate(WORK, hardware=machine(attained=attained))
        assert prediction.low <= prediction.seconds <= prediction.high
        widths.append(prediction.high / prediction.low)
    assert widths == sorted(set(widths))
    empty_calls = [estimate([{}], hardware=machine(asking=asking)) for asking in ([1.0, 1.0], [0.5, 2.0])]
    assert empty_calls[0].high == pytest.approx(empty_calls[0].low)
    # The factor is log-uniform: 95 % of the samples between 0.5 and 2 are within 2 to the power of -0.95 to 0.95.
    assert empty_calls[1].high / empty_calls[1].low == pytest.approx(2 ** (2 * 0.95), rel=0.02)
    network = [{"kind": "all-reduce", "bytes": 10**8, "group": 64}]
    over_network = [
        estimate([], network, devices=64, hardware=machine(attained=a)) for a in ([1.0, 1.0], [0.4, 0.9])
    ]
    assert over_network[1].high / over_network[1].low > 2 > over_network[0].high / over_network[0].low


def test_time_parts_add_up_to_the_total_without_randomness():
    prediction = estimate(WORK, [{"kind": "all-gather", "bytes": 10**5, "group": 16}], devices=16)
    parts = prediction.call + prediction.compute + prediction.communication + prediction.waiting
    assert prediction.seconds == pytest.approx(parts, rel=1e-4)
    assert (prediction.low, prediction.high) == pytest.approx(
        (prediction.seconds, prediction.seconds), rel=1e-4
    )


@pytest.mark.parametrize("devices", [16, 64])
def test_waiting_for_the_slowest_device_equals_a_simulation_of_every_device(devices):
    hardware = machine(**NOISY)
    parts, _ = time_model.draw_time_parts(case(devices), hardware, WORK, [])
    slowest = 1 + parts["waiting"] / parts["compute"]
    rng = np.random.default_rng(1)
    times = rng.lognormal(0, NOISY["jitter"], (10_000, devices))
    times *= np.where(
        rng.random(times.shape) < NOISY["stragglers"]["share"], NOISY["stragglers"]["slowdown"], 1.0
    )
    # Skip the quantile at which stragglers begin, where it is discontinuous.
    affected = 1 - (1 - NOISY["stragglers"]["share"]) ** devices
    for quantile in (0.1, 0.6 * (1 - affected), 1 - 0.6 * affected, 0.98):
        assert np.quantile(slowest, quantile) == pytest.approx(
            np.quantile(times.max(axis=1), quantile), rel=0.01
        )


def test_waiting_increases_with_devices_and_stays_finite():
    predictions = [estimate(WORK, devices=n, hardware=machine(**NOISY)) for n in (2, 64, 4096, 10**6)]
    waits = [prediction.waiting for prediction in predictions]
    assert waits == sorted(waits) and waits[0] > 0 and all(map(math.isfinite, waits))
    assert waits[-1] / predictions[-1].compute > 0.5, "there are stragglers"
    assert waits[-1] / predictions[-1].compute < 1.5 * math.exp(7 * NOISY["jitter"]) - 1


@pytest.mark.parametrize("field", ["products", "arithmetic", "divisions", "transcendentals"])
def test_an_unknown_rate_is_reported(field):
    message = estimate([{field: 5}], dtype="float64")
    assert message == f"no rate of {field} in float64 is known"
    assert not isinstance(estimate([{"bytes": 5}], dtype="float64"), str), "other work needs no such rate"
    assert (
        estimate([{"library": "X64SplitHigh"}], dtype="float64")
        == "no rate of arithmetic in float64 is known"
    )


@pytest.mark.filterwarnings("error")
def test_an_infinite_time_is_reported():
    assert "no finite time" in estimate([{"bytes": 8, "times": 1e9}], hardware=machine(kernel_seconds=1e300))


@pytest.mark.parametrize(
    "kernel", [{"bytes": 8, "times": math.inf}, {"times": math.inf}, {"products": 8, "times": math.inf}]
)
@pytest.mark.filterwarnings("error")
def test_a_loop_with_unknown_trips_is_reported(kernel):
    assert "the number of iterations of a loop" in estimate([{"bytes": 8}, kernel])


@pytest.mark.filterwarnings("error")
def test_a_message_in_a_loop_with_unknown_trips_is_reported():
    for size in (0, 8):
        message = {"kind": "all-reduce", "bytes": size, "group": 4, "times": math.inf}
        assert "the number of iterations of a loop" in estimate([], [message], devices=4)


def test_an_unknown_network_is_reported():
    default = machine()
    without_network = dataclasses.replace(default, rates=(dataclasses.replace(default.rates[0], network=()),))
    messages = [{"kind": "all-reduce", "bytes": 8, "group": 4}]
    assert (
        estimate([], messages, devices=4, hardware=without_network)
        == "the network bandwidth between devices is not known"
    )
    for local in ([], [messages[0] | {"group": 1}]):
        assert estimate([], local, devices=4, hardware=without_network).communication == 0


def test_predictions_are_reproducible_and_use_the_same_samples_for_all_programs():
    hardware = machine(attained=[0.4, 0.9], asking=[0.5, 2.0], **NOISY)
    assert estimate(WORK, hardware=hardware, devices=8) == estimate(WORK, hardware=hardware, devices=8)
    once, twice = (
        time_model.draw_time_parts(case(8), hardware, [{"bytes": n}], [])[0] for n in (10**6, 2 * 10**6)
    )
    assert twice["compute"] == pytest.approx(2 * once["compute"]), (
        "sample by sample, so that ratios can be formed"
    )


def test_unknown_work_of_a_library_call_is_reported():
    assert (
        estimate([{"bytes": 8}, {"bytes": 4, "library": "lapack_getrf"}])
        == "the work of lapack_getrf is not known"
    )
