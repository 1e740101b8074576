"""Implement `chunk=auto`: find how many points and seeds a device can compute at a time (`BlockSizes`).

The candidates are all points and seeds at once, halved numbers of points with all seeds, and halved numbers
of seeds with all points. The candidate that computes the most (point, seed) pairs at a time is tried first.
If none fits, the seeds of a single point are halved. The first candidate that fits is enlarged by half if the
larger program also fits. Each candidate is compiled, because the memory of a program can increase when fewer
points or seeds are computed at a time.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scaling.core.case import DEVICE, HOST, TooLarge
from scaling.core.compile_case import CompiledCase, DescribeShortage, raise_if_too_large, without_program
from scaling.core.derivative import Derivative, ceil_div
from scaling.core.record import bytes_while_running


@dataclass(frozen=True)
class BlockSizes:
    """The numbers of points and seeds that a device computes at a time, and where the arrays are stored."""

    block: int | None = None  # points (batch elements); None: all points of the device
    chunk: int | None = None  # seeds (tangents or cotangents); None: all seeds of the device
    storage: str = DEVICE  # the memory that stores the inputs and the result: "device" or "host"


def compile_largest(
    derivative: Derivative,
    compile_blocks: Callable[[Derivative], CompiledCase],
    describe_shortage: DescribeShortage,
    known_blocks: Mapping[str, Any] | None,
) -> CompiledCase:
    """Compile a case with the largest block sizes (points and seeds at a time) that fit into memory.

    `compile_blocks` compiles a case whose block sizes are set. `describe_shortage` returns an error message
    if a case does not fit, otherwise None. `known_blocks`, the field `blocks` of an earlier record, is tried
    first. Raise `TooLarge` if no block sizes fit.
    """
    tried: dict[BlockSizes, CompiledCase | TooLarge] = {}

    def fits(blocks: BlockSizes) -> bool:
        tried[blocks] = _try_to_compile(derivative, blocks, compile_blocks, describe_shortage)
        return isinstance(tried[blocks], CompiledCase)

    block_fields = ("block", "chunk", "storage")
    known = [BlockSizes(**{name: known_blocks[name] for name in block_fields})] if known_blocks else []
    chosen = next(filter(fits, [*known, *_list_candidates(derivative)]), None)
    if chosen is None:
        *_, error = tried.values()
        raise TooLarge(f"no block size fits: {error}", error.needs)
    larger = chosen if chosen in known else _enlarge(chosen)
    if larger not in tried and fits(larger):
        chosen = larger
    probes = [
        vars(blocks) | {"bytes": bytes_while_running(result.needs, 2 if blocks.storage == HOST else 1)}
        for blocks, result in tried.items()
    ]
    blocks_field = vars(chosen) | {"limit_bytes": derivative.case.memory_limit, "probes": probes}
    compiled = tried[chosen]
    assert isinstance(compiled, CompiledCase)
    return dataclasses.replace(compiled, blocks=blocks_field)


def _try_to_compile(
    derivative: Derivative,
    blocks: BlockSizes,
    compile_blocks: Callable[[Derivative], CompiledCase],
    describe_shortage: DescribeShortage,
) -> CompiledCase | TooLarge:
    """Return the case compiled with `blocks`, or return (not raise) `TooLarge` if it does not fit."""
    storage = HOST if blocks.storage == HOST else None
    case = dataclasses.replace(derivative.case, **vars(blocks) | {"storage": storage})
    divided = dataclasses.replace(derivative, case=case)
    try:
        raise_if_too_large(without_program(divided), describe_shortage)
        compiled = compile_blocks(divided)
        raise_if_too_large(compiled, describe_shortage)
    except TooLarge as error:
        return error
    return compiled


def _list_candidates(derivative: Derivative) -> Iterator[BlockSizes]:
    """Yield the block sizes to try, first with storage on the device, then with storage on the host.

    A storage that the case does not allow is omitted. For each storage, the blocks with the most (point,
    seed) pairs come first. Blocks with only some seeds of a single point come last.
    """
    case, sums_points = derivative.case, derivative.workload.reduction.sums_points
    can_divide_points = case.batch == "vmap" or sums_points
    points = ceil_div(case.points, case.mesh_shape[0])
    seeds = max(ceil_div(part.seeds, case.mesh_shape[1]) for part in derivative.parts)

    def pairs_at_a_time(blocks: BlockSizes) -> int:
        return (blocks.block or points) * (blocks.chunk or seeds)

    can_use_host = case.batch == "vmap" and not sums_points
    for storage in (DEVICE, HOST):
        if case.storage not in (None, storage) or (storage == HOST and not can_use_host):
            continue
        # The sort is stable: all seeds of fewer points come first in a tie, as their results are contiguous.
        divided = [BlockSizes(block, None, storage) for block in _halves(points) if can_divide_points]
        divided += [BlockSizes(None, chunk, storage) for chunk in _halves(seeds)]
        if storage == DEVICE:  # host memory is of use only with steps
            yield BlockSizes()
        yield from sorted(divided, key=pairs_at_a_time, reverse=True)
        if can_divide_points and points > 1:
            yield from (BlockSizes(1, chunk, storage) for chunk in _halves(seeds))


def _enlarge(blocks: BlockSizes) -> BlockSizes:
    """Return block sizes with 1.5 times as many seeds, or points if all seeds are computed at a time."""
    divided_axis = "block" if blocks.chunk is None else "chunk"
    block_size = getattr(blocks, divided_axis)
    return dataclasses.replace(blocks, **{divided_axis: block_size and block_size * 3 // 2})


def _halves(count: int) -> Iterator[int]:
    """Yield count / 2, count / 4, ... down to 1, each rounded up to an integer."""
    while count > 1:
        count = ceil_div(count, 2)
        yield count
