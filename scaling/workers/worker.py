"""The worker: runs cases on devices and writes a record of each.

`python -m scaling.worker` needs jax, numpy and the standard library only. It reads a job from standard input, a line of JSON,
binds itself to cores before JAX starts, and then executes orders, one on each line:

    {"do": "prepare", "case": ..., ...}   build, compile, run once and check; sends "ready", "end" or "later"
    {"do": "turn", "key": ...}            take samples for a while; sends "turn", with whether these were enough, or "end"
    {"do": "finish", "key": ...}          write the record; sends "end"
    {"do": "forget", "key": ...}          discard the case as if it had not begun; sends "forgotten"

The turns of cases that are to be compared can thus be interleaved. Processes that share the devices of a case all receive the
same orders, and the first one answers. They connect at an address that it chooses and the launcher passes on. Records go to a
file of the worker's own.
"""

import contextlib
import gc
import json
import math
import os
import select
import signal
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from scaling.core import environment, memory
from scaling.core.case import Refusal, from_dict, user_modules
from scaling.core.record import Record
from scaling.core.store import Writer
from scaling.core.timing import Sampling
from scaling.workers import cores, event_channel

_LEAVE_SECONDS = 2.0
_PATIENCE_SECONDS = 600.0  # for cores, where several nodes must have theirs at the same time
PROTOCOL = 3  # version of the orders and events above, for a launcher of another revision


