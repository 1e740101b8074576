"""Class `Channel`: a worker reads requests from its launcher and sends events to it, as lines of JSON.

The channel keeps working if the measured function prints, forks, or replaces `json.dumps` or `print`.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

PROTOCOL = 3  # version of the requests and events of workers, checked by launchers of other revisions
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Channel:
    """The connection of a worker process to its launcher, the process that started it."""

    requests: TextIO  # text stream with one JSON request per line
    send_event: Callable[..., None]  # sends its keyword arguments to the launcher as one JSON object
    exit_if_forked: Callable[[], None]  # exits in a fork of the process that opened the channel


def open_channel() -> Channel:
    """Open a `Channel` to the launcher over the standard input and output of this process, and return it.

    Afterwards, standard input is empty, and standard output goes to standard error. If the host runs out of
    memory, Linux kills this process first.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    requests, out, owner = os.fdopen(os.dup(0)), os.dup(1), os.getpid()
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    # Local references, because the workload may replace these functions.
    dumps, write, getpid, exit_process, redirect = json.dumps, os.write, os.getpid, os._exit, os.dup2

    def exit_if_forked() -> None:
        if getpid() != owner:
            exit_process(0)

    def send_event(**event: Any) -> None:
        exit_if_forked()
        line = f"\n{dumps(event)}\n".encode()  # the leading newline ends any partial line
        while line:
            line = line[write(out, line) :]

    def close_in_child() -> None:
        for stream in (requests.fileno(), out):
            redirect(null, stream)

    os.register_at_fork(after_in_child=close_in_child)
    return Channel(requests, send_event, exit_if_forked)


def die_with_parent(parent: int) -> None:
    """Make Linux kill this process when its parent, with the given process ID, ends or has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the call of prctl
        os._exit(0)
