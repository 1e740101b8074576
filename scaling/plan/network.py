"""Predict the time of one collective (`CollectiveCost`) from latency and bandwidth on a ring, tree or torus.

Within a host and between hosts, the model uses the faster of a ring and a tree, as communication libraries
do. On a torus, all axes transfer simultaneously. Other traffic is ignored.

Sources: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH",
IJHPCA 19(1), 2005; for a torus, N. Jouppi and others, "TPU v4", ISCA 2023.
"""

import math
from dataclasses import replace
from typing import NamedTuple

from scaling.plan.hardware import Level


class CollectiveCost(NamedTuple):
    """Time of a collective in seconds: the latency, and the transfer time at full bandwidth."""

    latency: float
    transfer: float

    @property
    def seconds(self) -> float:
        """Return the total time in seconds."""
        return self.latency + self.transfer

    def times(self, factor: float) -> "CollectiveCost":
        """Return the cost with both times multiplied by a factor."""
        return CollectiveCost(self.latency * factor, self.transfer * factor)


_FREE = CollectiveCost(0.0, 0.0)


def collective(
    kind: str, size: float, devices: int, levels: tuple[Level, ...], shape: tuple[int, ...] = ()
) -> CollectiveCost:
    """Return the predicted latency and transfer time of a collective operation, such as an all-reduce.

    Args:
        kind: HLO opcode of the collective.
        size: Bytes of the input or the output per device, whichever is larger.
        levels: Levels of the network, innermost first.
        shape: Shape of the torus in chips, or () if there is no torus.
    """
    if devices < 2 or not levels:
        return _FREE
    if kind in ("all-reduce", "all-gather", "reduce-scatter"):
        cost = _all_reduce_cost(size, devices, levels, shape)
        # An all-reduce is a reduce-scatter followed by an all-gather.
        return cost if kind == "all-reduce" else cost.times(0.5)
    level = next(level for level in levels if level.devices is None or devices <= level.devices)
    if kind == "collective-permute":
        steps, sent = 1, size
    elif kind == "all-to-all":  # each device keeps its own shard
        steps, sent = devices - 1, (devices - 1) / devices * size
    else:
        steps, sent = math.ceil(math.log2(devices)), size
    return CollectiveCost(steps * level.latency, sent / level.bandwidth)


def _all_reduce_cost(
    size: float, devices: int, levels: tuple[Level, ...], shape: tuple[int, ...]
) -> CollectiveCost:
    """Return the cost of an all-reduce as the sum of its costs on the innermost and the outer levels."""
    level, *outer = levels
    within = min(devices, level.devices or devices)
    torus = level.shape == "torus" and shape
    inner = _torus_all_reduce_cost(size, shape, level) if torus else _ring_or_tree_cost(size, within, level)
    if within == devices or not outer:
        return inner
    # On the outer levels, a group of `within` devices acts as one device, with 1 / `within` of the bytes.
    outer_levels = [
        replace(level, devices=level.devices and math.ceil(level.devices / within)) for level in outer
    ]
    outer_cost = _all_reduce_cost(size / within, math.ceil(devices / within), tuple(outer_levels), ())
    return CollectiveCost(inner.latency + outer_cost.latency, inner.transfer + outer_cost.transfer)


def _ring_or_tree_cost(size: float, devices: int, level: Level) -> CollectiveCost:
    """Return the cost of an all-reduce on a ring or a binary tree, whichever is faster."""
    if devices < 2:
        return _FREE
    steps = 2 * (devices - 1)
    ring = CollectiveCost(steps * level.latency, steps / devices * size / level.bandwidth)
    tree = CollectiveCost(2 * math.ceil(math.log2(devices)) * level.latency, 2 * size / level.bandwidth)
    return min(ring, tree, key=lambda cost: cost.seconds)


def _torus_all_reduce_cost(size: float, shape: tuple[int, ...], level: Level) -> CollectiveCost:
    """Return the cost of an all-reduce on a torus, whose axes transfer equal parts simultaneously.

    An axis that is a ring sends in both directions and thus has twice the bandwidth of a line.
    """
    axes = [length for length in shape if length > 1]
    if not axes:
        return _FREE
    rings = [length % level.wraps == 0 for length in axes]
    links = len(rings) + sum(rings)
    hops = sum(2 * (length // 2 if ring else length - 1) for length, ring in zip(axes, rings, strict=True))
    chips = math.prod(axes)
    return CollectiveCost(hops * level.latency, 2 * (chips - 1) / chips * size / (links * level.bandwidth))
