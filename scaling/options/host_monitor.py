"""What the host was doing while a case was sampled, and whether something disturbed it.

Asks Linux (proc(5), cpufreq) and, for an NVIDIA GPU, its management library NVML; what cannot be read is
None. Does not know who disturbed, who else computes on a GPU, or what runs on the sibling of a bound core.
"""

import ctypes
import functools
import math
import os
import re
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scaling.core import environment
from scaling.core.environment import nvml

MARKS = ("throttled", "foreign_load")
_SHARE = 0.10  # of a core's time; others that take more disturb
_QUANTUM = 1 / os.sysconf("SC_CLK_TCK")  # seconds; /proc/stat rounds down to it, 10 ms
_THROTTLE = {
    0x4: "power_cap",
    0x8: "hardware_slowdown",
    0x20: "thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
}


@dataclass(frozen=True)
class HostReading:
    """Counters at one moment, each from a start of its own: only differences mean something."""

    platform: str
    bound_to: tuple[int, ...] | None
    watched: int  # cores that Linux tells of; the next two are sums over them
    idle_seconds: float
    stolen_seconds: float  # taken by the host of a virtual machine
    own_seconds: float  # of all threads of this process
    at_seconds: float
    preempted: int  # how often a thread of this process had to leave its core to another
    slowdowns: int  # how often the cores or their package grew too hot
    throttled: bool  # a GPU, at this moment


def read_host(platform: str, bound_to: Sequence[int] | None) -> dict[str, Any]:
    """Return what a record says of the host before and after sampling. bound_to: cores; None where the
    process may use any.
    """
    load, clocks = round(os.getloadavg()[0], 2), _core_mhz(bound_to) if bound_to else None
    found = {"load": load, "core_mhz": clocks, "governor": environment.governor(bound_to)}
    return found | ({"gpus": [_gpu(handle) for handle in _gpus()]} if platform == "gpu" else {})


def start_meter(platform: str, bound_to: Sequence[int] | None) -> HostReading:
    """Start to watch for disturbances of a turn. Child processes of this process do not count."""
    cores = sorted(bound_to or os.sched_getaffinity(0))
    counts, own = _processor_counts(cores), resource.getrusage(resource.RUSAGE_SELF)
    hot = "/sys/devices/system/cpu/cpu{}/thermal_throttle/{}_throttle_count"
    heat = [environment.contents(hot.format(core, what)) for core in cores for what in ("core", "package")]
    gpus = _gpus() if platform == "gpu" else ()
    return HostReading(
        platform,
        tuple(cores) if bound_to else None,
        watched=len(counts),
        idle_seconds=sum(count[3] + count[4] for count in counts) * _QUANTUM,
        stolen_seconds=sum(count[7] for count in counts) * _QUANTUM,
        own_seconds=own.ru_utime + own.ru_stime,
        at_seconds=time.perf_counter(),
        preempted=own.ru_nivcsw,
        slowdowns=sum(int(count) for count in heat if count and count.isdigit()),
        throttled=any(_throttle(handle) for handle in gpus),
    )


def find_disturbances(started: HostReading) -> list[str]:
    """Return what disturbed since a reading: `throttled`, `foreign_load`, both or nothing.

    Foreign is the time of our cores that was neither idle nor ours, or was stolen (which Linux may count as
    ours). A tenth of one core disturbs, because devices wait for the slowest; a tenth of all where a process
    is not bound and can give way. Idle time
    is rounded to 10 ms a core: less foreign time is noise, but for a single core that we had to leave. So
    several cores tell
    little of a turn as short as that: read around several turns, too.
    """
    now = start_meter(started.platform, started.bound_to)
    cores, wall = started.watched, now.at_seconds - started.at_seconds
    idle, own = now.idle_seconds - started.idle_seconds, now.own_seconds - started.own_seconds
    foreign = max(wall * cores - idle - own, now.stolen_seconds - started.stolen_seconds)
    certain = foreign > _QUANTUM * math.sqrt(cores) or (cores == 1 and now.preempted > started.preempted)
    holds = (
        started.throttled or now.throttled or now.slowdowns > started.slowdowns,
        certain and foreign > _SHARE * wall * (1 if started.bound_to else cores),
    )
    return [mark for mark, held in zip(MARKS, holds, strict=True) if held]


