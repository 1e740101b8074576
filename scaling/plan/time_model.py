"""The model of time: from the kernels and messages of a compiled program to seconds with an interval.

A kernel takes the longer of its bytes and its operations at the machine's rates; kernels follow each other, then messages; the
devices wait for the slowest. Drawn are what a machine reaches of its rates (a share of memory, of arithmetic, of the network, and
a factor of asking, each uniform in its logarithm), how much one device differs from another (a lognormal factor), and which are
stragglers (a small share, slower by a fixed factor). Knows neither caches beyond the table of bandwidths, nor what overlaps.

Source of the idea: S. Williams, A. Waterman, D. Patterson, "Roofline", Communications of the ACM 52(4), 2009.
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
_LEVEL = (2.5, 97.5)  # per cent

Work = dict[
    str, float
]  # of a kernel or a message, by the names of the fields of kernels.py; what is not there is 0, or once


@dataclass(frozen=True)
class TimeEstimate:
    """Seconds of a call, with the 95 % interval of the draws, and its parts, each by the median of its draws.

    bound: what most of the kernels' time is for: memory, or one of the kinds of operations.
    """

    seconds: float
    low: float
    high: float
    call: float  # asking, and the kernels' beginnings
    compute: float
    communication: float
    waiting: float  # for the slowest device
    bound: str | None
    draws: list[
        float
    ]  # seconds of the first machines that were drawn, the same ones for every program: for ratios of two


def estimate(
    case: Case, hardware: Hardware, kernels: Sequence[Work], messages: Sequence[Work]
) -> TimeEstimate | str:
    """How long a call takes on as many devices as the case has; in words, what the hardware has no rate for."""
    with np.errstate(all="ignore"):  # of figures that nothing has, such as a byte a year
        drawn = draw_rates(case, hardware, kernels, messages)
    if isinstance(drawn, str):
        return drawn
    if not (np.isfinite(drawn.seconds) & (drawn.seconds > 0)).all():
        return "the hardware's figures give no finite time"
    low, middle, high = np.percentile(drawn.seconds, [_LEVEL[0], 50, _LEVEL[1]])
    parts = (drawn.call, drawn.compute, drawn.communication, drawn.waiting)
    call, compute, communication, waiting = (float(np.median(part)) for part in parts)
    kept = [float(f"{seconds:.4g}") for seconds in drawn.seconds[:_KEPT]]
    return TimeEstimate(
        float(middle), float(low), float(high), call, compute, communication, waiting, drawn.bound, kept
    )


@dataclass(frozen=True)
class RateDraws:
    """What `DRAWS` machines of a kind would take, the same ones for every program, so that their ratios can be formed."""

    call: np.ndarray
    compute: np.ndarray
    communication: np.ndarray
    waiting: np.ndarray
    bound: str | None

    @property
    def seconds(self) -> np.ndarray:
        """In all."""
        return self.call + self.compute + self.communication + self.waiting


def draw_rates(
    case: Case, hardware: Hardware, kernels: Sequence[Work], messages: Sequence[Work]
) -> RateDraws | str:
    """The same as draws."""
    if not all(math.isfinite(work.get("times", 1)) for work in (*kernels, *messages)):
        return "how often a loop runs is not known before it does"
    rates = hardware.at(case.devices)
    if not rates.network and any(message["group"] > 1 for message in messages):
        return "no rate of what devices send each other is known"
    spent = _spent(case, rates, kernels)
    if isinstance(spent, str):
        return spent
    moving, working, times, bound = spent
    rng = np.random.default_rng(_SEED)
    memory, arithmetic, network = (_between(hardware.attained, rng) for _ in range(3))
    asking = _between(hardware.asking, rng)
    each = np.maximum(moving[:, None] / memory, working[:, None] / arithmetic)
    compute = (times[:, None] * each).sum(axis=0)
    sent = [_sent(message, case, hardware, rates) for message in messages]
    latency, transfer = (sum(part) for part in zip(*sent, strict=True)) if sent else (0.0, 0.0)
    return RateDraws(
        call=(rates.call(case.api) + float(times.sum()) * rates.kernel_seconds) * asking,
        compute=compute,
        communication=latency + transfer / network,
        waiting=compute * (_slowest(hardware, case.devices, rng.uniform(size=DRAWS)) - 1),
        bound=bound,
    )


def _between(ends: tuple[float, float], rng: np.random.Generator) -> np.ndarray:
    """Draws between two numbers, uniform in their logarithm."""
    return np.exp(rng.uniform(math.log(ends[0]), math.log(ends[1]), DRAWS))


def _spent(
    case: Case, rates: Rates, kernels: Sequence[Work]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, str | None] | str:
    """Of each kernel the seconds of moving and of working at full rates, and how often it runs; what takes most of both."""
    speeds: dict[str, float | None] = {
        "products": rates.products[case.dtype][case.precision], "arithmetic": rates.arithmetic[case.dtype],
        "divisions": rates.divisions[case.dtype], "transcendentals": rates.transcendental[case.dtype],
        "reductions": rates.reductions[case.dtype],
    }  # fmt: skip
    moving, working, times = np.zeros((3, len(kernels)))
    total = dict.fromkeys(("memory", *speeds), 0.0)
    for k, kernel in enumerate(kernels):
        if library := kernel.get("library"):
            emulated = speeds["arithmetic"] is None  # such as float64 on a TPU
            return (
                f"no rate of arithmetic in {case.dtype} is known"
                if emulated
                else f"what {library} does is not known"
            )
        for name, speed in speeds.items():
            if amount := kernel.get(name, 0):
                if speed is None:
                    return f"no rate of {name} in {case.dtype} is known"
                working[k] += amount / speed
                total[name] += amount / speed * kernel.get("times", 1)
        moved = kernel.get("bytes", 0)  # none, where all lies in a memory of the chip
        turned = min(kernel.get("turned", 0), moved)
        moving[k] = (moved - turned) / _bandwidth(moved, rates) + turned / rates.turned
        times[k] = kernel.get("times", 1)
        total["memory"] += moving[k] * times[k]
    return moving, working, times, max(total, key=lambda name: total[name]) if any(total.values()) else None


def _bandwidth(size: float, rates: Rates) -> float:
    """Between two sizes that were looked at along the line through both, on logarithmic axes; beyond, that of the nearest."""
    sizes, speeds = (np.log(np.maximum(each, 1.0)) for each in zip(*rates.bandwidth, strict=True))
    return float(np.exp(np.interp(math.log(max(size, 1.0)), sizes, speeds)))


def _sent(message: Work, case: Case, hardware: Hardware, rates: Rates) -> CollectiveCost:
    group = int(message["group"])
    shape = (
        (hardware.shape(group) or ())
        if group <= hardware.most
        else hardware.slices[-1]
        if hardware.slices
        else ()
    )
    cost = collective(str(message.get("kind", "")), message.get("bytes", 0), group, rates.network, shape)
    return cost.times(message.get("times", 1))


def _slowest(hardware: Hardware, devices: int, uniform: np.ndarray) -> np.ndarray:
    """The time of the slowest of so many devices over the usual one's, from uniform numbers.

    Devices are independent, so that the largest of n has the n-th power of the distribution of one.
    """
    share, slowdown = hardware.stragglers["share"], hardware.stragglers["slowdown"]
    grid = np.linspace(-6, math.log(slowdown) / hardware.jitter + 6, 4000)  # standard deviations
    above = (1 - share) * stats.norm.sf(grid) + share * stats.norm.sf(
        grid - math.log(slowdown) / hardware.jitter
    )
    wanted = -np.expm1(np.log(uniform) / devices)  # of one device, that it is above what the slowest is
    at = np.interp(-np.log(wanted), -np.log(above), grid)
    return np.maximum(np.exp(hardware.jitter * at), 1.0 if devices > 1 else 0.0)
