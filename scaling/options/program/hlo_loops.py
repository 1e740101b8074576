"""Count how often a fusion evaluates each of its instructions.

XLA compiles a fusion to one loop nest over the elements of its result. The innermost loop computes the values
that the current element needs. A value that does not depend on the inner loops is computed outside of them. A
value that varies with an inner loop is computed again in each iteration of the outer loops. For example, let
a fusion compute `a[:, None] * b[None, :]` and also a and b. The fusion evaluates an element of a once per row
of the result, and an element of b once per element of the result. A value that is used at two different
indices, such as in a sum of two shifted arrays, is evaluated twice.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from scaling.options.program import hlo, hlo_ops
from scaling.options.program.hlo import HloLine, Instructions

_SHIFTS = {"pad", "concatenate", "slice", "dynamic-slice", "reverse"}
_MOST_USES = 16  # the most uses of an instruction at different indices for which XLA duplicates it

# For each axis of an array, the position in the loop nest of the loop over this axis; 0 is the outermost.
# None means that no loop varies the index of this axis.
Loops = tuple[int | None, ...]


@dataclass(frozen=True)
class Use:
    """A use of an instruction in the loop nest of a fusion.

    Attributes:
        name: the name of the instruction.
        loops: the position of the loop over each axis of its result, see `Loops`.
        lengths: the length of each enclosing loop, outermost first.
    """

    name: str
    loops: Loops
    lengths: tuple[int, ...]

    @property
    def evaluations(self) -> int:
        """Return the number of evaluations of elements of the instruction.

        It is the total number of iterations of the innermost loop that runs over an axis of its result.
        """
        innermost = max((loop for loop in self.loops if loop is not None), default=-1)
        return math.prod(self.lengths[: innermost + 1])


def count_evaluations(lines: Instructions) -> Counter[str]:
    """Return a dict from the name of each instruction of a fusion to how often its elements are evaluated.

    The number is the total over all uses of the instruction.
    """
    evaluations: Counter[str] = Counter()
    for use in _trace_uses(lines):
        evaluations[use.name] += use.evaluations
    return evaluations


def _trace_uses(lines: Instructions) -> Iterator[Use]:
    """Yield the uses of all instructions in the loop nest of a fusion, with uses at equal indices as one."""
    visits: Counter[str] = Counter()
    root = hlo.root_of(lines)
    results = root.operands if root.opcode == "tuple" else [root.name]
    pending = [(Use(name, *_own_loops(lines[name])), frozenset[str]()) for name in results]
    found = set(pending)
    while pending:
        use, shifts = pending.pop()
        yield use
        line = lines[use.name]
        visits[use.name] += 1
        shifts = shifts | {use.name} if line.opcode in _SHIFTS else shifts
        for operand in map(lines.get, line.operands):
            if operand is None or (operand.operands and visits[operand.name] >= _MOST_USES):
                continue
            loops, lengths = _operand_loops(line, operand, use.loops, use.lengths)
            operand_use = Use(operand.name, loops, lengths), shifts
            if operand_use not in found:
                found.add(operand_use)
                pending.append(operand_use)


def _own_loops(line: HloLine) -> tuple[Loops, tuple[int, ...]]:
    """Return the loops of a loop nest over the result of an instruction.

    The innermost loop runs over the minor-most axis.

    Returns:
        For each axis of the result, the position of the loop over it.
        For each loop, outermost first, its number of iterations.
    """
    axes = sorted(range(len(line.dims)), key=lambda axis: axis == line.fastest)
    return tuple(map(axes.index, range(len(axes)))), tuple(line.dims[axis] for axis in axes)


def _operand_loops(
    line: HloLine, operand: HloLine, loops: Loops, lengths: tuple[int, ...]
) -> tuple[Loops, tuple[int, ...]]:
    """Return the nested loops in which an operand of an instruction is evaluated.

    The loops are numbered from the outermost, 0.

    Args:
        loops, lengths: the loops in which the instruction itself is evaluated, in the form that is returned.

    Returns:
        For each axis of the operand, the number of the loop that runs over it, or None if no loop does.
        For each loop, its number of iterations.
    """
    rank, axes = len(operand.dims), line.axes("dimensions") or ()
    if line.opcode in hlo_ops.UPDATES and operand.name != line.operands[0]:  # in place
        return _own_loops(operand)
    if line.opcode == "broadcast":
        return tuple(loops[axis] for axis in axes), lengths
    if line.opcode == "concatenate":  # each element comes from one of the operands
        part = loops[axes[0]]
        return loops, tuple(
            operand.dims[axes[0]] if loop == part else length for loop, length in enumerate(lengths)
        )
    if line.opcode == "transpose":
        return tuple(loops[axes.index(axis)] for axis in range(rank)), lengths
    if line.opcode == "gather" and operand.name == line.operands[0]:
        return _gathered_loops(line, rank, loops), lengths
    if line.opcode == "reduce" and rank:
        kept, inner = iter(loops), itertools.count(len(lengths))
        nested = tuple(next(inner) if axis in axes else next(kept, None) for axis in range(rank))
        return nested, lengths + tuple(operand.dims[axis] for axis in axes)
    if line.opcode == "bitcast" and line.size == operand.size > 0:
        is_reshape = _is_row_major(line) and _is_row_major(operand)
        return (
            (_reshaped_loops(line.dims, loops, operand.dims), lengths) if is_reshape else _own_loops(operand)
        )
    if rank == len(loops) and (operand.dims == line.dims or line.opcode in _SHIFTS):
        return loops, lengths
    if line.opcode == "reshape" and line.size > 0:
        return _reshaped_loops(line.dims, loops, operand.dims), lengths
    return _own_loops(operand)


def _reshaped_loops(dims: tuple[int, ...], loops: Loops, operand_dims: tuple[int, ...]) -> Loops:
    """Return, for each axis of the operand of a reshape, the position of the loop over it.

    An axis that the reshape splits or merges is assigned to the innermost loop over its parts.

    Args:
        dims, loops: the dimensions of the result, and the position of the loop over each of its axes.
        operand_dims: the dimensions of the operand.
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


def _is_row_major(line: HloLine) -> bool:
    """Return whether the last axis that is longer than one is the minor-most."""
    return line.fastest is None or math.prod(line.dims[line.fastest + 1 :]) == 1


def _gathered_loops(line: HloLine, rank: int, loops: Loops) -> Loops:
    """Return, for each axis of the array that a gather reads from, the position of the loop over it.

    If the indices of the gather select the position along an axis, the innermost loop over the indices runs
    over this axis.

    Args:
        rank: the number of axes of the array.
        loops: the position of the loop over each axis of the result of the gather.
    """
    offsets, batching = (line.axes(name) or () for name in ("offset_dims", "operand_batching_dims"))
    indices = {loop for axis, loop in enumerate(loops) if axis not in offsets and loop is not None}
    removed = {*(line.axes("collapsed_slice_dims") or ()), *batching}
    kept = (axis for axis in range(rank) if axis not in removed)
    kept_loops = dict(zip(kept, (loops[axis] for axis in offsets), strict=True))
    gathered: list[int | None] = []
    for axis in range(rank):
        of_axis = {kept_loops[axis]} if axis in kept_loops else set[int | None]()
        if axis in (line.axes("start_index_map") or ()) or axis in batching:
            of_axis |= indices
        gathered.append(max((loop for loop in of_axis if loop is not None), default=None))
    return tuple(gathered)
