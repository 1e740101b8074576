"""The worker: runs cases on devices and writes a record of each.

`python -m scaling.worker` needs jax, numpy and the standard library only. It reads a job from standard input,
a line of JSON, binds itself to cores before JAX starts, and then executes orders, one on each line:

    {"do": "prepare", "case": ..., ...}   build, compile, run once and check; sends "ready", "end" or "later"
    {"do": "turn", "key": ...}            take samples; sends "turn" with whether they suffice, or "end"
    {"do": "finish", "key": ...}          write the record; sends "end"
    {"do": "forget", "key": ...}          discard the case as if it had not begun; sends "forgotten"

The turns of cases that are to be compared can thus be interleaved. Processes that share the devices of a case
all receive the same orders, and the first one answers. They connect at an address that it chooses and the
launcher passes on. Records go to a file of the worker's own.
"""

import contextlib
import gc
import json
import math
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from scaling.core import environment
from scaling.core.case import Refusal
from scaling.workers import cores, event_channel, process_memory

_LEAVE_SECONDS = 2.0
_PATIENCE_SECONDS = 600.0  # for cores, where several nodes must have theirs at the same time
PROTOCOL = 3  # version of the orders and events above, for a launcher of another revision


def main() -> int:
    """Run the cases of a job as ordered; return 3 if a record could not be written."""
    channel = event_channel.open_channel()
    job = json.loads(channel.orders.readline())
    rank = job.get("rank", int(os.environ.get("SLURM_PROCID", "0")))  # srun sends the same job to all workers
    if "parent" in job:
        event_channel.die_with_parent(job["parent"])
    else:
        threading.Thread(target=_die_with_launcher, args=(channel.orders.fileno(),), daemon=True).start()
    process_memory.raise_oom_score()
    if job.get("lock") is not None:
        os.set_inheritable(job["lock"], False)
    # On Ctrl-C, the launcher ends this process. Slurm sends SIGUSR2 as a warning before a time limit.
    for number in (signal.SIGINT, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)

    def meet() -> str:
        if rank == 0:
            channel.say(event="meet", address=_address(job["shape"]["nodes"]))
        return json.loads(channel.orders.readline())["coordinator"]

    channel.say(event="here")
    with contextlib.ExitStack() as claims:
        try:
            bound = claims.enter_context(_cores(job, rank, channel.say))
            os.environ["XLA_FLAGS"] = environment.variables(job["platform"])["XLA_FLAGS"]
            os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
            from scaling.workers import jax_worker

            group = jax_worker.start(job, rank, bound, meet)
            context = jax_worker.agree(job, group)
        except (Refusal, TimeoutError) as refusal:
            channel.say(event="refused", text=str(refusal))
            return 1
        gc.freeze()  # what JAX brought stays: no need to look through it again at every collection
        loop = jax_worker.CaseLoop(job, channel, group, context)
        loop.say(event="started", protocol=PROTOCOL)
        return loop.run()


def _die_with_launcher(orders: int) -> None:
    """End this process soon after its launcher, on another node, closes the pipe of orders."""
    closed = select.poll()
    closed.register(orders, 0)  # a closed pipe is reported in any case
    closed.poll()
    time.sleep(_LEAVE_SECONDS)  # it may go by itself
    os._exit(0)


@contextlib.contextmanager
def _cores(job: dict[str, Any], rank: int, say: Callable[..., None]) -> Iterator[list[int] | None]:
    """Bind this process to its cores before JAX starts its threads, and yield them; None where it is not
    bound.

    The launcher claims the cores of its own host; in a step, a process claims its own.

    """
    if job["platform"] != "cpu" or not job["bind"]:
        yield None
        return
    shape, given, node = job["shape"], job["cores"], environment.node_name()
    per_process, per_node = shape["devices"] // shape["processes"], shape["processes"] // shape["nodes"]

    def report_wait(by: list[int]) -> None:
        print(cores.describe_wait(by, node), file=sys.stderr, flush=True)
        say(event="waiting", by=by)

    with contextlib.ExitStack() as claims:
        if given is None:
            # Nodes that wait for each other would wait for ever.
            patience = math.inf if shape["nodes"] == 1 else _PATIENCE_SECONDS
            claim = cores.claimed(per_process * per_node, job["owner"], report_wait, node, patience)
            given = claims.enter_context(claim)
        first = rank % per_node * per_process
        mine = given[first : first + per_process] or given
        os.sched_setaffinity(0, mine)
        yield mine


def _address(nodes: int) -> str:
    """Return the address at which the processes of a case connect.

    It is a free port on the host of the first process.
    """
    with socket.socket() as probe:
        probe.bind(("", 0))
        host = "127.0.0.1" if nodes == 1 else os.environ.get("SLURMD_NODENAME") or os.uname().nodename
        return f"{host}:{probe.getsockname()[1]}"


if __name__ == "__main__":
    sys.exit(main())
