"""The machine that a study runs on, and the shape of the processes of a case: devices, nodes and processes.

Values only: this host and the clusters know where they come from.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from scaling.core.case import Refusal
from scaling.core.formatting import count_of

EACH = "device"  # a process of its own for each device


class AllocationLost(Exception):
    """No worker can be started on other nodes.

    The allocation ended or differs from the request, or no shell reaches the nodes.
    """


@dataclass(frozen=True)
class ProcessShape:
    """The devices of a case, divided evenly over nodes, and over the processes that hold them."""

    devices: int
    nodes: int = 1
    processes: int = 1


@dataclass(frozen=True)
class Machine:
    """The nodes of a platform, each with the same number of devices."""

    platform: str  # cpu, gpu, tpu
    device_kind: str | None  # None: only the nodes know
    per_node: int  # devices; on a CPU, cores
    nodes: int = 1
    name: str = "here"
    remote: bool = False  # its nodes are not this host: what only they can tell is not known
    untold: tuple[str, ...] = ()  # more of the environment that only they can tell
    cpus_each: float | None = None  # CPUs of a node for each of its accelerators; None: not known

    @property
    def devices(self) -> int:
        """Return the number of devices."""
        return self.per_node * self.nodes

    def shape(self, devices: int, processes: int | str | None) -> ProcessShape:
        """Return the shape of the processes for these devices.

        By default, there is one process for each node, on the fewest nodes that divide the devices evenly.
        """
        nodes = max(1, -(-devices // self.per_node)) if self.remote else 1
        while devices % nodes:
            nodes += 1
        if processes is None or processes == EACH:
            return ProcessShape(devices, nodes, devices if processes == EACH else nodes)
        several = min(int(processes), devices)
        if devices % several or several % nodes:
            over = f"processes={processes}" + (f" on {count_of(nodes, 'node')}" if nodes > 1 else "")
            fix = f"take a divisor of every count, or processes={EACH}"
            raise Refusal(f"devices={devices} do not divide evenly over {over}: {fix}")
        return ProcessShape(devices, nodes, several)

    def enough(self, devices: Iterable[int], processes: int | str | None, oversubscribe: bool) -> None:
        """Refuse more devices than there are, before anything starts."""
        counts = sorted(set(devices))
        shapes = [self.shape(count, processes) for count in counts]
        much = [s.devices for s in shapes if s.devices > self.devices]
        uneven = [s.devices for s in shapes if s.nodes > self.nodes and s.devices not in much]
        take = ",".join(str(count) for count in counts if count not in much + uneven) or "1"
        if uneven:
            over = f"{count_of(self.nodes, 'node')} of {self.per_node} {self.name}"
            raise Refusal(f"devices={uneven[-1]} do not divide evenly over {over}: take devices=[{take}]")
        free = self.platform == "cpu" and not self.remote
        if not much or (free and oversubscribe):
            return
        what = count_of(self.devices, "core" if self.platform == "cpu" else f"{self.platform} device")
        what += f" ({self.nodes} nodes of {self.per_node})" if self.nodes > 1 else ""
        more = "; oversubscribe=true checks more without drawing them as scaling" if free else ""
        raise Refusal(f"devices={much[-1]} are more than the {what} {self.name}: take devices=[{take}]{more}")
