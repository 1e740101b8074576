"""Distribute the cases of `scaling plan` to compile workers (child processes), each program only once.

compile_worker.py compiles a case and reads its cost from the program. plan_study.py writes the records.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
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
            report: Called with each case that ends and the fields of its record (result).
            begin: Called with each case that begins.
        """
        work = _SharedState(report)
        for case in sorted(cases, key=lambda case: -case.devices):
            work.queued_cases.put(case)
        arguments = (work, begin)
        threads = [
            threading.Thread(target=self._compile, args=arguments, daemon=True) for _ in range(self.size)
        ]
        for thread in threads:
            thread.start()
        # Poll, so that Ctrl-C and a failure of one thread take effect while others compile.
        while work.failure is None and (busy := [thread for thread in threads if thread.is_alive()]):
            busy[0].join(0.2)
        if work.failure is not None:
            raise work.failure

    def _compile(self, work: "_SharedState", begin: Callable[[Case], None]) -> None:
        """Compile cases from the queue until it is empty, and replace a worker that dies."""
        try:
            while (case := work.take()) is not None:
                with self._open_worker() as worker:
                    while case is not None:
                        begin(case)
                        if not self._compile_case(worker, case, work):
                            break
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
        request = {"do": "trace", "key": case.key, "case": non_default_fields(case)}
        try:
            event = list(worker.request(request, self.seconds))[-1]
            if event["event"] == "traced":
                if not work.claim(case, event["program"]):
                    return True
                event = list(worker.request({"do": "compile", "key": case.key}, self.seconds))[-1]
        except WorkerDied as death:
            text = str(death) or f"timed out after {self.seconds:g} s (case_seconds)"
            work.end(case, {"status": "failed", "reason": death.reason, "text": text})
            return False
        work.end(case, {name: value for name, value in event.items() if name not in ("event", "key", "rank")})
        return True


@dataclass
class _SharedState:
    """The state that the threads of a pool share: the queue, and the programs that are or were compiled.

    Attributes:
        claimed: Dict from program digest to the case that is being compiled and the cases that wait for it.
        compiled: Dict from program digest to the compiled case and the fields of its record.
        programs: Dict from case to the digest of its program.
        failure: Exception of a thread, which stops all others.
    """

    report: Report
    queued_cases: "queue.Queue[Case]" = field(default_factory=queue.Queue)
    lock: threading.Lock = field(default_factory=threading.Lock)
    claimed: dict[str, list[Case]] = field(default_factory=dict)
    compiled: dict[str, tuple[Case, RecordFields]] = field(default_factory=dict)
    programs: dict[Case, str] = field(default_factory=dict)
    failure: BaseException | None = None

    def take(self) -> Case | None:
        """Remove and return the next case of the queue, or return None if it is empty or a thread failed."""
        with contextlib.suppress(queue.Empty):
            return self.queued_cases.get_nowait() if self.failure is None else None
        return None

    def claim(self, case: Case, program: str | None) -> bool:
        """Return whether a case is the first one with its program digest, and therefore must be compiled.

        Otherwise the case is reported as soon as the program has been compiled.
        """
        if program is None:
            return True
        with self.lock:
            if program in self.compiled:
                self._report_equal(case, *self.compiled[program])
                return False
            self.programs[case] = program
            self.claimed.setdefault(program, []).append(case)
            return self.claimed[program][0] is case

    def end(self, case: Case, fields: RecordFields) -> None:
        """Report a case that ended, and the cases that wait for the same program.

        If the case failed, the waiting cases return to the queue.
        """
        with self.lock:
            program = self.programs.get(case)
            followers = self.claimed.pop(program, [case])[1:] if program else []
            self.report(case, fields | ({"program": program} if program else {}))
            if fields["status"] == "failed":
                for follower in followers:
                    self.queued_cases.put(follower)
                return
            if program:
                self.compiled[program] = case, fields
            for follower in followers:
                self._report_equal(follower, case, fields)

    def _report_equal(self, case: Case, compiled: Case, fields: RecordFields) -> None:
        self.report(case, fields | {"compiled_as": compiled.key, "program": self.programs[compiled]})
