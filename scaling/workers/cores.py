"""The cores of this host: which a process may use, and which it has claimed exclusively.

Knows Linux; not what runs on a core. A claim holds between all processes of a host that use this package,
whoever started them: two studies that share a core would time each other.
"""

import contextlib
import math
import os
import random
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from scaling.core.environment import contents

_POLL_SECONDS = 0.3
_NAME = "ad-scaling/core/"  # of the sockets that are claims; the kernel frees them when their process is gone


def allowed() -> list[int]:
    """Return the cores that this process may use, within the quota of a container.

    One core of each physical core comes first.
    """
    path = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    siblings = {core: contents(path.format(core)) or str(core) for core in sorted(os.sched_getaffinity(0))}
    first = {group: core for core, group in reversed(siblings.items())}  # the last one set is the lowest
    ordered = sorted(siblings, key=lambda core: first[siblings[core]] != core)
    return ordered[: _quota() or None]


def _quota() -> int:
    """Return the whole cores that the quota of the control group allows; 0 where there is none."""
    words = (contents("/sys/fs/cgroup/cpu.max") or "max").split()
    return max(1, int(int(words[0]) / int(words[1]))) if len(words) == 2 and words[0] != "max" else 0


@contextlib.contextmanager
def claimed(
    count: int, owner: str, waiting: Callable[[list[int]], None] = lambda _: None, node: str = "",
    patience: float = math.inf,
) -> Iterator[list[int]]:  # fmt: skip
    """Claim `count` cores for this owner, or all where there are fewer; `waiting` is called once, with the
    holders' pids.

    First come first served; TimeoutError when patience (seconds) ends. Processes of the same owner and node
    are given the same cores; those of the same owner on another node, which is this host too, others, and
    where there are none the same.

    """
    mine, end, reported = allowed(), time.monotonic() + patience, False
    with contextlib.ExitStack() as claims:
        with contextlib.ExitStack() as queue:
            is_next = False
            while True:
                is_next = is_next or _is_next(mine, owner, queue)
                if is_next and (cores := _take(mine, count, owner, node, claims)) is not None:
                    break
                if not reported:
                    waiting(_holders(mine))
                    reported = True
                if time.monotonic() > end:
                    raise TimeoutError(
                        f"{count} cores were waited for; processes {_holders(mine)} hold some of them"
                    )
                time.sleep(_POLL_SECONDS * random.uniform(0.5, 1.5))
        yield sorted(cores)


def describe_wait(by: Sequence[int], node: str = "") -> str:
    """Return the message that cores are awaited.

    by: the processes that hold them, as far as they are visible from here.
    """
    who = f"process {', '.join(map(str, by))}" if by else "a process that cannot be seen from here"
    return f"waits for cores{f' of {node}' if node else ''}: another study on this host holds them ({who})"


def _is_next(mine: list[int], owner: str, queue: contextlib.ExitStack) -> bool:
    """Return whether it is the turn of this owner.

    An owner that already holds cores does not wait, which avoids a deadlock.
    """
    return _taken("queue", queue) or not all(_free(f"{core}/{owner}") for core in mine)


def _holders(cores: list[int]) -> list[int]:
    """Return the pids of processes that hold any of these cores; those of other users may be missing."""
    found = set()
    for core in cores:
        with socket.socket(socket.AF_UNIX) as ask, contextlib.suppress(OSError):
            ask.connect(f"\0{_NAME}{core}")
            credentials = ask.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4)
            found.add(int.from_bytes(credentials, sys.byteorder))
    return sorted(found - {0})


def _take(
    mine: list[int], count: int, owner: str, node: str, stack: contextlib.ExitStack
) -> list[int] | None:
    """Return `count` cores, or all if there are fewer; None if too few are available.

    Available cores are free, or belong to the same owner and node.
    """
    count = min(count, len(mine))
    same_node = [core for core in mine if not _free(f"{core}/{owner}/{node}")]
    if len(same_node) >= count:
        return same_node[:count]
    with contextlib.ExitStack() as trial:
        free, ours = list[int](), list[int]()
        for core in mine:
            if len(free) < count and _taken(str(core), trial):
                _taken(f"{core}/{owner}", trial)
                _taken(f"{core}/{owner}/{node}", trial)
                free.append(core)
            elif not _free(f"{core}/{owner}"):
                ours.append(core)
        others = len(mine) - len(free) - len(ours)
        if len(free) + others >= count > len(free) or len(free) + len(ours) < count:
            return None  # what others hold will come free: better than to share our own
        stack.enter_context(trial.pop_all())
        return (free + ours)[:count]


def _taken(name: str, stack: contextlib.ExitStack) -> bool:
    """Claim a name until the stack is left; return whether it was free."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0{_NAME}{name}")
        claim.listen()  # so that others can ask who holds it
    except OSError:
        claim.close()
        return False
    stack.enter_context(claim)
    return True


def _free(name: str) -> bool:
    with contextlib.ExitStack() as stack:
        return _taken(name, stack)
