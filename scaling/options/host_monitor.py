"""The state of the host while a case is sampled, and whether something disturbed it.

Reads Linux (proc(5), cpufreq) and, for an NVIDIA GPU, its management library NVML; what cannot be read is
None. Does not know what disturbed, what else runs on a GPU, or on the sibling of a bound core.
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
    """Counters at one moment, which start at different times: only their differences have a meaning."""

    platform: str
    bound_to: tuple[int, ...] | None
    watched: int  # cores that Linux reports; the next two are sums over them
    idle_seconds: float
    stolen_seconds: float  # taken by the host of a virtual machine
    own_seconds: float  # of all threads of this process
    at_seconds: float
    preempted: int  # how often a thread of this process was preempted
    slowdowns: int  # how often the cores or their package grew too hot
    throttled: bool  # a GPU, at this moment


def read_host(platform: str, bound_to: Sequence[int] | None) -> dict[str, Any]:
    """Return the state of the host as a record has it. bound_to: cores; None: the process may use any."""
    found = {
        "load": round(os.getloadavg()[0], 2),
        "core_mhz": _core_mhz(bound_to) if bound_to else None,
        "governor": environment.governor(bound_to),
    }
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

    Foreign is the time of our cores that was neither idle nor used by this process, or was stolen (which
    Linux may count as ours). A tenth of one core disturbs, because devices wait for the slowest; a tenth of
    all where a process is not bound and can change cores. Idle time is rounded to 10 ms a core: less foreign
    time is noise, except on a single core on which this process was preempted. So several cores show little
    of a turn as short as that.
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
    """Return user, nice, system, idle, iowait, irq, softirq and steal of each core that Linux reports."""
    ours, counts = {f"cpu{core}" for core in cores}, []
    for line in (environment.contents("/proc/stat") or "").splitlines():
        name, _, words = line.partition(" ")
        if name in ours and set(words.split()) != {"0"}:  # zeros in a sandbox
            counts.append([int(word) for word in words.split()[:8]])
    return counts


def _core_mhz(cores: Sequence[int]) -> list[float | None]:
    """Return the clock of each core, in MHz."""
    current = "/sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq"
    kilohertz = [environment.contents(current.format(core)) for core in cores]
    if any(kilohertz):
        return [int(each) / 1000 if each and each.isdigit() else None for each in kilohertz]
    text = environment.contents("/proc/cpuinfo") or ""
    numbers, clocks = (
        re.findall(rf"^{what}\s*: (\S+)$", text, re.MULTILINE) for what in ("processor", "cpu MHz")
    )
    mhz = {number: float(clock) for number, clock in zip(numbers, clocks, strict=False) if clock[0].isdigit()}
    return [mhz.get(str(core)) for core in cores]


@functools.cache
def _gpus() -> tuple[ctypes.c_void_p, ...]:
    """Return NVML's handles of the visible GPUs, in the order of CUDA_VISIBLE_DEVICES.

    They end at the first that does not exist. CUDA's numbers are taken for NVML's, which holds where all GPUs
    are of one kind. A part of a GPU (MIG) is not found.
    """
    found: dict[str, ctypes.c_void_p] = {}
    for index in range(_number("nvmlDeviceGetCount_v2", ctypes.c_uint) or 0):
        handle, name = ctypes.c_void_p(), ctypes.create_string_buffer(96)  # the size that NVML asks for
        if nvml("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle)):  # not that of another job
            found[name.value.decode() if nvml("nvmlDeviceGetUUID", handle, name, 96) else str(index)] = handle
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(found.values())
    picked: list[ctypes.c_void_p] = []
    for word in map(str.strip, visible.split(",")):
        named = [each for name, each in found.items() if word.startswith("GPU-") and name.startswith(word)]
        numbered = list(found.values())[int(word) :][:1] if word.isdigit() else []
        if len(named + numbered) != 1:
            break
        picked += named + numbered
    return tuple(picked)


def _number(name: str, kind: Any, *arguments: Any) -> Any:
    """Return the number that a function of NVML returns, or None."""
    answer = kind()
    return answer.value if nvml(name, *arguments, ctypes.byref(answer)) else None


def _throttle(handle: ctypes.c_void_p) -> list[str] | None:
    """Return why a GPU runs slower than it could; being idle, or set to a clock, is no such reason."""
    for name in ("Event", "Throttle"):  # older libraries have only the second
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
