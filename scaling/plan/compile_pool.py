"""Compile cases for other hardware in worker processes (compile_worker.py), equal programs only once."""

import dataclasses
import queue
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from scaling.core.case import Case, module_names, non_default_fields
from scaling.core.grouping import group_by
from scaling.core.record import RecordFields
from scaling.launcher.machine import ProcessShape
from scaling.launcher.worker_group import AllocationLost, Variant, WorkerDied, WorkerGroup, open_worker_group

_ENVIRONMENT_VARIABLES = {  # environment variables of a compile worker
    "JAX_PLATFORMS": "cpu",  # do not initialize accelerators
    "TPU_SKIP_MDS_QUERY": "1",  # do not query the metadata server of the cloud
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # do not check the installed CUDA libraries
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # allow libtpu in several processes
}
# The items that `compile_cases` yields, and errors. Each thread adds None when it ends.
_Events = queue.Queue[tuple[Case, RecordFields | None] | BaseException | None]


def compile_cases(
    header: Mapping[str, Any], cases: Iterable[Case], size: int, seconds: float
) -> Iterator[tuple[Case, RecordFields | None]]:
    """Compile cases in `size` worker processes, and yield each case with its record fields.

    When the compilation of a case begins, the case is also yielded with None. Cases with equal programs are
    compiled once. `header` describes the hardware to the workers. `seconds` is the timeout of a compilation.
    Raise `AllocationLost` if a worker does not start.
    """
    remaining_groups = iter(group_by(sorted(cases, key=lambda case: -case.devices), on_one_device).values())
    events: _Events = queue.Queue()
    for _ in range(size):
        arguments = header, remaining_groups, seconds, events
        threading.Thread(target=_compile_groups, args=arguments, daemon=True).start()
    try:
        for _ in range(size):
            while event := events.get():
                if isinstance(event, BaseException):
                    raise event
                yield event
    finally:
        list(remaining_groups)  # so that the workers begin no other group


def _compile_groups(
    header: Mapping[str, Any], groups: Iterator[list[Case]], seconds: float, events: _Events
) -> None:
    """Compile groups of cases in a worker process, and put the results into the queue `events`.

    The cases of a group have equal programs. The results are the items that `compile_cases` yields. A worker
    process that dies is restarted. If an error ends the work, the exception is put into the queue. The last
    item is None.
    """
    variant = Variant("plan", module="scaling.plan.compile_worker", variables=_ENVIRONMENT_VARIABLES)
    equal_cases = list[Case]()
    try:
        while equal_cases := equal_cases or next(groups, []):
            with open_worker_group(header, variant, ProcessShape(1), None) as worker:
                while equal_cases and _compile_first(worker, equal_cases, seconds, events):
                    equal_cases = equal_cases or next(groups, [])
    except WorkerDied as death:
        events.put(AllocationLost(f"the compile worker did not start: {death}"))
    except BaseException as error:
        events.put(error)
    events.put(None)


def _compile_first(worker: WorkerGroup, equal_cases: list[Case], seconds: float, events: _Events) -> bool:
    """Compile the first of several cases with equal programs. Return whether the worker is still alive.

    If the compilation fails, the record fields apply to the first case only, otherwise to all cases. These
    cases are removed from `equal_cases`, and put into the queue `events` with the record fields. `seconds` is
    the timeout.
    """
    case, is_alive = equal_cases.pop(0), True
    events.put((case, None))
    try:
        event = list(worker.request({"case": non_default_fields(case)}, seconds))[-1]
        record_fields = {name: value for name, value in event.items() if name not in ("event", "rank")}
    except WorkerDied as death:
        error_text = str(death) or f"timed out after {seconds:g} s (case_seconds)"
        record_fields, is_alive = {"status": "failed", "reason": death.reason, "text": error_text}, False
    record_fields["program"] = on_one_device(case).key
    events.put((case, record_fields))
    while equal_cases and record_fields["status"] != "failed":
        events.put((equal_cases.pop(0), record_fields | {"compiled_as": case.key}))
    return is_alive


def on_one_device(case: Case) -> Case:
    """Return a case on one device that runs the same program as each device of `case`.

    Return `case` itself if no such case is known.
    """
    # The program of a user's workload may depend on the total number of points.
    is_built_in = case.workload in module_names("workloads")
    if is_built_in and case.split == "points" and case.points % case.devices == 0:
        return dataclasses.replace(case, devices=1, points=case.points // case.devices)
    return case
