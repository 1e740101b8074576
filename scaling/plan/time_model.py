"""Predict the time of a call (`TimeEstimate`) from kernels, collectives and rates; measure rates of a CPU.

The rates of a CPU come from the times of benchmarks (`calibrate`), which options/machine_peaks.py chooses.

The time of a kernel is the time to move its bytes or the time to compute its operations, whichever is longer
(the roofline model). On a CPU these overlap only partly, and the time is the square root of the sum of their
squares. For a CPU, llvm_instructions.py counts the operations, and kernel_work.py adds an overhead. Kernels
and collectives do not overlap, and all devices wait for the slowest. Caches are modeled in two ways: the
bandwidth depends on the bytes of a kernel, and small CPU kernels in loops find their arrays in the cache.

At each level of the network, a collective uses a ring or a tree, whichever is faster, as communication
libraries do. On a torus, all axes transfer simultaneously. Other network traffic is ignored. The cost of a
collective is a NumPy array with two times in seconds: the latency, and the transfer time at full bandwidth.

The uncertainty is estimated by a Monte Carlo simulation with random machines. On each of them, a program
reaches log-uniform random fractions of the memory, arithmetic and network rates. The call and kernel
latencies have a log-uniform random factor. The time of each device has a lognormal random factor. A small
fraction of the devices, the stragglers, is slower by a fixed factor.

Sources: S. Williams, A. Waterman, D. Patterson, "Roofline", Communications of the ACM 52(4), 2009; R. Thakur,
R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA 19(1), 2005;
for a torus, N. Jouppi and others, "TPU v4", ISCA 2023.
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from scaling.analysis.timings import Timing
from scaling.core.case import DTYPES, PRECISIONS, Case, Refusal
from scaling.core.record import RecordFields
from scaling.options import machine_peaks
from scaling.plan.hardware import Hardware, Level, Rates

DRAWS = 2000  # number of random machines
_RECORDED_DRAWS = 100  # number of random machines whose times are recorded
_SEED = 0
_PERCENTILES = (2.5, 50, 97.5)
_PICOSECONDS = 1e12  # picoseconds in a second; the unit of the overhead of a CPU kernel
# Operations, as llvm_instructions.py counts them, of an exponential of the benchmark "transcendental".
_EXPONENTIAL_OPERATIONS = 36
_MIN_LATENCY = 1e-9  # seconds per step; noise can make the measured difference negative

# An all-reduce is a reduce-scatter followed by an all-gather.
PARTS_OF_ALL_REDUCE = {"all-reduce": 1.0, "reduce-scatter": 0.5, "all-gather": 0.5}

# Fields of a kernel (`kernel_work.FIELDS`) or `Collective` (programs/hlo.py) by name. A missing field is 0,
# except that `times` is 1.
Work = dict[str, float]


@dataclass(frozen=True)
class TimeEstimate:
    """The predicted time of a call, the limits of its 95 % prediction interval, and its parts, in seconds."""

    seconds: float
    low: float  # the limits of the prediction interval
    high: float
    call: float  # the time to dispatch the call and to launch the kernels
    compute: float  # the time to execute the kernels on a typical device
    communication: float  # the time of the collectives
    waiting: float  # the time to wait for the slowest device
    bound: str | None  # the largest part of the kernel time: "memory", "overhead" or a kind of operation
    draws: list[float]  # the times on the first `_RECORDED_DRAWS` random machines, which all programs share


class UnknownTime(Exception):
    """Raised if a time cannot be predicted. The message states the reason."""


def predict(case: Case, hardware: Hardware, fields: RecordFields) -> RecordFields:
    """Return `fields`, the record fields of a compiled case, with its predicted time in `predicted`.

    If no time can be predicted, the field `text` states the reason instead.
    """
    if fields["status"] != "planned":
        return fields
    try:
        if "host" in (case.storage, (fields.get("blocks") or {}).get("storage")):
            raise UnknownTime("the model has no transfers between the host and its devices")
        time = estimate_time(case, hardware, fields["kernels"], fields["messages"])
    except UnknownTime as reason:
        return fields | {"text": f"not predicted: {reason}"}
    return fields | {"predicted": dataclasses.asdict(time) | {"by": "program"}}


def estimate_time(
    case: Case, hardware: Hardware, kernels: Sequence[Work], messages: Sequence[Work]
) -> TimeEstimate:
    """Return the predicted time of a call of a compiled program.

    `kernels` and `messages` are the kernels and the collectives of the program. Raise `UnknownTime` if the
    time cannot be predicted.
    """
    with np.errstate(all="ignore"):  # extreme rates can overflow; see the check below
        time_parts, bound = draw_time_parts(case, hardware, kernels, messages)
    seconds = np.sum(list(time_parts.values()), axis=0)
    if not (np.isfinite(seconds) & (seconds > 0)).all():
        raise UnknownTime("the rates of the hardware give no finite time")
    low, middle, high = (float(value) for value in np.percentile(seconds, _PERCENTILES))
    recorded_draws = [float(f"{value:.4g}") for value in seconds[:_RECORDED_DRAWS]]
    medians = {name: float(np.median(part)) for name, part in time_parts.items()}
    return TimeEstimate(middle, low, high, **medians, bound=bound, draws=recorded_draws)


def draw_time_parts(
    case: Case, hardware: Hardware, kernels: Sequence[Work], messages: Sequence[Work]
) -> tuple[dict[str, np.ndarray], str | None]:
    """Return random samples of the time of each part of a call, and the name of the bottleneck.

    The parts are "call", "compute", "communication" and "waiting" (for the slowest device). The samples of a
    part are an array of shape (DRAWS,) in seconds, whose element k is the time on random machine k. All
    programs use the same random machines. The bottleneck is the largest part of the kernel time: "memory",
    "overhead" or a kind of operation such as "products". It is None if the kernels take no time. Raise
    `UnknownTime` if a rate or an amount of work is unknown.
    """
    if not all(math.isfinite(work.get("times", 1)) for work in (*kernels, *messages)):
        raise UnknownTime("the number of iterations of a loop is not known at compile time")
    rates = hardware.rates_at(case.devices)
    if not rates.network and any(message["group"] > 1 for message in messages):
        raise UnknownTime("the network bandwidth between devices is not known")
    seconds, executions = _kernel_seconds(case, rates, kernels)
    totals = {name: float(values @ executions) for name, values in seconds.items()}
    memory_seconds, overhead = (seconds.pop(name)[:, None] for name in ("memory", "overhead"))
    operation_seconds = np.sum(list(seconds.values()), axis=0)[:, None]
    rng = np.random.default_rng(_SEED)
    memory_share, arithmetic_share, network_share = (
        _draw_log_uniform(hardware.attained, rng) for _ in range(3)
    )
    latency_factor = _draw_log_uniform(hardware.asking, rng)
    memory_time, operation_time = memory_seconds / memory_share, operation_seconds / arithmetic_share
    # Only kernels of a CPU have an overhead. A core overlaps its transfers and operations partly.
    partly, completely = np.hypot(memory_time, operation_time), np.maximum(memory_time, operation_time)
    kernel_seconds = np.where(overhead > 0, partly, completely)
    compute = executions @ (kernel_seconds + overhead / arithmetic_share)
    latency, transfer = _communication_cost(hardware, rates, messages)
    dispatch = rates.call_seconds.get(case.api, rates.call_seconds[""])  # "" is any other API
    time_parts = {
        "call": (dispatch + float(executions.sum()) * rates.kernel_seconds) * latency_factor,
        "compute": compute,
        "communication": latency + transfer / network_share,
        "waiting": compute * (_slowdown_of_slowest(hardware, case.devices, rng.uniform(size=DRAWS)) - 1),
    }
    return time_parts, max(totals, key=lambda name: totals[name]) if any(totals.values()) else None


def _communication_cost(hardware: Hardware, rates: Rates, messages: Sequence[Work]) -> np.ndarray:
    """Return the total latency and total transfer time of all collectives of a call, in seconds."""
    total = np.zeros(2)
    for message in messages:
        size, group = message.get("bytes", 0), int(message["group"])
        shape = hardware.slice_shape(group) or ()
        cost = collective_cost(str(message.get("kind", "")), size, group, rates.network, shape)
        total += cost * message.get("times", 1)
    return total


def _draw_log_uniform(bounds: tuple[float, float], rng: np.random.Generator) -> np.ndarray:
    """Return `DRAWS` random numbers between two bounds, with a log-uniform distribution."""
    return np.exp(rng.uniform(math.log(bounds[0]), math.log(bounds[1]), DRAWS))


def _kernel_seconds(
    case: Case, rates: Rates, kernels: Sequence[Work]
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the parts of the time of each kernel, and how often each kernel is executed.

    The parts are "memory", "overhead" and the kinds of operations, such as "products". Each part is an array
    of shape (kernels,), with the seconds of one execution. Raise `UnknownTime` if a rate or an amount of work
    is unknown.
    """
    dtype = case.dtype
    double = rates.arithmetic["float64"]
    single = rates.arithmetic["float32"] or (double and 2 * double)
    exponentials = rates.transcendental["float32"] or 0.0
    # The instructions of a CPU kernel are mixed, as those of an exponential. Additions alone may be slower.
    instructions = max(single or 0.0, _EXPONENTIAL_OPERATIONS * exponentials) or None
    speeds: dict[str, float | None] = {
        "products": rates.products[dtype][case.precision], "arithmetic": rates.arithmetic[dtype],
        "divisions": rates.transcendental[dtype], "transcendentals": rates.transcendental[dtype],
        "operations": instructions, "overhead": _PICOSECONDS,
    }  # fmt: skip
    seconds = {name: np.zeros(len(kernels)) for name in ("memory", *speeds)}
    for k, kernel in enumerate(kernels):
        if library := kernel.get("library"):  # on a TPU, float64 is emulated in library calls
            if speeds["arithmetic"] is None:
                raise UnknownTime(f"no rate of arithmetic in {dtype} is known")
            raise UnknownTime(f"the work of {library} is not known")
        kinds_of_work = ("operations", "overhead") if kernel.get("operations") else speeds
        for name in filter(kernel.get, kinds_of_work):
            if (speed := speeds[name]) is None:
                raise UnknownTime(f"no rate of {name} in {dtype} is known")
            seconds[name][k] = kernel[name] / speed
        seconds["memory"][k] = _memory_seconds(kernel, rates)
    return seconds, np.array([kernel.get("times", 1) for kernel in kernels], float)


