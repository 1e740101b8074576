"""Run a command, then kill all processes that it started (`reaper.py PARENT COMMAND...`).

PARENT is the ID of the process that starts the reaper. The reaper is a child subreaper (see prctl(2)).
Therefore, a process that detaches itself remains a descendant of the reaper. The reaper kills all descendants
when the command ends, when PARENT dies, and on SIGTERM. Its exit status is the status of the command, or 128
plus the number of the signal that ended the command. To start fast, it imports only the standard library.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_POLL_SECONDS = 0.005


def main() -> None:
    """Run the command in `sys.argv`, then kill its descendants, and exit with the status of the command."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, lambda *_: _kill_descendants_and_exit(128 + signal.SIGTERM))
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):  # the parent died before prctl
        os._exit(0)
    if not (command_pid := os.fork()):
        command = sys.argv[2:]
        try:
            os.execvp(command[0], command)
        except OSError as error:
            os.write(2, f"{os.path.basename(command[0])} cannot be started: {error.strerror}\n".encode())
            os._exit(127)
    for stream in (0, 1, 2):  # close the pipes here, so that the launcher reads EOF when the command ends
        os.dup2(os.open(os.devnull, os.O_RDWR), stream)
    reaped = status = 0
    while reaped != command_pid:  # orphans are reaped too
        reaped, status = os.waitpid(-1, 0)
    exit_code = os.waitstatus_to_exitcode(status)
    _kill_descendants_and_exit(exit_code if exit_code >= 0 else 128 - exit_code)


def _kill_descendants_and_exit(status: int) -> None:
    while True:  # the children of a killed process become children of this process
        for child in _find_children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            os._exit(status)
        time.sleep(_POLL_SECONDS)


def _find_children() -> list[int]:
    children = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_bytes().rpartition(b")")[2].split()[1]) == os.getpid():
                children.append(int(path.parent.name))
    return children


if __name__ == "__main__":
    main()
