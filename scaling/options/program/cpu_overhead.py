"""Estimate the overhead of an HLO kernel on a CPU: its start, and the calls of the matrix product library.

The unit is the time of a vectorized arithmetic operation in float32, as in llvm_instructions.py. The times in
the comments were measured in float32 on one core of an AMD EPYC with jaxlib 0.10.2, where the unit is 13 ps,
in 8,600 kernels of 150 programs.
"""

import math
from collections.abc import Mapping, Sequence

from scaling.options.program import hlo_ops
from scaling.options.program.hlo import HloInstruction, Instructions

START = 35_000  # the start of a kernel: 0.4 to 0.8 us
START_IN_LOOP = 2800  # the start of a kernel in a while loop, whose code is in the cache: 40 ns
# A product of matrices is computed by a library, which starts once for each product of a batch.
PRODUCT = 56_000  # the start of a product in the library: 0.5 to 1.1 us
PACKED = 10  # an element of the operands or the result of a product in the library: 0.1 to 0.3 ns
# XLA itself computes products with a vector, and products of which each element is a short sum.
_MAX_TERMS_OF_SHORT_SUM = 3
SHORT_ROW = 220  # a row of the result of such short sums: 2 to 5 ns
SHORT_SUM = 12  # an operation of short sums, if the terms are next to each other in memory: 0.2 ns
# A convolution whose features are the last axis is computed by a library, others by loops.
PATCH = 2100  # an output position in the library: 25 to 60 ns
MULTIPLICATION = 4  # a multiplication in a loop: 0.03 to 0.1 ns
# A multiplication in a loop, if an output is the sum of more than `_MAX_VECTORIZED_TERMS`: 0.1 to 1 ns.
MULTIPLICATION_OF_MANY = 28
_MAX_VECTORIZED_TERMS = 64


def product_overhead(instructions: Instructions, work: Mapping[str, tuple[str, int]]) -> int:
    """Return the overhead of the matrix products and convolutions in a kernel on a CPU.

    The unit is the time of a vectorized arithmetic operation in float32. The start of the kernel itself,
    `START` or `START_IN_LOOP`, is not included.

    Args:
        instructions: the instructions of the kernel by name.
        work: a dict from the name of an instruction to the kind and the amount of its work, as
            `hlo_ops.count_work` returns them.
    """
    overhead = 0.0
    for instruction in instructions.values():
        amount = work[instruction.name][1]
        if instruction.opcode == "convolution":
            overhead += _convolution_overhead(instruction, amount)
        elif instruction.opcode == "dot":
            operands = [instructions[name] for name in instruction.operands]
            overhead += _dot_overhead(instruction, operands, amount)
    return round(overhead)


def _dot_overhead(instruction: HloInstruction, operands: Sequence[HloInstruction], operations: int) -> float:
    """Return the overhead of a matrix product that consists of `operations` multiplications and additions."""
    batch, summed = (instruction.axes(name) or () for name in ("lhs_batch_dims", "rhs_contracting_dims"))
    terms = operations // (2 * max(1, instruction.size))  # of each element of the result
    if terms <= _MAX_TERMS_OF_SHORT_SUM:
        if operands[1].minor_axis in summed:  # the terms are next to each other in memory
            return SHORT_SUM * operations
        return SHORT_ROW * instruction.size / max(1, instruction.dims[-1])
    products = math.prod(operands[0].dims[axis] for axis in batch)
    if any(operand.size == products * terms for operand in operands):  # a vector
        return 0.0
    return PRODUCT * products + PACKED * (instruction.size + sum(operand.size for operand in operands))


def _convolution_overhead(instruction: HloInstruction, operations: int) -> float:
    """Return the overhead of a convolution. Half of the `operations` are multiplications."""
    labels = hlo_ops.DIM_LABELS.search(instruction.attributes)
    if labels is None:
        return 0.0
    features = labels[3].index("f")
    if features == len(instruction.dims) - 1:
        return PATCH * instruction.size / max(1, instruction.dims[features])
    is_vectorized = operations <= 2 * _MAX_VECTORIZED_TERMS * instruction.size
    return (MULTIPLICATION if is_vectorized else MULTIPLICATION_OF_MANY) * operations / 2
