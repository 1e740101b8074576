"""Network: how long a collective takes on a machine's own topology, by latency and bandwidth.

Rings and trees inside a host and between hosts, and a torus whose axes all work at once; the faster algorithm counts, as
libraries choose. Sources: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH",
IJHPCA 19(1), 2005; for a torus, N. Jouppi and others, "TPU v4", ISCA 2023. Takes no account of what else is on the wires.
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
        """Both."""
        return self.latency + self.transfer

    def times(self, share: float) -> "CollectiveCost":
        """So much of it."""
        return CollectiveCost(self.latency * share, self.transfer * share)


def collective(
    kind: str, size: float, devices: int, levels: tuple[Level, ...], shape: tuple[int, ...] = ()
) -> CollectiveCost:
    """What a collective of so many bytes costs, the larger of what a device gives and gets. shape: of the torus, in chips."""
    if devices < 2 or not levels:
        return CollectiveCost(0.0, 0.0)
    whole = _all_reduce(size, devices, levels, shape)
    if kind in ("all-gather", "reduce-scatter"):
        return whole.times(0.5)  # an all-reduce is one of each
    if kind == "all-reduce":
        return whole
    level = next(each for each in levels if each.devices is None or devices <= each.devices)
    if kind == "collective-permute":
        return CollectiveCost(level.latency, size / level.bandwidth)
    if kind == "all-to-all":  # each device keeps its own part
        return CollectiveCost((devices - 1) * level.latency, (devices - 1) / devices * size / level.bandwidth)
    return CollectiveCost(math.ceil(math.log2(devices)) * level.latency, size / level.bandwidth)


def _all_reduce(
    size: float, devices: int, levels: tuple[Level, ...], shape: tuple[int, ...]
) -> CollectiveCost:
    """On the innermost level; where that is too small, reduced there, summed over the next level, and spread again."""
    level, beyond = levels[0], levels[1:]
    within = min(devices, level.devices or devices)
    inner = (
        _torus(size, shape, level) if level.shape == "torus" and shape else _ring_or_tree(size, within, level)
    )
    if within == devices or not beyond:
        return inner
    # A level says how many devices it joins; each group of those within is now one.
    beyond = tuple(
        replace(each, devices=each.devices and math.ceil(each.devices / within)) for each in beyond
    )
    outer = _all_reduce(size / within, math.ceil(devices / within), beyond, ())
    return CollectiveCost(inner.latency + outer.latency, inner.transfer + outer.transfer)


def _ring_or_tree(size: float, devices: int, level: Level) -> CollectiveCost:
    """The faster of a ring, which sends least, and a tree, which has fewest steps."""
    if devices < 2:
        return CollectiveCost(0.0, 0.0)
    ring = CollectiveCost(
        2 * (devices - 1) * level.latency, 2 * (devices - 1) / devices * size / level.bandwidth
    )
    tree = CollectiveCost(2 * math.ceil(math.log2(devices)) * level.latency, 2 * size / level.bandwidth)
    return min(ring, tree, key=lambda cost: cost.seconds)


def _torus(size: float, shape: tuple[int, ...], level: Level) -> CollectiveCost:
    """All axes at once, each on its share of the bytes; a ring sends both ways round, a line has half of that to give."""
    axes = [length for length in shape if length > 1]
    if not axes:
        return CollectiveCost(0.0, 0.0)
    closed = [length % level.wraps == 0 for length in axes]
    links = sum(2 if each else 1 for each in closed)
    chips = math.prod(axes)
    hops = sum(2 * (length // 2 if each else length - 1) for length, each in zip(axes, closed, strict=True))
    return CollectiveCost(hops * level.latency, 2 * (chips - 1) / chips * size / (links * level.bandwidth))
