"""Classes Machine (available nodes and devices) and ProcessShape (devices, nodes, processes of a case)."""

from collections.abc import Iterable
from dataclasses import dataclass

from scaling.core.case import Refusal
from scaling.core.formatting import count_of

ONE_PER_DEVICE = "device"  # the value of `processes` for one process per device


class AllocationLost(Exception):
    """Raised if no worker process can be started on the other nodes, for example after the job has ended."""


@dataclass(frozen=True)
class ProcessShape:
    """The numbers of devices, nodes, and processes of a case.

    `devices` is a multiple of `processes`, and `processes` is a multiple of `nodes`.
    """

    devices: int
    nodes: int = 1
    processes: int = 1


@dataclass(frozen=True)
class Machine:
    """A set of nodes of one JAX platform, each with the same number of devices.

    Attributes:
        platform: JAX platform: cpu, gpu, or tpu.
        device_kind: Name of the device model, or None if only a process on the nodes can determine it.
        per_node: Number of devices of each node. On a CPU, a device is a core.
        nodes: Number of nodes.
        name: Description of the nodes for error messages, such as "of partition gpu".
        remote: Whether the nodes are other hosts than this one.
        untold: Names of the environment fields that only a process on the nodes can determine.
        cpus_each: Number of CPUs of a node divided by the number of its accelerators, or None if unknown.
    """

    platform: str
    device_kind: str | None
    per_node: int
    nodes: int = 1
    name: str = "here"
    remote: bool = False
    untold: tuple[str, ...] = ()
    cpus_each: float | None = None

    @property
    def devices(self) -> int:
        """Return the total number of devices of all nodes."""
        return self.per_node * self.nodes

    def shape(self, devices: int, processes: int | str | None) -> ProcessShape:
        """Return the process shape (numbers of devices, nodes, and processes) of a case.

        The number of nodes is the smallest one that provides enough devices and divides their number evenly.

        Args:
            devices: Number of devices of the case.
            processes: Number of processes, "device" for one per device, or None for one per node.
        Raises:
            Refusal: If the devices do not divide evenly over the processes, or the processes over the nodes.
        """
        nodes = max(1, -(-devices // self.per_node)) if self.remote else 1
        while devices % nodes:
            nodes += 1
        if processes is None or processes == ONE_PER_DEVICE:
            return ProcessShape(devices, nodes, devices if processes == ONE_PER_DEVICE else nodes)
        count = min(int(processes), devices)
        if devices % count or count % nodes:
            over = f"processes={processes}" + (f" on {count_of(nodes, 'node')}" if nodes > 1 else "")
            fix = f"set processes to a divisor of every device count, or to {ONE_PER_DEVICE}"
            raise Refusal(f"devices={devices} do not divide evenly over {over}: {fix}")
        return ProcessShape(devices, nodes, count)

    def check_device_counts(
        self, devices: Iterable[int], processes: int | str | None, oversubscribe: bool
    ) -> None:
        """Raise `Refusal` if a case with any of these device counts cannot run on this machine.

        Args:
            devices: Device counts of the cases.
            processes: Number of processes, "device" for one per device, or None for one per node.
            oversubscribe: Whether a case on CPUs of this host may have more devices than there are cores.
        """
        counts = sorted(set(devices))
        shapes = [self.shape(count, processes) for count in counts]
        too_many = [s.devices for s in shapes if s.devices > self.devices]
        uneven = [s.devices for s in shapes if s.nodes > self.nodes and s.devices not in too_many]
        valid = ",".join(str(count) for count in counts if count not in too_many + uneven) or "1"
        if uneven:
            over = f"{count_of(self.nodes, 'node')} of {self.per_node} {self.name}"
            raise Refusal(f"devices={uneven[-1]} do not divide evenly over {over}: use devices=[{valid}]")
        can_oversubscribe = self.platform == "cpu" and not self.remote
        if not too_many or (can_oversubscribe and oversubscribe):
            return
        unit = "core" if self.platform == "cpu" else f"{self.platform} device"
        total = count_of(self.devices, unit)
        total += f" ({self.nodes} nodes of {self.per_node})" if self.nodes > 1 else ""
        more = "; oversubscribe=true checks more devices, without scaling curves" if can_oversubscribe else ""
        raise Refusal(f"devices={too_many[-1]} exceed the {total} {self.name}: use devices=[{valid}]{more}")