def main() -> int:
    """Run the cases of a job as ordered; return 3 if a record could not be written."""
    kept = event_channel.open_channel()
    orders = kept.orders
    job = json.loads(orders.readline())
    rank = job.get("rank", int(os.environ.get("SLURM_PROCID", "0")))  # srun sends the same job to all workers
    if "parent" in job:
        event_channel.die_with_parent(job["parent"])
    else:
        threading.Thread(target=_die_with_launcher, args=(orders.fileno(),), daemon=True).start()
    memory.raise_oom_score()
    if job.get("lock") is not None:
        os.set_inheritable(job["lock"], False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the launcher, which then ends this process
    signal.signal(
        signal.SIGUSR2, signal.SIG_IGN
    )  # submitit has Slurm warn every step like this before its time is over

    first = rank == 0

    def say(event: str, all_may: bool = False, **words: Any) -> None:
        if first or all_may:
            kept.say(event=event, **words)

    def meet() -> str:
        if first:
            say("meet", address=_address(job["shape"]["nodes"]))
        return json.loads(orders.readline())["coordinator"]

    say("here", all_may=True)
    with contextlib.ExitStack() as held:
        try:
            bound = held.enter_context(_cores(job, rank, say))
            place, context = _start(job, rank, bound, meet)
        except (Refusal, TimeoutError) as refusal:
            say("refused", all_may=True, text=str(refusal))
            return 1
        first = place.rank == 0
        gc.freeze()  # what JAX brought stays: no need to look through it again at every collection
        say("started", protocol=PROTOCOL)
        return _serve(job, kept, place, context, say)


def _serve(
    job: dict[str, Any], kept: event_channel.Channel, place: Any, context: dict[str, Any], say: Callable[..., None]
) -> int:  # fmt: skip
    """Execute the orders. context: fields of the environment that describe all processes of the group."""
    from scaling.core import run_case
    from scaling.workers import process_state

    writer, attempts, alone = Writer(Path(job["results"])), dict[str, Any](), dict[str, bool]()  # by key
    environment.commit()  # as the variables are now: a user's module may remove them
    variables, before, spoilt = dict(os.environ), process_state.read(), None
    for line in kept.orders:
        order = json.loads(line)
        key, what, enough = order["key"], order["do"], False
        if what == "prepare":
            blank, alone[key] = _blank(job, order, place, context, variables), order["alone"]
            say("begin", key=key, environment=blank.environment)
            changed = order["workload_digest"] not in (None, blank.environment["workload_digest"])
            begin = run_case.refuse_case if changed else run_case.prepare_case
            attempts[key] = begin(blank, place, Sampling(**job["sampling"]), order.get("known"))
            kept.leave_if_forked()
            if user_modules(blank.case) and (spoilt := process_state.changes(before)):
                run_case.fail_case(attempts[key], "error", f"{blank.case.workload} {'; '.join(spoilt)}")
                _leave_together(attempts[key], place)
        elif what == "turn":
            enough = run_case.take_turn(attempts[key])
            if attempts[key].ended:  # the others wait in the middle of that turn, and would for ever
                _leave_together(attempts[key], place)
        reason = attempts[key].record.reason
        fits = alone[key] or reason not in ("too_large", "out_of_memory")
        if what == "forget" or not fits:  # what others hold may be what it lacks
            del attempts[key]
            say("forgotten" if fits else "later", key=key)
        elif what != "finish" and not attempts[key].ended:
            say("turn" if what == "turn" else "ready", key=key, enough=enough)
        else:
            record = run_case.finish_case(attempts.pop(key))
            try:
                if place.rank == 0:
                    writer.append(record)
            except OSError as error:
                say("unwritable", text=f"{error.strerror}")
                return 3
            middle = [statistics.median(record.seconds)] if record.seconds else []
            ended = {"status": record.status, "reason": record.reason, "text": record.text, "seconds": middle}
            say("end", key=key, **ended, spoilt=spoilt is not None)
    return 0


def _leave_together(ended: Any, place: Any) -> None:
    """End this process, if others share its cases, with the reason that an attempt ended: they end with it."""
    if place.processes > 1:
        print(ended.record.text, file=sys.stderr, flush=True)
        os._exit(1)


def _die_with_launcher(orders: int) -> None:
    """End this process soon after its launcher, which is on another node, has closed the pipe of its orders."""
    closed = select.poll()
    closed.register(orders, 0)  # a closed pipe is reported in any case
    closed.poll()
    time.sleep(_LEAVE_SECONDS)  # it may go by itself
    os._exit(0)


@contextlib.contextmanager
def _cores(job: dict[str, Any], rank: int, say: Callable[..., None]) -> Iterator[list[int] | None]:
    """Bind this process to its cores before JAX starts its threads, and yield them; None where it is not bound.

    The launcher claims the cores of its own host; in a step, a process claims its own.
    """
    if job["platform"] != "cpu" or not job["bind"]:
        yield None
        return
    shape, given = job["shape"], job["cores"]
    per_process, per_node = shape["devices"] // shape["processes"], shape["processes"] // shape["nodes"]
    with contextlib.ExitStack() as stack:
        if given is None:
            # Workers that wait for each other would wait for ever.
            patience = math.inf if shape["nodes"] == 1 else _PATIENCE_SECONDS

            def waiting(by: list[int]) -> None:
                print(cores.describe_wait(by, environment.node_name()), file=sys.stderr, flush=True)
                say("waiting", all_may=True, by=by)

            asked = cores.claimed(
                per_process * per_node, job["owner"], waiting, environment.node_name(), patience
            )
            given = stack.enter_context(asked)
        local_rank = rank % per_node
        mine = given[local_rank * per_process : (local_rank + 1) * per_process] or given
        os.sched_setaffinity(0, mine)
        yield mine


def _start(
    job: dict[str, Any], rank: int, bound: list[int] | None, meet: Callable[[], str]
) -> tuple[Any, dict[str, Any]]:
    """Start JAX; return the process group and the fields of the environment that describe all of its processes."""
    os.environ["XLA_FLAGS"] = environment.variables(job["platform"])["XLA_FLAGS"]
    devices, gather = _start_jax(job, rank, meet)
    if job["platform"] == "cpu":
        memory.limit_process()
    import jax

    from scaling.core.run_case import ProcessGroup

    place = ProcessGroup(
        devices, job["platform"], gather, jax.process_index(), job["shape"]["processes"], bound
    )
    return place, _agreed(job, place)


def _start_jax(job: dict[str, Any], rank: int, meet: Callable[[], str]) -> tuple[list[Any], Callable]:
    """Return the devices of all processes, and their `Gather`. Devices other than those requested are a `Refusal`."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    from scaling.core import timing

    shape = job["shape"]
    share = shape["devices"] // shape["processes"]
    named = os.environ.get("JAX_PLATFORMS")
    if job["platform"] != "cpu" and named and "cpu" not in named.split(","):
        jax.config.update("jax_platforms", f"{named},cpu")  # the check of a user's function runs there
    if job["platform"] == "cpu":
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", share)
    jax.config.update("jax_enable_x64", job["x64"])
    jax.config.update(
        "jax_enable_compilation_cache", False
    )  # a person's own would hide what compiling takes; see attempt.py
    jax.config.update("jax_enable_preemption_service", False)  # it would swallow SIGTERM
    if shape["processes"] > 1 and job["platform"] == "tpu":
        jax.distributed.initialize()  # its hosts know each other, and which of them is the first
    elif shape["processes"] > 1:
        local_rank = rank % (shape["processes"] // shape["nodes"])
        ours = None if job["platform"] == "cpu" else list(range(local_rank * share, (local_rank + 1) * share))
        jax.distributed.initialize(meet(), shape["processes"], rank, ours)
    if shape["processes"] > 1:
        _gather([0.0])  # meet now: the first collective waits for half a minute only
    try:
        devices = jax.devices(job["platform"])
    except RuntimeError as error:
        raise Refusal(_no_backend(job["platform"], str(error))) from None
    if len(devices) < shape["devices"]:
        raise Refusal(
            f"{shape['devices']} {job['platform']} devices were asked for and JAX has {len(devices)}"
        )
    return devices[: shape["devices"]], timing.single_process if shape["processes"] == 1 else _gather


def _no_backend(platform: str, error: str) -> str:
    """Return why JAX has no devices of a platform on this node, with the extra to install."""
    extras = {"gpu": "ad-scaling[cuda], or ad-scaling[cuda12] for an older driver", "tpu": "ad-scaling[tpu]"}
    advice = f"; install the extra {extras[platform]}, or set cluster.platform" if platform in extras else ""
    first = environment.scrub(error.strip().splitlines()[0] if error.strip() else "no reason given")[:300]
    return f"JAX has no {platform} backend on {environment.node_name()}: {first}{advice}"


def _agreed(job: dict[str, Any], place: Any) -> dict[str, Any]:
    """Refuse processes that are not those requested; return fields of the environment: hosts, cores and the job."""
    from scaling.core import timing

    mine = [device for device in place.devices if device.process_index == place.rank]
    own = {
        "node": environment.node_name(), "devices": len(mine), "kind": mine[0].device_kind if mine else None,
        "host": environment.contents("/proc/sys/kernel/random/boot_id"), "cores": place.cores,
    }  # fmt: skip
    if place.platform == "cpu":
        own["kind"] = environment.processor()
    each = [json.loads(text) for text in timing.gather_text(place.gather, json.dumps(own))]
    nodes, kinds = list(dict.fromkeys(one["node"] for one in each)), sorted({one["kind"] for one in each})
    found = {
        "nodes": len(nodes), "processes": len(each), "devices": sum(one["devices"] for one in each),
        "a process": sorted({one["devices"] for one in each}), "kinds": kinds,
    }  # fmt: skip
    shape = job["shape"]
    wanted = (
        found
        | shape
        | {"a process": [shape["devices"] // shape["processes"]], "kinds": [job["device_kind"] or kinds[0]]}
    )
    if found != wanted:
        raise Refusal(f"asked for {wanted}, and got {found} on {', '.join(nodes)}")
    held = [(one["host"], core) for one in each for core in one["cores"] or ()]
    if len(set(held)) < len(held) and not job["oversubscribe"]:  # nodes that are one host in truth
        raise Refusal(
            f"{len(held)} cores were asked for and {', '.join(nodes)} have {len(set(held))} between them; "
            "oversubscribe=true checks more without drawing them as scaling"
        )
    return {"hosts": nodes, "cores": sorted(core for _, core in set(held)) or None, "shape": shape} | job[
        "beside"
    ]


def _gather(values: list[float]) -> list[list[float]]:
    """Return the numbers of each process, by rank. Waits for all of them, and so is a barrier."""
    import numpy as np
    from jax.experimental import multihost_utils

    # As bytes, because JAX would round a float64 where x64 is off.
    sent = np.frombuffer(np.asarray(values, np.float64).tobytes(), np.uint8)
    return [
        list(map(float, np.frombuffer(row.tobytes(), np.float64)))
        for row in multihost_utils.process_allgather(sent)
    ]


def _address(nodes: int) -> str:
    """Return the address at which the processes of a case connect: a free port on the host of the first of them."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        host = "127.0.0.1" if nodes == 1 else os.environ.get("SLURMD_NODENAME") or os.uname().nodename
        return f"{host}:{probe.getsockname()[1]}"


def _blank(
    job: dict[str, Any],
    order: dict[str, Any],
    place: Any,
    context: dict[str, Any],
    variables: Mapping[str, str],
) -> Record:
    """Return the record of a case that has not begun, with the digest of the workload as this revision has it."""
    from scaling.core import workload

    case, digest = from_dict(order["case"]), None
    with contextlib.suppress(Refusal):
        digest = workload.digest(case.workload)
    where = environment.describe(
        place.platform, place.devices[0].device_kind, variables, digest, context["cores"] if job["bind"] else None,
        order["engine"], job["asked"], context,
    )  # fmt: skip
    return Record(
        case, "failed", where, replicate=order["replicate"], order=order["order"],
        order_seed=job["order_seed"], attempt=order["attempt"], block=order["block"],
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
