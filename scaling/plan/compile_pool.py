"""A pool of processes that compile cases on the cores of this host, and compile a program of several cases
once.

Does not know what is read from the programs (compile_worker.py), nor where records go.
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

_VARIABLES = {  # of a compile worker
    "JAX_PLATFORMS": "cpu",  # JAX looks for no devices
    "TPU_SKIP_MDS_QUERY": "1",  # libtpu does not ask the cloud where it runs
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # the GPU plugin looks for no CUDA libraries
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # several processes may compile; libtpu takes no TPU
}
RecordFields = dict[str, Any]
Report = Callable[[Case, RecordFields], None]


@dataclass(frozen=True)
class CompilePool:
    """How compile workers start, how many of them, and how many seconds one may take for a case."""

    header: Mapping[str, Any]
    size: int
    seconds: float

    def compile_all(self, cases: Iterable[Case], report: Report, begin: Callable[[Case], None]) -> None:
        """Compile every case, those on the most devices first, and report each as it ends."""
        work = _SharedWork(report)
        for case in sorted(cases, key=lambda case: -case.devices):
            work.waiting.put(case)
        arguments = (work, begin)
        threads = [
            threading.Thread(target=self._compile, args=arguments, daemon=True) for _ in range(self.size)
        ]
        for thread in threads:
            thread.start()
        # Short waits let Ctrl-C through, and a full disk need not wait for what is being compiled.
        while work.failure is None and (busy := [thread for thread in threads if thread.is_alive()]):
            busy[0].join(0.2)
        if work.failure is not None:
            raise work.failure

    def _compile(self, work: "_SharedWork", begin: Callable[[Case], None]) -> None:
        """Take cases until none is waiting, with a new worker after each that dies."""
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
        platform = str(self.header["platform"])
        try:
            with open_worker_group(self.header, variant, ProcessShape(1), platform, None) as worker:
                yield worker
        except WorkerDied as death:
            raise AllocationLost(f"the compile worker did not start: {death}") from None

    def _compile_case(self, worker: WorkerGroup, case: Case, work: "_SharedWork") -> bool:
        """Bring a case to its end; return whether the worker is still alive."""
        order = {"do": "trace", "key": case.key, "case": non_default_fields(case)}
        try:
            event = list(worker.ask(order, self.seconds))[-1]
            if event["event"] == "traced":
                if not work.claim(case, event["program"]):
                    return True
                event = list(worker.ask({"do": "compile", "key": case.key}, self.seconds))[-1]
        except WorkerDied as death:
            text = str(death) or f"no end after {self.seconds:g} s (case_seconds)"
            work.end(case, {"status": "failed", "reason": death.reason, "text": text})
            return False
        work.end(case, {name: value for name, value in event.items() if name not in ("event", "key", "rank")})
        return True


@dataclass
class _SharedWork:
    """What the threads of a pool share: waiting cases, and what is known of each program."""

    report: Report
    waiting: "queue.Queue[Case]" = field(default_factory=queue.Queue)
    lock: threading.Lock = field(default_factory=threading.Lock)
    claimed: dict[str, list[Case]] = field(default_factory=dict)  # program -> case being compiled, followers
    compiled: dict[str, tuple[Case, RecordFields]] = field(default_factory=dict)  # program -> its result
    programs: dict[Case, str] = field(default_factory=dict)
    failure: BaseException | None = None

    def take(self) -> Case | None:
        """Return the next case; None when none is waiting or another thread failed."""
        with contextlib.suppress(queue.Empty):
            return self.waiting.get_nowait() if self.failure is None else None
        return None

    def claim(self, case: Case, program: str | None) -> bool:
        """Return whether to compile this case; otherwise it ends with another that has the same program."""
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
        """Report a case and its followers; after a failure, these try again, each for itself."""
        with self.lock:
            program = self.programs.get(case)
            followers = self.claimed.pop(program, [case])[1:] if program else []
            self.report(case, fields | ({"program": program} if program else {}))
            if fields["status"] == "failed":
                for each in followers:
                    self.waiting.put(each)
                return
            if program:
                self.compiled[program] = case, fields
            for each in followers:
                self._report_equal(each, case, fields)

    def _report_equal(self, case: Case, compiled: Case, fields: RecordFields) -> None:
        """Report a case by another with the same program, with the compile times of the other."""
        self.report(case, fields | {"compiled_as": compiled.key, "program": self.programs[compiled]})
