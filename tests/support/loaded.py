"""A fork server for the command `scaling`, so that some hundred tests need not wait for its imports.

The server imports the modules of the command once and forks for each command: a process with its own arguments, folder,
environment and streams. `scripts/smoke` and tests that use `start_command` start the command in a new interpreter.
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

_LARGEST = 2**17  # bytes of a message: the arguments and the environment of a command
_MODULES = (
    "hydra", "pandas", "scaling.cli.main", "scaling.analysis.folder_comparison", "scaling.analysis.lint", "scaling.report.export",
    "scaling.report.page", "vl_convert",
)  # fmt: skip


class Server:
    """A process that has imported the command and runs one command at a time."""

    def __init__(self) -> None:
        self._socket, server_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with server_socket:
            one_thread = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # forking several threads is unsafe
            arguments = [sys.executable, __file__, str(server_socket.fileno())]
            self._process = subprocess.Popen(
                arguments, env=one_thread, pass_fds=[server_socket.fileno()], stdin=subprocess.DEVNULL
            )

    def run(
        self, arguments: Sequence[str], cwd: Path, env: dict[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a command like subprocess.run with both streams captured as text."""
        streams = [os.pipe(), os.pipe()]
        request = json.dumps({"arguments": arguments, "cwd": str(cwd), "env": env})
        socket.send_fds(self._socket, [request.encode()], [end for _, end in streams])
        for _, end in streams:
            os.close(end)
        texts: dict[int, str] = {}
        readers = [threading.Thread(target=_read, args=(stream, texts), daemon=True) for stream, _ in streams]
        for reader in readers:
            reader.start()
        process = self._receive_number(timeout)
        try:
            status = self._receive_number(timeout)
        except TimeoutError:
            os.kill(process, signal.SIGKILL)
            self._receive_number(timeout)
            raise subprocess.TimeoutExpired(list(arguments), timeout) from None
        for reader in readers:
            reader.join(timeout)
        if len(texts) < len(streams):  # a process that the command left behind keeps them open
            raise subprocess.TimeoutExpired(list(arguments), timeout)
        out, err = (texts[stream] for stream, _ in streams)
        return subprocess.CompletedProcess(list(arguments), status, out, err)

    def _receive_number(self, timeout: float) -> int:
        self._socket.settimeout(timeout)
        if not (message := self._socket.recv(_LARGEST)):
            raise RuntimeError("the process that has `scaling` loaded has ended; its output is above")
        return int(message)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


def _read(stream: int, texts: dict[int, str]) -> None:
    with open(stream, encoding="utf-8") as file:
        texts[stream] = file.read()


def _serve(requests: socket.socket) -> None:
    """Fork for each request and send the process id and the exit status. Return only in the fork, as the requested command."""
    while True:
        request, streams, _, _ = socket.recv_fds(requests, _LARGEST, 2)
        if not request:
            sys.exit()
        if not (process := os.fork()):
            return _become_command(streams, **json.loads(request))
        for stream in streams:
            os.close(stream)
        requests.send(str(process).encode())
        _, status = os.waitpid(process, 0)
        requests.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become_command(streams: Sequence[int], arguments: list[str], cwd: str, env: dict[str, str]) -> None:
    for stream, descriptor in zip(streams, (1, 2), strict=True):
        os.dup2(stream, descriptor)
        os.close(stream)
    sys.stdout, sys.stderr = (
        os.fdopen(descriptor, "w", buffering, closefd=False) for descriptor, buffering in ((1, -1), (2, 1))
    )
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.path[1:1] = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = arguments


if __name__ == "__main__":
    sys.path[0] = str(Path(sys.executable).parent)  # as in the script of the command
    for name in _MODULES:
        importlib.import_module(name)
    gc.freeze()  # imported objects stay alive: no fork needs to collect them
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        _serve(requests)
    sys.modules["scaling.cli.main"].entry()
