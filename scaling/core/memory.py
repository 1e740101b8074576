"""Memory: what a compiled program needs, what there is, and the most that was taken. Bytes throughout.

Knows the host and a device's allocator; not which case asks, nor what becomes of it.
"""

import contextlib
import re
import resource
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scaling.core.environment import contents
from scaling.core.formatting import format_bytes


def available() -> int | None:
    """What can be had on this host now, within the limits of its control group."""
    free = re.search(r"^MemAvailable:\s+(\d+) kB", contents("/proc/meminfo") or "", re.MULTILINE)
    limits = [int(free.group(1)) * 1024] if free else []
    most, used = contents("/sys/fs/cgroup/memory.max"), contents("/sys/fs/cgroup/memory.current")
    if most and most.isdigit() and used and used.isdigit():
        limits.append(int(most) - int(used))
    return min(limits, default=None)


def go_first() -> None:
    """Ask the kernel, should memory run out, to kill this process before any other: not the person's session."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def ran_out(text: str) -> bool:
    """Whether these are words for memory that ran out, of Python, of XLA, or of native code."""
    words = ("memoryerror", "resource_exhausted", "out of memory", "bad_alloc", "cannot allocate memory")
    return any(word in text.lower() for word in words)


def kills() -> int:
    """How many processes the kernel of this host has killed for memory so far."""
    told = re.search(r"^oom_kill (\d+)$", contents("/proc/vmstat") or "", re.MULTILINE)
    return int(told.group(1)) if told else 0


def limit() -> None:
    """Let this process have most of what the host has now: too much is then an error, before the kernel has to kill."""
    used = re.search(r"^VmData:\s+(\d+) kB", contents("/proc/self/status") or "", re.MULTILINE)
    if used and (free := available()):
        most = int(used.group(1)) * 1024 + free - free // 20
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(
            resource.RLIMIT_DATA, (most if soft == resource.RLIM_INFINITY else min(most, soft), hard)
        )


def needs(compiled: Any) -> dict[str, int | None]:
    """What a compiled program will hold on each device, as fields of a record; None where the backend does not tell."""
    told = _asked(compiled, "memory_analysis")
    return {
        f"{what}_bytes": getattr(told, f"{what}_size_in_bytes", None)
        for what in ("argument", "temp", "output")
    }


def taken(needed: Mapping[str, Any], results: int = 1) -> int | None:
    """Bytes of each device while a program runs: what goes in, what is between and what comes out; None where one is not told."""
    inside, between, out = (needed.get(f"{what}_bytes") for what in ("argument", "temp", "output"))
    return None if inside is None or between is None or out is None else inside + between + results * out


def lacking(
    needed: Mapping[str, Any],
    devices: Sequence[Any],
    platform: str,
    limit: int | None = None,
    results: int = 1,
    beside: int = 0,
) -> str | None:
    """What a program needs and what there is, in words, where it needs more; on a CPU all devices share the host's memory.

    limit: of each device, if it may not have all. results: how many of them are there at a time. beside: what the host holds
    meanwhile.
    """
    each = taken(needed, results)
    if each is None:
        return None
    if limit is not None and each > limit:
        return f"needs {format_bytes(each)}, may have {format_bytes(limit)} (memory_limit)"
    if platform == "cpu":
        copied = (each + (0 if beside else needed["output_bytes"])) * len(
            devices
        )  # the result, once, for the check
        each, has = copied + beside, available()
    else:
        told = _asked(devices[0], "memory_stats") or {}
        has = told["bytes_limit"] - told["bytes_in_use"] if "bytes_limit" in told else None
    return f"needs {format_bytes(each)}, has {format_bytes(has)}" if has is not None and each > has else None


def peak(devices: Sequence[Any]) -> int | None:
    """The most that any of these devices ever held, where the backend tells it."""
    return _most(devices, "peak_bytes_in_use")


def held(devices: Sequence[Any]) -> int | None:
    """The most that any of these devices holds now, where the backend tells it."""
    return _most(devices, "bytes_in_use")


def _most(devices: Sequence[Any], what: str) -> int | None:
    told = [_asked(device, "memory_stats") or {} for device in devices]
    return max((stats[what] for stats in told if what in stats), default=None)


def _asked(of: Any, what: str) -> Any:
    """An analysis that some backends do not have."""
    try:
        return getattr(of, what)()
    except Exception:
        return None
