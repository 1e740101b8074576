"""The worker: runs cases on devices and writes a record of each.

`python -m scaling.worker` needs jax, numpy and the standard library, and nothing else. It reads a job from standard input, a
line of JSON, binds itself to cores before JAX starts, and then does what it is told, a line each:

    {"do": "prepare", "case": ..., ...}   build, compile, run once and check; says "ready", "end" or "later"
    {"do": "turn", "key": ...}            take samples for a while; says "turn", with whether these were enough, or "end"
    {"do": "finish", "key": ...}          write the record; says "end"
    {"do": "forget", "key": ...}          leave the case as if it had not begun; says "forgotten"

so that cases to be compared can take turns, in one process or in several. Records go to a file of its own.
"""

import contextlib
import ctypes
import gc
import json
import os
import signal
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from scaling import environment, memory
from scaling.case import Refusal, from_dict
from scaling.record import Record
from scaling.sampling import Sampling
from scaling.store import Writer

PROTOCOL = 2  # what is read and said above; told to a launcher of another revision


def main() -> int:
    """Run the cases of a job as told; 3 if a record could not be written."""
    orders, out = _keep_to_ourselves()
    job = json.loads(orders.readline())
    _die_with_parent(job["parent"])
    memory.go_first()
    if job["lock"] is not None:
        os.set_inheritable(job["lock"], False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the launcher, which then ends this process
    place, cores = _start(job)

    def say(event: str, **words: Any) -> None:
        if place.rank == 0:
            print(json.dumps({"event": event} | words), file=out, flush=True)

    gc.freeze()  # what JAX brought stays: no need to look through it again at every collection
    say("started", protocol=PROTOCOL)
    return _serve(job, orders, place, cores, say)


def _serve(job: dict[str, Any], orders: TextIO, place: Any, cores: list[int] | None, say: Callable[..., None]) -> int:
    """Do what is ordered, line by line."""
    from scaling.measuring import attempt  # and with it JAX, which has found cores and flags as they are meant

    writer, attempts, alone = Writer(Path(job["results"])), dict[str, Any](), dict[str, bool]()  # by key
    for line in orders:
        order = json.loads(line)
        key, what, enough = order["key"], order["do"], False
        if what == "prepare":
            blank, alone[key] = _blank(job, order, place, cores), order["alone"]
            say("begin", key=key, environment=blank.environment)
            attempts[key] = attempt.prepare(blank, place, Sampling(**job["sampling"]))
        elif what == "turn":
            enough = attempt.turn(attempts[key])
            if attempts[key].ended and place.processes > 1:  # the others wait in the middle of that turn, and would for ever
                print(attempts[key].found["text"], file=sys.stderr, flush=True)
                os._exit(1)
        fits = alone[key] or attempts[key].found.get("reason") not in ("too_large", "out_of_memory")
        if what == "forget" or not fits:  # what others hold may be what it lacks
            del attempts[key]
            say("forgotten" if fits else "later", key=key)
        elif what != "finish" and not attempts[key].ended:
            say("turn" if what == "turn" else "ready", key=key, enough=enough)
        else:
            record = attempts.pop(key).record()
            try:
                if place.rank == 0:
                    writer.append(record)
            except OSError as error:
                say("unwritable", text=f"{error.strerror}")
                return 3
            middle = [statistics.median(record.seconds)] if record.seconds else []
            say("end", key=key, status=record.status, reason=record.reason, text=record.text, seconds=middle)
    return 0


def _keep_to_ourselves() -> tuple[TextIO, TextIO]:
    """The channels for orders and events, under descriptors that no child inherits; a workload's own go elsewhere."""
    orders, out = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return orders, out


def _die_with_parent(parent: int) -> None:
    """Ask Linux to kill this process when its launcher is gone: an orphan would disturb the next run's timings."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it went before we asked
        os._exit(0)


def _start(job: dict[str, Any]) -> tuple[Any, list[int] | None]:
    """Bind to cores, start JAX and find the devices: the place to run in, and the cores of all processes where they are bound."""
    share, rank, bound = job["devices"] // job["processes"], job["rank"], None
    if job["platform"] == "cpu":
        every = environment.bind(job["devices"], job["bind"])
        bound = every if job["bind"] else None
        if bound and job["processes"] > 1:
            os.sched_setaffinity(0, every[rank * share : (rank + 1) * share] or every)
    os.environ["XLA_FLAGS"] = environment.variables(job["platform"])["XLA_FLAGS"]
    devices, gather = _start_jax(job, share)
    if job["platform"] == "cpu":
        memory.limit()
    mine = sorted(os.sched_getaffinity(0)) if bound else None
    from scaling.measuring.attempt import Place

    return Place(devices, job["platform"], gather, rank, job["processes"], mine), bound


def _start_jax(job: dict[str, Any], share: int) -> tuple[list[Any], Callable]:
    """The devices to run on, those of every process, and the `Gather` of these. Never settles for others than were asked for."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    from scaling.measuring import measure

    named = os.environ.get("JAX_PLATFORMS")
    if job["platform"] != "cpu" and named and "cpu" not in named.split(","):
        jax.config.update("jax_platforms", f"{named},cpu")  # the check of a user's function runs there
    if job["platform"] == "cpu":
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", share)
    jax.config.update("jax_enable_x64", job["x64"])
    jax.config.update("jax_enable_compilation_cache", False)  # a person's own would hide what compiling takes; see attempt.py
    if job["processes"] > 1:
        ours = None if job["platform"] == "cpu" else list(range(job["rank"] * share, (job["rank"] + 1) * share))
        jax.distributed.initialize(job["coordinator"], job["processes"], job["rank"], ours)
        _gather([0.0])  # meet now: the first collective waits for half a minute only
    devices = jax.devices(job["platform"])
    if len(devices) < job["devices"]:
        raise SystemExit(f"{job['devices']} {job['platform']} devices were asked for and JAX has {len(devices)}")
    if job["processes"] == 1:
        return devices[: job["devices"]], measure.alone
    return devices[: job["devices"]], _gather


def _gather(values: list[float]) -> list[list[float]]:
    """Numbers of this process -> those of each, by rank; waits for all, and so is a barrier."""
    import numpy as np
    from jax.experimental import multihost_utils

    # As bytes, because JAX would round a float64 where x64 is off.
    sent = np.frombuffer(np.asarray(values, np.float64).tobytes(), np.uint8)
    return [list(map(float, np.frombuffer(row.tobytes(), np.float64))) for row in multihost_utils.process_allgather(sent)]


def _blank(job: dict[str, Any], order: dict[str, Any], place: Any, cores: list[int] | None) -> Record:
    """The record of a case that has not begun. What its workload is, this process knows best: it may be another revision."""
    from scaling import workload

    case, digest = from_dict(order["case"]), None
    with contextlib.suppress(Refusal):
        digest = workload.digest(case.workload)
    where = environment.describe(
        place.platform, place.devices[0].device_kind, os.environ, digest, cores, order["engine"], job["asked"],
    )  # fmt: skip
    return Record(
        case, "failed", where, replicate=order["replicate"], order=order["order"],
        order_seed=job["order_seed"], attempt=order["attempt"], block=order["block"],
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
