"""Start compile workers (compile_worker.py) for a machine, and compile cases with equal programs only once.

A worker compiles cases and counts the work of each program. plan_study.py writes the records.
"""

import contextlib
import dataclasses
import importlib.metadata
import queue
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling.core.case import Case, Refusal, built_in, non_default_fields
from scaling.plan.hardware import Hardware
from scaling.workers.machine import AllocationLost, ProcessShape
from scaling.workers.worker_group import Variant, WorkerDied, WorkerGroup, open_worker_group

# Packages by platform. One of them must be installed to compile for the platform.
_COMPILERS = {"tpu": ("libtpu",), "gpu": ("jax-cuda12-plugin", "jax-cuda13-plugin"), "cpu": ("jaxlib",)}
_ASSEMBLERS = ("nvidia-cuda-nvcc-cu12", "nvidia-cuda-nvcc")  # for GPUs, unless CUDA is installed
_CUDA = Path("/usr/local/cuda")  # where XLA searches for CUDA
_VARIABLES = {  # environment variables of a compile worker
    "JAX_PLATFORMS": "cpu",  # do not initialize accelerators
    "TPU_SKIP_MDS_QUERY": "1",  # do not query the metadata server of the cloud
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # do not check the installed CUDA libraries
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # allow libtpu in several processes
}
RecordFields = dict[str, Any]  # some fields of a `Record`, by name


def find_compiler(hardware: Hardware) -> tuple[str, str]:
    """Return the package and version of the compiler for a machine. Raise `Refusal` if none is installed."""
    platform = hardware.platform
    compiler = _find_package(_COMPILERS[platform])
    has_assembler = platform != "gpu" or _find_package(_ASSEMBLERS) or _CUDA.is_dir() or shutil.which("ptxas")
    if compiler and has_assembler:
        return compiler
    missing = "CUDA assembler ptxas" if compiler else "compiler"
    raise Refusal(
        f"the {missing} for hardware={hardware.name} is not installed: "
        f"run `scripts/plan`, or pip install 'ad-scaling[plan-{platform}]'"
    )


def _find_package(names: Sequence[str]) -> tuple[str, str] | None:
    """Return the name and version of the first installed package in `names`, or None if there is none."""
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return name, importlib.metadata.version(name)
    return None


def worker_header(hardware: Hardware, counts: Collection[int]) -> dict[str, Any]:
    """Return the header for a compile worker: the hardware, and the TPU slice for each device count."""
    return {
        "platform": hardware.platform, "target": hardware.target, "per_host": hardware.per_host,
        "memory": hardware.memory, "most": max(counts),
        "slices": {str(count): list(hardware.slice_shape(count) or ()) for count in sorted(counts)},
    }  # fmt: skip


def program_of(case: Case) -> Case:
    """Return the case on one device with the same program if split=points, otherwise the case itself.

    A user's workload may depend on the number of points, so its cases are always returned unchanged.
    """
    is_built_in = case.workload in built_in("workloads")
    if is_built_in and case.split == "points" and case.points % case.devices == 0:
        return dataclasses.replace(case, devices=1, points=case.points // case.devices)
    return case


@dataclass
class CompilePool:
    """A pool of worker processes that compile cases for absent devices. A thread controls each process.

    Attributes:
        header: The JSON object that each worker receives first: the platform and its devices.
        size: The number of workers.
        seconds: The timeout of each compilation, in seconds.
        report, begin: Functions that are called when a compilation ends (`report`) or begins (`begin`).
    """

    header: Mapping[str, Any]
    size: int
    seconds: float
    report: Callable[[Case, RecordFields], None]
    begin: Callable[[Case], None]

    def compile_all(self, cases: Iterable[Case]) -> None:
        """Compile all cases, in descending order of the number of devices.

        If cases have the same program on each device, only the first is compiled, or the next if that fails.
        Raise `AllocationLost` if a worker does not start.
        """
        groups: dict[Case, list[Case]] = {}  # the cases with the same program
        for case in sorted(cases, key=lambda case: -case.devices):
            groups.setdefault(program_of(case), []).append(case)
        self._groups = iter(groups.values())  # the groups that have not begun
        # (function, arguments) to call in this thread; None when a thread ends
        self._calls: queue.Queue[tuple[Callable[..., None], tuple[Any, ...]] | None] = queue.Queue()
        for _ in range(self.size):
            threading.Thread(target=self._compile_groups, daemon=True).start()
        try:
            for _ in range(self.size):
                while call := self._calls.get():
                    call[0](*call[1])
        finally:
            self._groups = iter(())

    def _compile_groups(self) -> None:
        """Compile cases until none remains, and replace a worker that dies."""
        variant = Variant("plan", module="scaling.plan.compile_worker", variables=_VARIABLES)
        group = list[Case]()
        try:
            while group := group or next(self._groups, []):
                with open_worker_group(self.header, variant, ProcessShape(1), None) as worker:
                    while group and self._compile_first(worker, group):
                        group = group or next(self._groups, [])
        except WorkerDied as death:
            error = AllocationLost(f"the compile worker did not start: {death}")
            self._calls.put((_raise_error, (error,)))
        except BaseException as error:
            self._calls.put((_raise_error, (error,)))
        self._calls.put(None)

    def _compile_first(self, worker: WorkerGroup, group: list[Case]) -> bool:
        """Compile the first case of a group, and return whether the worker is alive.

        Report the result for this case and, unless it failed, for all others. Remove the reported cases.
        """
        case, is_alive = group.pop(0), True
        self._calls.put((self.begin, (case,)))
        try:
            event = list(worker.request({"case": non_default_fields(case)}, self.seconds))[-1]
            fields = {name: value for name, value in event.items() if name not in ("event", "rank")}
        except WorkerDied as death:
            text = str(death) or f"timed out after {self.seconds:g} s (case_seconds)"
            fields, is_alive = {"status": "failed", "reason": death.reason, "text": text}, False
        fields["program"] = program_of(case).key
        self._calls.put((self.report, (case, fields)))
        while group and fields["status"] != "failed":
            self._calls.put((self.report, (group.pop(0), fields | {"compiled_as": case.key})))
        return is_alive


def _raise_error(error: BaseException) -> None:
    raise error
