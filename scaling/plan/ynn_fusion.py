"""Estimate the overhead of a fusion that the library YNNPACK executes on a CPU (`count_overhead`).

XLA does not compile these fusions to loops. The library calls one of its own kernels for each instruction. A
call computes a matrix with contiguous rows, and the overhead depends on the number of rows. Broadcast and
reduced axes limit the lengths of the rows. kernel_work.py counts the operations.
"""

import itertools
import math
from collections.abc import Sequence

from scaling.core.grouping import group_by
from scaling.options import hlo
from scaling.options.hlo import HloInstruction, Instructions

# In picoseconds, measured in float32 on one core of an AMD EPYC with jaxlib 0.10.2, in 700 fusions.
FUSION_START = 3_000_000  # the start of a fusion: 1 to 8 us
FUSION_START_IN_LOOP = 1_000_000  # the same in a while loop, when the code is in the cache: 0.5 to 1 us
MATRIX_ROW = 4000  # a row of the matrix of an elementwise instruction or a reduction: 3 to 5 ns
MATRIX = 20_000  # such a matrix of two or more rows, which one call of the library computes: 20 ns
CONTRACTED_ROW = 20_000  # a row of a sum of products of two arrays: 10 to 40 ns
PRODUCT = 130_000  # a product in a batch of matrix products: 130 ns
PRODUCT_ROW = 5000  # a row of the left operand of a matrix product: 5 ns
PACKED_ELEMENT = 200  # an element of the right operand of a matrix product: 0.2 ns

_NO_LOOP = hlo.NO_KERNEL | {"broadcast", "reshape", "iota", "copy"}
AxisFlags = tuple[bool, ...]  # one value for each axis of an array


def count_overhead(fused: Instructions, in_loop: bool) -> int:
    """Return the overhead of a fusion in picoseconds.

    `fused` contains the instructions of the fusion by name. `in_loop` states whether the fusion is in a while
    loop.
    """
    overhead, products = FUSION_START_IN_LOOP if in_loop else FUSION_START, set[str]()
    for instruction in fused.values():
        if instruction.opcode == "dot":
            overhead += _dot_overhead(instruction, fused)
        elif rows := _count_contracted_rows(instruction, fused):
            overhead += CONTRACTED_ROW * rows
            products |= {instruction.name, instruction.operands[0]}
    loops = [x for x in fused.values() if x.opcode not in _NO_LOOP | {"dot"} and x.name not in products]
    # Instructions of the same shape are executed together, for the longest rows that are possible for all.
    for dims, group in group_by(loops, lambda instruction: _loop_dims(instruction, fused)).items():
        runs = _joined_axes(dims, [flags for x in group for flags in _axis_flags(x, fused)])
        overhead += len(group) * (MATRIX_ROW * math.prod(runs[1:]) + MATRIX * math.prod(runs[2:]))
    return overhead


def _loop_dims(instruction: HloInstruction, fused: Instructions) -> tuple[int, ...]:
    """Return the dimensions of the operand of a reduction, or of the result of any other instruction."""
    return (fused[instruction.operands[0]] if instruction.opcode == "reduce" else instruction).dims


def _axis_flags(instruction: HloInstruction, fused: Instructions) -> list[AxisFlags]:
    """Return tuples with one Boolean flag for each axis of an instruction.

    YNNPACK can join adjacent axes whose flags are equal in each tuple. For a reduction, a single tuple states
    which axes are reduced. For any other instruction, one tuple for each operand of the same shape states
    along which axes the operand varies.
    """
    if instruction.opcode == "reduce":
        reduced = instruction.axes("dimensions") or ()
        return [tuple(axis in reduced for axis in range(len(_loop_dims(instruction, fused))))]
    operands = (fused[name] for name in instruction.operands)
    return [_varying_axes(x, fused) for x in operands if x.dims == instruction.dims]


def _varying_axes(instruction: HloInstruction, fused: Instructions) -> AxisFlags:
    """Return whether the result of an instruction varies along each of its axes, as a tuple of flags.

    It does not vary along broadcast axes and axes of length 1.
    """
    dims = instruction.dims
    if instruction.opcode == "broadcast":
        operand_axes = instruction.axes("dimensions") or ()
        return tuple(axis in operand_axes and length > 1 for axis, length in enumerate(dims))
    if instruction.opcode == "bitcast":
        source = fused[instruction.operands[0]]
        if [n for n in source.dims if n > 1] == [n for n in dims if n > 1]:  # the same axes
            flags = zip(_varying_axes(source, fused), source.dims, strict=True)
            varies = iter([flag for flag, length in flags if length > 1])
            return tuple(length > 1 and next(varies) for length in dims)
    return tuple(length > 1 for length in dims)


def _joined_axes(dims: Sequence[int], flags: Sequence[AxisFlags]) -> list[int]:
    """Return the lengths of the axes of an array after YNNPACK has joined axes, minor-most axis first.

    `flags` contains tuples with one flag per axis. Adjacent axes are joined if their flags are equal in each
    tuple. Axes of length 1 are omitted.
    """
    axes = [(length, tuple(each[axis] for each in flags)) for axis, length in enumerate(dims) if length > 1]
    groups = itertools.groupby(reversed(axes), key=lambda axis: axis[1])
    return [math.prod(length for length, _ in group) for _, group in groups]


def _count_contracted_rows(instruction: HloInstruction, fused: Instructions) -> int:
    """Return the number of matrix rows that YNNPACK computes for a contraction, or 0 for other instructions.

    A contraction sums the products of two arrays that both vary along the summed axes. One of them is
    broadcast along another axis.
    """
    if instruction.opcode != "reduce":
        return 0
    product = fused[instruction.operands[0]]
    if product.opcode != "multiply" or len(set(product.operands)) < 2:
        return 0
    summed = instruction.axes("dimensions") or ()
    left_varies, right_varies = (_varying_axes(fused[name], fused) for name in product.operands)
    long_axes = [axis for axis in summed if product.dims[axis] > 1]
    if not long_axes or not all(left_varies[axis] and right_varies[axis] for axis in long_axes):
        return 0
    rows = [
        math.prod(product.dims[axis] for axis, varies in enumerate(flags) if varies and axis not in summed)
        for flags in (left_varies, right_varies)
    ]
    return max(rows) if min(rows) < instruction.size else 0


def _dot_overhead(instruction: HloInstruction, fused: Instructions) -> int:
    """Return the overhead of a matrix product, or of a batch of matrix products, in picoseconds.

    It includes the start of each product, a kernel call for each row, and packing the right operand.
    """
    left, right = (fused[name] for name in instruction.operands)
    batch, summed = (
        math.prod(left.dims[axis] for axis in instruction.axes(f"lhs_{kind}_dims") or ())
        for kind in ("batch", "contracting")
    )
    return PRODUCT * batch + PRODUCT_ROW * (left.size // max(1, summed)) + PACKED_ELEMENT * right.size
