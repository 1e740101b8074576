"""Find the needed and the free memory in bytes, limit a process, and detect out-of-memory errors."""

import math
import re
import resource
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scaling.core.environment import contents
from scaling.core.formatting import format_bytes

_CGROUPS = Path("/sys/fs/cgroup")
_KINDS = ("argument", "temp", "output")


def available_bytes() -> int | None:
    """Return the free memory in bytes on this host, or in a cgroup of this process if less is free there.

    Return None if neither is known. Slurm sets the memory limit of a job in a parent of the process's cgroup.
    """
    free = re.search(r"^MemAvailable:\s+(\d+) kB", contents("/proc/meminfo") or "", re.MULTILINE)
    limits = [int(free.group(1)) * 1024] if free else []
    for folder in cgroup_folders():
        limit, used = contents(f"{folder}/memory.max"), contents(f"{folder}/memory.current")
        if limit and limit.isdigit() and used:
            cached = re.search(r"^inactive_file (\d+)", contents(f"{folder}/memory.stat") or "", re.MULTILINE)
            limits.append(int(limit) - int(used) + (int(cached.group(1)) if cached else 0))
    return min(limits, default=None)


def cgroup_folders() -> list[Path]:
    """Return the cgroup (v2) folder of this process, followed by its parent folders. Some may not exist."""
    own = re.search(r"^0::/(.*)", contents("/proc/self/cgroup") or "", re.MULTILINE)
    folder = _CGROUPS / (own.group(1) if own else "")  # does not exist in a container without a namespace
    return [folder, *folder.parents]


def limit_process() -> None:
    """Limit further allocations (RLIMIT_DATA) to 95 % of the free memory. Beyond the limit, they fail."""
    data = re.search(r"^VmData:\s+(\d+) kB", contents("/proc/self/status") or "", re.MULTILINE)
    if data and (free := available_bytes()):
        limit = int(data.group(1)) * 1024 + free - free // 20
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = limit if soft == resource.RLIM_INFINITY else min(limit, soft)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def is_out_of_memory(text: str) -> bool:
    """Return whether an error message of Python, XLA or native code reports that memory ran out."""
    phrases = ("memoryerror", "resource_exhausted", "out of memory", "bad_alloc", "cannot allocate memory")
    return any(phrase in text.lower() for phrase in phrases)


def require_addressable(jaxpr: Any) -> None:
    """Raise `OverflowError` if a program has an array of 2**63 bytes or more, which would abort XLA."""
    from jax.extend.core import jaxprs_in_params

    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        for variable in equation.outvars:
            shape, dtype = getattr(variable.aval, "shape", ()), getattr(variable.aval, "dtype", None)
            if math.prod(shape) * getattr(dtype, "itemsize", 1) >= 2**63:
                raise OverflowError(f"an array of the shape {tuple(shape)} has 2**63 bytes or more")
        for inner in jaxprs_in_params(equation.params):
            require_addressable(inner)


def program_bytes(compiled: Any) -> dict[str, int | None]:
    """Return the bytes per device of the arguments, temporaries and outputs of a compiled program.

    The keys are the names of fields of `Record`. A value is None if XLA does not report it.
    """
    analysis = _call_if_supported(compiled, "memory_analysis")
    return {f"{name}_bytes": getattr(analysis, f"{name}_size_in_bytes", None) for name in _KINDS}


def bytes_while_running(needs: Mapping[str, Any], results: int = 1) -> int | None:
    """Return the bytes per device of arguments, temporaries and `results` copies of the output, or None."""
    arguments, temporaries, output = (needs.get(f"{name}_bytes") for name in _KINDS)
    if arguments is None or temporaries is None or output is None:
        return None
    return int(arguments + temporaries + results * output)


def describe_shortage(
    device_bytes: int | None,
    devices: Sequence[Any],
    platform: str,
    limit: int | None = None,
    host_bytes: int = 0,
) -> str | None:
    """Return text such as 'needs 96.0 GB, has 80.0 GB' if the memory is too small, otherwise None.

    Each device needs `device_bytes` (None if unknown) and may use `limit` bytes (None for all). CPU devices
    share the memory of the host, which needs `host_bytes` in addition.
    """
    if device_bytes is None:
        return None
    if limit is not None and device_bytes > limit:
        return f"needs {format_bytes(device_bytes)}, may have {format_bytes(limit)} (memory_limit)"
    needed, available = device_bytes, None
    if platform == "cpu":
        needed, available = device_bytes * len(devices) + host_bytes, available_bytes()
    else:
        statistics = _call_if_supported(devices[0], "memory_stats") or {}
        if "bytes_limit" in statistics:
            available = statistics["bytes_limit"] - statistics["bytes_in_use"]
    if available is None or needed <= available:
        return None
    return f"needs {format_bytes(needed)}, has {format_bytes(available)}"


def largest_statistic(devices: Sequence[Any], name: str) -> int | None:
    """Return the maximum over devices of a memory statistic, such as "bytes_in_use", or None if unknown."""
    by_device = [_call_if_supported(device, "memory_stats") or {} for device in devices]
    return max((statistics[name] for statistics in by_device if name in statistics), default=None)


def _call_if_supported(owner: Any, method: str) -> Any:
    try:
        return getattr(owner, method)()
    except Exception:
        return None