def _memory_seconds(kernel: Work, rates: Rates) -> float:
    """Return the time in seconds that a kernel needs to read and write memory."""
    kernel_bytes = kernel.get("bytes", 0)  # 0 if all arrays are in on-chip memory
    sizes, speeds = (np.log(np.maximum(values, 1.0)) for values in zip(*rates.bandwidth, strict=True))
    # Interpolate between the measured sizes, with both axes logarithmic.
    return kernel_bytes / float(np.exp(np.interp(math.log(max(kernel_bytes, 1.0)), sizes, speeds)))


def collective_cost(
    kind: str, nbytes: float, devices: int, levels: Sequence[Level], shape: tuple[int, ...] = ()
) -> np.ndarray:
    """Return the predicted latency and transfer time of a collective in seconds, as an array.

    `kind` is its HLO opcode. `nbytes` is the size of the input or output of a device, whichever is larger.
    `levels` are the network levels, innermost first. `shape` is the shape of the torus in chips, or ()
    without one. Raise `UnknownTime` unless `kind` is a key of `PARTS_OF_ALL_REDUCE`.
    """
    if kind not in PARTS_OF_ALL_REDUCE:
        raise UnknownTime(f"the time of {kind} between devices is not modeled")
    cost, group_size = np.zeros(2), 1  # each group acts as one device, with 1 / `group_size` of the bytes
    for level in levels:
        groups = math.ceil(devices / group_size)
        if groups < 2:
            break
        joined = min(groups, math.ceil((level.devices or devices) / group_size))  # groups on this level
        is_torus = level.shape == "torus" and shape
        cost += _torus_cost(nbytes, shape, level) if is_torus else _ring_or_tree_cost(nbytes, joined, level)
        nbytes, group_size, shape = nbytes / joined, group_size * joined, ()  # only the innermost is a torus
    return PARTS_OF_ALL_REDUCE[kind] * cost


