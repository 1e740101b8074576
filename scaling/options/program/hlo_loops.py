"""Derive the loop nest of an HLO fusion, and the number of evaluations of each instruction in it.

XLA compiles a fusion to one loop nest over the elements of its result. A value that does not depend on the
inner loops is computed outside of them. A value that varies with an inner loop is computed again in each
iteration of the outer loops. For example, a fusion that computes a, b and `a[:, None] * b[None, :]` evaluates
an element of a once per row of the result, and an element of b once per element of the result. A value that
is used at two different indices, such as in a sum of two shifted arrays, is evaluated twice.
"""

import itertools
import math
from collections import Counter
from typing import NamedTuple

from scaling.options.program import hlo, hlo_ops
from scaling.options.program.hlo import HloInstruction, Instructions

_SHIFTS = {"pad", "concatenate", "slice", "dynamic-slice", "reverse"}
_MAX_USES = 16  # XLA duplicates an instruction for at most this number of uses at different indices

# For each axis of an array, the position in the loop nest of the loop over this axis; 0 is the outermost.
# None means that no loop runs over this axis.
Loops = tuple[int | None, ...]


class _Use(NamedTuple):
    """A use of an instruction in the loop nest of a fusion.

    Attributes:
        name: the name of the instruction.
        loops: the position of the loop over each axis of its result.
        lengths: the length of each enclosing loop, outermost first.
        shifts: the instructions that shift the indices between this use and the result of the fusion.
    """

    name: str
    loops: Loops
    lengths: tuple[int, ...]
    shifts: frozenset[str] = frozenset()


def count_evaluations(instructions: Instructions) -> Counter[str]:
    """Return the number of element evaluations for each instruction of a fusion, summed over its uses.

    Several uses of an instruction at equal indices count as one, because its value is computed only once.
    """
    evaluations, visits = Counter[str](), Counter[str]()
    root = hlo.root_of(instructions)
    results = root.operands if root.opcode == "tuple" else [root.name]
    pending = [_Use(name, *_loops_over_result(instructions[name])) for name in results]
    queued = set(pending)
    while pending:
        use = pending.pop()
        innermost = max((loop for loop in use.loops if loop is not None), default=-1)
        evaluations[use.name] += math.prod(use.lengths[: innermost + 1])
        visits[use.name] += 1
        instruction = instructions[use.name]
        shifts = use.shifts | {use.name} if instruction.opcode in _SHIFTS else use.shifts
        for operand in map(instructions.get, instruction.operands):
            if operand is None or (operand.operands and visits[operand.name] >= _MAX_USES):
                continue
            loops, lengths = _operand_loops(instruction, operand, use.loops, use.lengths)
            operand_use = _Use(operand.name, loops, lengths, shifts)
            if operand_use not in queued:
                queued.add(operand_use)
                pending.append(operand_use)
    return evaluations


def _loops_over_result(instruction: HloInstruction) -> tuple[Loops, tuple[int, ...]]:
    """Return the loops and lengths (see `_Use`) of a nest over a result, with the minor axis innermost."""
    axes = sorted(range(len(instruction.dims)), key=lambda axis: axis == instruction.minor_axis)
    return tuple(map(axes.index, range(len(axes)))), tuple(instruction.dims[axis] for axis in axes)


