"""The command `scaling` in processes that have it loaded already, so that some hundred tests need not wait for its imports.

A server imports what the command does and forks for each one: a process of its own, with its own words, folder, environment and
streams. That it starts from nothing too is shown where the README's commands are run, and wherever one is left running. Knows
what the command imports; not what its words mean.
"""

import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

_LARGEST = 2**17  # bytes of a message: the words and the environment of a command
_MODULES = (
    "hydra", "scaling.cli.main", "scaling.analysis.compare", "scaling.analysis.lint", "scaling.report.export",
    "scaling.report.write_report", "vl_convert",
)  # fmt: skip


class Server:
    """The process that has it loaded; it runs one command at a time."""

    def __init__(self) -> None:
        self._asking, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            one_thread = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # with several, to fork would not be safe
            words = [sys.executable, __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(
                words, env=one_thread, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )

    def run(
        self, words: Sequence[str], cwd: Path, env: dict[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """As subprocess.run with both streams captured as text."""
        streams = [os.pipe(), os.pipe()]
        told = json.dumps({"words": words, "cwd": str(cwd), "env": env})
        socket.send_fds(self._asking, [told.encode()], [end for _, end in streams])
        for _, end in streams:
            os.close(end)
        said: dict[int, str] = {}
        readers = [threading.Thread(target=_read, args=(stream, said), daemon=True) for stream, _ in streams]
        for reader in readers:
            reader.start()
        process = self._hear(timeout)
        try:
            status = self._hear(timeout)
        except TimeoutError:
            os.kill(process, signal.SIGKILL)
            self._hear(timeout)
            raise subprocess.TimeoutExpired(list(words), timeout) from None
        for reader in readers:
            reader.join(timeout)
        if len(said) < len(streams):  # something that the command left behind holds them
            raise subprocess.TimeoutExpired(list(words), timeout)
        out, err = (said[stream] for stream, _ in streams)
        return subprocess.CompletedProcess(list(words), status, out, err)

    def _hear(self, timeout: float) -> int:
        self._asking.settimeout(timeout)
        if not (heard := self._asking.recv(_LARGEST)):
            raise RuntimeError("the process that has `scaling` loaded has ended; its own words stand above")
        return int(heard)

    def close(self) -> None:
        self._asking.close()
        self._process.wait()


def _read(stream: int, said: dict[int, str]) -> None:
    with open(stream, encoding="utf-8") as file:
        said[stream] = file.read()


def _serve(asked: socket.socket) -> None:
    """Fork for each command that is asked for, and tell its number and its status; comes back in the fork, as that command."""
    while True:
        told, streams, _, _ = socket.recv_fds(asked, _LARGEST, 2)
        if not told:
            sys.exit()
        if not (process := os.fork()):
            return _become(streams, **json.loads(told))
        for stream in streams:
            os.close(stream)
        asked.send(str(process).encode())
        _, status = os.waitpid(process, 0)
        asked.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become(streams: Sequence[int], words: list[str], cwd: str, env: dict[str, str]) -> None:
    for stream, place in zip(streams, (1, 2), strict=True):
        os.dup2(stream, place)
        os.close(stream)
    sys.stdout, sys.stderr = (
        os.fdopen(place, "w", buffering, closefd=False) for place, buffering in ((1, -1), (2, 1))
    )
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.path[1:1] = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = words


if __name__ == "__main__":
    sys.path[0] = str(Path(sys.executable).parent)  # as in the command's own script
    for name in _MODULES:
        importlib.import_module(name)
    gc.freeze()  # what is here now stays, and no fork need look at it
    with socket.socket(fileno=int(sys.argv[1])) as here:
        _serve(here)
    sys.modules["scaling.cli.main"].entry()
