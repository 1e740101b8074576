"""Find the largest blocks of points and of seeds that fit into memory, by compiling them (`chunk=auto`).

Points are batch elements, and seeds are tangents or cotangents. The candidates are all points with all seeds,
fewer points with all seeds, all points with fewer seeds and, if none of these fits, a single point with fewer
seeds. Each candidate is compiled to measure the memory of its program, because this memory can increase when
fewer points or seeds are computed at a time. Candidates are compiled in decreasing order of size. The first
candidate that fits is enlarged by half if the larger program also fits.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scaling.core.case import Case
from scaling.core.compile_case import CompiledCase, DescribeShortage
from scaling.core.formatting import count_of, format_bytes
from scaling.core.shape import DerivativeShape, TooLarge, ceil_div
from scaling.core.workload import Workload

DEVICE, HOST = "device", "host"


@dataclass(frozen=True)
class BlockSizes:
    """The numbers of points and seeds that a device computes at a time, and where its arrays are stored.

    `block` is the number of points and `chunk` the number of seeds. None means all points or seeds of
    the device. `storage` is the memory that contains the inputs and the result: "device" or "host".
    """

    block: int | None = None
    chunk: int | None = None
    storage: str = DEVICE


@dataclass(frozen=True)
class MemoryNeed:
    """The memory that a program needs on each device.

    Attributes:
        bytes: the number of bytes, or None if it is unknown.
        fits: whether the program fits into memory.
        hopeless: whether the inputs and the result alone, without temporary arrays, exceed the memory, so
            that smaller blocks do not fit either.
    """

    bytes: int | None
    fits: bool
    hopeless: bool = False


def compile_largest(
    case: Case,
    workload: Workload,
    sizes: DerivativeShape,
    compile_blocks: Callable[[Case], CompiledCase],
    describe_shortage: DescribeShortage,
    known_blocks: Mapping[str, Any] | None,
) -> CompiledCase:
    """Return a case compiled with the largest block sizes that fit into memory.

    Raise `TooLarge` if no block sizes fit. `compile_blocks` compiles a case with given `block`, `chunk` and
    `storage`. `known_blocks` is the field `blocks` of the record of an earlier run, or None.
    """
    fitting: dict[BlockSizes, CompiledCase] = {}
    last: CompiledCase | None = None
    shortage: str | None = None

    def compile_and_measure(blocks: BlockSizes) -> MemoryNeed:
        nonlocal last, shortage
        storage = HOST if blocks.storage == HOST else None
        last = compile_blocks(dataclasses.replace(case, **vars(blocks) | {"storage": storage}))
        shortage = describe_shortage(last) or last.overflow
        if not shortage:
            fitting[blocks] = last
            return MemoryNeed(last.bytes_while_running, True)
        needs = {**last.needs, "temp_bytes": 0} if last.needs.get("temp_bytes") else last.needs
        is_hopeless = describe_shortage(dataclasses.replace(last, needs=needs)) is not None
        return MemoryNeed(last.bytes_while_running, False, is_hopeless)

    known = None
    if known_blocks:
        known = BlockSizes(known_blocks["block"], known_blocks["chunk"], known_blocks["storage"])
    blocks, needs = find_blocks(case, workload, sizes, compile_and_measure, known)
    if blocks is not None:
        probes = [vars(probed) | {"bytes": need.bytes} for probed, need in needs.items()]
        record = vars(blocks) | {"limit_bytes": case.memory_limit, "probes": probes}
        return dataclasses.replace(fitting[blocks], blocks=record)
    assert last is not None
    least = min((need.bytes for need in needs.values() if need.bytes is not None), default=None)
    tried = count_of(len(needs), "program")
    smallest = f"; the smallest of {tried} needs {format_bytes(least)}" if least else ""
    raise TooLarge(f"no block size fits: {shortage}{smallest}", last.recorded_needs)


def find_blocks(
    case: Case,
    workload: Workload,
    sizes: DerivativeShape,
    measure: Callable[[BlockSizes], MemoryNeed],
    known: BlockSizes | None = None,
) -> tuple[BlockSizes | None, dict[BlockSizes, MemoryNeed]]:
    """Find the largest numbers of points and seeds that a device can compute at a time within its memory.

    Block sizes with the inputs and the result on the host are tried if `case.storage` is "host", or if
    `case.storage` is None and no block sizes fit on the device. Storage on the host requires `batch=vmap` and
    a reduction that does not sum over the points.

    Args:
        measure: returns the memory that a program with given block sizes needs.
        known: block sizes that fitted in an earlier run, which are tried first.

    Returns:
        The largest block sizes that fit into memory, or None if no candidate fits.
        The memory of each candidate that was measured, in the order of measurement.
    """
    needs: dict[BlockSizes, MemoryNeed] = {}
    can_offload = case.batch == "vmap" and not workload.reduction.sums_points

    def probe(blocks: BlockSizes) -> MemoryNeed:
        if blocks not in needs:
            needs[blocks] = measure(blocks)
        return needs[blocks]

    if known is not None and probe(known).fits:
        return known, needs
    for storage in (DEVICE, HOST) if case.storage is None else (case.storage,):
        if storage == DEVICE or can_offload:
            largest = _find_in_storage(storage, case, workload, sizes, probe)
            if largest is not None:
                return largest, needs
    return None, needs


def _find_in_storage(
    storage: str,
    case: Case,
    workload: Workload,
    sizes: DerivativeShape,
    probe: Callable[[BlockSizes], MemoryNeed],
) -> BlockSizes | None:
    """Return the largest block sizes that fit with the given storage, or None if no candidate fits."""
    points = ceil_div(case.points, case.axes[0])
    seeds = max(ceil_div(part.seeds, case.axes[1]) for part in sizes.parts)
    can_divide_points = case.batch == "vmap" or workload.reduction.sums_points
    undivided = [BlockSizes()] if storage == DEVICE else []
    fewer_points = [BlockSizes(block, None, storage) for block in _halves(points) if can_divide_points]
    fewer_seeds = [BlockSizes(None, chunk, storage) for chunk in _halves(seeds)]
    first = [_first_fitting(undivided + candidates, probe) for candidates in (fewer_points, fewer_seeds)]
    is_hopeless = storage == DEVICE and probe(BlockSizes()).hopeless
    if not any(first) and can_divide_points and points > 1 and not is_hopeless:
        first = [_first_fitting([BlockSizes(1, chunk, storage) for chunk in _halves(seeds)], probe)]

    def work_per_step(blocks: BlockSizes) -> tuple[int, bool]:
        # Candidates with all seeds win a tie, because their results are contiguous.
        return min(points, blocks.block or points) * min(seeds, blocks.chunk or seeds), blocks.chunk is None

    return max((blocks for blocks in first if blocks is not None), key=work_per_step, default=None)


def _first_fitting(
    candidates: Iterable[BlockSizes], probe: Callable[[BlockSizes], MemoryNeed]
) -> BlockSizes | None:
    """Return the first candidate that fits into memory, or None if no candidate fits.

    The candidates must be in decreasing order of size. The first that fits is enlarged by half if the result
    is smaller than the previous candidate and also fits.
    """
    too_large = None
    for blocks in candidates:
        need = probe(blocks)
        if need.fits:
            between = _enlarge_by_half(blocks, too_large) if too_large else None
            return between if between and probe(between).fits else blocks
        if need.hopeless and blocks.storage == DEVICE:
            return None
        too_large = blocks
    return None


def _halves(count: int) -> Iterator[int]:
    """Yield count / 2, count / 4, ... down to 1, each rounded up to an integer."""
    while count > 1:
        count = ceil_div(count, 2)
        yield count


def _enlarge_by_half(blocks: BlockSizes, too_large: BlockSizes) -> BlockSizes | None:
    """Return `blocks` enlarged by half, or None if no size lies between `blocks` and `too_large`."""
    field = "chunk" if blocks.chunk is not None else "block"
    count = getattr(blocks, field)
    larger = count + count // 2
    if larger in (count, getattr(too_large, field)):
        return None
    return dataclasses.replace(blocks, **{field: larger})
