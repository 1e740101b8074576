"""List the candidates of `scaling.advise`, compile them in threads, and predict their memory and run times.

Candidates are cases that compute the same derivative with different AD modes, chunks, blocks and devices. One
of them may compute a compressed Jacobian (`find_useful_coloring`). Threads compile them, because a function
that is defined in a notebook cannot be sent to another process.
"""

import contextlib
import dataclasses
import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import jax

from scaling.advice import measurement
from scaling.core import environment, workload
from scaling.core.case import LAPLACIAN, SECOND, Case, Refusal
from scaling.core.compile_case import Stages
from scaling.core.derivative import Derivative, describe_derivative
from scaling.core.formatting import format_bytes
from scaling.core.inputs import point_structs
from scaling.core.record import Record, RecordFields
from scaling.launcher.cores import usable_cores
from scaling.options.coloring import Coloring, detect_coloring, why_unavailable
from scaling.plan import time_model
from scaling.plan.compile_worker import BuiltCase, describe_failure
from scaling.plan.hardware import Hardware
from scaling.programs import program_stats
from scaling.study import case_rules
from scaling.study.user_workload import ADVISED

_SECOND_ORDER_MODES = {
    "hessian": ("fwd_over_rev", "rev_over_rev", "fwd_over_fwd"),
    LAPLACIAN: ("fwd_over_rev", "forward_laplacian"),
    "hvp": ("fwd_over_rev", "rev_over_fwd", "rev_over_rev"),
}  # fmt: skip
_CHUNKED_MODES = ("jacfwd", "jacrev", "fwd_over_rev", "forward_laplacian")  # modes to try in chunks of seeds
CODED = "vmap_grad"  # the mode of a candidate whose program is the code of plain_code.py
_MAX_NESTED_FORWARD = 8  # the maximum number of inputs for forward over forward, which takes inputs**2 JVPs
_CHUNK_SIZES = (16, 128)  # the numbers of seeds at a time
_BLOCK_ELEMENTS = (2**14, 2**18)  # the numbers of elements of all Jacobians that are computed at a time
_MAX_COLORED_ENTRIES = 10**7  # the maximum number of entries of a Jacobian whose pattern is detected
_MIN_COLORED_SEEDS = 4  # with fewer seeds, a coloring saves too little
_MAX_COLORED_OPERATIONS = 10**7  # the maximum number of operations of the function; detection takes 10 s
_CAPTURED_COPIES = 50  # copies of captured arrays that compiling ten candidates in eight threads makes
_ALWAYS_COMPILED = 3  # the number of candidates that are compiled without time limit
NOT_COMPILED = "timeout"  # the reason of a candidate that was not compiled in time
INTERRUPTED = "not compiled: interrupted"


def list_candidates(base: Case, devices: Sequence[int] | None = None) -> tuple[list[Record], Derivative]:
    """Return records of the cases that may compute a derivative fastest, and this derivative.

    `base` is a case of the derivative. Its AD mode is ignored. `devices` contains the numbers of devices to
    compare, or is None to keep the layout of `base`.

    The status of a record is "planned", or "skipped" if the points do not divide evenly over the devices. If
    no AD mode applies to the function, the records state why. With more devices than points, the seeds of a
    workload are partitioned. The seeds of a function are not partitioned, because the code to paste cannot do
    that.
    """
    base = case_rules.complete(base)
    derivative = describe_derivative(base, workload.build(base))
    layouts = [base] if devices is None else [_choose_layout(base, n) for n in devices]
    records = dict[Case, Record]()  # different options can give the same case
    for incomplete in _enumerate_cases(layouts, _list_modes(derivative), derivative):
        case = case_rules.complete(incomplete)
        simplified = case_rules.without_trivial_blocks(describe_derivative(case, workload.build(case)))
        case = simplified.case
        why_skipped = case_rules.why_inapplicable(simplified)
        if case.split != "both" and case.points % case.mesh_shape[0]:
            text = f"points={case.points} do not divide evenly over {case.mesh_shape[0]} devices"
            why_skipped = "indivisible", text
        records[case] = Record(case, "planned", {})
        if why_skipped:
            records[case] = Record(case, "skipped", {}, *why_skipped)
    # Modes that are undefined for the function are reported only if there is nothing else to report.
    reported = [record for record in records.values() if record.reason in (None, "indivisible")]
    return reported or list(records.values()), derivative


def _choose_layout(base: Case, devices: int) -> Case:
    """Return a copy of `base` that partitions its points over `devices` devices.

    If a workload has fewer points than devices, partition its seeds instead.
    """
    splits_seeds = devices > base.points and not base.workload.startswith(ADVISED)
    return dataclasses.replace(
        base, devices=devices, api="shard_map" if devices > 1 else "jit",
        split="both" if splits_seeds else "points", mesh=f"1x{devices}" if splits_seeds else None,
    )  # fmt: skip


