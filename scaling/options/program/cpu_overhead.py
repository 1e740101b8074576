"""Estimate the overhead of a kernel on a CPU: its start, and the work of the library that computes products.

The unit is the time of a vectorized arithmetic operation in float32, as in llvm_instructions.py. The times in
the comments were measured in float32 on one core of an AMD EPYC with jaxlib 0.10.2, where the unit is 13 ps,
in 8,600 kernels of 150 programs.
"""

import math
from collections.abc import Mapping, Sequence

from scaling.options.program import hlo_ops
from scaling.options.program.hlo import HloLine, Instructions

START = 35_000  # the start of a kernel: 0.4 to 0.8 us
START_IN_LOOP = 2800  # the start of a kernel in a while loop, whose code is in the cache: 40 ns
# A product of matrices is computed by a library, which starts once for each product of a batch.
PRODUCT = 56_000  # the start of a product in the library: 0.5 to 1.1 us
PACKED = 10  # an element of the operands or the result of a product in the library: 0.1 to 0.3 ns
# XLA itself computes products with a vector, and products of which each element is a sum of at most 3 terms.
_MOST_TERMS = 3
SHORT_ROW = 220  # a row of the result of such short sums: 2 to 5 ns
SHORT_SUM = 12  # an operation of short sums, if the terms are next to each other in memory: 0.2 ns
# A convolution whose features are the last axis is computed by a library, others by loops.
PATCH = 2100  # an output position in the library: 25 to 60 ns
MULTIPLICATION = 4  # a multiplication in a loop: 0.03 to 0.1 ns
# A multiplication in a loop, if an output is the sum of more than `_FEW_TERMS`: 0.1 to 1 ns.
MULTIPLICATION_OF_MANY = 28
_FEW_TERMS = 64


def count_overhead(lines: Instructions, work: Mapping[str, tuple[str, int]], in_loop: bool) -> int:
    """Return the overhead of a kernel, in vectorized arithmetic operations in float32.

    Args:
        lines: the instructions of the kernel by name.
        work: a dict from the name of an instruction to the kind and the amount of its work.
        in_loop: whether the kernel is in the body of a while loop.
    """
    overhead = float(START_IN_LOOP if in_loop else START)
    for line in lines.values():
        amount = work[line.name][1]
        if line.opcode == "convolution":
            overhead += _convolution_overhead(line, amount)
        elif line.opcode == "dot":
            overhead += _product_overhead(line, [lines[name] for name in line.operands], amount)
    return round(overhead)


def _product_overhead(line: HloLine, operands: Sequence[HloLine], operations: int) -> float:
    batch, summed = (line.axes(name) or () for name in ("lhs_batch_dims", "rhs_contracting_dims"))
    terms = operations // (2 * max(1, line.size))  # of each element of the result
    if terms <= _MOST_TERMS:
        is_adjacent = operands[1].fastest in summed
        return SHORT_SUM * operations if is_adjacent else SHORT_ROW * line.size / max(1, line.dims[-1])
    products = math.prod(operands[0].dims[axis] for axis in batch)
    if any(operand.size == products * terms for operand in operands):  # a vector
        return 0.0
    return PRODUCT * products + PACKED * (line.size + sum(operand.size for operand in operands))


def _convolution_overhead(line: HloLine, operations: int) -> float:
    """Return the overhead of a convolution. Half of the `operations` are multiplications."""
    labels = hlo_ops.LABELS.search(line.rest)
    if labels is None:
        return 0.0
    features = labels[3].index("f")
    if features == len(line.dims) - 1:
        return PATCH * line.size / max(1, line.dims[features])
    is_vectorized = operations <= 2 * _FEW_TERMS * line.size
    return (MULTIPLICATION if is_vectorized else MULTIPLICATION_OF_MANY) * operations / 2
