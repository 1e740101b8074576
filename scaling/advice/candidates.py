"""List the candidates of `scaling.advise`: cases with different AD modes, chunks, blocks and devices.

`find_coloring` finds the coloring for a candidate that computes a compressed Jacobian.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from scaling.core import workload
from scaling.core.case import LAPLACIAN, SECOND, Case, Refusal
from scaling.core.derivative import Derivative, describe_derivative
from scaling.core.inputs import point_structs
from scaling.options import program_stats
from scaling.options.coloring import Coloring, detect_coloring, why_unavailable
from scaling.study import applicability, completion

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
_MAX_COLORED_OPERATIONS = 10**8  # the maximum number of operations of the function; detection takes 30 s


def list_candidates(
    base: Case, devices: Sequence[int] | None = None, may_split_seeds: bool = True
) -> tuple[list[Case], dict[Case, str], Derivative]:
    """List the cases that may be the fastest way to compute the derivative of `base`.

    Return (candidates, {excluded case: reason}, `Derivative` that the candidates compute). A case is excluded
    if its points do not divide evenly over the devices. If there are neither candidates nor such cases, the
    cases that do not apply to the function are returned as excluded.

    The AD mode of `base` is ignored. `devices` contains the device counts to compare, or is None to keep the
    layout of `base`. If `may_split_seeds` is true, the seeds are partitioned when there are more devices than
    points.
    """
    base = completion.complete(base)
    derivative = describe_derivative(base, workload.build(base))
    layouts = [base] if devices is None else [_choose_layout(base, n, may_split_seeds) for n in devices]
    # Different options can give the same case, so cases are dict keys. The last two dicts map to reasons.
    cases, indivisible, inapplicable = dict[Case, None](), dict[Case, str](), dict[Case, str]()
    for incomplete in _enumerate_cases(layouts, _list_modes(derivative), derivative):
        case = completion.complete(incomplete)
        simplified = completion.without_trivial_blocks(describe_derivative(case, workload.build(case)))
        case = simplified.case
        if case.split != "both" and case.points % case.mesh_shape[0]:
            indivisible[case] = f"{case.points} points do not divide evenly over {case.mesh_shape[0]} devices"
        elif reason := applicability.why_inapplicable(simplified):
            inapplicable[case] = reason[1]
        else:
            cases[case] = None
    # Modes that are undefined for the function are reported only if there is nothing else to report.
    return list(cases), indivisible or ({} if cases else inapplicable), derivative


def _choose_layout(base: Case, devices: int, may_split_seeds: bool) -> Case:
    """Return a copy of `base` that partitions its points over `devices` devices.

    If there are fewer points than devices and `may_split_seeds` is true, partition the seeds instead.
    """
    splits_seeds = devices > base.points and may_split_seeds
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
    if sum_operations(traced) > _MAX_COLORED_OPERATIONS:
        return None
    cases = [dataclasses.replace(base, mode=mode, seeds="colored") for mode in modes]
    try:
        colorings = [detect_coloring(case, built) for case in cases]
    except (Refusal, MemoryError):
        return None
    count_colors = lambda coloring: coloring.column_count or coloring.row_count  # noqa: E731
    best_coloring: Coloring = min(colorings, key=count_colors)
    return best_coloring if 2 * count_colors(best_coloring) <= fewest_seeds else None


def sum_operations(jaxpr: Any) -> float:
    """Return the number of flops and transcendental function evaluations of a jaxpr, or 0 if unknown."""
    return float(sum(count or 0 for count in program_stats.count_operations(jaxpr))) if jaxpr else 0.0


def find_case_of_mode(cases: Sequence[Case], mode: str) -> Case | None:
    """Return the case with the AD mode `mode` that uses the fewest devices, or None if there is none.

    Only cases with batch=vmap, without a chunk and without a block are considered.
    """
    plain = [c for c in cases if (c.mode, c.chunk, c.block, c.batch) == (mode, None, None, "vmap")]
    return min(plain, key=lambda case: case.devices, default=None)
