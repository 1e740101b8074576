"""Estimate the time to start an HLO kernel on a CPU, and the time of its library calls.

Libraries compute matrix products, sorts, and convolutions whose features are the last axis. XLA compiles
other kernels to loops, and llvm_instructions.py counts the instructions. The unit is the time of a
vectorized arithmetic operation in float32. The times in the comments were measured in float32 on one core of
an AMD EPYC with jaxlib 0.10.2, where the unit is 13 ps, in 8,600 kernels of 150 programs.
"""

import math
import re

from scaling.options.hlo import HloInstruction, Instructions, Kernel

START = 35_000  # the start of a kernel: 0.4 to 0.8 us
START_IN_LOOP = 2800  # the start of a kernel in a while loop, whose code is in the cache: 40 ns
# The library starts once for each product of a batch.
PRODUCT = 56_000  # the start of a product in the library: 0.5 to 1.1 us
PACKED = 10  # an element of the operands or the result of a product in the library: 0.1 to 0.3 ns
PATCH = 3000  # an output position of a convolution in the library: 25 to 80 ns
SORT = 700  # a comparison of two elements: 9 ns
FFT = 3  # the additional time of an operation of a Fourier transform: 30 to 100 ps on an Intel Xeon
# An element of the operands of a routine that a custom call executes. The time of a routine of LAPACK is
# proportional to the number of elements for matrices of 4 x 4 to 300 x 300: 2.5 ns an element for potrf.
ROUTINES = {
    "TopK": 100, "potrf": 200, "getrf": 400, "trsm": 200, "gtsv": 200, "geqrf": 600, "orgqr": 600,
    "ungqr": 600, "gehrd": 1500, "sytrd": 1500, "hetrd": 1500, "syevd": 3500, "heevd": 3500, "gesdd": 6000,
    "gesvd": 8000, "geev": 14_000, "gees": 14_000,
}  # fmt: skip
_ROUTINE = re.compile(r'custom_call_target="(?:lapack_[sdcz](\w+)_ffi|(TopK))"')
# The library YNNPACK, on an Intel Xeon where the unit is 17 ps:
YNN_FUSION = 300_000  # the start of a fusion: 1 to 25 us
YNN_FUSION_IN_LOOP = 60_000  # the start of a fusion in a while loop: 0.5 to 1 us
YNN_SUM = 300  # a result of a reduction: 4 to 10 ns
YNN_BROADCAST = 4500  # a broadcast, for each index of the first of three or more axes: 40 to 120 ns
# In scalar loops of a convolution, each addition waits for the one before: 0.8 to 1.2 ns a multiplication
# instead of 0.3. A vectorized loop (on an Intel Xeon, with masked loads) executes fewer operations.
SLOWDOWN_OF_SCALAR_CONVOLUTION = 3
_MOST_VECTORIZED = 8  # operations of a vectorized loop for each multiplication or addition: 2.5 to 5


def kernel_overhead(kernel: Kernel, executed: float, arithmetic: int) -> int:
    """Return the time to start a kernel and to compute its result in a library, in the unit of this module.

    `executed` is the number of operations in its compiled loops, or 0 if a library computes the result.
    `arithmetic` is the number of operations that kernel_work.py counts.
    """
    instruction, in_loop = kernel.instruction, kernel.in_loop
    if instruction.opcode == "fusion" and "__ynn_fusion" in instruction.attributes:
        return (YNN_FUSION_IN_LOOP if in_loop else YNN_FUSION) + _ynn_overhead(kernel.body)
    start = START_IN_LOOP if in_loop else START
    return start if executed else start + _library_overhead(kernel, arithmetic)


def _ynn_overhead(fused: Instructions) -> int:
    """Return the overhead of the reductions and broadcasts in a fusion that YNNPACK computes."""
    reductions = sum(x.size for x in fused.values() if x.opcode == "reduce")
    broadcasts = (x for x in fused.values() if x.opcode == "broadcast" and fused[x.operands[0]].dims)
    return YNN_SUM * reductions + YNN_BROADCAST * sum(x.dims[0] for x in broadcasts if len(x.dims) > 2)


def _library_overhead(kernel: Kernel, arithmetic: int) -> int:
    """Return the overhead of a kernel that a library computes, such as a matrix product, otherwise 0."""
    instruction = kernel.instruction
    if instruction.opcode == "fusion":
        return 0
    operands = [kernel.body[name] for name in instruction.operands]
    operand_size = sum(operand.size for operand in operands)
    if instruction.opcode == "convolution":
        return PATCH * instruction.size // max(1, instruction.dims[-1])
    if instruction.opcode == "dot":
        products = math.prod(operands[0].dims[axis] for axis in instruction.axes("lhs_batch_dims") or ())
        return PRODUCT * products + PACKED * (instruction.size + operand_size)
    if instruction.opcode == "custom-call":
        return ROUTINES.get(routine_name(instruction), 0) * operand_size
    if instruction.opcode == "fft":
        return FFT * arithmetic
    if instruction.opcode == "sort":
        sorted_elements = math.prod(operands[0].dims[axis] for axis in instruction.axes("dimensions") or ())
        return round(SORT * operands[0].size * math.log2(max(2, sorted_elements)))
    return 0


def convolution_slowdown(operations: float, products: int) -> int:
    """Return the factor by which scalar loops slow down a convolution, or 1 if its loops are vectorized.

    `operations` counts all operations of the loops, and `products` the multiplications and additions.
    """
    return 1 if operations <= _MOST_VECTORIZED * products else SLOWDOWN_OF_SCALAR_CONVOLUTION


def routine_name(instruction: HloInstruction) -> str:
    """Return the key in `ROUTINES` of the routine that a custom call executes, or "" if there is none."""
    match = _ROUTINE.search(instruction.attributes)
    name = (match[1] or match[2]) if match else ""
    return name if name in ROUTINES else ""
