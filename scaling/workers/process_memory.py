"""Memory limit of a worker process, and its priority for the out-of-memory killer (oom_score_adj)."""

import contextlib
import re
import resource
from pathlib import Path

from scaling.core.environment import contents
from scaling.core.memory import available_bytes


def raise_oom_score() -> None:
    """Make Linux kill this process first, and not the user's session, when the host runs out of memory."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def count_oom_kills() -> int:
    """Return the number of processes that Linux has killed since the host started because memory ran out."""
    line = re.search(r"^oom_kill (\d+)$", contents("/proc/vmstat") or "", re.MULTILINE)
    return int(line.group(1)) if line else 0


def limit_process() -> None:
    """Limit this process to 95 % of the host's free memory, so that it fails before the kernel kills it."""
    data = re.search(r"^VmData:\s+(\d+) kB", contents("/proc/self/status") or "", re.MULTILINE)
    if data and (free := available_bytes()):
        limit = int(data.group(1)) * 1024 + free - free // 20
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = limit if soft == resource.RLIM_INFINITY else min(limit, soft)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
