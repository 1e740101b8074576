"""Run a command, and end every process that it leaves behind.

`python -I -S reaper.py PARENT` reads the command from the first line of standard input, a list of words as
JSON; the command inherits the rest of standard input and the other streams. The reaper is the child subreaper
of the command (see prctl(2)), so that a process that detaches itself, even into a session of its own, stays a
descendant. When the command ends, when the process PARENT dies, and on SIGTERM, the reaper kills all
descendants. It ends as the command did, with the same status or signal.

Uses the standard library only and imports nothing of this package, because every worker waits for it to
start.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_POLL_SECONDS = 0.005


def main() -> None:
    """Run the command to its end."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, _stop)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):  # the parent died before prctl
        os._exit(0)
    command = json.loads(_read_line(0))
    if not (child := os.fork()):
        _execute(command)
    for stream in (0, 1, 2):  # the launcher waits for the end of these, which must be that of the command
        os.dup2(os.open(os.devnull, os.O_RDWR), stream)
    while True:
        process, status = os.waitpid(-1, 0)
        if process == child:
            break
    _kill_descendants()
    _end_like(status)


def _read_line(stream: int) -> bytes:
    """Return the first line, and leave what follows it for the command."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(stream, 1)):
        line += byte
    return line


def _execute(command: list[str]) -> None:
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{os.path.basename(command[0])} cannot be started: {error.strerror}\n".encode())
        os._exit(127)


def _stop(_signal: int, _frame: Any) -> None:
    _kill_descendants()
    os._exit(128 + signal.SIGTERM)


def _kill_descendants() -> None:
    """Kill all children until none remain.

    The children of a process that ends become children of this process.
    """
    while True:
        for child in _children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(_POLL_SECONDS)


def _children() -> list[int]:
    """Return the children of this process.

    If the kernel does not list them, the parent of every process is read.
    """
    own = os.getpid()
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{own}/task/{own}/children").read_text().split()]
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == own:
                found.append(int(path.parent.name))
    return found


def _end_like(status: int) -> None:
    """End with the exit status, or by the signal, that the command ended with."""
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
