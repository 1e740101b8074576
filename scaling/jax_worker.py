"""Start JAX in a worker process, check the devices of its process group, and run cases (`CaseLoop`).

worker.py imports this module after the process is bound to its cores, because JAX starts threads that
inherit the binding.
"""

import contextlib
import os
import socket
import sys
import time
from json import dumps, loads  # bound here, because a user's module may replace them
from typing import Any

import jax
import numpy as np

from scaling.core import environment, run_case, timing, workload
from scaling.core.case import Case, Refusal, from_dict
from scaling.core.record import Record, outcome_fields, to_line
from scaling.core.run_case import ProcessGroup
from scaling.core.timing import Sampling

_EXTRAS = {"gpu": "ad-scaling[cuda], or ad-scaling[cuda12] for an older driver", "tpu": "ad-scaling[tpu]"}
_PEER_EXIT_SECONDS = 2.0  # time for the launcher to learn that another process of the case has ended


def start_jax(header: dict[str, Any], rank: int, bound: list[int] | None, channel: Any) -> ProcessGroup:
    """Start JAX, connect it to the other processes of the case, and return the `ProcessGroup`.

    `header` contains the settings from the launcher. `bound` lists the CPU cores to which this process is
    bound, or is None. `channel` is the `Channel` of worker.py. Raise `Refusal` if JAX is too old, has no
    backend for the platform, or has too few devices.
    """
    if problem := environment.why_jax_is_too_old():
        raise Refusal(problem)
    platform, shape = header["platform"], header["shape"]
    device_count, process_count = shape["devices"], shape["processes"]
    user_platforms = os.environ.get("JAX_PLATFORMS")
    if platform == "cpu":
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", device_count // process_count)
    elif user_platforms and "cpu" not in user_platforms.split(","):
        jax.config.update("jax_platforms", f"{user_platforms},cpu")  # a user's function is checked on the CPU
    jax.config.update("jax_enable_x64", header["x64"])
    # A persistent compilation cache would hide the compile time; run_case.py enables its own.
    jax.config.update("jax_enable_compilation_cache", False)
    jax.config.update("jax_enable_preemption_service", False)  # the service intercepts SIGTERM
    if process_count > 1:
        _connect(shape, platform, rank, channel)
    try:
        devices = jax.devices(platform)
    except RuntimeError as error:
        error_lines = environment.scrub(str(error).strip()).splitlines() or ["no reason given"]
        text = f"JAX has no {platform} backend on {environment.node_name()}: {error_lines[0][:300]}"
        if platform in _EXTRAS:
            text += f"; install the extra {_EXTRAS[platform]}, or set cluster.platform"
        raise Refusal(text) from None
    if len(devices) < device_count:
        raise Refusal(f"{device_count} {platform} devices were requested, but JAX has {len(devices)}")
    if platform == "cpu":
        environment.limit_process()
    gather = timing.gather_single_process if process_count == 1 else _all_gather
    rank = jax.process_index()
    return ProcessGroup(devices[:device_count], platform, gather, rank, process_count, bound, shape["nodes"])


def _connect(shape: dict[str, int], platform: str, rank: int, channel: Any) -> None:
    """Initialize `jax.distributed` in process `rank`, and wait until all processes have initialized it.

    `shape` contains the numbers of devices, nodes and processes. Except on TPUs, process 0 chooses the
    address of the coordinator and sends it through `channel` to the launcher. The launcher sends it to all
    processes.
    """
    devices_per_process = shape["devices"] // shape["processes"]
    processes_per_node = shape["processes"] // shape["nodes"]
    if platform == "tpu":
        jax.distributed.initialize()  # TPU hosts find the coordinator through their metadata
    else:
        first_id = rank % processes_per_node * devices_per_process
        device_ids = None if platform == "cpu" else list(range(first_id, first_id + devices_per_process))
        if rank == 0:
            channel.send_event(event="meet", address=_find_free_address(shape["nodes"]))
        address = loads(channel.requests.readline())["coordinator"]
        jax.distributed.initialize(address, shape["processes"], rank, device_ids)
    _all_gather([0.0])  # synchronize now, because the timeout of a first collective is only 30 seconds


def _find_free_address(nodes: int) -> str:
    """Return "host:port" with a free port on this host, for the `jax.distributed` coordinator."""
    with socket.socket() as port_socket:
        port_socket.bind(("", 0))
        host = "127.0.0.1" if nodes == 1 else os.environ.get("SLURMD_NODENAME") or _find_host_name()
        return f"{host}:{port_socket.getsockname()[1]}"


def _find_host_name() -> str:
    """Return a host name at which other hosts can reach this host."""
    node = environment.node_name()
    with contextlib.suppress(OSError, UnicodeError):
        if not socket.gethostbyname(node).startswith("127."):
            return node
    return os.uname().nodename


