"""Main program of a worker process: open the pipes to the launcher (`Channel`), bind to CPU cores.

`python -m scaling.worker` needs only jax, numpy, and the standard library. Do not rename this module, because
the launcher of another revision may start it. Preflight processes and compile workers also use its `Channel`.
The launcher writes one JSON object per line to standard input: a header with settings, and then requests,
each with the key of a case:

    {"do": "prepare", "case": ..., ...}  build, compile, run once, and check; reply "ready" or "end"
    {"do": "turn", ...}                  take samples; reply "ready" or "end"
    {"do": "finish", ...}                end the case; reply "end"

The field "enough" of the reply "ready" states whether the case has enough samples. "end" means that the case
has ended, and contains its record, which the launcher writes. If several processes share the devices of a
case, all receive the same requests, and rank 0 replies. It also chooses the address of the `jax.distributed`
coordinator (jax_worker.py), which the launcher sends to all processes.
"""

import contextlib
import ctypes
import gc
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from json import dumps, loads  # bound here, because a user's module may replace them
from pathlib import Path
from typing import Any

from scaling.core import environment
from scaling.core.case import Refusal

PROTOCOL = 4  # version of the requests and events of workers, checked by launchers of other revisions
_PR_SET_PDEATHSIG = 1
_EXIT_SECONDS = 2.0  # time for the process to end by itself after the launcher closes the pipe
_CLAIM_SECONDS = 600.0  # timeout for core claims if the case spans several nodes


class Channel:
    """The pipes to the launcher: requests on standard input, events on standard output.

    Once a channel exists, other code in this process reads an empty standard input and writes to standard
    error.
    """

    def __init__(self) -> None:
        with contextlib.suppress(OSError):  # Linux kills this process first if the host runs out of memory
            Path("/proc/self/oom_score_adj").write_text("1000")
        self.requests = os.fdopen(os.dup(0))  # text stream with one JSON request per line
        self._events, self._pid = os.dup(1), os.getpid()
        null_device = os.open(os.devnull, os.O_RDWR)
        os.dup2(null_device, 0)
        os.dup2(2, 1)
        sys.stdout = sys.stderr

        def close_in_child() -> None:
            for stream in (self.requests.fileno(), self._events):
                os.dup2(null_device, stream)

        os.register_at_fork(after_in_child=close_in_child)

    def send_event(self, **event: Any) -> None:
        """Send the keyword arguments to the launcher as one JSON object."""
        if os.getpid() != self._pid:  # a fork of the process that opened the channel
            os._exit(0)
        line = f"\n{dumps(event)}\n".encode()  # the leading newline ends any partial line
        while line:
            line = line[os.write(self._events, line) :]


def die_with_parent(parent: int) -> None:
    """Make Linux kill this process when its parent (ID `parent`) ends. Exit now if it has already ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the call of prctl
        os._exit(0)


def main() -> int:
    """Execute requests until the launcher closes standard input, and return the exit status.

    The status is 1 if JAX, its devices or the cores are not available as requested, otherwise 0.
    """
    channel = Channel()
    header = loads(channel.requests.readline())
    # srun sends the same header to all workers. Slurm sets the rank of each worker in its environment.
    rank = header.get("rank", int(os.environ.get("SLURM_PROCID", "0")))
    _end_with_launcher(header, channel.requests.fileno())

    channel.send_event(event="here")
    with contextlib.ExitStack() as claims:
        try:
            bound_cores = _bind_to_cores(header, rank, claims, channel.send_event)
            os.environ["XLA_FLAGS"] = environment.variables(header["platform"])["XLA_FLAGS"]
            os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
            from scaling import jax_worker

            group = jax_worker.start_jax(header, rank, bound_cores, channel)
            group_fields = jax_worker.check_process_group(header, group)
        except (Refusal, TimeoutError) as error:
            channel.send_event(event="refused", text=str(error))
            return 1
        gc.freeze()  # exclude the permanent objects of JAX from later garbage collections
        loop = jax_worker.CaseLoop(header, channel, group, group_fields)
        loop.send_event(event="started", protocol=PROTOCOL)
        loop.run()
    return 0


def _end_with_launcher(header: dict[str, Any], pipe: int) -> None:
    """Make this process end when the launcher ends or closes `pipe`. Ignore Ctrl-C and SIGUSR2."""
    if "parent" in header:
        die_with_parent(header["parent"])
    else:
        threading.Thread(target=_exit_after_hangup, args=(pipe,), daemon=True).start()
    if (lock := header.get("lock")) is not None:  # only this process holds the lock, not one that it starts
        os.set_inheritable(lock, False)
        os.register_at_fork(after_in_child=lambda: os.close(lock))
    # The launcher handles Ctrl-C and ends this process. Slurm may send SIGUSR2 before the time limit.
    for signal_number in (signal.SIGINT, signal.SIGUSR2):
        signal.signal(signal_number, signal.SIG_IGN)


def _exit_after_hangup(pipe: int) -> None:
    hangup = select.poll()
    hangup.register(pipe, 0)  # POLLHUP is always reported
    hangup.poll()
    time.sleep(_EXIT_SECONDS)
    os._exit(0)


def _bind_to_cores(
    header: dict[str, Any], rank: int, claims: contextlib.ExitStack, send_event: Callable[..., None]
) -> list[int] | None:
    """Bind this process to CPU cores, and return their numbers, or None if no binding is requested.

    `header` may list the cores. Otherwise, free cores are reserved until `claims` is closed. `send_event`
    informs the launcher if this process waits for free cores.
    """
    if header["platform"] != "cpu" or not header["bind"]:
        return None
    shape, claimed, node = header["shape"], header["cores"], environment.node_name()
    per_process, per_node = shape["devices"] // shape["processes"], shape["processes"] // shape["nodes"]

    def report_wait(text: str) -> None:
        print(text, file=sys.stderr, flush=True)
        send_event(event="waiting", text=text)

    if claimed is None:
        from scaling.launcher import cores

        # A timeout prevents a deadlock of two cases that wait for each other's nodes.
        timeout = cores.WAIT_SECONDS if shape["nodes"] == 1 else _CLAIM_SECONDS
        claim = cores.claim_cores(per_process * per_node, header["owner"], report_wait, node, timeout)
        claimed = claims.enter_context(claim)
    first_core = rank % per_node * per_process
    own_cores = claimed[first_core : first_core + per_process] or claimed
    os.sched_setaffinity(0, own_cores)
    return own_cores


if __name__ == "__main__":
    sys.exit(main())
