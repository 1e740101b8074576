"""Implement `chunk=auto`: find the largest `BlockSizes` (points and seeds at a time) that fit into memory.

First, the number of points is halved, with all seeds, until the program fits. Then the number of seeds is
halved, with all points, until the program fits. Both results are enlarged by half if the larger program also
fits. The result that computes more (point, seed) pairs at a time is selected. If neither search finds a
program that fits, the number of seeds is halved for a single point. Each candidate is compiled, because the
memory of a program can increase when fewer points or seeds are computed at a time.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scaling.core.case import DEVICE, HOST, TooLarge
from scaling.core.compile_case import CompiledCase, DescribeShortage, raise_if_too_large, without_program
from scaling.core.derivative import Derivative, ceil_div
from scaling.core.formatting import format_bytes, format_count
from scaling.core.record import bytes_while_running


@dataclass(frozen=True)
class BlockSizes:
    """The numbers of points and seeds that a device computes at a time, and where the arrays are stored."""

    block: int | None = None  # points (batch elements); None: all points of the device
    chunk: int | None = None  # seeds (tangents or cotangents); None: all seeds of the device
    storage: str = DEVICE  # the memory that stores the inputs and the result: "device" or "host"


@dataclass(frozen=True)
class MemoryNeed:
    """The memory that a program needs on each device, and whether the program fits into memory."""

    bytes: int | None  # the bytes on each device, or None if they are unknown
    fits: bool  # whether the program fits into memory
    io_exceeds_memory: bool = False  # whether the inputs and the result alone exceed the memory
    compiled: Any = None  # the `CompiledCase` of the program if it fits
    error: TooLarge | None = None  # states why the program does not fit


def compile_largest(
    derivative: Derivative,
    compile_blocks: Callable[[Derivative], CompiledCase],
    describe_shortage: DescribeShortage,
    known_blocks: Mapping[str, Any] | None,
) -> CompiledCase:
    """Compile a case with the largest block sizes (points and seeds at a time) that fit into memory.

    `compile_blocks` compiles a case with given sizes. `describe_shortage` returns an error message if memory
    is too small, otherwise None. If `known_blocks` (the field `blocks` of an earlier record) is given, its
    sizes are tried first. Raise `TooLarge` if no sizes fit.
    """

    def compile_and_measure(blocks: BlockSizes) -> MemoryNeed:
        storage = HOST if blocks.storage == HOST else None
        case_with_blocks = dataclasses.replace(derivative.case, **vars(blocks) | {"storage": storage})
        divided = dataclasses.replace(derivative, case=case_with_blocks)
        uncompiled = without_program(divided)
        try:
            raise_if_too_large(uncompiled, describe_shortage)
            compiled = compile_blocks(divided)
            raise_if_too_large(compiled, describe_shortage)
        except TooLarge as error:
            need = bytes_while_running(error.needs, 2 if storage == HOST else 1)
            return MemoryNeed(need, False, bool(describe_shortage(uncompiled)), error=error)
        return MemoryNeed(compiled.bytes_while_running, True, compiled=compiled)

    names = ("block", "chunk", "storage")
    earlier = BlockSizes(**{name: known_blocks[name] for name in names}) if known_blocks else None
    blocks, needs = find_blocks(derivative, compile_and_measure, earlier)
    if blocks is not None:
        probes = [vars(sizes) | {"bytes": need.bytes} for sizes, need in needs.items()]
        record = vars(blocks) | {"limit_bytes": derivative.case.memory_limit, "probes": probes}
        return dataclasses.replace(needs[blocks].compiled, blocks=record)
    error = list(needs.values())[-1].error
    assert error is not None
    smallest_need = min((need.bytes for need in needs.values() if need.bytes is not None), default=None)
    tried = format_count(len(needs), "program")
    smallest = f"; the smallest of {tried} needs {format_bytes(smallest_need)}" if smallest_need else ""
    raise TooLarge(f"no block size fits: {error}{smallest}", error.needs)


def find_blocks(
    derivative: Derivative, measure: Callable[[BlockSizes], MemoryNeed], earlier: BlockSizes | None
) -> tuple[BlockSizes | None, dict[BlockSizes, MemoryNeed]]:
    """Find the largest `BlockSizes` that fit into memory. Return (sizes, {tried sizes: `MemoryNeed`}).

    `sizes` is None if no sizes fit. `measure(sizes)` compiles a program with these sizes, and returns the
    `MemoryNeed` of the program. If the sizes `earlier` fit, return them, and try no other sizes.
    """
    needs: dict[BlockSizes, MemoryNeed] = {}
    case, sums_points = derivative.case, derivative.workload.reduction.sums_points
    can_divide_points = case.batch == "vmap" or sums_points
    points = ceil_div(case.points, case.mesh_shape[0])
    seeds = max(ceil_div(part.seeds, case.mesh_shape[1]) for part in derivative.parts)

    def need_of(blocks: BlockSizes) -> MemoryNeed:
        if blocks not in needs:
            needs[blocks] = measure(blocks)
        return needs[blocks]

    def work_per_step(blocks: BlockSizes) -> tuple[int, bool]:
        # Candidates with all seeds win a tie, because their results are contiguous.
        return min(points, blocks.block or points) * min(seeds, blocks.chunk or seeds), blocks.chunk is None

    def find_in_storage(storage: str) -> BlockSizes | None:
        undivided = [BlockSizes()] if storage == DEVICE else []  # host memory is of use only with steps
        block_sizes = _halves(points) if can_divide_points else ()
        fewer_points = [BlockSizes(block, None, storage) for block in block_sizes]
        fewer_seeds = [BlockSizes(None, chunk, storage) for chunk in _halves(seeds)]
        fitting = [_first_fitting(undivided + blocks, need_of) for blocks in (fewer_points, fewer_seeds)]
        io_exceeds_memory = storage == DEVICE and need_of(BlockSizes()).io_exceeds_memory
        if not any(fitting) and can_divide_points and points > 1 and not io_exceeds_memory:
            fitting = [_first_fitting([BlockSizes(1, chunk, storage) for chunk in _halves(seeds)], need_of)]
        return max(filter(None, fitting), key=work_per_step, default=None)

    if earlier is not None and need_of(earlier).fits:
        return earlier, needs
    # If `case.storage` is None, host memory is tried only if no candidate fits into device memory.
    can_use_host = case.batch == "vmap" and not sums_points
    storages = [s for s in (DEVICE, HOST) if case.storage in (None, s) and (s == DEVICE or can_use_host)]
    return next(filter(None, map(find_in_storage, storages)), None), needs


def _first_fitting(
    candidates: Iterable[BlockSizes], need_of: Callable[[BlockSizes], MemoryNeed]
) -> BlockSizes | None:
    """Return the first candidate that fits into memory, enlarged if possible, or None if none fits.

    The candidates differ in one field, `block` or `chunk`, and are in decreasing order. If the result is not
    the first candidate, its field is multiplied by 1.5, provided that the larger program fits.
    """
    too_large = None
    for blocks in candidates:
        need = need_of(blocks)
        if need.fits:
            field = "block" if blocks.chunk is None else "chunk"
            if too_large is None:
                return blocks
            enlarged = dataclasses.replace(blocks, **{field: getattr(blocks, field) * 3 // 2})
            return enlarged if enlarged != too_large and need_of(enlarged).fits else blocks
        if need.io_exceeds_memory and blocks.storage == DEVICE:
            return None
        too_large = blocks
    return None


def _halves(count: int) -> Iterator[int]:
    """Yield count / 2, count / 4, ... down to 1, each rounded up to an integer."""
    while count > 1:
        count = ceil_div(count, 2)
        yield count