def check_process_group(header: dict[str, Any], group: ProcessGroup) -> dict[str, Any]:
    """Check the devices and cores of all processes of a case, and return fields for `Record.environment`.

    The fields are "hosts" (node names), "cores" (sorted core numbers, or None if no process is bound),
    "shape" (numbers of devices, nodes and processes), and all fields in `header["environment"]`. Raise
    `Refusal` if the devices or cores differ from the request in `header`.
    """
    local_devices = [device for device in group.devices if device.process_index == group.rank]
    kind = local_devices[0].device_kind if local_devices else None
    this_process = {
        "node": environment.node_name(), "host": environment.read_text("/proc/sys/kernel/random/boot_id"),
        "cores": group.cores, "devices": len(local_devices),
        "kind": environment.processor() if group.platform == "cpu" else kind,
    }  # fmt: skip
    processes = [loads(text) for text in timing.gather_text(group.gather, dumps(this_process))]
    nodes, shape = list(dict.fromkeys(process["node"] for process in processes)), header["shape"]
    per_process = shape["devices"] // shape["processes"], header["device_kind"] or processes[0]["kind"]
    is_complete = (len(nodes), len(processes)) == (shape["nodes"], shape["processes"])
    if not is_complete or any((process["devices"], process["kind"]) != per_process for process in processes):
        requested = f"{shape}, each process with {per_process[0]} devices of kind {per_process[1]!r}"
        actual = "; ".join(
            f"{process['node']}: {process['devices']} of kind {process['kind']!r}" for process in processes
        )
        raise Refusal(f"requested {requested}, but the processes have {actual}")
    bound_cores = [(process["host"], core) for process in processes for core in process["cores"] or ()]
    total = len(set(bound_cores))  # less than the number of bound cores if a host has several node names
    if total < len(bound_cores) and not header["oversubscribe"]:
        raise Refusal(
            f"{len(bound_cores)} cores were requested, but {', '.join(nodes)} have {total} in total; "
            f"{environment.OVERSUBSCRIBE_ADVICE}"
        )
    cores = sorted(core for _, core in set(bound_cores)) or None
    return {"hosts": nodes, "cores": cores, "shape": shape} | header["environment"]


def _all_gather(values: list[float]) -> list[list[float]]:
    """Return the `values` of all processes, as one list per process, in the order of their ranks.

    All processes must call this function with the same number of values. If another process has ended, this
    process waits two seconds and then exits, so that the launcher first records why the other process ended.
    """
    from jax.experimental import multihost_utils

    # Send bytes, because JAX rounds float64 to float32 unless x64 is enabled.
    encoded = np.frombuffer(np.asarray(values, np.float64).tobytes(), np.uint8)
    try:
        gathered = multihost_utils.process_allgather(encoded)
    except Exception as error:
        print(error, file=sys.stderr, flush=True)
        time.sleep(_PEER_EXIT_SECONDS)
        os._exit(1)
    return [np.frombuffer(row.tobytes(), np.float64).tolist() for row in gathered]


class CaseLoop:
    """A loop that executes the requests of the launcher: prepare a case, take samples, or finish it."""

    def __init__(
        self, header: dict[str, Any], channel: Any, group: ProcessGroup, group_fields: dict[str, Any]
    ) -> None:  # `channel` is a `Channel` of worker.py, `group_fields` the result of `check_process_group`
        self.header, self.channel, self.group, self.group_fields = header, channel, group, group_fields
        self.send_event = channel.send_event if group.rank == 0 else lambda **event: None
        self.attempts: dict[str, run_case.Attempt] = {}  # case key -> its attempt
        environment.commit()  # cache it now, because a user's module may remove environment variables
        self.variables = dict(os.environ)

    def run(self) -> None:
        """Execute requests until the launcher closes the pipe."""
        for line in self.channel.requests:
            request = loads(line)
            key, action, has_enough_samples = request["key"], request["do"], False
            if action == "prepare":
                self._prepare(key, request)
            elif action == "turn":
                has_enough_samples = run_case.take_turn(self.attempts[key])
            elif action == "finish":
                run_case.finish_case(self.attempts[key])
            attempt = self.attempts[key]
            if attempt.ended and self.group.processes > 1 and action == "turn":
                print(attempt.record.text, file=sys.stderr, flush=True)
                os._exit(1)  # ends the other processes too, which would wait forever in a collective
            if action == "finish" or attempt.ended:
                self._end(key)
            else:
                self.send_event(event="ready", key=key, enough=has_enough_samples)

    def _prepare(self, key: str, request: dict[str, Any]) -> None:
        case = from_dict(request["case"])
        record = self._new_record(case, request)
        self.send_event(event="begin", key=key, environment=record.environment)
        sampling = Sampling(**self.header["sampling"])
        self.attempts[key] = run_case.prepare_case(
            record, self.group, sampling, request.get("known"), request["workload_digest"]
        )
        self._refuse_changed_cores()

    def _refuse_changed_cores(self) -> None:
        """Inform the launcher and end this process if its CPU cores have changed since the start."""
        # The cores of this thread, which starts those of JAX. The thread that reads a pipe may not be bound.
        bound, cores = sorted(self.group.cores or ()), sorted(os.sched_getaffinity(0))
        if bound and cores != bound:
            fix = "leave the CPU affinity and the cpuset of the process as they are, and run the study again"
            text = f"the cores of the process changed from {bound} to {cores}"
            self.channel.send_event(event="refused", text=text, fix=fix)
            os._exit(1)

    def _new_record(self, case: Case, request: dict[str, Any]) -> Record:
        header, group, digest = self.header, self.group, None
        with contextlib.suppress(Refusal):
            digest = workload.source_digest(case.workload)
        description = environment.describe(
            group.platform, group.devices[0].device_kind, self.variables, digest,
            self.group_fields["cores"] if header["bind"] else None, request["engine"],
            header["requested_processes"], self.group_fields,
        )  # fmt: skip
        return Record(
            case, "failed", description, replicate=request["replicate"], order=request["order"],
            order_seed=header["order_seed"], attempt=request["attempt"], block=request["block"],
        )  # fmt: skip

    def _end(self, key: str) -> None:
        """Send the record of the case with this key to the launcher, in the event "end"."""
        self._refuse_changed_cores()
        record = self.attempts.pop(key).record
        self.send_event(event="end", key=key, line=to_line(record), **outcome_fields(record))