def _ring_or_tree_cost(nbytes: float, devices: int, level: Level) -> np.ndarray:
    """Return the latency and the transfer time of an all-reduce on a ring or a tree, whichever is faster."""
    steps, depth = 2 * (devices - 1), math.ceil(math.log2(devices))
    ring = np.array([steps * level.latency, steps / devices * nbytes / level.bandwidth])
    tree = np.array([2 * depth * level.latency, 2 * nbytes / level.bandwidth])
    return min(ring, tree, key=np.sum)


def _torus_cost(nbytes: float, shape: tuple[int, ...], level: Level) -> np.ndarray:
    """Return the latency and the transfer time of an all-reduce of `nbytes` bytes on a torus of chips."""
    hops, links, chips = 0, 0, math.prod(shape)
    for length in (length for length in shape if length > 1):
        is_ring = length % level.wraps == 0
        # A ring sends in both directions and has twice the bandwidth of a line.
        hops += 2 * (length // 2 if is_ring else length - 1)
        links += 2 if is_ring else 1
    transfer = 2 * (chips - 1) / chips * nbytes / (max(1, links) * level.bandwidth)
    return np.array([hops * level.latency, transfer])


def _slowdown_of_slowest(hardware: Hardware, devices: int, uniform: np.ndarray) -> np.ndarray:
    """Return random samples of the ratio between the times of the slowest and a typical device.

    The slowest is one of `devices` devices. `uniform` contains a random number between 0 and 1 for each
    sample.
    """
    fraction = hardware.stragglers["share"]
    shift = math.log(hardware.stragglers["slowdown"]) / hardware.jitter
    deviations = np.linspace(-6, shift + 6, 4000)  # in units of the standard deviation
    above = (1 - fraction) * ndtr(-deviations) + fraction * ndtr(shift - deviations)
    # The distribution function of the maximum of n times is the n-th power of that of one time.
    exceedance = -np.expm1(np.log(uniform) / devices)  # probability that one device exceeds the maximum
    maximum = np.interp(-np.log(exceedance), -np.log(above), deviations)
    return np.maximum(np.exp(hardware.jitter * maximum), 1.0 if devices > 1 else 0.0)


def calibrate(hardware: Hardware, timings: Iterable[Timing], bound_only: bool = True) -> Hardware:
    """Return a copy of a CPU model with measured rates for each number of devices.

    Only timings from the environment that was measured last are used. Numbers of devices without timings of
    an array copy and of a call of an empty function are omitted. Raise `Refusal` if all are omitted. If
    `bound_only` is true, timings of processes that were not bound to one core per device are ignored.
    """
    benchmarks = [t for t in timings if t.case.kind in ("ceiling", "floor") and (t.honest or not bound_only)]
    benchmarks.sort(key=lambda timing: timing.records[-1].started_at or "")
    latest = [timing for timing in benchmarks if timing.environment == benchmarks[-1].environment]
    device_counts = sorted({timing.case.devices for timing in latest})
    rates = tuple(filter(None, (_measured_rates(devices, latest) for devices in device_counts)))
    if not rates:
        raise Refusal(
            f"hardware={hardware.name} needs the measured ceilings `copy` and `call`, which are missing: "
            "run `scaling run study=linear` (or any study with `ceilings: true`), "
            "and then set hardware.ceilings=results/linear"
        )
    # The measured rates identify the machine, not the folder, which may be an absolute path.
    config = {**hardware.config, "ceilings": None, "rates": list(map(dataclasses.asdict, rates))}
    device_kind = latest[-1].records[0].environment.get("device_kind")
    return dataclasses.replace(hardware, device_kind=device_kind, rates=rates, config=config)


def _measured_rates(devices: int, timings: Sequence[Timing]) -> Rates | None:
    """Return the measured rates of one device while `devices` devices compute at the same time.

    Return None if array copies or calls of an empty function were not timed on this number of devices.
    """
    # (target, dtype) -> list of (work, work per second), for matrix products at any precision
    speeds = defaultdict[tuple[str | None, str], list[tuple[float, float]]](list)
    latencies = defaultdict[str | None, dict[str, float]](dict)  # target -> api -> seconds
    for timing in (timing for timing in timings if timing.case.devices == devices):
        case = timing.case
        if case.kind == "floor":
            latencies[case.target][case.api] = timing.median
            continue
        floor = min((record.floor_seconds or 0.0 for record in timing.records), default=0.0)
        work, seconds = machine_peaks.peak_work(case), timing.median - min(floor, timing.median / 2)
        speeds[case.target, case.dtype].append((float(work), work / seconds))

    def fastest(target: str, dtype: str = "float32") -> float | None:
        return max((speed for _, speed in speeds[target, dtype]), default=None)

    copies, calls = tuple(sorted(speeds["copy", "float32"])), latencies["call"]
    collective_latencies = latencies["collective"].values()
    if not copies or not calls:
        return None
    by_dtype = {  # bfloat16 has the rates of float32, to which it is converted
        rate: {dtype: fastest(rate, "float64" if dtype == "float64" else "float32") for dtype in DTYPES}
        for rate in ("arithmetic", "transcendental")
    }
    call_seconds = min(calls.values())
    network: tuple[Level, ...] = ()  # between CPU cores
    if devices > 1 and collective_latencies and (speed := fastest("all_reduce")) is not None:
        steps = 2 * math.ceil(math.log2(devices))
        latency = max(min(collective_latencies) - call_seconds, _MIN_LATENCY) / steps
        network = (Level("switch", None, speed * 2 * (devices - 1) / devices, latency),)
    return Rates(
        devices=devices, bandwidth=copies, **by_dtype,
        products={dtype: dict.fromkeys(PRECISIONS, fastest("matmul", dtype)) for dtype in DTYPES},
        kernel_seconds=0.0, call_seconds=calls | {"": call_seconds}, network=network,
    )  # fmt: skip
