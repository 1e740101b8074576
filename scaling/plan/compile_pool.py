"""The crew: planners that share out cases between the cores of this host, and compile once what several cases have in common.

Knows processes and which programs are equal; not what is read off them, nor where records go.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from scaling.core.case import Case, non_default_fields
from scaling.workers.machine import ProcessShape
from scaling.workers.worker_group import AllocationLost, Variant, WorkerDied, WorkerGroup, open_worker_group

# With which a planner starts: the first keeps JAX from looking for devices, the second libtpu from asking the cloud where it
# runs, the third the plugin for GPUs from looking for CUDA's libraries, the fourth both from talking about it; the last lets
# several planners have libtpu, which takes no TPU.
VARIABLES = {
    "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1", "TF_CPP_MIN_LOG_LEVEL": "2",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}  # fmt: skip

Found = dict[str, Any]  # fields of a record
Tell = Callable[[Case, Found], None]


@dataclass(frozen=True)
class CompilePool:
    """How planners are started, how many at a time, and how long one may take over a case."""

    header: Mapping[str, Any]
    size: int
    seconds: float

    def plan(self, cases: Iterable[Case], tell: Tell, begin: Callable[[Case], None]) -> None:
        """Compile every case, those on the most devices first, and tell what was found of each as it ends."""
        shared = _Shared(tell)
        for case in sorted(cases, key=lambda case: -case.devices):
            shared.waiting.put(case)
        threads = [
            threading.Thread(target=self._work, args=(shared, begin), daemon=True) for _ in range(self.size)
        ]
        for thread in threads:
            thread.start()
        # In pieces, so that Ctrl-C is heard, and a full disk does not wait for what is still being compiled.
        while shared.failure is None and (busy := [thread for thread in threads if thread.is_alive()]):
            busy[0].join(0.2)
        if shared.failure is not None:
            raise shared.failure

    def _work(self, shared: "_Shared", begin: Callable[[Case], None]) -> None:
        """Take cases until there are none, with a fresh planner after each that dies."""
        try:
            while (case := shared.take()) is not None:
                with self._planner() as planner:
                    while case is not None and self._one(planner, case, shared, begin):
                        case = shared.take()
        except BaseException as error:
            shared.failure = error

    @contextlib.contextmanager
    def _planner(self) -> Any:
        side = Variant("plan", module="scaling.plan.compile_worker", variables=VARIABLES)
        try:
            with open_worker_group(
                self.header, side, ProcessShape(1), str(self.header["platform"]), None
            ) as made:
                yield made
        except WorkerDied as lost:
            raise AllocationLost(f"the planner did not start: {lost}") from None

    def _one(
        self, planner: WorkerGroup, case: Case, shared: "_Shared", begin: Callable[[Case], None]
    ) -> bool:
        """Bring a case to its end; whether the planner is still there."""
        begin(case)
        try:
            said = self._ask(planner, {"do": "trace", "key": case.key, "case": non_default_fields(case)})
            if said["event"] == "traced":
                if not shared.mine(case, said["program"]):
                    return self._forgotten(planner, case)
                said = self._ask(planner, {"do": "compile", "key": case.key})
        except WorkerDied as lost:
            words = str(lost) or f"no end after {self.seconds:g} s (case_seconds)"
            shared.ended(case, {"status": "failed", "reason": lost.reason, "text": words})
            return False
        shared.ended(
            case, {name: value for name, value in said.items() if name not in ("event", "key", "rank")}
        )
        return True

    def _forgotten(self, planner: WorkerGroup, case: Case) -> bool:
        """Leave a case to another; whether the planner is still there."""
        try:
            self._ask(planner, {"do": "forget", "key": case.key})
        except WorkerDied:
            return False
        return True

    def _ask(self, planner: WorkerGroup, order: dict[str, Any]) -> dict[str, Any]:
        return list(planner.ask(order, self.seconds))[-1]


@dataclass
class _Shared:
    """What the threads of a crew have in common."""

    tell: Tell
    waiting: "queue.Queue[Case]" = field(default_factory=queue.Queue)
    lock: threading.Lock = field(default_factory=threading.Lock)
    alike: dict[str, list[Case]] = field(
        default_factory=dict
    )  # by program: the case that is compiled, and those that follow
    known: dict[str, tuple[Case, Found]] = field(default_factory=dict)  # by program: what came of it
    programs: dict[Case, str] = field(default_factory=dict)
    failure: BaseException | None = None

    def take(self) -> Case | None:
        """The next case; None when there is none, or another thread has given up."""
        with contextlib.suppress(queue.Empty):
            return self.waiting.get_nowait() if self.failure is None else None
        return None

    def mine(self, case: Case, program: str | None) -> bool:
        """Whether this case is to be compiled; otherwise it has its end, or will have it, from one that does the same."""
        if program is None:
            return True
        with self.lock:
            if program in self.known:
                first, found = self.known[program]
                self._follow(case, first, found)
                return False
            self.programs[case] = program
            following = self.alike.setdefault(program, [])
            following.append(case)
            return following[0] is case

    def ended(self, case: Case, found: Found) -> None:
        """Tell what came of a case, and of all that wait for it; where its planner died, one of those tries again."""
        with self.lock:
            program = self.programs.get(case)
            followers = self.alike.pop(program, [case])[1:] if program else []
            if found["status"] == "failed":
                for each in followers:  # each by itself: what ended one may not end another
                    self.waiting.put(each)
            elif program:
                self.known[program] = case, found
            self.tell(case, found | ({"program": program} if program else {}))
            if found["status"] != "failed":
                for each in followers:
                    self._follow(each, case, found)

    def _follow(self, case: Case, first: Case, found: Found) -> None:
        """The end of a case that another was compiled for: the seconds of the stages are those of the other."""
        self.tell(case, found | {"compiled_as": first.key, "program": self.programs.get(first)})