def _operand_loops(
    instruction: HloInstruction, operand: HloInstruction, loops: Loops, lengths: tuple[int, ...]
) -> tuple[Loops, tuple[int, ...]]:
    """Return the loops and lengths (see `_Use`) with which an operand of an instruction is evaluated.

    `loops` and `lengths` describe the evaluation of the instruction itself.
    """
    rank, axes = len(operand.dims), instruction.axes("dimensions") or ()
    if instruction.opcode in hlo_ops.UPDATES and operand.name != instruction.operands[0]:  # in place
        return _loops_over_result(operand)
    if instruction.opcode == "broadcast":
        return tuple(loops[axis] for axis in axes), lengths
    if instruction.opcode == "concatenate":  # each element comes from one of the operands
        joined, own_length = loops[axes[0]], operand.dims[axes[0]]
        return loops, tuple(own_length if loop == joined else n for loop, n in enumerate(lengths))
    if instruction.opcode == "transpose":
        return tuple(loops[axes.index(axis)] for axis in range(rank)), lengths
    if instruction.opcode == "gather" and operand.name == instruction.operands[0]:
        return _gathered_loops(instruction, rank, loops), lengths
    if instruction.opcode == "reduce" and rank:
        kept, inner = iter(loops), itertools.count(len(lengths))
        nested = tuple(next(inner) if axis in axes else next(kept, None) for axis in range(rank))
        return nested, lengths + tuple(operand.dims[axis] for axis in axes)
    if instruction.opcode == "bitcast" and instruction.size == operand.size > 0:
        if _is_row_major(instruction) and _is_row_major(operand):
            return _reshaped_loops(instruction.dims, loops, operand.dims), lengths
        return _loops_over_result(operand)
    if rank == len(loops) and (operand.dims == instruction.dims or instruction.opcode in _SHIFTS):
        return loops, lengths
    if instruction.opcode == "reshape" and instruction.size > 0:
        return _reshaped_loops(instruction.dims, loops, operand.dims), lengths
    return _loops_over_result(operand)


def _reshaped_loops(dims: tuple[int, ...], loops: Loops, operand_dims: tuple[int, ...]) -> Loops:
    """Map the loops over the result axes of a reshape to the axes of the operand.

    `loops` contains the loop over each axis of the result, which has the dimensions `dims`. Return the loop
    over each axis of the operand, which has the dimensions `operand_dims`. For an axis that the reshape
    splits or merges, this is the innermost loop over the corresponding axes of the result.
    """
    remaining = iter(zip(dims, loops, strict=True))
    operand_loops: list[int | None] = []
    size = operand_size = 1  # products of the leading dimensions; where they are equal, a group of axes ends
    axes_in_group, loops_of_group = 0, list[int]()
    for length in operand_dims:
        operand_size *= length
        axes_in_group += 1
        while size < operand_size:
            dimension, loop = next(remaining)
            size *= dimension
            if loop is not None and dimension > 1:
                loops_of_group.append(loop)
        if size == operand_size:
            operand_loops += [max(loops_of_group, default=None)] * axes_in_group
            axes_in_group, loops_of_group = 0, []
    return tuple(operand_loops)


def _is_row_major(instruction: HloInstruction) -> bool:
    """Return whether the minor-most axis is the last axis of the result that is longer than one."""
    return instruction.minor_axis is None or math.prod(instruction.dims[instruction.minor_axis + 1 :]) == 1


def _gathered_loops(instruction: HloInstruction, rank: int, loops: Loops) -> Loops:
    """Return the loops over the `rank` axes of the array that a gather reads from.

    The innermost loop over the gather indices runs over each axis along which the indices select a position.
    """
    offsets, batching = (instruction.axes(name) or () for name in ("offset_dims", "operand_batching_dims"))
    index_loops = {loop for axis, loop in enumerate(loops) if axis not in offsets and loop is not None}
    removed = {*(instruction.axes("collapsed_slice_dims") or ()), *batching}
    window_axes = (axis for axis in range(rank) if axis not in removed)
    window_loops = dict(zip(window_axes, (loops[axis] for axis in offsets), strict=True))
    operand_loops: list[int | None] = []
    for axis in range(rank):
        loops_of_axis = {window_loops[axis]} if axis in window_loops else set[int | None]()
        if axis in (instruction.axes("start_index_map") or ()) or axis in batching:
            loops_of_axis |= index_loops
        operand_loops.append(max((loop for loop in loops_of_axis if loop is not None), default=None))
    return tuple(operand_loops)
