"""The time of a collective on the topology of a machine, from latency and bandwidth.

Rings and trees inside a host and between hosts, and a torus whose axes all work at once; the faster
algorithm counts, as libraries choose. Ignores other traffic. Sources: R. Thakur, R. Rabenseifner, W.
Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA 19(1), 2005; for a torus, N.
Jouppi and others, "TPU v4", ISCA 2023.
"""

import math
from dataclasses import replace
from typing import NamedTuple

from scaling.plan.hardware import Level


class CollectiveCost(NamedTuple):
    """Seconds of a collective: of latency, and of bytes on the wires at full bandwidth."""

    latency: float
    transfer: float

    @property
    def seconds(self) -> float:
        """Return the sum of both."""
        return self.latency + self.transfer

    def times(self, factor: float) -> "CollectiveCost":
        """Return the cost multiplied by a factor."""
        return CollectiveCost(self.latency * factor, self.transfer * factor)


_FREE = CollectiveCost(0.0, 0.0)


def collective(
    kind: str, size: float, devices: int, levels: tuple[Level, ...], shape: tuple[int, ...] = ()
) -> CollectiveCost:
    """Return the cost of a collective. size: bytes, the larger of input and output of a device; shape:
    torus, in chips.
    """
    if devices < 2 or not levels:
        return _FREE
    if kind in ("all-reduce", "all-gather", "reduce-scatter"):
        cost = _all_reduce(size, devices, levels, shape)
        return cost if kind == "all-reduce" else cost.times(0.5)  # an all-reduce is one of each
    level = next(level for level in levels if level.devices is None or devices <= level.devices)
    if kind == "collective-permute":
        steps, sent = 1, size
    elif kind == "all-to-all":  # each device keeps its own part
        steps, sent = devices - 1, (devices - 1) / devices * size
    else:
        steps, sent = math.ceil(math.log2(devices)), size
    return CollectiveCost(steps * level.latency, sent / level.bandwidth)


def _all_reduce(
    size: float, devices: int, levels: tuple[Level, ...], shape: tuple[int, ...]
) -> CollectiveCost:
    """Return the cost on the innermost level; if it is too small, also that of the same sum over the next
    levels.
    """
    level, *outer = levels
    within = min(devices, level.devices or devices)
    torus = level.shape == "torus" and shape
    inner = _torus(size, shape, level) if torus else _ring_or_tree(size, within, level)
    if within == devices or not outer:
        return inner
    # A level gives the number of devices that it joins; each group within is one of them now.
    groups = [replace(each, devices=each.devices and math.ceil(each.devices / within)) for each in outer]
    beyond = _all_reduce(size / within, math.ceil(devices / within), tuple(groups), ())
    return CollectiveCost(inner.latency + beyond.latency, inner.transfer + beyond.transfer)


def _ring_or_tree(size: float, devices: int, level: Level) -> CollectiveCost:
    """Return the cost of the faster of a ring, which sends least, and a tree, which has the fewest steps."""
    if devices < 2:
        return _FREE
    steps = 2 * (devices - 1)
    ring = CollectiveCost(steps * level.latency, steps / devices * size / level.bandwidth)
    tree = CollectiveCost(2 * math.ceil(math.log2(devices)) * level.latency, 2 * size / level.bandwidth)
    return min(ring, tree, key=lambda cost: cost.seconds)


def _torus(size: float, shape: tuple[int, ...], level: Level) -> CollectiveCost:
    """Return the cost where each axis sums its part of the bytes; a ring sends both ways, a line half as
    much.
    """
    axes = [length for length in shape if length > 1]
    if not axes:
        return _FREE
    rings = [length % level.wraps == 0 for length in axes]
    links = len(rings) + sum(rings)
    hops = sum(2 * (length // 2 if ring else length - 1) for length, ring in zip(axes, rings, strict=True))
    chips = math.prod(axes)
    return CollectiveCost(hops * level.latency, 2 * (chips - 1) / chips * size / (links * level.bandwidth))