def _enumerate_cases(layouts: Sequence[Case], modes: Sequence[str], derivative: Derivative) -> Iterator[Case]:
    """Yield cases for each AD mode and layout. Each case sets at most one of batch, chunk and block."""
    built = derivative.workload
    largest_input = max(built.names, key=lambda name: math.prod(built.inputs[name].shape))
    other_inputs = "+".join(name for name in built.names if name != largest_input)
    for mode, base in itertools.product(modes, layouts):
        forward = other_inputs if mode == "mixed" else None
        plain = dataclasses.replace(base, mode=mode, batch="vmap", chunk=None, block=None, forward=forward)
        options: list[dict[str, Any]] = [{}] if built.whole is None else [{}, {"batch": "whole"}]
        if mode != CODED:
            seeds = derivative.outputs if mode == "jacrev" else derivative.inputs
            options += [{"chunk": n} for n in _CHUNK_SIZES if mode in _CHUNKED_MODES and 2 * n <= seeds]
            block_sizes = [max(1, n // (derivative.inputs * derivative.outputs)) for n in _BLOCK_ELEMENTS]
            options += [{"block": n} for n in block_sizes if 4 * n <= base.points // base.devices]
        yield from (dataclasses.replace(plain, **option) for option in options)


def _list_modes(derivative: Derivative) -> list[str]:
    """Return the names of the AD modes that may be the fastest for a derivative."""
    built = derivative.workload
    if modes := _SECOND_ORDER_MODES.get(derivative.case.target or ""):
        return [mode for mode in modes if mode != "fwd_over_fwd" or derivative.inputs <= _MAX_NESTED_FORWARD]
    is_general = not built.reduction.along_point  # otherwise J x takes a single JVP, but one VJP per output
    has_plain_inputs = not any("." in name for name in built.names)  # no pytrees
    applies = {
        "jacfwd": True,
        "jacrev": is_general,
        "grad_of_sum": is_general and built.reduce,  # for a single output, it is the same as jacrev
        "mixed": is_general and len(built.names) > 1 and has_plain_inputs,
        CODED: CODED in built.whole_modes,
    }
    return [mode for mode, mode_applies in applies.items() if mode_applies]


def find_useful_coloring(base: Case) -> Coloring | None:
    """Return a coloring that compresses the Jacobian of `base`, or None if no coloring is useful.

    Return the coloring of the columns or the coloring of the rows, whichever has fewer colors. It is useful
    if it saves at least half of the seeds. Return None for second derivatives, and for functions whose
    sparsity pattern takes long to detect.
    """
    base = case_rules.complete(base)
    built = workload.build(base)
    derivative = describe_derivative(base, built)
    fewest_seeds, entries = min(derivative.inputs, derivative.outputs), derivative.inputs * derivative.outputs
    if (
        base.target in SECOND
        or fewest_seeds < _MIN_COLORED_SEEDS
        or entries > _MAX_COLORED_ENTRIES
        or why_unavailable()
    ):
        return None
    counts = program_stats.count_operations(_trace_function(base))
    if sum(count or 0 for count in counts) > _MAX_COLORED_OPERATIONS:
        return None
    cases = [dataclasses.replace(base, mode=mode, seeds="colored") for mode in ("jacfwd", "jacrev")]
    try:
        colorings = [detect_coloring(case, built) for case in cases]
    except (Refusal, MemoryError):
        return None
    count_colors = lambda coloring: coloring.column_count or coloring.row_count  # noqa: E731
    best_coloring: Coloring = min(colorings, key=count_colors)
    return best_coloring if 2 * count_colors(best_coloring) <= fewest_seeds else None


def check_captured_arrays(base: Case) -> None:
    """Raise `Refusal` if a function captures arrays whose copies may fill the memory.

    `base` is a case of the function. Each program and each compilation has a copy of these arrays.
    """
    captured_bytes = sum(_find_captured_arrays(_trace_function(case_rules.complete(base))).values())
    free = environment.available_bytes()
    if free and captured_bytes * _CAPTURED_COPIES > free:
        raise Refusal(
            f"the function captures arrays of {format_bytes(captured_bytes)}, and compiling makes up to "
            f"{_CAPTURED_COPIES} copies of them, but {format_bytes(free)} are free: "
            "make them inputs that all points share"
        )


def _trace_function(case: Case) -> Any:
    """Return the jaxpr of the function of one point."""
    built = workload.build(case)
    describe_derivative(case, built)  # its error explains why a function cannot be traced
    return jax.make_jaxpr(lambda named: built.function(**named))(point_structs(case, built))


def _find_captured_arrays(jaxpr: Any) -> dict[int, int]:
    """Return {array ID: size in bytes} for the arrays that a jaxpr and its inner jaxprs capture."""
    found = {id(array): getattr(array, "nbytes", 0) for array in getattr(jaxpr, "consts", ())}
    for equation in jaxpr.eqns:
        for called in program_stats.subjaxprs(equation):
            found |= _find_captured_arrays(called)
    return found


def predict_candidates(
    records: Sequence[Record],
    model: Hardware,
    note: Callable[[str], None] = lambda text: None,
    seconds: float = math.inf,
) -> tuple[list[Record], dict[Case, Stages]]:
    """Compile the planned cases. Return records with predicted times, and {case: compiled program}.

    If a case cannot be compiled, its record states the reason, for example that it does not fit into memory.
    No programs are returned unless the machine is this CPU. If the user interrupts (Ctrl-C), the remaining
    cases are skipped. If no case is compiled yet, raise `KeyboardInterrupt`.

    Args:
        records: the candidates that `list_candidates` returned.
        model: the machine. If it is this CPU, its peak rates are measured.
        note: a function that is called with each line of progress text.
        seconds: the time limit for starting a compilation. The first three cases have no time limit.
    """
    built, results = _trace_planned(records, model)
    built.sort(key=lambda each: bool(each.case.block or each.case.chunk))  # plain programs are compiled first
    try:
        for number, (case, fields) in enumerate(_compile_in_threads(built, seconds), 1):
            results[case] = Record(case, environment={}, **fields)
            note(f"compiled {number} of {len(built)} candidates")
    except KeyboardInterrupt:
        if not any(record.status == "planned" for record in results.values()):
            raise
        note("interrupted: advice from the candidates that are compiled")
    planned = [case for case, record in results.items() if record.status == "planned"]
    if model.platform == "cpu" and planned:
        model = measurement.add_rates(model, planned)
    predicted = [Record(**time_model.predict(case, model, vars(record))) for case, record in results.items()]
    is_this_machine = model.platform == "cpu"
    return predicted, {each.case: each.stages for each in built if each.stages and is_this_machine}


def _trace_planned(records: Sequence[Record], model: Hardware) -> tuple[list[BuiltCase], dict[Case, Record]]:
    """Trace the planned cases. Return the traced programs, and {case: record} for all cases.

    The cases are traced one after another, because tracing the functions of users may not be thread-safe. If
    a case cannot be traced, its record states the reason.
    """
    results, built = {record.case: record for record in records}, list[BuiltCase]()
    free = environment.available_bytes()
    for case in [record.case for record in records if record.status == "planned"]:
        available = model.memory or (free and free / case.devices)  # the devices of a CPU share its memory
        try:
            built_case = BuiltCase(dataclasses.replace(model, memory=available), case)
            built_case.trace()
            built.append(built_case)
            fields = _not_compiled(INTERRUPTED)
        except Exception as error:
            fields = describe_failure(error)
        results[case] = Record(case, environment={}, **fields)
    return built, results


def _not_compiled(text: str) -> RecordFields:
    return {"status": "skipped", "reason": NOT_COMPILED, "text": text}


def _compile_in_threads(built: Sequence[BuiltCase], seconds: float) -> Iterator[tuple[Case, RecordFields]]:
    """Compile programs in threads, and yield the case and the record fields of each finished compilation.

    Programs whose compilation has not begun after `seconds` are skipped, except for the first three.
    """
    deadline = time.monotonic() + seconds
    late = f"not compiled: no time was left after {seconds:.0f} s of compiling; a larger budget allows more"

    def compile_in_time(built_case: BuiltCase) -> RecordFields:
        if time.monotonic() > deadline and built_case not in built[:_ALWAYS_COMPILED]:
            return _not_compiled(late)
        try:
            return built_case.compile()
        except Exception as error:
            return describe_failure(error)

    cores = _find_compile_cores()
    pool = ThreadPoolExecutor(len(cores), initializer=os.sched_setaffinity, initargs=(0, cores))
    uses_cache = jax.config.values["jax_enable_compilation_cache"]
    # A program that comes from the cache is not compiled, and XLA does not write its LLVM IR.
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        cases = {pool.submit(compile_in_time, built_case): built_case.case for built_case in built}
        for future in as_completed(cases):
            yield cases[future], future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        jax.config.update("jax_enable_compilation_cache", uses_cache)


def start_compile_threads(cores: Sequence[int]) -> None:
    """Start the threads in which XLA compiles, and bind them to the CPU cores `cores`.

    All existing threads keep the cores of this process. Call `jax.devices()` first, because it starts the
    threads that execute programs.
    """
    threads, bound = os.listdir("/proc/self/task"), os.sched_getaffinity(0)
    _bind(threads, cores)
    # XLA starts them at the first compilation, one for each core of the calling thread.
    jax.jit(lambda: jax.numpy.ones(1)).lower().compile()
    _bind(threads, bound)


def _find_compile_cores() -> list[int]:
    """Return the CPU cores on which this process or its compile threads may run."""
    cores = set(usable_cores())
    # A thread of Python may have started before this process was bound, as in a worker of srun or ssh.
    others = {str(thread.native_id) for thread in threading.enumerate()}
    for thread in set(os.listdir("/proc/self/task")) - others:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            cores |= os.sched_getaffinity(int(thread))
    return sorted(cores)


def _bind(threads: Iterable[str], cores: Iterable[int]) -> None:
    for thread in threads:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread), cores)
