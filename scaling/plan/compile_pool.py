"""Start processes that compile cases for other hardware (`CompilePool`), and find the compiler to use.

Cases with equal programs are compiled once. A worker process (compile_worker.py) compiles a case and counts
its operations. plan_study.py writes the records.
"""

import contextlib
import dataclasses
import importlib.metadata
import queue
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
_ENVIRONMENT_VARIABLES = {  # environment variables of a compile worker
    "JAX_PLATFORMS": "cpu",  # do not initialize accelerators
    "TPU_SKIP_MDS_QUERY": "1",  # do not query the metadata server of the cloud
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # do not check the installed CUDA libraries
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # allow libtpu in several processes
}
RecordFields = dict[str, Any]  # some fields of a `Record`, by name


def find_compiler(hardware: Hardware) -> tuple[str, str]:
    """Return the package name and version of the compiler for a machine.

    Raise `Refusal` if no compiler or, for a GPU, no CUDA assembler ptxas is installed.
    """
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
    """Return the name and version of the first installed package in `names`, or None if none is installed."""
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return name, importlib.metadata.version(name)
    return None


def worker_header(hardware: Hardware, counts: Collection[int]) -> dict[str, Any]:
    """Return the JSON object that describes the hardware and the device counts to a compile worker."""
    return {
        "platform": hardware.platform, "target": hardware.target, "per_host": hardware.per_host,
        "memory": hardware.memory, "most": max(counts),
        "slices": {str(count): list(hardware.slice_shape(count) or ()) for count in sorted(counts)},
    }  # fmt: skip


def program_of(case: Case) -> Case:
    """Return a case on one device with the program of each device of `case`, or `case` if they may differ."""
    # The program of a user's workload may depend on the total number of points.
    is_built_in = case.workload in built_in("workloads")
    if is_built_in and case.split == "points" and case.points % case.devices == 0:
        return dataclasses.replace(case, devices=1, points=case.points // case.devices)
    return case


@dataclass
class CompilePool:
    """A pool of worker processes that compile cases for other hardware."""

    header: Mapping[str, Any]  # the JSON object that each worker receives first: the platform and devices
    size: int  # the number of workers
    seconds: float  # the timeout of each compilation
    report: Callable[[Case, RecordFields], None]  # called with a case and its result after its compilation
    begin: Callable[[Case], None]  # called with a case before its compilation

    def compile_all(self, cases: Iterable[Case]) -> None:
        """Compile the cases, those with equal programs only once, and report the result of each case.

        Raise `AllocationLost` if a worker does not start.
        """
        groups: dict[Case, list[Case]] = {}  # the cases with the same program
        for case in sorted(cases, key=lambda case: -case.devices):
            groups.setdefault(program_of(case), []).append(case)
        self._groups = iter(groups.values())  # the groups that have not begun
        # Functions to call in this thread. A worker's thread adds None when it ends.
        self._pending_calls: queue.Queue[Callable[[], None] | None] = queue.Queue()
        for _ in range(self.size):
            threading.Thread(target=self._compile_groups, daemon=True).start()
        try:
            for _ in range(self.size):
                while pending_call := self._pending_calls.get():
                    pending_call()
        finally:
            self._groups = iter(())

    def _compile_groups(self) -> None:
        """Compile cases in a worker process, which is replaced if it dies, until no case remains."""
        variant = Variant("plan", module="scaling.plan.compile_worker", variables=_ENVIRONMENT_VARIABLES)
        equal_cases = list[Case]()
        try:
            while equal_cases := equal_cases or next(self._groups, []):
                with open_worker_group(self.header, variant, ProcessShape(1), None) as worker:
                    while equal_cases and self._compile_first(worker, equal_cases):
                        equal_cases = equal_cases or next(self._groups, [])
        except WorkerDied as death:
            error = AllocationLost(f"the compile worker did not start: {death}")
            self._pending_calls.put(partial(_raise_error, error))
        except BaseException as error:
            self._pending_calls.put(partial(_raise_error, error))
        self._pending_calls.put(None)

    def _compile_first(self, worker: WorkerGroup, equal_cases: list[Case]) -> bool:
        """Compile the first of several cases with the same program, and return whether the worker is alive.

        Remove the first case from the list, or all cases if the compilation succeeds.
        """
        case, is_alive = equal_cases.pop(0), True
        self._pending_calls.put(partial(self.begin, case))
        try:
            event = list(worker.request({"case": non_default_fields(case)}, self.seconds))[-1]
            record_fields = {name: value for name, value in event.items() if name not in ("event", "rank")}
        except WorkerDied as death:
            text = str(death) or f"timed out after {self.seconds:g} s (case_seconds)"
            record_fields, is_alive = {"status": "failed", "reason": death.reason, "text": text}, False
        record_fields["program"] = program_of(case).key
        self._pending_calls.put(partial(self.report, case, record_fields))
        while equal_cases and record_fields["status"] != "failed":
            fields = record_fields | {"compiled_as": case.key}
            self._pending_calls.put(partial(self.report, equal_cases.pop(0), fields))
        return is_alive


def _raise_error(error: BaseException) -> None:
    raise error
