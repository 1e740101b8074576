"""chunk=auto: how much of a derivative is computed at a time, found by compiling: the largest blocks that fit
into memory.

Fewer points with all their seeds, or all points with fewer seeds, whichever does more at a time; where
neither fits, fewer seeds of one point. What a program needs is not monotone in these, so it is not modelled:
candidates are compiled, from the largest on, and the first that fits is refined once.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
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
    """How many points and seeds are taken at a time on each device, None for all, and where inputs and result
    are kept.
    """

    block: int | None = None
    chunk: int | None = None
    storage: str = DEVICE

    def of(self, case: Case) -> Case:
        """The case with these."""
        storage = HOST if self.storage == HOST else None
        return dataclasses.replace(case, block=self.block, chunk=self.chunk, storage=storage)


@dataclass(frozen=True)
class MemoryNeed:
    """The bytes of each device that a program takes, where they are known, and whether it fits.

    hopeless: what lies there before and after it runs is too much already, so that no smaller block helps.
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
        """The fewest bytes that any candidate would have taken, where that was told."""
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
    kept: dict[Blocks, CompiledCase] = {}
    last: CompiledCase | None = None
    words = ""

    def need(blocks: Blocks) -> MemoryNeed:
        nonlocal last, words
        one = last = compile_blocks(blocks.of(case))
        words = settings.missing_memory(one) or one.overflow or ""
        if not words:
            kept[blocks] = one
        resting = (
            dataclasses.replace(one, needs={**one.needs, "temp_bytes": 0})
            if one.needs.get("temp_bytes")
            else one
        )
        return MemoryNeed(
            one.bytes_while_running, not words, bool(words) and settings.missing_memory(resting) is not None
        )

    found = find_blocks(case, workload, sizes, need, _known(settings.known_blocks))
    if found.blocks is not None:
        return dataclasses.replace(kept[found.blocks], blocks=found.as_record(case.memory_limit))
    tried = count_of(len(found.probes), "program")
    least = f"; the least of {tried} needs {format_bytes(found.least)}" if found.least else ""
    raise TooLarge(f"in no block: {words}{least}", last.recorded_needs if last else None)


def _known(recorded: Mapping[str, Any] | None) -> Blocks | None:
    """Return the blocks that a record has."""
    return Blocks(recorded["block"], recorded["chunk"], recorded["storage"]) if recorded is not None else None


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

    def tried(blocks: Blocks) -> MemoryNeed:
        if blocks not in probes:
            probes[blocks] = need(blocks)
        return probes[blocks]

    def found(blocks: Blocks | None) -> BlockSearch:
        return BlockSearch(blocks, tuple((each, needed.bytes) for each, needed in probes.items()))

    if known is not None and tried(known).fits:
        return found(known)
    for storage in (DEVICE, HOST) if case.storage is None else (case.storage,):
        if storage == HOST and not can_offload(case, workload):
            continue
        fitting = [
            first for ladder in _ladders(case, workload, sizes, storage) if (first := _first(ladder, tried))
        ]
        if not fitting and not (storage == DEVICE and tried(Blocks()).hopeless):
            fitting = [first for first in [_first(_last(case, workload, sizes, storage), tried)] if first]
        if fitting:
            return found(max(fitting, key=lambda blocks: _work(case, sizes, blocks)))
    return found(None)


def _first(ladder: Iterable[Blocks], tried: Callable[[Blocks], MemoryNeed]) -> Blocks | None:
    """Return the first candidate that fits, or one half way to the larger one; None where no smaller one
    would help.
    """
    larger = None
    for blocks in ladder:
        needed = tried(blocks)
        if needed.fits:
            between = _between(blocks, larger) if larger else None
            return between if between and tried(between).fits else blocks
        if needed.hopeless and blocks.storage == DEVICE:
            return None
        larger = blocks
    return None


def _ladders(case: Case, workload: Workload, sizes: DerivativeShape, storage: str) -> Iterator[list[Blocks]]:
    """Yield candidates from everything at once, by halves: fewer points with all seeds; all points with fewer
    seeds.
    """
    points, seeds = _most(case, sizes)
    start = [Blocks()] if storage == DEVICE else []
    if case.batch == "vmap" or workload.reduction.sums_points:
        yield start + [Blocks(block, None, storage) for block in _halves(points)]
    yield start + [Blocks(None, chunk, storage) for chunk in _halves(seeds)]


def _last(case: Case, workload: Workload, sizes: DerivativeShape, storage: str) -> Iterator[Blocks]:
    """Yield candidates of one point with fewer and fewer seeds."""
    points, seeds = _most(case, sizes)
    if points > 1 and (case.batch == "vmap" or workload.reduction.sums_points):
        yield from (Blocks(1, chunk, storage) for chunk in _halves(seeds))


def _most(case: Case, sizes: DerivativeShape) -> tuple[int, int]:
    """Return the points and the seeds of a device."""
    a, b = case.axes
    return ceil_div(case.points, a), max(ceil_div(part.seeds, b) for part in sizes.parts)


def _work(case: Case, sizes: DerivativeShape, blocks: Blocks) -> tuple[int, bool]:
    """Return how much a candidate computes at a time; with as much, blocks of points come first, as their
    results are contiguous.
    """
    points, seeds = _most(case, sizes)
    return min(points, blocks.block or points) * min(seeds, blocks.chunk or seeds), blocks.chunk is None


def can_offload(case: Case, workload: Workload) -> bool:
    """Whether a result can go to the host block by block: a matter of points, so not where they are one batch
    or one sum."""
    return case.batch == "vmap" and not workload.reduction.sums_points


def _halves(count: int) -> Iterator[int]:
    """Yield the halves of a count, rounded up, down to one."""
    while count > 1:
        count = ceil_div(count, 2)
        yield count


def _between(blocks: Blocks, larger: Blocks) -> Blocks | None:
    """Return blocks half way to those that were too large, or None."""
    if blocks.chunk is not None:
        chunk = blocks.chunk + blocks.chunk // 2
        return dataclasses.replace(blocks, chunk=chunk) if chunk not in (blocks.chunk, larger.chunk) else None
    if blocks.block is not None:
        block = blocks.block + blocks.block // 2
        return dataclasses.replace(blocks, block=block) if block not in (blocks.block, larger.block) else None
    return None
