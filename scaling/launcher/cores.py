"""List the CPU cores that this process may use, and claim cores, so that studies do not share them.

Two studies never measure on the same core at the same time, even if different users run them. A process
claims a core by binding an abstract Unix socket. Linux releases the socket when the process ends. Claims are
not visible in another network namespace, such as the namespace of a container.
"""

import contextlib
import os
import random
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator

from scaling.core import environment
from scaling.core.environment import read_text
from scaling.core.formatting import format_wait

WAIT_SECONDS = 86400.0  # timeout for cores that other studies hold
_POLL_SECONDS = 0.3
# The prefix of the abstract socket names. Tests with different AD_SCALING_CLAIMS do not wait for each other.
_PREFIX = f"ad-scaling/{os.environ.get('AD_SCALING_CLAIMS', 'core')}/"


def usable_cores() -> list[int]:
    """Return the IDs of the logical CPU cores that the CPU affinity and the cgroup quotas permit.

    One logical core of each physical core comes first, then the remaining logical cores.
    """
    siblings_path = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    allowed = sorted(os.sched_getaffinity(0))
    siblings = {core: read_text(siblings_path.format(core)) or str(core) for core in allowed}
    lowest_core = {group: core for core, group in reversed(siblings.items())}
    ordered = sorted(siblings, key=lambda core: lowest_core[siblings[core]] != core)
    for folder in environment.cgroup_folders():
        version_1 = " ".join(str(read_text(f"{folder}/cpu.cfs_{name}_us")) for name in ("quota", "period"))
        if limit := re.fullmatch(r"(\d+) (\d+)", read_text(f"{folder}/cpu.max") or version_1):
            ordered = ordered[: max(1, int(limit[1]) // int(limit[2]))]
    return ordered


@contextlib.contextmanager
def claim_cores(
    count: int,
    owner: str,
    report_wait: Callable[[str], None] = lambda _: None,
    node: str = "",
    timeout: float = WAIT_SECONDS,
) -> Iterator[list[int]]:
    """Reserve `count` CPU cores, or all usable cores if there are fewer, and yield the sorted core numbers.

    Processes with the same `owner` (ID of a run) and `node` share their cores. If other owners use the cores,
    `report_wait` is called once with a message. Raise `TimeoutError` after `timeout` seconds.
    """
    usable, deadline, reported = usable_cores(), time.monotonic() + timeout, False
    with contextlib.ExitStack() as claims:
        while (cores := _try_claim(usable, count, owner, node, claims)) is None:
            if not reported:
                hint = "Ctrl-C or `scaling cancel` ends the wait, and bind=false does not wait"
                report_wait(f"{_describe_wait(usable, node)}, for up to {format_wait(timeout)}; {hint}")
                reported = True
            if time.monotonic() > deadline:
                raise TimeoutError(f"{_describe_wait(usable, node)}: timed out after {timeout:g} s")
            time.sleep(_POLL_SECONDS * random.uniform(0.5, 1.5))
        yield sorted(cores)


def _describe_wait(cores: list[int], node: str) -> str:
    """Return a message that this process waits for `cores`, with the IDs of the processes that hold them."""
    holder_pids = set()
    for core in cores:
        with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(OSError):
            client.setblocking(False)  # the holder never accepts a connection, so its queue may be full
            client.connect(f"\0{_PREFIX}{core}")
            credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4)
            holder_pids.add(int.from_bytes(credentials, sys.byteorder))
    pids = ", ".join(map(str, sorted(holder_pids - {0})))
    owners = f"process {pids}" if pids else "a process in another container"
    return f"waits for cores{f' of {node}' if node else ''}: another study on this host holds them ({owners})"


def _try_claim(
    usable: list[int], count: int, owner: str, node: str, claims: contextlib.ExitStack
) -> list[int] | None:
    """Claim `count` of the `usable` cores, and return them, or return None if too few are free.

    If fewer than `count` cores are usable, claim all of them. Processes with the same `owner` and `node`
    share their cores. The claims end when the stack `claims` is closed.
    """
    # Several node names can refer to this host. Nodes of an owner share cores only if too few are free.
    count = min(count, len(usable))
    same_node = [core for core in usable if not _is_free(f"{core}/{owner}/{node}")]
    if len(same_node) >= count:
        return same_node[:count]
    with contextlib.ExitStack() as trial_claims:
        free, same_owner = list[int](), list[int]()
        for core in usable:
            if len(free) < count and _try_bind(str(core), trial_claims):
                _try_bind(f"{core}/{owner}", trial_claims)
                _try_bind(f"{core}/{owner}/{node}", trial_claims)
                free.append(core)
            elif not _is_free(f"{core}/{owner}"):
                same_owner.append(core)
        other_owners = len(usable) - len(free) - len(same_owner)
        if len(free) + other_owners >= count > len(free) or len(free) + len(same_owner) < count:
            return None  # wait for cores of other owners instead of sharing cores of this owner
        claims.enter_context(trial_claims.pop_all())
        return (free + same_owner)[:count]


def _try_bind(name: str, stack: contextlib.ExitStack) -> bool:
    """Bind the abstract Unix socket `name` until `stack` is closed, and return whether `name` was free."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0{_PREFIX}{name}")
        claim.listen()  # allows other processes to query the process ID of the holder
    except OSError:
        claim.close()
        return False
    stack.enter_context(claim)
    return True


def _is_free(name: str) -> bool:
    with contextlib.ExitStack() as stack:
        return _try_bind(name, stack)
