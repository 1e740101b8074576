"""Read the load, clock rates, throttling and CPU times of the host and its GPUs, and find disturbances.

The values come from /proc, cpufreq and, for NVIDIA GPUs, the management library NVML. Unknown values are
None. A disturbance is throttling, or a large load of the CPU cores by other processes.
"""

import ctypes
import functools
import math
import os
import re
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter  # bound here, because a user's module may replace it
from typing import Any

from scaling.core import environment

MARKS = ("throttled", "foreign_load")  # the disturbances that `find_disturbances` can detect
_FOREIGN_SHARE = 0.10  # other processes disturb if they use a larger fraction of a core's time
_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")  # the resolution of /proc/stat, usually 10 ms
_THROTTLE_REASONS = {  # bit in NVML -> name. Idling and clocks set by the user are not disturbances
    0x4: "power_cap",
    0x8: "hardware_slowdown",
    0x20: "thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
}


@dataclass(frozen=True)
class HostReading:
    """The CPU times and throttling state of the monitored cores, this process and the GPUs at one moment.

    The monitored cores are all hardware threads of the physical cores on which this process may run.
    """

    platform: str  # the JAX platform: "cpu", "gpu" or "tpu"
    bound_to: tuple[int, ...] | None  # the cores that this process is bound to, or None if it is not bound
    core_count: int  # the number of monitored cores that /proc/stat contains
    idle_seconds: float  # the idle time of all monitored cores, including waiting for I/O
    stolen_seconds: float  # the time of all monitored cores that the hypervisor used
    process_seconds: float  # the CPU time of all threads of this process, without child processes
    clock_seconds: float  # the value of `time.perf_counter` at the reading
    slowdowns: int  # the number of thermal throttling events of the cores, and of used up CPU quotas
    throttled: bool  # whether at least one of the visible GPUs was throttled


def read_host(platform: str, bound_to: Sequence[int] | None) -> dict[str, Any]:
    """Return the load of the host, and the state of its CPU cores and GPUs, as a dict of JSON values.

    "core_mhz" and "governor" describe the cores `bound_to`. "siblings" lists the groups of these cores that
    share a physical core, or is None if there are none. If `bound_to` is None, "core_mhz" and "siblings" are
    None, and "governor" describes all cores on which this process may run. "gpus" exists only if `platform`
    is "gpu".
    """
    gpus = {"gpus": [_gpu_state(handle) for handle in _gpus()]} if platform == "gpu" else {}
    path = "/sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq"
    kilohertz = [environment.read_text(path.format(core)) for core in bound_to or ()]
    megahertz = [int(text) / 1000 if text and text.isdigit() else None for text in kilohertz]
    bound = set(bound_to or ())
    groups = {tuple(sorted(bound.intersection(_sibling_threads(core)))) for core in bound}
    return {
        "load": round(os.getloadavg()[0], 2),
        "core_mhz": megahertz or None,
        "governor": environment.cpu_governor(bound_to),
        "siblings": sorted(list(group) for group in groups if len(group) > 1) or None,
        **gpus,
    }


def read_counters(platform: str, bound_to: Sequence[int] | None) -> HostReading:
    """Return the current CPU times and throttling counts as a `HostReading`.

    The reading covers the CPU cores `bound_to`, or all cores on which this process may run if `bound_to` is
    None. It includes the other hardware threads of these physical cores, because their load slows down this
    process.
    """
    cores = sorted(
        {thread for core in bound_to or os.sched_getaffinity(0) for thread in _sibling_threads(core)}
    )
    times, usage = _core_times(cores), resource.getrusage(resource.RUSAGE_SELF)
    path, units = "/sys/devices/system/cpu/cpu{}/thermal_throttle/{}_throttle_count", ("core", "package")
    throttle_counts = [environment.read_text(path.format(core, unit)) for core in cores for unit in units]
    statistics = (environment.read_text(f"{folder}/cpu.stat") for folder in environment.cgroup_folders())
    throttle_counts += re.findall(r"^nr_throttled (\d+)", "\n".join(filter(None, statistics)), re.MULTILINE)
    gpus = _gpus() if platform == "gpu" else ()
    return HostReading(
        platform,
        tuple(bound_to) if bound_to else None,
        core_count=len(times),
        idle_seconds=sum(ticks[3] + ticks[4] for ticks in times) * _TICK_SECONDS,  # see `_core_times`
        stolen_seconds=sum(ticks[7] for ticks in times) * _TICK_SECONDS,
        process_seconds=usage.ru_utime + usage.ru_stime,
        clock_seconds=perf_counter(),
        slowdowns=sum(int(count) for count in throttle_counts if count and count.isdigit()),
        throttled=any(_throttle_reasons(handle) for handle in gpus),
    )


