"""Count how often each instruction of a fusion is evaluated, because a fused loop can repeat evaluations.

A backend emits one loop nest for a fusion, over the elements of its result, and evaluates the operands of an
instruction for each element that it needs. A value that does not depend on the inner loops is computed
outside of them. A value that varies with an inner loop is computed again in each iteration of the outer ones:
in `a[:, None] * b[None, :]`, with a and b computed in the fusion, a is evaluated once per row, and b once per
element. Two uses at shifted indices, as after a transposed slice, evaluate a value twice.
"""

import itertools
import math
import re
from collections import Counter

from scaling.options.program import hlo, hlo_ops
from scaling.options.program.hlo import HloLine, Instructions

_LEAVES = {"parameter", "constant", "iota"}
_SHIFTS = {"pad", "concatenate", "slice", "dynamic-slice", "reverse"}
_DIMENSIONS = re.compile(r"dimensions=\{([\d,]*)\}")
_GATHER_AXES = re.compile(r"(\w+)=\{([\d,]*)\}")
_MOST_USES = 16  # of an instruction at different indices; XLA does not duplicate more

# The position of the loop that varies each axis of an array, 0 for the outermost, or None if none does.
Loops = tuple[int | None, ...]


def count_evaluations(lines: Instructions) -> dict[str, float]:
    """Return a dict from instruction name to the number of times that a fusion computes an element of it."""
    evaluations: Counter[str] = Counter()
    visits: Counter[str] = Counter()
    root = hlo.root_of(lines)
    results = root.operands if root.opcode == "tuple" else [root.name]
    pending = [(name, *_own_loops(lines[name]), frozenset[str]()) for name in results]
    found = set(pending)
    while pending:
        name, loops, lengths, shifts = pending.pop()
        line = lines[name]
        innermost = max((loop for loop in loops if loop is not None), default=-1)
        evaluations[name] += math.prod(lengths[: innermost + 1])
        visits[name] += 1
        shifts = shifts | {name} if line.opcode in _SHIFTS else shifts
        for operand in map(lines.get, line.operands):
            if operand is None or operand.opcode in _LEAVES or visits[operand.name] >= _MOST_USES:
                continue
            use = (operand.name, *_operand_loops(line, operand, loops, lengths), shifts)
            if use not in found:
                found.add(use)
                pending.append(use)
    return dict(evaluations)


def _own_loops(line: HloLine) -> tuple[Loops, tuple[int, ...]]:
    """Return the loop of each axis in a loop nest over an array, and the loop lengths, outermost first."""
    axes = sorted(range(len(line.dims)), key=lambda axis: axis == line.fastest)
    return tuple(map(axes.index, range(len(axes)))), tuple(line.dims[axis] for axis in axes)


def _operand_loops(
    line: HloLine, operand: HloLine, loops: Loops, lengths: tuple[int, ...]
) -> tuple[Loops, tuple[int, ...]]:
    """Return the loop of each axis of an operand, and the lengths of all loops that enclose it."""
    match = _DIMENSIONS.search(line.rest)
    rank, axes = len(operand.dims), hlo.parse_integers(match[1]) if match else ()
    if line.opcode in hlo_ops.UPDATES and operand.name != line.operands[0]:  # in place
        return _own_loops(operand)
    if line.opcode == "broadcast":
        return tuple(loops[axis] for axis in axes), lengths
    if line.opcode == "transpose":
        return tuple(loops[axes.index(axis)] for axis in range(rank)), lengths
    if line.opcode == "gather" and operand.name == line.operands[0]:
        return _gathered_loops(line, rank, loops), lengths
    if line.opcode == "reduce" and rank:
        kept, inner = iter(loops), itertools.count(len(lengths))
        nested = tuple(next(inner) if axis in axes else next(kept, None) for axis in range(rank))
        return nested, lengths + tuple(operand.dims[axis] for axis in axes)
    if rank == len(loops) and (operand.dims == line.dims or line.opcode in _SHIFTS):
        return loops, lengths
    if line.opcode in ("reshape", "bitcast"):
        long = [(length, loop) for length, loop in zip(line.dims, loops, strict=True) if length > 1]
        if [length for length, _ in long] == [length for length in operand.dims if length > 1]:
            remaining = iter(long)
            return tuple(next(remaining)[1] if n > 1 else None for n in operand.dims), lengths
    return _own_loops(operand)


def _gathered_loops(line: HloLine, rank: int, loops: Loops) -> Loops:
    """Return the loop of each axis of the operand of a gather. An indexed axis varies with the indices."""
    named = {name: hlo.parse_integers(text) for name, text in _GATHER_AXES.findall(line.rest)}
    offsets, batching = named.get("offset_dims", ()), named.get("operand_batching_dims", ())
    indices = {loop for axis, loop in enumerate(loops) if axis not in offsets and loop is not None}
    kept = iter(offsets)
    gathered: list[int | None] = []
    for axis in range(rank):
        is_removed = axis in named.get("collapsed_slice_dims", ()) or axis in batching
        of_axis = set[int | None]() if is_removed else {loops[next(kept)]}
        if axis in named.get("start_index_map", ()) or axis in batching:
            of_axis |= indices
        gathered.append(max((loop for loop in of_axis if loop is not None), default=None))
    return tuple(gathered)
