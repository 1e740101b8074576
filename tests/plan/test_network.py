"""Tests of the network model: the cost of a collective equals hand-computed latency and transfer of its algorithm."""

import itertools
import math

import numpy as np
import pytest

from scaling.plan.hardware import Level
from scaling.plan.time_model import PARTS_OF_ALL_REDUCE, collective_cost

BYTES = 6e6
SWITCH, TREE = Level("switch", 8, 2e9, 1e-6), Level("tree", None, 5e8, 1e-4)
TORUS = Level("torus", 256, 1e9, 1e-6, wraps=4)


def approx(latency, transfer):
    return pytest.approx(np.array([latency, transfer]), rel=1e-12)


def test_large_all_reduces_use_a_ring_and_small_ones_a_tree():
    # A ring of 8: seven steps to reduce and seven to gather, each of an eighth of the bytes.
    assert collective_cost("all-reduce", BYTES, 8, (SWITCH,)) == approx(14e-6, 14 / 8 * BYTES / 2e9)
    # A tree: three steps up and three down, each of all the bytes.
    assert collective_cost("all-reduce", 64.0, 8, (SWITCH,)) == approx(6e-6, 2 * 64 / 2e9)
    assert collective_cost("all-reduce", 64.0, 5, (SWITCH,)) == approx(6e-6, 2 * 64 / 2e9)


def test_an_all_reduce_over_hosts_sends_the_shard_of_each_device_between_hosts():
    # Reduce-scatter over eight devices, all-reduce of an eighth over four hosts (ring or tree), all-gather.
    inside = collective_cost("all-reduce", BYTES, 8, (SWITCH,))
    eighth = BYTES / 8
    ring = np.array([6e-4, 6 / 4 * eighth / 5e8])
    tree = np.array([4e-4, 2 * eighth / 5e8])
    cost = collective_cost("all-reduce", BYTES, 32, (SWITCH, TREE))
    assert cost == approx(*inside + min(ring, tree, key=np.sum))
    larger = collective_cost("all-reduce", BYTES, 33, (SWITCH, TREE))
    assert larger.sum() > cost.sum(), "a partly used host counts as one host"


def test_each_of_three_network_levels_connects_its_number_of_devices():
    # 64 devices: eight per host, 32 (four hosts) per rack, and two racks.
    inside = collective_cost("all-reduce", BYTES, 8, (SWITCH,))
    rack = Level("switch", 32, 1e9, 1e-5)
    among_hosts = collective_cost("all-reduce", BYTES / 8, 4, (rack,))
    among_racks = collective_cost("all-reduce", BYTES / 32, 2, (TREE,))
    cost = collective_cost("all-reduce", BYTES, 64, (SWITCH, rack, TREE))
    assert cost == approx(*inside + among_hosts + among_racks)


def test_a_torus_axis_is_a_ring_or_a_line():
    # 4 x 8: both axes are rings with two links each, 2 x (2 + 4) hops; the bytes use four links at once.
    assert collective_cost("all-reduce", BYTES, 32, (TORUS,), (4, 8)) == approx(
        12e-6, 2 * 31 / 32 * BYTES / 4e9
    )
    # 2 x 8: two is not a multiple of four, so that axis is a line with one link and one hop.
    assert collective_cost("all-reduce", BYTES, 16, (TORUS,), (2, 8)) == approx(
        (2 + 8) * 1e-6, 2 * 15 / 16 * BYTES / 3e9
    )
    # An axis of 6 is a line of five hops; an axis of 1 has no hops.
    assert collective_cost("all-reduce", BYTES, 6, (TORUS,), (1, 6)) == approx(10e-6, 2 * 5 / 6 * BYTES / 1e9)


def test_beyond_one_torus_the_shards_are_sent_over_the_next_level():
    inside = collective_cost("all-reduce", BYTES, 256, (TORUS,), (16, 16))
    outside = collective_cost("all-reduce", BYTES / 256, 4, (TREE,))
    cost = collective_cost("all-reduce", BYTES, 1024, (TORUS, TREE), (16, 16))
    assert cost == approx(*inside + outside)


@pytest.mark.parametrize("kind", ["all-gather", "reduce-scatter"])
@pytest.mark.parametrize(("devices", "shape"), [(8, ()), (64, ()), (32, (4, 8))])
def test_all_gather_and_reduce_scatter_cost_half_of_an_all_reduce(kind, devices, shape):
    levels = (TORUS,) if shape else (SWITCH, TREE)
    whole, half = (collective_cost(name, BYTES, devices, levels, shape) for name in ("all-reduce", kind))
    assert half == approx(*whole / 2)


@pytest.mark.parametrize("kind", PARTS_OF_ALL_REDUCE)
@pytest.mark.parametrize("size", [0.0, 8.0, BYTES, 1e12])
def test_more_devices_never_cost_less(kind, size):
    costs = [
        collective_cost(kind, size, n, (Level("switch", None, 2e9, 1e-6),)).sum()
        for n in (*range(1, 70), 10**3, 10**6)
    ]
    assert all(fewer <= more for fewer, more in itertools.pairwise(costs))
    assert costs[0] == 0 < costs[1]


@pytest.mark.parametrize("kind", PARTS_OF_ALL_REDUCE)
@pytest.mark.parametrize(
    ("levels", "shape"), [((SWITCH, TREE), ()), ((TORUS, TREE), (4, 8)), ((SWITCH,), ())]
)
def test_a_collective_of_zero_bytes_costs_only_its_latency(kind, levels, shape):
    devices = math.prod(shape) if shape else 8
    cost = collective_cost(kind, 0.0, devices, levels, shape)
    assert cost[1] == 0 < cost[0]
    assert collective_cost(kind, BYTES, devices, levels, shape)[1] > 0


def test_one_device_or_no_network_costs_nothing():
    assert not collective_cost("all-reduce", BYTES, 1, (SWITCH,)).any()
    assert not collective_cost("all-reduce", BYTES, 4, ()).any()
