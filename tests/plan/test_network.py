"""The network: what a collective costs is what its algorithm sends and how many steps it takes, computed by hand."""

import itertools
import math

import pytest

from scaling.plan.hardware import Level
from scaling.plan.network import CollectiveCost, collective

BYTES = 6e6
SWITCH, TREE = Level("switch", 8, 2e9, 1e-6), Level("tree", None, 5e8, 1e-4)
TORUS = Level("torus", 256, 1e9, 1e-6, wraps=4)
KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
)


def approx(latency, transfer):
    return pytest.approx(CollectiveCost(latency, transfer), rel=1e-12)


def test_large_sums_go_round_a_ring_and_small_ones_along_a_tree():
    # A ring of 8: seven steps to reduce and seven to gather, each of an eighth of the bytes.
    assert collective("all-reduce", BYTES, 8, (SWITCH,)) == approx(14e-6, 14 / 8 * BYTES / 2e9)
    # A tree: three steps up and three down, each of all the bytes.
    assert collective("all-reduce", 64.0, 8, (SWITCH,)) == approx(6e-6, 2 * 64 / 2e9)
    assert collective("all-reduce", 64.0, 5, (SWITCH,)) == approx(6e-6, 2 * 64 / 2e9)


def test_between_hosts_is_sent_what_the_devices_of_a_host_share_out():
    # Reduced within eight, an eighth summed over four hosts, round a ring or along a tree, and gathered.
    inside = collective("all-reduce", BYTES, 8, (SWITCH,))
    eighth = BYTES / 8
    ring = CollectiveCost(6e-4, 6 / 4 * eighth / 5e8)
    tree = CollectiveCost(4e-4, 2 * eighth / 5e8)
    outside = min(ring, tree, key=lambda cost: cost.seconds)
    found = collective("all-reduce", BYTES, 32, (SWITCH, TREE))
    assert found == approx(inside.latency + outside.latency, inside.transfer + outside.transfer)
    more = collective("all-reduce", BYTES, 33, (SWITCH, TREE))
    assert more.seconds > found.seconds, "a host that is not full counts as one"


def test_of_three_levels_each_joins_as_many_devices_as_it_says():
    # 64 in all: eight to a host, 32 to a rack, which is four hosts; and two racks.
    inside = collective("all-reduce", BYTES, 8, (SWITCH,))
    rack = Level("switch", 32, 1e9, 1e-5)
    among_hosts = collective("all-reduce", BYTES / 8, 4, (rack,))
    among_racks = collective("all-reduce", BYTES / 32, 2, (TREE,))
    parts = inside, among_hosts, among_racks
    found = collective("all-reduce", BYTES, 64, (SWITCH, rack, TREE))
    assert found == approx(sum(part.latency for part in parts), sum(part.transfer for part in parts))


def test_an_axis_of_a_torus_is_a_ring_or_a_line():
    # 4 x 8: both rings: two links each, 2 x (2 + 4) hops; all the chips' bytes go over four links at once.
    assert collective("all-reduce", BYTES, 32, (TORUS,), (4, 8)) == approx(12e-6, 2 * 31 / 32 * BYTES / 4e9)
    # 2 x 8: two is no multiple of four, so that axis is a line with one link and one hop.
    assert collective("all-reduce", BYTES, 16, (TORUS,), (2, 8)) == approx(
        (2 + 8) * 1e-6, 2 * 15 / 16 * BYTES / 3e9
    )
    # 6 is a line of five hops; an axis of one is none.
    assert collective("all-reduce", BYTES, 6, (TORUS,), (1, 6)) == approx(10e-6, 2 * 5 / 6 * BYTES / 1e9)


def test_beyond_a_torus_its_share_goes_over_the_next_level():
    inside = collective("all-reduce", BYTES, 256, (TORUS,), (16, 16))
    outside = collective("all-reduce", BYTES / 256, 4, (TREE,))
    found = collective("all-reduce", BYTES, 1024, (TORUS, TREE), (16, 16))
    assert found == approx(inside.latency + outside.latency, inside.transfer + outside.transfer)


@pytest.mark.parametrize("kind", ["all-gather", "reduce-scatter"])
@pytest.mark.parametrize(("devices", "shape"), [(8, ()), (64, ()), (32, (4, 8))])
def test_a_gathering_is_half_of_a_sum(kind, devices, shape):
    levels = (TORUS,) if shape else (SWITCH, TREE)
    whole, half = (collective(each, BYTES, devices, levels, shape) for each in ("all-reduce", kind))
    assert half == approx(whole.latency / 2, whole.transfer / 2)


def test_what_goes_to_one_neighbour_takes_one_step_and_what_goes_to_all_takes_one_for_each():
    assert collective("collective-permute", BYTES, 8, (SWITCH, TREE)) == approx(1e-6, BYTES / 2e9)
    assert collective("all-to-all", BYTES, 8, (SWITCH, TREE)) == approx(7e-6, 7 / 8 * BYTES / 2e9), (
        "it keeps an eighth"
    )
    assert collective("collective-broadcast", BYTES, 8, (SWITCH, TREE)) == approx(3e-6, BYTES / 2e9)
    assert collective("collective-permute", BYTES, 9, (SWITCH, TREE)) == approx(1e-4, BYTES / 5e8), (
        "over the outer level"
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0.0, 8.0, BYTES, 1e12])
def test_more_devices_never_cost_less(kind, size):
    costs = [
        collective(kind, size, n, (Level("switch", None, 2e9, 1e-6),)).seconds
        for n in (*range(1, 70), 10**3, 10**6)
    ]
    assert all(few <= many for few, many in itertools.pairwise(costs))
    assert costs[0] == 0 < costs[1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("levels", "shape"), [((SWITCH, TREE), ()), ((TORUS, TREE), (4, 8)), ((SWITCH,), ())]
)
def test_nothing_to_send_costs_its_latency_alone(kind, levels, shape):
    devices = math.prod(shape) if shape else 8
    found = collective(kind, 0.0, devices, levels, shape)
    assert found.transfer == 0 < found.latency
    assert collective(kind, BYTES, devices, levels, shape).transfer > 0


def test_one_device_or_no_network_sends_nothing():
    assert (
        collective("all-reduce", BYTES, 1, (SWITCH,))
        == collective("all-reduce", BYTES, 4, ())
        == CollectiveCost(0.0, 0.0)
    )
