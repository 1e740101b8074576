"""Predict the time of a collective from latency and bandwidth on a ring, a tree or a torus.

Within a host and between hosts, the model uses the faster of a ring and a tree, as communication libraries
do. On a torus, all axes transfer simultaneously. Other traffic is ignored. A cost is a NumPy array with two
times in seconds: the latency, and the transfer time at full bandwidth.

Sources: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH",
IJHPCA 19(1), 2005; for a torus, N. Jouppi and others, "TPU v4", ISCA 2023.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scaling.plan.hardware import Level

# An all-reduce is a reduce-scatter followed by an all-gather.
PARTS_OF_ALL_REDUCE = {"all-reduce": 1.0, "reduce-scatter": 0.5, "all-gather": 0.5}


def collective(
    kind: str, size: float, devices: int, levels: Sequence[Level], shape: tuple[int, ...] = ()
) -> np.ndarray:
    """Return the predicted (latency, transfer time) in seconds of a collective.

    Args:
        kind: HLO opcode of the collective, a key of `PARTS_OF_ALL_REDUCE`.
        size: Bytes of the input or the output per device, whichever is larger.
        levels: Levels of the network, innermost first.
        shape: Shape of the torus in chips, or () if there is no torus.
    """
    return PARTS_OF_ALL_REDUCE[kind] * _all_reduce_cost(size, devices, levels, shape)


def _all_reduce_cost(
    size: float, devices: int, levels: Sequence[Level], shape: tuple[int, ...]
) -> np.ndarray:
    """Return the cost of an all-reduce, summed over all levels of the network."""
    if devices < 2 or not levels:
        return np.zeros(2)
    level, *outer = levels
    within = min(devices, level.devices or devices)
    torus = level.shape == "torus" and shape
    cost = _torus_cost(size, shape, level) if torus else _ring_or_tree_cost(size, within, level)
    # On the outer levels, a group of `within` devices acts as one device, with 1 / `within` of the bytes.
    groups = [replace(each, devices=each.devices and math.ceil(each.devices / within)) for each in outer]
    return cost + _all_reduce_cost(size / within, math.ceil(devices / within), groups, ())


def _ring_or_tree_cost(size: float, devices: int, level: Level) -> np.ndarray:
    """Return the cost of an all-reduce on a ring or a binary tree, whichever is faster."""
    steps, depth = 2 * (devices - 1), math.ceil(math.log2(devices))
    ring = np.array([steps * level.latency, steps / devices * size / level.bandwidth])
    tree = np.array([2 * depth * level.latency, 2 * size / level.bandwidth])
    return min(ring, tree, key=np.sum)


def _torus_cost(size: float, shape: tuple[int, ...], level: Level) -> np.ndarray:
    """Return the cost of an all-reduce on a torus, whose axes transfer equal parts simultaneously.

    An axis that is a ring sends in both directions and thus has twice the bandwidth of a line.
    """
    hops, links, chips = 0, 0, math.prod(shape)
    for length in (length for length in shape if length > 1):
        is_ring = length % level.wraps == 0
        hops += 2 * (length // 2 if is_ring else length - 1)
        links += 2 if is_ring else 1
    transfer = 2 * (chips - 1) / chips * size / (max(1, links) * level.bandwidth)
    return np.array([hops * level.latency, transfer])
