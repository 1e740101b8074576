"""List the candidates of `scaling.advise`, compile them in threads, and predict their memory and run times.

Candidates are cases that compute the same derivative with different AD modes, chunks, blocks and devices. One
of them may compute a compressed Jacobian, with the coloring that `find_coloring` returns. Candidates are not
compiled in processes, because a function defined in a notebook cannot be sent to another process.
"""

import contextlib
import dataclasses
import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import jax

from scaling.advice import measurement
from scaling.core import environment, workload
from scaling.core.case import LAPLACIAN, SECOND, Case, Refusal, TooLarge
from scaling.core.compile_case import Stages
from scaling.core.derivative import Derivative, describe_derivative
from scaling.core.formatting import format_bytes
from scaling.core.inputs import point_structs
from scaling.core.record import RecordFields
from scaling.options import program_stats
from scaling.options.coloring import Coloring, detect_coloring, why_unavailable
from scaling.plan import time_model
from scaling.plan.compile_worker import BuiltCase, describe_failure
from scaling.plan.hardware import Hardware
from scaling.study import completion
from scaling.study.user_workload import ADVISED
from scaling.workers.cores import usable_cores

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
# A case with a chunk or block is not compiled if it needs more than this many times the fewest operations.
_MAX_WORK_RATIO = 10.0
_COMPILE_COPIES, _PROGRAM_COPIES = 4, 2  # copies of captured arrays: while a thread compiles, in a program
_ALWAYS_COMPILED = 3  # the number of candidates that are compiled without time limit


def list_candidates(
    base: Case, devices: Sequence[int] | None = None
) -> tuple[list[Case], dict[Case, str], Derivative]:
    """List the cases that may be the fastest way to compute the derivative of `base`.

    Return (candidates, {excluded case: reason}, `Derivative` that the candidates compute). A case is excluded
    if its points do not divide evenly over the devices. If there are neither candidates nor such cases, the
    cases that do not apply to the function are returned as excluded.

    The AD mode of `base` is ignored. `devices` contains the device counts to compare, or is None to keep the
    layout of `base`. If there are more devices than points, the seeds of a workload are partitioned, but not
    those of a function, because the code to paste cannot do that.
    """
    base = completion.complete(base)
    derivative = describe_derivative(base, workload.build(base))
    layouts = [base] if devices is None else [_choose_layout(base, n) for n in devices]
    # Different options can give the same case, so cases are dict keys. The last two dicts map to reasons.
    cases, indivisible, inapplicable = dict[Case, None](), dict[Case, str](), dict[Case, str]()
    for incomplete in _enumerate_cases(layouts, _list_modes(derivative), derivative):
        case = completion.complete(incomplete)
        simplified = completion.without_trivial_blocks(describe_derivative(case, workload.build(case)))
        case = simplified.case
        if case.split != "both" and case.points % case.mesh_shape[0]:
            indivisible[case] = f"points={case.points} do not divide evenly over {case.mesh_shape[0]} devices"
        elif reason := completion.why_inapplicable(simplified):
            inapplicable[case] = reason[1]
        else:
            cases[case] = None
    # Modes that are undefined for the function are reported only if there is nothing else to report.
    return list(cases), indivisible or ({} if cases else inapplicable), derivative


