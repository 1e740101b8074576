"""Class `Channel`: a child process reads requests from its launcher and sends events to it, as lines of JSON.

The channel keeps working if the code of the user prints or forks.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

PROTOCOL = 3  # version of the requests and events of workers, checked by launchers of other revisions
_PR_SET_PDEATHSIG = 1


class Channel:
    """The connection of this process to its launcher, the process that started it.

    It replaces standard input and output: afterwards, standard input is empty, and standard output goes to
    standard error. If the host runs out of memory, Linux kills this process first.
    """

    def __init__(self) -> None:
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
        self.requests = os.fdopen(os.dup(0))  # text stream with one JSON request per line
        self._out, self._owner = os.dup(1), os.getpid()
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(2, 1)
        sys.stdout = sys.stderr

        def close_in_child() -> None:
            for stream in (self.requests.fileno(), self._out):
                os.dup2(null, stream)

        os.register_at_fork(after_in_child=close_in_child)

    def send_event(self, **event: Any) -> None:
        """Send the keyword arguments to the launcher as one JSON object."""
        self.exit_if_forked()
        line = f"\n{json.dumps(event)}\n".encode()  # the leading newline ends any partial line
        while line:
            line = line[os.write(self._out, line) :]

    def exit_if_forked(self) -> None:
        """Exit in a fork of the process that opened the channel."""
        if os.getpid() != self._owner:
            os._exit(0)


def die_with_parent(parent: int) -> None:
    """Make Linux kill this process when its parent, with the given process ID, ends or has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the call of prctl
        os._exit(0)
