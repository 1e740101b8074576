"""The model of time: from the kernels and messages of a compiled program to seconds with an interval.

A kernel takes the longer of its bytes and its operations at the machine's rates. Kernels follow each
other, then messages; the devices wait for the slowest. Drawn at random are the shares of its rates that a
machine reaches (memory, arithmetic and network), a factor on its latencies, each uniform in its
logarithm, the differences between devices (a lognormal factor) and stragglers (a small share, slower by a
fixed factor). Ignores caches beyond the table of bandwidths, and overlap.

Source of the idea: S. Williams, A. Waterman, D. Patterson, "Roofline", Communications of the ACM 52(4),
2009.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from scaling.core.case import Case
from scaling.plan.hardware import Hardware, Rates
from scaling.plan.network import CollectiveCost, collective

DRAWS = 2000
_KEPT = 100
_SEED = 0
_PERCENTILES = (2.5, 50, 97.5)

Work = dict[
    str, float
]  # of a kernel or a message, by the fields of hlo_cost.py; a missing field is 0, `times` is 1


@dataclass(frozen=True)
class TimeEstimate:
    """Seconds of a call, with the 95 % interval of the draws, and its parts, each by the median of its draws.

    bound: what most of the kernels' time is for: memory, or one of the kinds of operations.
    """

    seconds: float
    low: float
    high: float
    call: float  # dispatch of the call, and launches of the kernels
    compute: float
    communication: float
    waiting: float  # for the slowest device
    bound: str | None
    draws: list[float]  # seconds of the first machines, the same ones for every program: for ratios of two


@dataclass(frozen=True)
class RateDraws:
    """Seconds on `DRAWS` machines, the same ones for every program, so that ratios of two programs can be
    formed.
    """

    call: np.ndarray
    compute: np.ndarray
    communication: np.ndarray
    waiting: np.ndarray
    bound: str | None


class _NoRate(Exception):
    """Why a time cannot be predicted."""


def estimate(
    case: Case, hardware: Hardware, kernels: Sequence[Work], messages: Sequence[Work]
) -> TimeEstimate | str:
    """Return the time of a call, or in words which rate of the hardware is not known."""
    try:
        with np.errstate(all="ignore"):  # of impossible figures, such as a byte a year
            drawn = draw_rates(case, hardware, kernels, messages)
    except _NoRate as reason:
        return str(reason)
    parts = (drawn.call, drawn.compute, drawn.communication, drawn.waiting)
    seconds = parts[0] + parts[1] + parts[2] + parts[3]
    if not (np.isfinite(seconds) & (seconds > 0)).all():
        return "the hardware's figures give no finite time"
    low, middle, high = (float(value) for value in np.percentile(seconds, _PERCENTILES))
    kept = [float(f"{value:.4g}") for value in seconds[:_KEPT]]
    call, compute, communication, waiting = (float(np.median(part)) for part in parts)
    return TimeEstimate(middle, low, high, call, compute, communication, waiting, drawn.bound, kept)


def draw_rates(
    case: Case, hardware: Hardware, kernels: Sequence[Work], messages: Sequence[Work]
) -> RateDraws:
    """Return the parts of the time of a call on machines that are drawn at random."""
    if not all(math.isfinite(work.get("times", 1)) for work in (*kernels, *messages)):
        raise _NoRate("how often a loop runs is not known before it does")
    rates = hardware.rates_at(case.devices)
    if not rates.network and any(message["group"] > 1 for message in messages):
        raise _NoRate("no rate of what devices send each other is known")
    moving, working, times, bound = _kernel_seconds(case, rates, kernels)
    rng = np.random.default_rng(_SEED)
    memory, arithmetic, network = (_draw_between(hardware.attained, rng) for _ in range(3))
    latency_factor = _draw_between(hardware.asking, rng)
    each = np.maximum(moving[:, None] / memory, working[:, None] / arithmetic)
    compute = (times[:, None] * each).sum(axis=0)
    sent = [_message_cost(message, hardware, rates) for message in messages]
    latency, transfer = sum(cost.latency for cost in sent), sum(cost.transfer for cost in sent)
    return RateDraws(
        call=(rates.empty_call(case.api) + float(times.sum()) * rates.kernel_seconds) * latency_factor,
        compute=compute,
        communication=latency + transfer / network,
        waiting=compute * (_slowest(hardware, case.devices, rng.uniform(size=DRAWS)) - 1),
        bound=bound,
    )


def _draw_between(ends: tuple[float, float], rng: np.random.Generator) -> np.ndarray:
    """Return draws between two numbers, uniform in their logarithm."""
    return np.exp(rng.uniform(math.log(ends[0]), math.log(ends[1]), DRAWS))


def _kernel_seconds(
    case: Case, rates: Rates, kernels: Sequence[Work]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, str | None]:
    """Return for each kernel the seconds of its bytes and of its operations at full rates, and its runs;
    and the bound.
    """
    dtype, moving, working, times = case.dtype, *np.zeros((3, len(kernels)))
    speeds: dict[str, float | None] = {
        "products": rates.products[dtype][case.precision], "arithmetic": rates.arithmetic[dtype],
        "divisions": rates.divisions[dtype], "transcendentals": rates.transcendental[dtype],
        "reductions": rates.reductions[dtype],
    }  # fmt: skip
    total = dict.fromkeys(("memory", *speeds), 0.0)
    for k, kernel in enumerate(kernels):
        times[k] = kernel.get("times", 1)
        if library := kernel.get("library"):
            emulated = speeds["arithmetic"] is None  # such as float64 on a TPU
            unknown = (
                f"no rate of arithmetic in {dtype} is known"
                if emulated
                else f"what {library} does is not known"
            )
            raise _NoRate(unknown)
        for name in (name for name in speeds if kernel.get(name)):
            if (speed := speeds[name]) is None:
                raise _NoRate(f"no rate of {name} in {dtype} is known")
            working[k] += kernel[name] / speed
            total[name] += kernel[name] / speed * times[k]
        moved = kernel.get("bytes", 0)  # none, if all lies in a memory of the chip
        turned = min(kernel.get("turned", 0), moved)
        moving[k] = (moved - turned) / _bandwidth(moved, rates) + turned / rates.turned
        total["memory"] += moving[k] * times[k]
    return moving, working, times, max(total, key=lambda name: total[name]) if any(total.values()) else None


def _bandwidth(size: float, rates: Rates) -> float:
    """Return the bandwidth for a size, interpolated on logarithmic axes; beyond the measured sizes that
    of the nearest.
    """
    sizes, speeds = (np.log(np.maximum(each, 1.0)) for each in zip(*rates.bandwidth, strict=True))
    return float(np.exp(np.interp(math.log(max(size, 1.0)), sizes, speeds)))


def _message_cost(message: Work, hardware: Hardware, rates: Rates) -> CollectiveCost:
    group = int(message["group"])
    shape = hardware.slice_shape(group) if group <= hardware.most else next(iter(hardware.slices[-1:]), None)
    cost = collective(
        str(message.get("kind", "")), message.get("bytes", 0), group, rates.network, shape or ()
    )
    return cost.times(message.get("times", 1))


def _slowest(hardware: Hardware, devices: int, uniform: np.ndarray) -> np.ndarray:
    """Return the time of the slowest device over the usual time, from uniform numbers.

    Devices are independent, so that the largest of n has the n-th power of the distribution of one.
    """
    share, shift = hardware.stragglers["share"], math.log(hardware.stragglers["slowdown"]) / hardware.jitter
    grid = np.linspace(-6, shift + 6, 4000)  # standard deviations
    above = (1 - share) * stats.norm.sf(grid) + share * stats.norm.sf(grid - shift)
    quantile = -np.expm1(np.log(uniform) / devices)  # the probability that one device is above the slowest
    at = np.interp(-np.log(quantile), -np.log(above), grid)
    return np.maximum(np.exp(hardware.jitter * at), 1.0 if devices > 1 else 0.0)
