"""The channel of a worker to its launcher, as the worker has it: orders on standard input, events on standard
output.

A workload may print, patch `json` and `print`, and fork: none of this reaches the channel.
"""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Channel:
    """Orders to read by line, a function that sends an event, and one that ends a forked process."""

    orders: TextIO
    say: Callable[..., None]
    leave_if_forked: Callable[[], None]


def open_channel() -> Channel:
    """Reserve standard input and output for the channel.

    The process reads from an empty input instead, and writes to stderr.
    """
    orders, out, owner = os.fdopen(os.dup(0)), os.dup(1), os.getpid()
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    dumps, write, own, leave, redirect = json.dumps, os.write, os.getpid, os._exit, os.dup2  # as they are now

    def leave_if_forked() -> None:
        if own() != owner:
            leave(0)

    def say(**event: Any) -> None:
        leave_if_forked()
        line = f"\n{dumps(event)}\n".encode()  # on a line of its own, whatever was written before
        while line:
            line = line[write(out, line) :]

    def close_in_child() -> None:
        for stream in (orders.fileno(), out):
            redirect(nothing, stream)

    os.register_at_fork(after_in_child=close_in_child)
    return Channel(orders, say, leave_if_forked)


def die_with_parent(parent: int) -> None:
    """Ask Linux to kill this process when its parent ends.

    An orphan would disturb the timings of the next run.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it went before we asked
        os._exit(0)
