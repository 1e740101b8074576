"""Compile the candidates of `scaling.advise` in threads, and predict their memory and run times.

Processes are not used, because a function defined in a notebook cannot be sent to another process.
"""

import contextlib
import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

import jax

from scaling.advice import local_peaks
from scaling.advice.candidates import CODED, sum_operations
from scaling.core import environment
from scaling.core.case import Case
from scaling.core.compile_case import Stages
from scaling.plan import time_model
from scaling.plan.compile_pool import RecordFields
from scaling.plan.compile_worker import BuiltCase, describe_failure
from scaling.plan.hardware import Hardware
from scaling.workers.cores import usable_cores

# A case with a chunk or block is not compiled if it needs more than this many times the fewest operations.
_MAX_WORK_RATIO = 10.0
_ALWAYS_COMPILED = 3  # the number of candidates that are compiled without time limit


def start_compile_threads(cores: Sequence[int]) -> None:
    """Start the threads in which XLA compiles, and bind them to the CPU cores `cores`.

    Threads that already exist keep their cores. Call `jax.devices()` first, so that the threads that execute
    programs already exist and are not bound.
    """
    threads, bound = os.listdir("/proc/self/task"), os.sched_getaffinity(0)
    _bind(threads, cores)
    # XLA starts them at the first compilation, one for each core of the calling thread.
    jax.jit(lambda: jax.numpy.ones(1)).lower().compile()
    _bind(threads, bound)


def _bind(threads: Iterable[str], cores: Iterable[int]) -> None:
    for thread in threads:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread), cores)


def predict_candidates(
    cases: Sequence[Case],
    model: Hardware,
    note: Callable[[str], None] = lambda text: None,
    seconds: float = math.inf,
    compile_cores: Sequence[int] = (),
) -> tuple[dict[Case, RecordFields], dict[Case, Stages]]:
    """Compile cases, predict their times, and return ({case: record fields}, {case: compiled program}).

    The field `predicted` contains the predicted time. If the field `status` is not "planned", the field
    `text` contains the reason, for example that the case does not fit into memory. If the machine is not a
    CPU, the second dict is empty. Ctrl-C omits the cases that are not compiled yet. It raises
    `KeyboardInterrupt` if no case is compiled.

    Args:
        model: the machine. If it is this CPU, the peak rates that limit the programs are measured.
        note: a function that is called with each line of progress text.
        seconds: the time after which no compilation begins. The first candidates are always compiled.
        compile_cores: the CPU cores on which threads compile, by default those of this process.
    """
    fields, stages = _compile_candidates(cases, model, note, seconds, compile_cores or usable_cores())
    if model.platform == "cpu" and any(each["status"] == "planned" for each in fields.values()):
        model = local_peaks.add_rates(model, fields)
    predicted = {case: time_model.predict(case, model, fields[case]) for case in cases if case in fields}
    return predicted, stages if model.platform == "cpu" else {}


def _compile_candidates(
    cases: Sequence[Case],
    model: Hardware,
    note: Callable[[str], None],
    seconds: float,
    cores: Sequence[int],
) -> tuple[dict[Case, RecordFields], dict[Case, Stages]]:
    fields: dict[Case, RecordFields] = {}
    built: dict[Case, BuiltCase] = {}
    work: dict[Case, float] = {}
    free = environment.available_bytes()
    for case in cases:
        available = model.memory or (free and free / case.devices)  # the devices of a CPU share its memory
        try:
            candidate = BuiltCase(dataclasses.replace(model, memory=available), case)
            work[case] = sum_operations(candidate.trace()) * case.devices
            built[case] = candidate
        except Exception as error:
            fields[case] = describe_failure(error)
    excess = _find_excessive_work(work)
    for case, text in excess.items():
        if case.chunk or case.block:  # plain modes are always compiled, for comparison
            fields[case] = {"status": "skipped", "reason": "dominated", "text": f"not compiled: {text}"}
            del built[case]
    try:
        # Cases that are unlikely to be the fastest are compiled last.
        rank = lambda case: (case in excess, bool(case.block or case.chunk), work[case])  # noqa: E731
        ordered = [built[case] for case in sorted(built, key=rank)]
        for number, (case, compiled) in enumerate(_compile_in_threads(ordered, seconds, cores), 1):
            fields[case] = compiled
            note(f"compiled {number} of {len(built)} candidates")
    except KeyboardInterrupt:
        if all(each["status"] != "planned" for each in fields.values()):
            raise
        note("interrupted: advice from the candidates that are compiled")
    return fields, {case: each.stages for case, each in built.items() if each.stages}


def _compile_in_threads(
    built: Sequence[BuiltCase], seconds: float, cores: Sequence[int]
) -> Iterator[tuple[Case, RecordFields]]:
    """Compile programs in threads, and yield (case, record fields) when a compilation is finished.

    Programs whose compilation has not begun after `seconds` are skipped, except for the first three.
    """
    deadline, skipped = time.monotonic() + seconds, {"status": "skipped", "reason": "no_time"}
    skipped["text"] = f"not compiled: no time was left after {seconds:.0f} s of compiling"

    def compile_in_time(built_case: BuiltCase) -> RecordFields:
        is_late = time.monotonic() > deadline and built_case not in built[:_ALWAYS_COMPILED]
        return skipped if is_late else built_case.compile()

    # This process is bound to the cores on which it measures. These threads may use other cores as well.
    pool = ThreadPoolExecutor(len(cores), initializer=os.sched_setaffinity, initargs=(0, cores))
    uses_cache = jax.config.values["jax_enable_compilation_cache"]
    # A program that comes from the cache is not compiled, and XLA does not write its LLVM IR.
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        cases = {pool.submit(compile_in_time, built_case): built_case.case for built_case in built}
        for future in as_completed(cases):
            try:
                fields = future.result()
            except Exception as error:
                fields = describe_failure(error)
            yield cases[future], fields
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        jax.config.update("jax_enable_compilation_cache", uses_cache)


def _find_excessive_work(work: Mapping[Case, float]) -> dict[Case, str]:
    """Return {case: explanation} for the cases that need many more operations than the cheapest case.

    `work` maps each case to its number of operations. The limit is ten times the smallest number.
    """
    # A compressed program is no baseline, because the operations that expand its result are not counted.
    dense = [value for case, value in work.items() if value and case.mode != CODED]
    least = min(dense, default=math.inf)
    return {
        case: f"it counts {value / least:,.0f} times the operations of another candidate"
        for case, value in work.items()
        if value > _MAX_WORK_RATIO * least
    }
