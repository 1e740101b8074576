"""Class `CompilePool`: start compile workers (compile_worker.py), and compile equal programs only once.

compile_worker.py compiles a case and reads its cost from the program. plan_study.py writes the records.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from scaling.core.case import Case, non_default_fields
from scaling.workers.machine import AllocationLost, ProcessShape
from scaling.workers.worker_group import Variant, WorkerDied, WorkerGroup, open_worker_group

_VARIABLES = {  # environment variables of a compile worker
    "JAX_PLATFORMS": "cpu",  # do not initialize accelerators
    "TPU_SKIP_MDS_QUERY": "1",  # do not query the metadata server of the cloud
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # do not check the installed CUDA libraries
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # allow libtpu in several processes
}
RecordFields = dict[str, Any]  # some fields of a `Record`, by name


@dataclass
class CompilePool:
    """A pool of worker processes that compile cases for absent devices, each controlled by a thread.

    Attributes:
        header: The JSON object that each worker receives first: the platform and its devices.
        size: The number of workers.
        seconds: The timeout of each request, in seconds.
        report, begin: Functions that are called when a compilation ends (`report`) or begins (`begin`).
    """

    header: Mapping[str, Any]
    size: int
    seconds: float
    report: Callable[[Case, RecordFields], None]
    begin: Callable[[Case], None]

    def compile_all(self, cases: Iterable[Case]) -> None:
        """Compile all cases, in descending order of the number of devices.

        Raise the first exception of a thread, such as `AllocationLost` if a worker does not start.
        """
        self._cases = iter(sorted(cases, key=lambda case: -case.devices))  # the cases that have not begun
        self._report_lock = threading.Lock()
        self._program_locks: dict[str, threading.Lock] = {}
        self._compiled: dict[str, RecordFields] = {}  # program digest -> event of the compilation
        self._failure: BaseException | None = None  # the exception of a thread; all threads then stop
        threads = [threading.Thread(target=self._compile_cases, daemon=True) for _ in range(self.size)]
        for thread in threads:
            thread.start()
        # Poll, so that Ctrl-C and a failure of one thread take effect while others compile.
        while self._failure is None and (busy := [thread for thread in threads if thread.is_alive()]):
            busy[0].join(0.2)
        if self._failure is not None:
            raise self._failure

    def _next_case(self) -> Case | None:
        return next(self._cases, None) if self._failure is None else None

    def _compile_cases(self) -> None:
        """Compile cases until none remains, and replace a worker that dies."""
        variant = Variant("plan", module="scaling.plan.compile_worker", variables=_VARIABLES)
        try:
            while (case := self._next_case()) is not None:
                with open_worker_group(self.header, variant, ProcessShape(1), None) as worker:
                    while case is not None and self._compile_case(worker, case):
                        case = self._next_case()
        except WorkerDied as death:
            self._failure = AllocationLost(f"the compile worker did not start: {death}")
        except BaseException as error:
            self._failure = error

    def _compile_case(self, worker: WorkerGroup, case: Case) -> bool:
        """Trace and compile a case, report its record fields, and return whether the worker is alive."""
        self.begin(case)
        event = self._request(worker, {"do": "trace", "key": case.key, "case": non_default_fields(case)})
        if event["event"] == "traced":
            event = self._compile_once(worker, case, event["program"])
        fields = {name: value for name, value in event.items() if name not in ("event", "key", "rank")}
        with self._report_lock:
            self.report(case, fields)
        return event["event"] != "died"

    def _compile_once(self, worker: WorkerGroup, case: Case, digest: str | None) -> RecordFields:
        """Return the event that reports the compilation of a traced case, given the digest of its program.

        If several cases have the same digest, one is compiled, and the others wait for its result. After a
        failed compilation, the next waiting case is compiled. A case without a digest is always compiled.
        """
        request = {"do": "compile", "key": case.key}
        if digest is None:
            return self._request(worker, request)
        with self._program_locks.setdefault(digest, threading.Lock()):
            if digest not in self._compiled:
                event = self._request(worker, request) | {"program": digest}
                if event["status"] != "failed":
                    self._compiled[digest] = event | {"compiled_as": case.key}
                return event
            return self._compiled[digest]

    def _request(self, worker: WorkerGroup, request: Mapping[str, Any]) -> RecordFields:
        """Return the reply of a worker, or an event "died" with the record fields of the failure."""
        try:
            return list(worker.request(request, self.seconds))[-1]
        except WorkerDied as death:
            text = str(death) or f"timed out after {self.seconds:g} s (case_seconds)"
            return {"event": "died", "status": "failed", "reason": death.reason, "text": text}
