"""Memory in bytes: what a program needs, what the host and a device have, and the most that was taken.

Does not know which case asks.
"""

import contextlib
import re
import resource
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scaling.core.environment import contents
from scaling.core.formatting import format_bytes


def available_bytes() -> int | None:
    """Return what this process can get on its host now, within the limits of its control group."""
    free = re.search(r"^MemAvailable:\s+(\d+) kB", contents("/proc/meminfo") or "", re.MULTILINE)
    limits = [int(free.group(1)) * 1024] if free else []
    most, used = contents("/sys/fs/cgroup/memory.max"), contents("/sys/fs/cgroup/memory.current")
    if most and most.isdigit() and used and used.isdigit():
        limits.append(int(most) - int(used))
    return min(limits, default=None)


def raise_oom_score() -> None:
    """Ask the kernel to kill this process before any other should memory run out, not the user's session."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def is_out_of_memory(text: str) -> bool:
    """Return whether a text says that memory ran out, in the words of Python, XLA or native code."""
    words = ("memoryerror", "resource_exhausted", "out of memory", "bad_alloc", "cannot allocate memory")
    return any(word in text.lower() for word in words)


def count_oom_kills() -> int:
    """Return how many processes the kernel of this host has killed for memory so far."""
    found = re.search(r"^oom_kill (\d+)$", contents("/proc/vmstat") or "", re.MULTILINE)
    return int(found.group(1)) if found else 0


def limit_process() -> None:
    """Limit this process to 95 % of the host's free memory, to fail before the kernel kills it."""
    used = re.search(r"^VmData:\s+(\d+) kB", contents("/proc/self/status") or "", re.MULTILINE)
    if used and (free := available_bytes()):
        most = int(used.group(1)) * 1024 + free - free // 20
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = most if soft == resource.RLIM_INFINITY else min(most, soft)
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def program_bytes(compiled: Any) -> dict[str, int | None]:
    """Return what a compiled program holds on each device, as fields of a record; None if not known."""
    analysis = _analysis(compiled, "memory_analysis")
    return {
        f"{what}_bytes": getattr(analysis, f"{what}_size_in_bytes", None)
        for what in ("argument", "temp", "output")
    }


def bytes_while_running(needs: Mapping[str, Any], results: int = 1) -> int | None:
    """Return the bytes of each device while a program runs, None if not known: inputs, temporaries, results.

    needs: as `program_bytes` returns them. results: how many are held at a time.
    """
    arguments, temporaries, output = (needs.get(f"{what}_bytes") for what in ("argument", "temp", "output"))
    if arguments is None or temporaries is None or output is None:
        return None
    total: int = arguments + temporaries + results * output
    return total


def describe_shortage(
    needs: Mapping[str, Any],
    devices: Sequence[Any],
    platform: str,
    limit: int | None = None,
    results: int = 1,
    host_bytes: int = 0,
) -> str | None:
    """Return what a program needs and what a device has, in words, or None where it fits.

    On a CPU all devices share the host's memory. limit: of each device, where it may not have all. results:
    how many are held at a time. host_bytes: what the host holds meanwhile.
    """
    each = bytes_while_running(needs, results)
    if each is None:
        return None
    if limit is not None and each > limit:
        return f"needs {format_bytes(each)}, may have {format_bytes(limit)} (memory_limit)"
    if platform == "cpu":
        result = 0 if host_bytes else needs["output_bytes"]  # copied once, for the check
        each, has = (each + result) * len(devices) + host_bytes, available_bytes()
    else:
        stats = _analysis(devices[0], "memory_stats") or {}
        has = stats["bytes_limit"] - stats["bytes_in_use"] if "bytes_limit" in stats else None
    return f"needs {format_bytes(each)}, has {format_bytes(has)}" if has is not None and each > has else None


def most_bytes(devices: Sequence[Any], statistic: str) -> int | None:
    """Return the largest value on these devices of a statistic, such as `peak_bytes_in_use`, if known."""
    each = [_analysis(device, "memory_stats") or {} for device in devices]
    return max((stats[statistic] for stats in each if statistic in stats), default=None)


def _analysis(of: Any, method: str) -> Any:
    """Return an analysis, or None where the backend does not have it."""
    try:
        return getattr(of, method)()
    except Exception:
        return None
