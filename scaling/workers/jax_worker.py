"""The part of a worker that needs JAX: it starts the devices, agrees with the processes that share them, and
runs cases.

Imported by worker.py after the process has bound itself to cores, because JAX starts threads.
"""

import contextlib
import json
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from scaling.core import environment, run_case, timing, workload
from scaling.core.case import Case, Refusal, from_dict, user_modules
from scaling.core.record import Record
from scaling.core.run_case import ProcessGroup
from scaling.core.store import Writer
from scaling.core.timing import Sampling
from scaling.workers import process_memory
from scaling.workers.event_channel import Channel

_EXTRAS = {"gpu": "ad-scaling[cuda], or ad-scaling[cuda12] for an older driver", "tpu": "ad-scaling[tpu]"}


def start(job: dict[str, Any], rank: int, bound: list[int] | None, meet: Callable[[], str]) -> ProcessGroup:
    """Start JAX and return the process group. Devices other than those requested are a `Refusal`.

    meet: returns the address at which the processes connect.
    """
    platform, count, processes = job["platform"], job["shape"]["devices"], job["shape"]["processes"]
    named = os.environ.get("JAX_PLATFORMS")
    if platform == "cpu":
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", count // processes)
    elif named and "cpu" not in named.split(","):
        jax.config.update("jax_platforms", f"{named},cpu")  # the check of a user's function runs there
    jax.config.update("jax_enable_x64", job["x64"])
    # The user's own cache would hide what compiling takes; see run_case.py.
    jax.config.update("jax_enable_compilation_cache", False)
    jax.config.update("jax_enable_preemption_service", False)  # it would swallow SIGTERM
    if processes > 1:
        _connect(job["shape"], platform, rank, meet)
    try:
        devices = jax.devices(platform)
    except RuntimeError as error:
        raise Refusal(_no_backend(platform, str(error))) from None
    if len(devices) < count:
        raise Refusal(f"{count} {platform} devices were asked for and JAX has {len(devices)}")
    if platform == "cpu":
        process_memory.limit_process()
    gather = timing.single_process if processes == 1 else _gather
    return ProcessGroup(devices[:count], platform, gather, jax.process_index(), processes, bound)


def _connect(shape: dict[str, int], platform: str, rank: int, meet: Callable[[], str]) -> None:
    """Connect the processes of a case with each other."""
    share, per_node = shape["devices"] // shape["processes"], shape["processes"] // shape["nodes"]
    if platform == "tpu":
        jax.distributed.initialize()  # its hosts know each other, and which of them is the first
    else:
        first = rank % per_node * share
        local = None if platform == "cpu" else list(range(first, first + share))
        jax.distributed.initialize(meet(), shape["processes"], rank, local)
    _gather([0.0])  # meet now: the first collective waits for half a minute only


def _no_backend(platform: str, error: str) -> str:
    """Return why JAX has no devices of a platform on this node, with the extra to install."""
    extra = _EXTRAS.get(platform)
    advice = f"; install the extra {extra}, or set cluster.platform" if extra else ""
    first = environment.scrub(error.strip().splitlines()[0] if error.strip() else "no reason given")[:300]
    return f"JAX has no {platform} backend on {environment.node_name()}: {first}{advice}"


