"""The model of time: by hand where nothing is drawn, and what is drawn agrees with a simulation of every device."""

import dataclasses
import math

import numpy as np
import pytest

from scaling.core.case import Case
from scaling.plan import time_model
from scaling.plan.network import collective
from tests.support.machines import (
    ARITHMETIC,
    BANDWIDTH,
    CALL,
    DIVISIONS,
    KERNEL,
    PRODUCTS,
    REDUCTIONS,
    TRANSCENDENTAL,
    TURNED,
    machine,
)

LOUD = {"jitter": 0.05, "stragglers": {"share": 0.01, "slowdown": 1.5}}


def case(devices=1, **fields):
    return Case("linear", sizes={"p": 4, "o": 2}, points=8 * devices, devices=devices, **fields)


def estimate(kernels, messages=(), devices=1, hardware=None, **fields):
    return time_model.estimate(case(devices, **fields), hardware or machine(), kernels, messages)


def seconds(*kernels, **more):
    """Of the kernels alone, without what asking takes."""
    found = estimate(kernels, **more)
    calls = CALL + KERNEL * sum(kernel.get("times", 1) for kernel in kernels)
    assert found.call == pytest.approx(calls)
    return found.seconds - calls


@pytest.mark.parametrize(
    ("kernel", "takes"),
    [
        ({"bytes": 4000}, 4000 / BANDWIDTH),
        ({"products": 10**6}, 10**6 / PRODUCTS),
        ({"bytes": 4000, "products": 10**6}, 10**6 / PRODUCTS),  # the longer of the two
        ({"bytes": 10**6, "products": 10**6}, 10**6 / BANDWIDTH),
        ({"arithmetic": 300, "divisions": 500, "transcendentals": 700, "reductions": 1100},
         300 / ARITHMETIC + 500 / DIVISIONS + 700 / TRANSCENDENTAL + 1100 / REDUCTIONS),
        ({"bytes": 5000, "turned": 2000}, 3000 / BANDWIDTH + 2000 / TURNED),
        ({"bytes": 1000, "turned": 2000}, 1000 / TURNED),  # no more is turned than is moved
        ({"turned": 2000, "arithmetic": 100}, 100 / ARITHMETIC),  # all of it on the chip
        ({"bytes": 4000, "times": 7}, 7 * 4000 / BANDWIDTH),
    ],
)  # fmt: skip
def test_a_kernel_takes_the_longer_of_its_bytes_and_its_operations(kernel, takes):
    assert seconds(kernel) == pytest.approx(takes, rel=1e-5)


def test_kernels_follow_each_other_and_messages_follow_them():
    one, other = {"bytes": 4000, "products": 9}, {"products": 10**5, "times": 3.0}
    assert seconds(one, other) == pytest.approx(seconds(one) + seconds(other), rel=1e-5)
    message = {"kind": "all-reduce", "bytes": 10**5, "group": 4, "times": 5.0}
    with_it = estimate([one], [message], devices=4)
    sent = 5 * collective("all-reduce", 1e5, 4, machine().rates[0].network).seconds
    assert with_it.communication == pytest.approx(sent)
    assert with_it.seconds - estimate([one], devices=4).seconds == pytest.approx(sent)


def test_the_group_of_a_message_counts_and_not_all_devices():
    few, all_of_them = ([{"kind": "all-reduce", "bytes": 10**5, "group": n}] for n in (2, 64))
    assert estimate([], few, devices=64).communication < estimate([], all_of_them, devices=64).communication


@pytest.mark.parametrize(
    ("kernel", "bound"),
    [
        ({"bytes": 10**6, "products": 1}, "memory"),
        ({"bytes": 8, "transcendentals": 900}, "transcendentals"),
        ({}, None),
    ],
)
def test_the_bound_is_what_takes_most(kernel, bound):
    assert estimate([kernel]).bound == bound


def test_between_two_sizes_that_were_looked_at_the_bandwidth_lies_on_the_line_through_both():
    plain = machine()
    table = ((1e4, 8e9), (1e6, 2e9))
    known = dataclasses.replace(plain, rates=(dataclasses.replace(plain.rates[0], bandwidth=table),))
    for size, speed in ((10, 8e9), (1e4, 8e9), (1e5, 4e9), (1e6, 2e9), (1e9, 2e9)):
        assert seconds({"bytes": size}, hardware=known) == pytest.approx(size / speed, rel=1e-5, abs=1e-15)


def test_the_rates_are_those_of_so_many_devices_or_of_the_next_smaller_number():
    plain = machine()
    rates = [
        dataclasses.replace(plain.rates[0], devices=n, bandwidth=((0.0, BANDWIDTH / n),)) for n in (1, 4)
    ]
    known = dataclasses.replace(plain, rates=tuple(rates))
    for devices, share in ((1, 1), (3, 1), (4, 4), (9, 4)):
        assert seconds({"bytes": 4000}, hardware=known, devices=devices) == pytest.approx(
            share * 4000 / BANDWIDTH, rel=1e-5
        )


def test_an_empty_call_costs_what_its_api_costs():
    plain = machine()
    rates = dataclasses.replace(plain.rates[0], call_seconds={"": 1e-3, "jit": 1e-5})
    known = dataclasses.replace(plain, rates=(rates,))
    assert estimate([], hardware=known, api="jit").seconds == pytest.approx(1e-5)
    assert estimate([], hardware=known, api="pmap").seconds == pytest.approx(1e-3)


WORK = [{"bytes": 10**6, "products": 10**7}, {"transcendentals": 5000, "times": 3}]


