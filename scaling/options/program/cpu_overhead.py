"""Estimate the overhead of a kernel on a CPU: the time beyond that of its bytes and vectorized operations.

XLA compiles a fusion to one loop nest (see hlo_loops.py). Kernels and loops take time to start, and the
innermost loop is not always vectorized. The unit of the constants is the time of `OPERATIONS` vectorized
arithmetic operations in float32, which is about the time of one evaluation of exp. The times in the comments
were measured in float32 on one core of an AMD EPYC with jaxlib 0.10.2, where the unit is 0.36 ns. The times
of `UNVECTORIZED` were measured over 262,144 elements, and the others in 8,600 kernels of 150 programs.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from scaling.options.program import hlo, hlo_ops
from scaling.options.program.hlo import HloLine, Instructions
from scaling.options.program.hlo_loops import Use

OPERATIONS = 28
START = 1250  # the start of a kernel: 0.4 to 0.8 us
START_IN_LOOP = 100  # the start of a kernel in a while loop, whose code is in the cache: 40 ns
ROW = 2  # an iteration of the loops outside of the innermost loop: 0.5 to 2 ns
# A product of matrices is computed by a library, which starts once for each product of a batch.
PRODUCT = 2000  # the start of a product in the library: 0.5 to 1.1 us
PACKED = 0.35  # an element of the operands or the result of a product in the library: 0.1 to 0.3 ns
# XLA itself computes products with a vector, and products of which each element is a sum of at most 3 terms.
_MOST_TERMS = 3
SHORT_ROW = 8  # a row of the result of such short sums: 2 to 5 ns
SHORT_SUM = 0.45  # an operation of short sums, if the terms are next to each other in memory: 0.2 ns
# An element that the innermost loop reads across the rows of an array, or at the indices of a gather.
STRIDED = 0.5  # across the rows: 0.2 ns
GATHERED = 0.6  # at the indices of a gather: 0.25 ns
SCALAR = 0.3  # an operation on gathered elements, which is not vectorized: 0.12 ns
CONCATENATED = 0.3  # an element of a concatenation in a loop: 0.1 ns
# A loop with more padded arrays than this is not vectorized, because it has a branch for each of them.
_MOST_PADDED = 4
_MOST_PADDED_IN_UPDATE = 2  # if the result is written into a part of an array
PADDED = 1  # an element of each padded array in such a loop: 0.2 to 0.5 ns
# Functions that XLA computes one element at a time -> their time divided by that of exp.
UNVECTORIZED = {"sine": 12, "cosine": 12, "power": 9, "tan": 63, "atan2": 41, "cbrt": 67}
# A convolution whose features are the last axis is computed by a library, others by loops.
PATCH = 75  # an output position in the library: 25 to 60 ns
MULTIPLICATION = 0.15  # a multiplication in a loop: 0.03 to 0.1 ns
# A multiplication in a loop, if an output is the sum of more than `_FEW_TERMS`: 0.1 to 1 ns.
MULTIPLICATION_OF_MANY = 1
_FEW_TERMS = 64

_COMPUTING = ("arithmetic", "divisions", "transcendentals")  # kinds of work on each element


def count_overhead(
    lines: Instructions, uses: Iterable[Use], work: Mapping[str, tuple[str, int]], in_loop: bool
) -> int:
    """Return the overhead of a kernel on a CPU, in units of the time of `OPERATIONS` arithmetic operations.

    Args:
        lines: the instructions of the kernel by name.
        uses: the uses of the instructions in the loop nest of the kernel, as `hlo_loops.trace_uses` yields.
        work: a dict from the name of an instruction to the kind and the amount of its work.
        in_loop: whether the kernel is in the body of a while loop.
    """
    overhead = float(START_IN_LOOP if in_loop else START)
    for line in lines.values():
        kind, amount = work[line.name]
        if line.opcode == "convolution":
            overhead += _convolution_overhead(line, amount)
        elif line.opcode == "dot":
            overhead += _product_overhead(line, [lines[name] for name in line.operands], amount)
        elif kind == "transcendentals":
            overhead += amount * (UNVECTORIZED.get(line.opcode, 1) - 1)
    return round(overhead + _loop_overhead(lines, uses, work))


def _loop_overhead(lines: Instructions, uses: Iterable[Use], work: Mapping[str, tuple[str, int]]) -> float:
    """Return the overhead of the loop nest of a kernel.

    If the innermost loop computes nothing, as in a copy or a transpose, only gathers have an overhead.
    """
    innermost = [use for use in uses if use.varies_innermost]
    computing = {use.name for use in innermost if work[use.name][0] in _COMPUTING}
    gathered = [use for use in innermost if use.is_gathered]
    overhead = 0.0
    if any(lines[use.name].opcode == "parameter" for use in gathered):
        for use in gathered:
            is_read = lines[use.name].opcode == "parameter"
            overhead += use.evaluations * (GATHERED if is_read else SCALAR if use.name in computing else 0)
    if not computing:
        return overhead
    result, is_update = _written_array(lines)
    if result.fastest is not None:
        overhead += ROW * result.size / result.dims[result.fastest]
    padded = list[int]()
    for use in innermost:
        line = lines[use.name]
        if line.opcode == "parameter" and not use.is_gathered and not use.is_contiguous(line):
            overhead += STRIDED * use.evaluations
        elif line.opcode == "concatenate":
            overhead += CONCATENATED * use.evaluations
        elif line.opcode == "pad":
            padded.append(use.evaluations)
    if len(padded) > (_MOST_PADDED_IN_UPDATE if is_update else _MOST_PADDED):
        overhead += PADDED * sum(padded)
    return overhead


def _written_array(lines: Instructions) -> tuple[HloLine, bool]:
    """Return the instruction whose result a kernel writes, and whether it is written into a parameter."""
    root = hlo.root_of(lines)
    result = hlo.skip_bitcasts(root.operands[0] if root.opcode == "tuple" else root.name, lines)
    if result.opcode in hlo_ops.UPDATES:
        target, update = (result.operands[index] for index in (0, hlo_ops.UPDATES[result.opcode]))
        if hlo.skip_bitcasts(target, lines).opcode == "parameter":
            return lines[update], True
    return result, False


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