def agree(job: dict[str, Any], group: ProcessGroup) -> dict[str, Any]:
    """Refuse processes other than those requested; return the hosts, cores and job as fields."""
    mine = [device for device in group.devices if device.process_index == group.rank]
    kind = mine[0].device_kind if mine else None
    here = {
        "node": environment.node_name(), "host": environment.contents("/proc/sys/kernel/random/boot_id"),
        "cores": group.cores, "devices": len(mine),
        "kind": environment.processor() if group.platform == "cpu" else kind,
    }  # fmt: skip
    each = [json.loads(text) for text in timing.gather_text(group.gather, json.dumps(here))]
    nodes, kinds = list(dict.fromkeys(one["node"] for one in each)), sorted({one["kind"] for one in each})
    found = {
        "nodes": len(nodes), "processes": len(each), "devices": sum(one["devices"] for one in each),
        "a process": sorted({one["devices"] for one in each}), "kinds": kinds,
    }  # fmt: skip
    shape = job["shape"]
    wanted = found | shape | {"a process": [shape["devices"] // shape["processes"]]}
    wanted["kinds"] = [job["device_kind"] or kinds[0]]
    if found != wanted:
        raise Refusal(f"asked for {wanted}, and got {found} on {', '.join(nodes)}")
    claims = [(one["host"], core) for one in each for core in one["cores"] or ()]
    if len(set(claims)) < len(claims) and not job["oversubscribe"]:  # nodes that are one host in truth
        raise Refusal(
            f"{len(claims)} cores were asked for and {', '.join(nodes)} have {len(set(claims))} between "
            "them; oversubscribe=true checks more without drawing them as scaling"
        )
    cores = sorted(core for _, core in set(claims)) or None
    return {"hosts": nodes, "cores": cores, "shape": shape} | job["beside"]


def _gather(values: list[float]) -> list[list[float]]:
    """Return the numbers of each process, by rank. Waits for all of them, and so is a barrier."""
    from jax.experimental import multihost_utils

    # As bytes, because JAX would round a float64 where x64 is off.
    sent = np.frombuffer(np.asarray(values, np.float64).tobytes(), np.uint8)
    rows = multihost_utils.process_allgather(sent)
    return [np.frombuffer(row.tobytes(), np.float64).tolist() for row in rows]


class CaseLoop:
    """The cases that a launcher has begun in this process. context: describes all processes of the group."""

    def __init__(
        self,
        job: dict[str, Any],
        channel: Channel,
        group: ProcessGroup,
        context: dict[str, Any],
    ) -> None:
        self.job, self.channel, self.group, self.context = job, channel, group, context
        self.say = channel.say if group.rank == 0 else lambda **event: None
        self.writer = Writer(Path(job["results"]))
        self.attempts: dict[str, run_case.Attempt] = {}  # by key
        self.alone: dict[str, bool] = {}
        self.changes: Callable[[], tuple[str, str] | None] | None = None  # by a user's module
        self.spoilt = False
        environment.commit()  # as the variables are now: a user's module may remove them
        self.variables = dict(os.environ)

    def run(self) -> int:
        """Execute the orders; return 3 if a record could not be written."""
        for line in self.channel.orders:
            order = json.loads(line)
            key, action, enough = order["key"], order["do"], False
            if action == "prepare":
                self._prepare(key, order)
            elif action == "turn":
                enough = run_case.take_turn(self.attempts[key])
            attempt = self.attempts[key]
            if attempt.ended and self.group.processes > 1 and (action == "turn" or self.spoilt):
                print(attempt.record.text, file=sys.stderr, flush=True)
                os._exit(1)  # the other processes wait for this one, and would for ever: they end with it
            fits = self.alone[key] or attempt.record.reason not in ("too_large", "out_of_memory")
            if action == "forget" or not fits:  # what others hold may be what it lacks
                del self.attempts[key]
                self.say(event="forgotten" if fits else "later", key=key)
            elif action != "finish" and not attempt.ended:
                self.say(event="turn" if action == "turn" else "ready", key=key, enough=enough)
            elif not self._finish(key):
                return 3
        return 0

    def _prepare(self, key: str, order: dict[str, Any]) -> None:
        """Build, compile and check a case, and then what its module changed in this process."""
        case, self.alone[key] = from_dict(order["case"]), order["alone"]
        if self.changes is None and user_modules(case):
            from scaling.workers import process_state

            self.changes = process_state.watch()
        blank = self._blank(case, order)
        self.say(event="begin", key=key, environment=blank.environment)
        self.attempts[key] = run_case.prepare_case(
            blank, self.group, Sampling(**self.job["sampling"]), order.get("known"), order["workload_digest"]
        )
        self.channel.leave_if_forked()
        if self.changes and (spoilt := self.changes()):
            self.spoilt = True
            run_case.fail_case(self.attempts[key], "error", f"{case.workload} {'; '.join(spoilt)}")

    def _blank(self, case: Case, order: dict[str, Any]) -> Record:
        """Return the record of a case that has not begun, with the current digest of the workload."""
        job, group, digest = self.job, self.group, None
        with contextlib.suppress(Refusal):
            digest = workload.digest(case.workload)
        described = environment.describe(
            group.platform, group.devices[0].device_kind, self.variables, digest,
            self.context["cores"] if job["bind"] else None, order["engine"], job["asked"], self.context,
        )  # fmt: skip
        return Record(
            case, "failed", described, replicate=order["replicate"], order=order["order"],
            order_seed=job["order_seed"], attempt=order["attempt"], block=order["block"],
        )  # fmt: skip

    def _finish(self, key: str) -> bool:
        """Write the record of a case and send its end; return whether it could be written."""
        record = run_case.finish_case(self.attempts.pop(key))
        try:
            if self.group.rank == 0:
                self.writer.append(record)
        except OSError as error:
            self.say(event="unwritable", text=f"{error.strerror}")
            return False
        middle = [statistics.median(record.seconds)] if record.seconds else []
        ended = {"status": record.status, "reason": record.reason, "text": record.text, "seconds": middle}
        self.say(event="end", key=key, **ended, spoilt=self.spoilt)
        return True