def _processor_counts(cores: Sequence[int]) -> list[list[int]]:
    """Of each core that is told of: user, nice, system, idle, iowait, irq, softirq, steal. A sandbox tells
    zeros."""
    lines = [
        line.split()
        for line in (environment.contents("/proc/stat") or "").splitlines()
        if line.startswith("cpu")
    ]
    ours = {f"cpu{core}" for core in cores}
    return [
        [int(word) for word in words[1:9]] for words in lines if words[0] in ours and set(words[1:]) != {"0"}
    ]


def _core_mhz(cores: Sequence[int]) -> list[float | None]:
    told = [
        environment.contents(f"/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq") for core in cores
    ]
    if any(told):
        return [int(kilohertz) / 1000 if kilohertz and kilohertz.isdigit() else None for kilohertz in told]
    text = environment.contents("/proc/cpuinfo") or ""
    numbers, clocks = (
        re.findall(rf"^{what}\s*: (\S+)$", text, re.MULTILINE) for what in ("processor", "cpu MHz")
    )
    mhz = {number: float(clock) for number, clock in zip(numbers, clocks, strict=False) if clock[0].isdigit()}
    return [mhz.get(str(core)) for core in cores]


@functools.cache
def _gpus() -> tuple[ctypes.c_void_p, ...]:
    """NVML's handles of the GPUs that CUDA_VISIBLE_DEVICES leaves, in its order, up to the first that does
    not exist.

    CUDA's numbers are taken for NVML's, which holds where all GPUs are of one kind. A part of a GPU (MIG) is
    not found.
    """
    found: dict[str, ctypes.c_void_p] = {}
    for index in range(_number("nvmlDeviceGetCount_v2", ctypes.c_uint) or 0):
        handle, name = ctypes.c_void_p(), ctypes.create_string_buffer(96)  # the size that NVML asks for
        if nvml(
            "nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle)
        ):  # refused where it is another job's
            found[name.value.decode() if nvml("nvmlDeviceGetUUID", handle, name, 96) else str(index)] = handle
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(found.values())
    picked: list[ctypes.c_void_p] = []
    for word in (word.strip() for word in visible.split(",")):
        alike = [
            handle for name, handle in found.items() if word.startswith("GPU-") and name.startswith(word)
        ]
        alike += list(found.values())[int(word) :][:1] if word.isdigit() else []
        if len(alike) != 1:
            break
        picked += alike
    return tuple(picked)


def _number(name: str, kind: Any, *arguments: Any) -> Any:
    """The number that a function of NVML answers, or None."""
    answer = kind()
    return answer.value if nvml(name, *arguments, ctypes.byref(answer)) else None


def _throttle(handle: ctypes.c_void_p) -> list[str] | None:
    """Why a GPU runs slower than it could; to be idle, or set to a clock, is no such reason."""
    for name in ("Event", "Throttle"):  # the older libraries know the second alone
        reasons = _number(f"nvmlDeviceGetCurrentClocks{name}Reasons", ctypes.c_ulonglong, handle)
        if reasons is not None:
            return [word for bit, word in _THROTTLE.items() if reasons & bit]
    return None


def _gpu(handle: ctypes.c_void_p) -> dict[str, Any]:
    milliwatts = _number("nvmlDeviceGetPowerUsage", ctypes.c_uint, handle)
    return {
        "sm_mhz": _number("nvmlDeviceGetClockInfo", ctypes.c_uint, handle, 1),
        "memory_mhz": _number("nvmlDeviceGetClockInfo", ctypes.c_uint, handle, 2),
        "watts": None if milliwatts is None else milliwatts / 1000,
        "celsius": _number("nvmlDeviceGetTemperature", ctypes.c_uint, handle, 0),
        "throttle": _throttle(handle),
    }