def _choose_layout(base: Case, devices: int) -> Case:
    """Return a copy of `base` that partitions its points over `devices` devices.

    If there are fewer points than devices, partition the seeds of a workload instead.
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
    coded = [CODED] if CODED in built.whole_modes else []
    if built.reduction.along_point:  # J x takes a single JVP, but one VJP per output
        return ["jacfwd", *coded]
    modes = ("jacfwd", "jacrev")
    if built.reduce:  # for a single output, grad_of_sum is the same as jacrev
        modes += ("grad_of_sum",)
    if len(built.names) > 1 and not any("." in name for name in built.names):
        modes += ("mixed",)
    return [*modes, *coded]


def find_coloring(base: Case, modes: Sequence[str] = ("jacfwd", "jacrev")) -> Coloring | None:
    """Return a coloring of the columns or rows of the Jacobian, or None if there is no useful coloring.

    If `modes` contains "jacfwd", the columns are colored. If it contains "jacrev", the rows are colored. The
    coloring with fewer colors is returned. It must save at least half of the seeds. Second derivatives are
    not colored, nor are functions whose sparsity pattern takes long to detect.
    """
    base = completion.complete(base)
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
    traced = jax.make_jaxpr(lambda named: built.function(**named))(point_structs(base, built))
    if _sum_operations(traced) > _MAX_COLORED_OPERATIONS:
        return None
    cases = [dataclasses.replace(base, mode=mode, seeds="colored") for mode in modes]
    try:
        colorings = [detect_coloring(case, built) for case in cases]
    except (Refusal, MemoryError):
        return None
    count_colors = lambda coloring: coloring.column_count or coloring.row_count  # noqa: E731
    best_coloring: Coloring = min(colorings, key=count_colors)
    return best_coloring if 2 * count_colors(best_coloring) <= fewest_seeds else None


def predict_candidates(
    cases: Sequence[Case],
    model: Hardware,
    note: Callable[[str], None] = lambda text: None,
    seconds: float = math.inf,
) -> tuple[dict[Case, RecordFields], dict[Case, Stages]]:
    """Compile cases, predict their times, and return ({case: record fields}, {case: compiled program}).

    The field `predicted` contains the predicted time. If the field `status` is not "planned", the field
    `text` contains the reason, for example that the case does not fit into memory. If the machine is not a
    CPU, the second dict is empty. If the user interrupts (Ctrl-C), the cases that are not compiled yet are
    omitted. If no case is compiled yet, the function raises `KeyboardInterrupt`.

    Args:
        model: the machine. If it is this CPU, the peak rates that limit the programs are measured.
        note: a function that is called with each line of progress text.
        seconds: the time after which no compilation begins, except that the first three always do.
    """
    fields, stages = _compile_candidates(cases, model, note, seconds)
    if model.platform == "cpu" and any(each["status"] == "planned" for each in fields.values()):
        model = measurement.add_rates(model, fields)
    predicted = {case: time_model.predict(case, model, fields[case]) for case in cases if case in fields}
    return predicted, stages if model.platform == "cpu" else {}


def _compile_candidates(
    cases: Sequence[Case],
    model: Hardware,
    note: Callable[[str], None],
    seconds: float,
) -> tuple[dict[Case, RecordFields], dict[Case, Stages]]:
    fields, built, work = dict[Case, RecordFields](), dict[Case, BuiltCase](), dict[Case, float]()
    free = environment.available_bytes()
    copies = _COMPILE_COPIES * min(len(cases), len(_find_compile_cores())) + _PROGRAM_COPIES * len(cases)
    for case in cases:
        available = model.memory or (free and free / case.devices)  # the devices of a CPU share its memory
        try:
            candidate = BuiltCase(dataclasses.replace(model, memory=available), case)
            traced = candidate.trace()
            _check_captured_arrays(traced, copies, free)
            work[case] = _sum_operations(traced) * case.devices
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
        for number, (case, compiled) in enumerate(_compile_in_threads(ordered, seconds), 1):
            fields[case] = compiled
            note(f"compiled {number} of {len(built)} candidates")
    except KeyboardInterrupt:
        if all(each["status"] != "planned" for each in fields.values()):
            raise
        note("interrupted: advice from the candidates that are compiled")
    return fields, {case: each.stages for case, each in built.items() if each.stages}


def _compile_in_threads(built: Sequence[BuiltCase], seconds: float) -> Iterator[tuple[Case, RecordFields]]:
    """Compile programs in threads, and yield (case, record fields) when a compilation is finished.

    Programs whose compilation has not begun after `seconds` are skipped, except for the first three.
    """
    deadline, skipped = time.monotonic() + seconds, {"status": "skipped", "reason": "no_time"}
    skipped["text"] = f"not compiled: no time was left after {seconds:.0f} s of compiling"

    def compile_in_time(built_case: BuiltCase) -> RecordFields:
        is_late = time.monotonic() > deadline and built_case not in built[:_ALWAYS_COMPILED]
        return skipped if is_late else built_case.compile()

    cores = _find_compile_cores()
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


def _check_captured_arrays(jaxpr: Any, copies: int, free: float | None) -> None:
    """Raise `TooLarge` if `copies` copies of the arrays that a program has captured exceed `free` bytes."""
    captured_bytes = sum(_find_captured_arrays(jaxpr).values())
    if free and captured_bytes * copies > free:
        raise TooLarge(
            f"the function captures arrays of {format_bytes(captured_bytes)}, and compiling makes about "
            f"{copies} copies of them, but {format_bytes(free)} are free: "
            "make them inputs that all points share"
        )


def _find_captured_arrays(jaxpr: Any) -> dict[int, int]:
    """Return {identity: bytes} of the arrays that a jaxpr, or one in its equations, has captured."""
    found = {id(array): getattr(array, "nbytes", 0) for array in getattr(jaxpr, "consts", ())}
    for equation in jaxpr.eqns:
        for called in program_stats.subjaxprs(equation):
            found |= _find_captured_arrays(called)
    return found


def _sum_operations(jaxpr: Any) -> float:
    """Return the number of flops and transcendental function evaluations of a jaxpr, or 0 if unknown."""
    return float(sum(count or 0 for count in program_stats.count_operations(jaxpr))) if jaxpr else 0.0


def find_case_of_mode(cases: Sequence[Case], mode: str) -> Case | None:
    """Return the case with the AD mode `mode` that uses the fewest devices, or None if there is none.

    Only cases with batch=vmap, without a chunk and without a block are considered.
    """
    plain = [c for c in cases if (c.mode, c.chunk, c.block, c.batch) == (mode, None, None, "vmap")]
    return min(plain, key=lambda case: case.devices, default=None)


def start_compile_threads(cores: Sequence[int]) -> None:
    """Start the threads in which XLA compiles, and bind them to the CPU cores `cores`.

    Other threads keep the cores of this process. Call `jax.devices()` first, so that the threads that execute
    programs already exist and are not bound.
    """
    threads, bound = os.listdir("/proc/self/task"), os.sched_getaffinity(0)
    _bind(threads, cores)
    # XLA starts them at the first compilation, one for each core of the calling thread.
    jax.jit(lambda: jax.numpy.ones(1)).lower().compile()
    _bind(threads, bound)


def _find_compile_cores() -> list[int]:
    """Return the CPU cores of this process and of its compile threads (`start_compile_threads`)."""
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