def test_the_interval_holds_the_median_and_grows_with_what_is_not_known():
    widths = []
    for attained in ([1.0, 1.0], [0.8, 1.0], [0.4, 1.0], [0.1, 1.0]):
        found = estimate(WORK, hardware=machine(attained=attained))
        assert found.low <= found.seconds <= found.high
        widths.append(found.high / found.low)
    assert widths == sorted(set(widths))
    asked = [estimate([{}], hardware=machine(asking=asking)) for asking in ([1.0, 1.0], [0.5, 2.0])]
    assert asked[0].high == pytest.approx(asked[0].low)
    # Uniform in its logarithm: 95 % of the draws between 0.5 and 2 lie within 2 to the power of -0.95 to 0.95.
    assert asked[1].high / asked[1].low == pytest.approx(2 ** (2 * 0.95), rel=0.02)
    network = [{"kind": "all-reduce", "bytes": 10**8, "group": 64}]
    sent = [estimate([], network, devices=64, hardware=machine(attained=a)) for a in ([1.0, 1.0], [0.4, 0.9])]
    assert sent[1].high / sent[1].low > 2 > sent[0].high / sent[0].low


def test_the_parts_make_up_the_whole_where_nothing_is_drawn():
    found = estimate(WORK, [{"kind": "all-gather", "bytes": 10**5, "group": 16}], devices=16)
    parts = found.call + found.compute + found.communication + found.waiting
    assert found.seconds == pytest.approx(parts, rel=1e-4)
    assert (found.low, found.high) == pytest.approx((found.seconds, found.seconds), rel=1e-4)


@pytest.mark.parametrize("devices", [16, 64])
def test_waiting_for_the_slowest_agrees_with_a_simulation_of_every_device(devices):
    hardware = machine(**LOUD)
    drawn = time_model.draw_time_parts(case(devices), hardware, WORK, [])
    slowest = 1 + drawn.waiting / drawn.compute
    rng = np.random.default_rng(1)
    each = rng.lognormal(0, LOUD["jitter"], (10_000, devices))
    each *= np.where(
        rng.random(each.shape) < LOUD["stragglers"]["share"], LOUD["stragglers"]["slowdown"], 1.0
    )
    # Not where the stragglers begin: there a quantile jumps.
    some = 1 - (1 - LOUD["stragglers"]["share"]) ** devices
    for quantile in (0.1, 0.6 * (1 - some), 1 - 0.6 * some, 0.98):
        assert np.quantile(slowest, quantile) == pytest.approx(
            np.quantile(each.max(axis=1), quantile), rel=0.01
        )


def test_more_devices_wait_longer_and_a_million_still_finitely():
    found = [estimate(WORK, devices=n, hardware=machine(**LOUD)) for n in (2, 64, 4096, 10**6)]
    waits = [one.waiting for one in found]
    assert waits == sorted(waits) and waits[0] > 0 and all(map(math.isfinite, waits))
    assert waits[-1] / found[-1].compute > 0.5, "there are stragglers"
    assert waits[-1] / found[-1].compute < 1.5 * math.exp(7 * LOUD["jitter"]) - 1


@pytest.mark.parametrize("field", ["products", "arithmetic", "divisions", "transcendentals", "reductions"])
def test_a_rate_that_is_not_known_is_said_and_not_guessed(field):
    told = estimate([{field: 5}], dtype="float64")
    assert told == f"no rate of {field} in float64 is known"
    assert not isinstance(estimate([{"bytes": 5}], dtype="float64"), str), "what is not done needs no rate"
    assert (
        estimate([{"library": "X64SplitHigh"}], dtype="float64")
        == "no rate of arithmetic in float64 is known"
    )


@pytest.mark.filterwarnings("error")
def test_figures_that_nothing_has_give_words_and_no_number():
    assert "no finite time" in estimate([{"bytes": 8, "times": 1e9}], hardware=machine(kernel_seconds=1e300))


@pytest.mark.parametrize(
    "kernel", [{"bytes": 8, "times": math.inf}, {"times": math.inf}, {"products": 8, "times": math.inf}]
)
@pytest.mark.filterwarnings("error")
def test_a_loop_of_unknown_trips_is_said_and_not_guessed(kernel):
    assert "the number of iterations of a loop" in estimate([{"bytes": 8}, kernel])


@pytest.mark.filterwarnings("error")
def test_a_message_in_a_loop_of_unknown_trips_is_said_and_not_guessed():
    for size in (0, 8):
        message = {"kind": "all-reduce", "bytes": size, "group": 4, "times": math.inf}
        assert "the number of iterations of a loop" in estimate([], [message], devices=4)


def test_a_network_that_was_not_measured_is_said_and_not_taken_for_free():
    plain = machine()
    alone = dataclasses.replace(plain, rates=(dataclasses.replace(plain.rates[0], network=()),))
    sent = [{"kind": "all-reduce", "bytes": 8, "group": 4}]
    assert (
        estimate([], sent, devices=4, hardware=alone) == "the network bandwidth between devices is not known"
    )
    for fine in ([], [sent[0] | {"group": 1}]):
        assert estimate([], fine, devices=4, hardware=alone).communication == 0


def test_the_same_work_gives_the_same_numbers_and_every_program_the_same_machines():
    hardware = machine(attained=[0.4, 0.9], asking=[0.5, 2.0], **LOUD)
    assert estimate(WORK, hardware=hardware, devices=8) == estimate(WORK, hardware=hardware, devices=8)
    one, twice = (
        time_model.draw_time_parts(case(8), hardware, [{"bytes": n}], []) for n in (10**6, 2 * 10**6)
    )
    assert twice.compute == pytest.approx(2 * one.compute), "draw by draw, so that ratios can be formed"


def test_what_a_library_does_is_not_guessed():
    assert (
        estimate([{"bytes": 8}, {"bytes": 4, "library": "lapack_getrf"}])
        == "the work of lapack_getrf is not known"
    )
