"""chunk=auto: find the largest blocks of a derivative that fit into memory, by compiling.

Fewer points with all their seeds, or all points with fewer seeds, whichever computes more at a time; where
neither fits, fewer seeds of one point. What a program needs is not monotone in these, so it is not modelled:
candidates are compiled, from the largest on, and the first that fits is refined once.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from scaling.core.case import Case
from scaling.core.compile_case import CompiledCase, CompileSettings
from scaling.core.formatting import count_of, format_bytes
from scaling.core.shape import DerivativeShape, TooLarge, ceil_div
from scaling.core.workload import Workload

DEVICE, HOST = "device", "host"


@dataclass(frozen=True)
class Blocks:
    """The points and seeds that a device takes at a time, and where arrays are kept.

    None stands for all points or seeds. The arrays are the inputs and the result.
    """

    block: int | None = None
    chunk: int | None = None
    storage: str = DEVICE


@dataclass(frozen=True)
class MemoryNeed:
    """The bytes of each device that a program takes, where they are known, and whether it fits.

    hopeless: whether its inputs and result alone are too much, so that no smaller block helps.
    """

    bytes: int | None
    fits: bool
    hopeless: bool = False


@dataclass(frozen=True)
class BlockSearch:
    """The largest blocks that fit, or None, and all candidates in the order in which they were tried."""

    blocks: Blocks | None
    probes: tuple[tuple[Blocks, int | None], ...]

    @property
    def least(self) -> int | None:
        """The fewest bytes that any candidate takes, where they are known."""
        return min((needed for _, needed in self.probes if needed is not None), default=None)

    def as_record(self, limit: int | None) -> dict[str, Any]:
        """Return the search as a record has it."""
        probes = [dataclasses.asdict(blocks) | {"bytes": needed} for blocks, needed in self.probes]
        return dataclasses.asdict(self.blocks or Blocks()) | {"limit_bytes": limit, "probes": probes}


def compile_largest(
    case: Case,
    workload: Workload,
    sizes: DerivativeShape,
    compile_blocks: Callable[[Case], CompiledCase],
    settings: CompileSettings,
) -> CompiledCase:
    """Return a case compiled in the largest blocks that fit; raise `TooLarge` with the figures if none do.

    compile_blocks: compiles a case whose blocks are known.
    """
    fitting: dict[Blocks, CompiledCase] = {}
    last: CompiledCase | None = None
    words = ""

    def need(blocks: Blocks) -> MemoryNeed:
        nonlocal last, words
        storage = HOST if blocks.storage == HOST else None
        one = last = compile_blocks(
            dataclasses.replace(case, block=blocks.block, chunk=blocks.chunk, storage=storage)
        )
        words = settings.describe_shortage(one) or one.overflow or ""
        if not words:
            fitting[blocks] = one
            return MemoryNeed(one.bytes_while_running, True)
        idle = {**one.needs, "temp_bytes": 0} if one.needs.get("temp_bytes") else one.needs
        hopeless = settings.describe_shortage(dataclasses.replace(one, needs=idle)) is not None
        return MemoryNeed(one.bytes_while_running, False, hopeless)

    recorded = settings.known_blocks
    known = Blocks(recorded["block"], recorded["chunk"], recorded["storage"]) if recorded else None
    found = find_blocks(case, workload, sizes, need, known)
    if found.blocks is not None:
        return dataclasses.replace(fitting[found.blocks], blocks=found.as_record(case.memory_limit))
    tried = count_of(len(found.probes), "program")
    least = f"; the least of {tried} needs {format_bytes(found.least)}" if found.least else ""
    raise TooLarge(f"in no block: {words}{least}", last.recorded_needs if last else None)


def find_blocks(
    case: Case,
    workload: Workload,
    sizes: DerivativeShape,
    need: Callable[[Blocks], MemoryNeed],
    known: Blocks | None = None,
) -> BlockSearch:
    """Return the largest blocks that fit. known: blocks that fitted before, tried first.

    Inputs and result are kept on the host only where the case says so, or where they do not fit otherwise and
    the case does not say that they stay on the device.
    """
    probes: dict[Blocks, MemoryNeed] = {}

    def try_blocks(blocks: Blocks) -> MemoryNeed:
        if blocks not in probes:
            probes[blocks] = need(blocks)
        return probes[blocks]

    def search() -> Blocks | None:
        if known is not None and try_blocks(known).fits:
            return known
        for storage in (DEVICE, HOST) if case.storage is None else (case.storage,):
            if storage == HOST and not _can_offload(case, workload):
                continue
            first = [_first_fitting(each, try_blocks) for each in _candidates(case, workload, sizes, storage)]
            if not any(first) and not (storage == DEVICE and try_blocks(Blocks()).hopeless):
                first = [_first_fitting(_single_point_candidates(case, workload, sizes, storage), try_blocks)]
            if found := [blocks for blocks in first if blocks is not None]:
                return max(found, key=lambda blocks: _numbers_at_a_time(case, sizes, blocks))
        return None

    blocks = search()
    return BlockSearch(blocks, tuple((each, needed.bytes) for each, needed in probes.items()))


def _first_fitting(candidates: Iterable[Blocks], try_blocks: Callable[[Blocks], MemoryNeed]) -> Blocks | None:
    """Return the first candidate that fits, or one half way to the larger one; None if none can fit."""
    larger = None
    for blocks in candidates:
        needed = try_blocks(blocks)
        if needed.fits:
            between = _half_way(blocks, larger) if larger else None
            return between if between and try_blocks(between).fits else blocks
        if needed.hopeless and blocks.storage == DEVICE:
            return None
        larger = blocks
    return None


def _candidates(
    case: Case, workload: Workload, sizes: DerivativeShape, storage: str
) -> Iterator[list[Blocks]]:
    """Yield candidates by halves: fewer points with all seeds; all points with fewer seeds."""
    points, seeds = _all_of_device(case, sizes)
    start = [Blocks()] if storage == DEVICE else []
    if _has_blocks(case, workload):
        yield start + [Blocks(block, None, storage) for block in _halves(points)]
    yield start + [Blocks(None, chunk, storage) for chunk in _halves(seeds)]


def _single_point_candidates(
    case: Case, workload: Workload, sizes: DerivativeShape, storage: str
) -> Iterator[Blocks]:
    """Yield candidates of one point with fewer and fewer seeds."""
    points, seeds = _all_of_device(case, sizes)
    if points > 1 and _has_blocks(case, workload):
        yield from (Blocks(1, chunk, storage) for chunk in _halves(seeds))


def _has_blocks(case: Case, workload: Workload) -> bool:
    """Return whether a device can take some of its points at a time."""
    return case.batch == "vmap" or workload.reduction.sums_points


def _can_offload(case: Case, workload: Workload) -> bool:
    """Return whether a result can go to the host by blocks of points: not one batch, or one sum."""
    return case.batch == "vmap" and not workload.reduction.sums_points


def _all_of_device(case: Case, sizes: DerivativeShape) -> tuple[int, int]:
    """Return the points and the seeds of a device."""
    a, b = case.axes
    return ceil_div(case.points, a), max(ceil_div(part.seeds, b) for part in sizes.parts)


def _numbers_at_a_time(case: Case, sizes: DerivativeShape, blocks: Blocks) -> tuple[int, bool]:
    """Return how much a candidate computes at a time; of equal ones blocks of points are larger.

    Their results are contiguous.
    """
    points, seeds = _all_of_device(case, sizes)
    return min(points, blocks.block or points) * min(seeds, blocks.chunk or seeds), blocks.chunk is None


def _halves(count: int) -> Iterator[int]:
    """Yield the halves of a count, rounded up, down to one."""
    while count > 1:
        count = ceil_div(count, 2)
        yield count


def _half_way(blocks: Blocks, larger: Blocks) -> Blocks | None:
    """Return blocks half way to those that were too large, or None."""
    field = "chunk" if blocks.chunk is not None else "block"
    count = getattr(blocks, field)
    if count is None or (more := count + count // 2) in (count, getattr(larger, field)):
        return None
    return dataclasses.replace(blocks, **{field: more})
