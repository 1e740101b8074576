"""Memory limit of this process, and count of the processes that Linux killed because memory ran out."""

import re
import resource

from scaling.core.environment import contents
from scaling.core.memory import available_bytes


def count_oom_kills() -> int:
    """Return the number of processes killed because memory ran out, since the host started. 0 if unknown."""
    line = re.search(r"^oom_kill (\d+)$", contents("/proc/vmstat") or "", re.MULTILINE)
    return int(line.group(1)) if line else 0


def limit_process() -> None:
    """Limit the memory that this process can still allocate to 95 % of the memory that is available now.

    An allocation beyond the limit fails in this process, before Linux kills a process because memory ran out.
    The limit is RLIMIT_DATA. A lower existing limit is kept.
    """
    data = re.search(r"^VmData:\s+(\d+) kB", contents("/proc/self/status") or "", re.MULTILINE)
    if data and (free := available_bytes()):
        limit = int(data.group(1)) * 1024 + free - free // 20
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = limit if soft == resource.RLIM_INFINITY else min(limit, soft)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