def find_disturbances(start: HostReading) -> list[str]:
    """Return the names of the disturbances since the reading `start`, a subset of `MARKS`.

    "throttled"       the clock rate of a CPU core or GPU was reduced, or the cgroup used up its CPU quota
    "foreign_load"    other processes or the hypervisor used a large part of the time of the cores
    """
    now = read_counters(start.platform, start.bound_to)
    cores, elapsed = start.core_count, now.clock_seconds - start.clock_seconds
    idle = now.idle_seconds - start.idle_seconds
    process = now.process_seconds - start.process_seconds
    # Linux may attribute the time of the hypervisor to this process.
    foreign = max(elapsed * cores - idle - process, now.stolen_seconds - start.stolen_seconds)
    is_significant = foreign > _TICK_SECONDS * math.sqrt(cores)  # a lower load may be a rounding error
    is_throttled = start.throttled or now.throttled or now.slowdowns > start.slowdowns
    # If this process is bound to cores, a tenth of one core suffices: devices wait for the slowest core.
    is_loaded = is_significant and foreign > _FOREIGN_SHARE * elapsed * (1 if start.bound_to else cores)
    return [mark for mark, is_set in zip(MARKS, (is_throttled, is_loaded), strict=True) if is_set]


@functools.cache
def _sibling_threads(core: int) -> tuple[int, ...]:
    """Return all hardware threads of the physical core that contains the thread `core`, such as (0, 4)."""
    path = f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
    ranges = re.findall(r"(\d+)(?:-(\d+))?", environment.read_text(path) or str(core))
    return tuple(thread for first, last in ranges for thread in range(int(first), int(last or first) + 1))


def _core_times(cores: Sequence[int]) -> list[list[int]]:
    """Return the clock ticks that each core has spent in each state of /proc/stat, such as user or idle."""
    names, times = {f"cpu{core}" for core in cores}, []
    for line in (environment.read_text("/proc/stat") or "").splitlines():
        name, _, fields = line.partition(" ")
        if name in names and set(fields.split()) != {"0"}:  # a sandbox may report zeros
            # user, nice, system, idle, iowait, irq, softirq and steal time
            times.append([int(field) for field in fields.split()[:8]])
    return times


def driver_version() -> str | None:
    """Return the version of the NVIDIA driver, or None if it is unknown."""
    version = ctypes.create_string_buffer(80)  # NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE
    return version.value.decode() if _nvml("nvmlSystemGetDriverVersion", version, 80) else None


def _nvml(name: str, *arguments: Any) -> bool:
    """Call the function `name` of NVML, NVIDIA's management library. Return whether the call succeeded."""
    function = getattr(_nvml_library(), name, None)
    return function is not None and function(*arguments) == 0


@functools.cache
def _nvml_library() -> Any:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        return library if library.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None


@functools.cache
def _gpus() -> tuple[ctypes.c_void_p, ...]:
    """Return the NVML handles of the GPUs in CUDA_VISIBLE_DEVICES, or of all GPUs if it is not set.

    MIG instances (parts of a GPU) are not supported.
    """
    gpus: list[tuple[str, ctypes.c_void_p]] = []  # (UUID, or "" if it is unknown; handle)
    for index in range(_query_number("nvmlDeviceGetCount_v2", ctypes.c_uint) or 0):
        handle, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(96)  # NVML requires 96 bytes
        # The first call fails for a GPU that this job may not use.
        if _nvml("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle)):
            _nvml("nvmlDeviceGetUUID", handle, uuid, 96)
            gpus.append((uuid.value.decode(), handle))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(handle for _, handle in gpus)
    selected: list[ctypes.c_void_p] = []
    for device_id in map(str.strip, visible.split(",")):
        # CUDA and NVML number GPUs of one model equally.
        matching = gpus[int(device_id) :][:1] if device_id.isdigit() else []
        matching += [gpu for gpu in gpus if device_id.startswith("GPU-") and gpu[0].startswith(device_id)]
        if len(matching) != 1:
            break  # as in CUDA, the first invalid entry and all entries after it are ignored
        selected.append(matching[0][1])
    return tuple(selected)


def _query_number(function: str, ctype: Any, *arguments: Any) -> Any:
    """Return the number that a function of NVML writes to its last argument, or None if the call fails."""
    number = ctype()
    return number.value if _nvml(function, *arguments, ctypes.byref(number)) else None


def _throttle_reasons(handle: ctypes.c_void_p) -> list[str] | None:
    """Return the reasons why a GPU is throttled, such as ["thermal"], or None if they are unknown."""
    reasons = _query_number("nvmlDeviceGetCurrentClocksEventReasons", ctypes.c_ulonglong, handle)
    return None if reasons is None else [name for bit, name in _THROTTLE_REASONS.items() if reasons & bit]


def _gpu_state(handle: ctypes.c_void_p) -> dict[str, Any]:
    milliwatts = _query_number("nvmlDeviceGetPowerUsage", ctypes.c_uint, handle)
    return {
        "sm_mhz": _query_number("nvmlDeviceGetClockInfo", ctypes.c_uint, handle, 1),
        "memory_mhz": _query_number("nvmlDeviceGetClockInfo", ctypes.c_uint, handle, 2),
        "watts": None if milliwatts is None else milliwatts / 1000,
        "celsius": _query_number("nvmlDeviceGetTemperature", ctypes.c_uint, handle, 0),
        "throttle": _throttle_reasons(handle),
    }
