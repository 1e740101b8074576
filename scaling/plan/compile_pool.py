"""Class `CompilePool`: compile the cases of `scaling plan` in child processes, each program only once.

compile_worker.py compiles a case and reads its cost from the program. plan_study.py writes the records.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
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
RecordFields = dict[str, Any]
Report = Callable[[Case, RecordFields], None]


@dataclass(frozen=True)
class CompilePool:
    """A pool of processes that compile cases for absent devices.

    Attributes:
        header: The first line that each worker receives, as a JSON object.
        size: The number of workers.
        seconds: The timeout of each request, in seconds.
    """

    header: Mapping[str, Any]
    size: int
    seconds: float

    def compile_all(self, cases: Iterable[Case], report: Report, begin: Callable[[Case], None]) -> None:
        """Compile all cases, starting with those on the most devices.

        Args:
            report: Function that is called with each case that ends and the fields of its record.
            begin: Function that is called with each case that begins.
        """
        work = _SharedState(iter(sorted(cases, key=lambda case: -case.devices)), report, begin)
        threads = [
            threading.Thread(target=self._compile, args=(work,), daemon=True) for _ in range(self.size)
        ]
        for thread in threads:
            thread.start()
        # Poll, so that Ctrl-C and a failure of one thread take effect while others compile.
        while work.failure is None and (busy := [thread for thread in threads if thread.is_alive()]):
            busy[0].join(0.2)
        if work.failure is not None:
            raise work.failure

    def _compile(self, work: "_SharedState") -> None:
        """Compile cases until none remains, and replace a worker that dies."""
        try:
            while (case := work.take()) is not None:
                with self._open_worker() as worker:
                    while case is not None and self._compile_case(worker, case, work):
                        case = work.take()
        except BaseException as error:
            work.failure = error

    @contextlib.contextmanager
    def _open_worker(self) -> Iterator[WorkerGroup]:
        variant = Variant("plan", module="scaling.plan.compile_worker", variables=_VARIABLES)
        try:
            with open_worker_group(self.header, variant, ProcessShape(1), None) as worker:
                yield worker
        except WorkerDied as death:
            raise AllocationLost(f"the compile worker did not start: {death}") from None

    def _compile_case(self, worker: WorkerGroup, case: Case, work: "_SharedState") -> bool:
        """Trace and compile a case, report it, and return whether the worker is still alive."""
        work.begin(case)
        event = self._request(worker, {"do": "trace", "key": case.key, "case": non_default_fields(case)})
        if event["event"] == "traced":
            event = work.compile_once(
                case, event["program"], lambda: self._request(worker, {"do": "compile", "key": case.key})
            )
        fields = {name: value for name, value in event.items() if name not in ("event", "key", "rank")}
        with work.lock:
            work.report(case, fields)
        return event["event"] != "died"

    def _request(self, worker: WorkerGroup, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the reply of a worker, or an event "died" with the record fields of the failure."""
        try:
            return list(worker.request(request, self.seconds))[-1]
        except WorkerDied as death:
            text = str(death) or f"timed out after {self.seconds:g} s (case_seconds)"
            return {"event": "died", "status": "failed", "reason": death.reason, "text": text}


@dataclass
class _SharedState:
    """The state that the threads of a pool share.

    Attributes:
        cases: The cases that have not begun.
        programs: Dict from program digest to the last event of the compilation, or None if the compilation
            failed.
        failure: Exception that a thread raised. The other threads then stop.
    """

    cases: Iterator[Case]
    report: Report
    begin: Callable[[Case], None]
    lock: threading.Lock = field(default_factory=threading.Lock)
    programs: dict[str, Future[dict[str, Any] | None]] = field(default_factory=dict)
    failure: BaseException | None = None

    def take(self) -> Case | None:
        """Return the next case, or None if there is none or a thread failed."""
        return next(self.cases, None) if self.failure is None else None

    def compile_once(
        self, case: Case, program: str | None, compile_program: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the result of compiling a program. Each digest `program` is compiled for one case only.

        Other cases with the same program digest wait for this result. After a failed compilation, the next
        case that waits compiles the program again.
        """
        if program is None:
            return compile_program()
        mine = Future[dict[str, Any] | None]()
        while (first := self.programs.setdefault(program, mine)) is not mine:
            if (shared := first.result()) is not None:
                return shared
        event = compile_program() | {"program": program}
        if failed := event["status"] == "failed":
            del self.programs[program]
        mine.set_result(None if failed else event | {"compiled_as": case.key})
        return event
