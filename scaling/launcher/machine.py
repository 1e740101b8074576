"""Define `Machine` and `ProcessShape` (devices, nodes), check device counts, and ask JAX for the platform."""

import dataclasses
import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from scaling.core.case import Refusal
from scaling.core.environment import OVERSUBSCRIBE_ADVICE
from scaling.core.formatting import format_count
from scaling.launcher import cores
from scaling.launcher.child_process import last_informative_line, rejects_variable

ONE_PER_DEVICE = "device"  # the value of `processes` for one process per device
_PLATFORM_NAMES = {"cuda": "gpu", "rocm": "gpu"}  # backends of JAX that this package calls gpu
_PLATFORM_FIX = (
    "JAX_PLATFORMS=cpu runs on the CPU, or install the plugin of the device, such as ad-scaling[cuda]"
)


@dataclass(frozen=True)
class ProcessShape:
    """The numbers of devices, nodes, and worker processes that run a case.

    `devices` is a multiple of `processes`, and `processes` is a multiple of `nodes`.
    """

    devices: int
    nodes: int = 1
    processes: int = 1


@dataclass(frozen=True)
class Machine:
    """The nodes that can run cases, their JAX platform, and the number of devices per node."""

    platform: str  # JAX platform: cpu, gpu, or tpu
    device_kind: str | None  # device model, or None if only a process on the nodes can determine it
    per_node: int  # number of devices of each node. On a CPU, a device is a core.
    nodes: int = 1
    name: str = "here"  # phrase for the nodes in error messages, such as "of partition gpu"
    remote: bool = False  # whether the workers are started with srun or ssh, not on this host
    untold: tuple[str, ...] = ()  # environment fields that only a process on the nodes can determine
    cpus_each: float | None = None  # CPUs of a node divided by its accelerators, or None if unknown

    @property
    def devices(self) -> int:
        """Return the total number of devices of all nodes."""
        return self.per_node * self.nodes

    def shape(self, devices: int, processes: int | str | None) -> ProcessShape:
        """Return the numbers of devices, nodes and processes of a case that needs `devices` devices.

        `processes` is the number of processes, "device" for one per device, or None for one per node. As few
        nodes as possible are used. Raise `Refusal` if the devices do not divide evenly over the processes and
        nodes.
        """
        nodes = max(1, -(-devices // self.per_node)) if self.remote else 1
        while devices % nodes:
            nodes += 1
        if processes is None or processes == ONE_PER_DEVICE:
            return ProcessShape(devices, nodes, devices if processes == ONE_PER_DEVICE else nodes)
        count = min(int(processes), devices)
        if devices % count or count % nodes:
            process_layout = f"processes={processes} on {format_count(nodes, 'node')}"
            fix = "set processes to a divisor of every device count and a multiple of its number of nodes"
            raise Refusal(
                f"devices={devices} do not divide evenly over {process_layout}: {fix}, or to {ONE_PER_DEVICE}"
            )
        return ProcessShape(devices, nodes, count)

    def check_device_counts(
        self, devices: Iterable[int], processes: int | str | None, oversubscribe: bool
    ) -> None:
        """Raise `Refusal` if this machine cannot run cases with each of the device counts `devices`.

        `processes` has the same meaning as in `shape`. `oversubscribe` permits more devices than cores on the
        CPUs of this host.
        """
        shapes = [self.shape(count, processes) for count in sorted(set(devices))]
        largest = shapes[-1].devices
        if isinstance(processes, int) and processes > largest:
            fix = f"use devices={processes}, or leave processes out"
            raise Refusal(f"processes={processes} exceed the devices of every case, {largest} at most: {fix}")
        fitting = [shape for shape in shapes if shape.devices <= self.devices]
        uneven = [shape.devices for shape in fitting if shape.nodes > self.nodes]
        valid = ",".join(str(shape.devices) for shape in fitting if shape.nodes <= self.nodes) or "1"
        if uneven:
            nodes = f"{format_count(self.nodes, 'node')} of {self.per_node} {self.name}"
            raise Refusal(f"devices={uneven[-1]} do not divide evenly over {nodes}: use devices=[{valid}]")
        can_oversubscribe = self.platform == "cpu" and not self.remote
        if largest <= self.devices or (can_oversubscribe and oversubscribe):
            return
        unit = "core" if self.platform == "cpu" else f"{self.platform} device"
        total = format_count(self.devices, unit)
        total += f" ({self.nodes} nodes of {self.per_node})" if self.nodes > 1 else ""
        hint = f"; {OVERSUBSCRIBE_ADVICE}" if can_oversubscribe else ""
        raise Refusal(f"devices={largest} exceed the {total} {self.name}: use devices=[{valid}]{hint}")


def local_machine() -> Machine:
    """Return a `Machine` that describes the default JAX devices of this host.

    On a CPU, a device is a usable core. Raise `Refusal` if JAX cannot start on the platform in JAX_PLATFORMS.
    If JAX_PLATFORMS is not set, but an accelerator plugin is installed, raise `Refusal` if JAX cannot start.
    """
    requested = os.environ.get("JAX_PLATFORMS", "").split(",")[0].strip()
    platform, may_have_accelerator = _PLATFORM_NAMES.get(requested, requested), requested != "cpu"
    if not requested:
        import importlib.metadata  # the import takes 40 ms, and `status` does not need it

        installed = (distribution.name or "" for distribution in importlib.metadata.distributions())
        may_have_accelerator = any(re.match(r"jax-(cuda|rocm)|libtpu", name) for name in installed)
    machine = _query_jax_devices() if may_have_accelerator else None
    if machine is not None and machine.platform != "cpu":
        return dataclasses.replace(machine, platform=platform or machine.platform)
    if machine is not None and requested:
        problem = f"JAX cannot start {platform} of JAX_PLATFORMS={os.environ['JAX_PLATFORMS']}"
        raise Refusal(f"{problem}: it found only the CPU; {_PLATFORM_FIX}")
    return Machine("cpu", None, len(cores.usable_cores()))


@functools.cache
def _query_jax_devices() -> Machine:
    code = "import jax, json; d = jax.devices(); print(json.dumps([d[0].platform, d[0].device_kind, len(d)]))"
    command = [sys.executable, "-P", "-c", code]  # without the user's modules in the working directory
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        backend, device_kind, devices = json.loads(process.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        platforms = os.environ.get("JAX_PLATFORMS")
        requested = f"the platform of JAX_PLATFORMS={platforms}" if platforms else "a backend"
        reason = f"JAX cannot start {requested}: {last_informative_line(process.stderr.splitlines())}"
        fix = "correct or unset it" if rejects_variable(reason) else _PLATFORM_FIX
        raise Refusal(f"{reason}; {fix}") from None
    return Machine(_PLATFORM_NAMES.get(backend, backend), device_kind, devices)
