"""Classify HLO instructions by opcode, and count their operations from their shapes.

The instructions may come from the CPU, GPU or TPU backend. Library calls are counted only if they are matrix
products or convolutions. See hlo_cost.py for the bytes that an instruction reads and writes.
"""

import math
import re
from collections.abc import Sequence

from scaling.options.program import hlo
from scaling.options.program.hlo import HloInstruction, Instructions

COLLECTIVES = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast",
)  # fmt: skip
_ANNOTATIONS = {  # targets of custom calls that do no work
    "AllocateBuffer", "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "MoveToHost",
    "MoveToDevice", "Pin", "Unpin", "ConcatBitcast", "AssumeGatherIndicesInBound",
    "annotate_device_placement", "LayoutConstraint", "PrepareAsyncCallStart", "PrepareAsyncCallDone",
}  # fmt: skip
_CONTRACTING = re.compile(r'lhs_contracting_dim(?:s=\{|ensions":\[)([\d,"]*)')
DIM_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"window=\{size=([\dx]+)")
NO_KERNEL = {  # opcodes of instructions that execute no kernel
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier",
    "partition-id", "replica-id",
}  # fmt: skip
SLICES = {"slice", "dynamic-slice", "gather"}  # read only the bytes of their result from their first operand
# Opcode -> index of the operand that contains the update of operand 0. If operand 0 is a parameter of the
# fusion, XLA updates it in place.
UPDATES = {"dynamic-update-slice": 1, "scatter": 2}
_DATA_MOVEMENT = NO_KERNEL | SLICES | {
    "broadcast", "iota", "reshape", "pad", "concatenate", "reverse", "transpose", "copy",
    "dynamic-update-slice", "fusion", "domain", "infeed", "outfeed", "send", "recv",
}  # fmt: skip
_UNKNOWN = ("topk", "rng", "rng-bit-generator")  # opcodes whose number of operations is not known
_TRANSCENDENTAL = (
    "exponential", "exponential-minus-one", "log", "log-plus-one", "power", "tanh", "sine", "cosine",
    "tan", "sqrt", "rsqrt", "cbrt", "logistic", "erf", "atan2",
)  # fmt: skip
# Opcode -> kind of work on floating-point numbers. Other elementwise operations are arithmetic.
_FLOATING_KINDS = {
    **dict.fromkeys(_TRANSCENDENTAL, "transcendentals"), "divide": "divisions", "remainder": "divisions",
}  # fmt: skip


def count_work(instruction: HloInstruction, instructions: Instructions) -> tuple[str, int]:
    """Return the kind and the amount of work of an instruction.

    The kind is the name of a field of `hlo_cost.Kernel`, which defines the unit of the amount. It is "" if
    the instruction only moves data without changing the minor-most axis. `instructions` contains all
    instructions of the same computation.
    """
    from scaling.options.program import cpu_overhead

    operands = [instructions[x] for x in instruction.operands if x in instructions]
    kind = instruction.opcode
    if kind in ("transpose", "copy") and operands and _is_transposing(instruction, operands[0]):
        return "turned", 2 * instruction.bytes
    if kind in _DATA_MOVEMENT or kind in COLLECTIVES or kind.endswith(("-done", "-start")):
        return "", 0
    if kind in _UNKNOWN:
        return "", 0
    if operands and cpu_overhead.routine_name(instruction):  # at least one operation for each element
        return "arithmetic", operands[0].size
    if kind in ("sort", "fft", "cholesky", "triangular-solve"):
        return "arithmetic", _count_routine(instruction, operands)
    if kind in ("dot", "convolution", "custom-call"):
        return _count_product(instruction, operands)
    if kind == "reduce":
        axes = instruction.axes("dimensions")
        sums_minor_axis = axes is None or operands[0].minor_axis in axes
        return "reductions" if sums_minor_axis else "arithmetic", operands[0].size
    if kind == "reduce-window":
        window = _WINDOW.search(instruction.attributes)
        sizes = hlo.parse_integers(window[1]) if window else operands[0].dims
        sums_minor_axis = operands[0].minor_axis is not None and sizes[operands[0].minor_axis] > 1
        return "reductions" if sums_minor_axis else "arithmetic", instruction.size * math.prod(sizes)
    if kind == "scatter":
        return "arithmetic", operands[-1].size
    is_floating = instruction.dtype.startswith(("f", "bf"))
    return _FLOATING_KINDS.get(kind, "arithmetic") if is_floating else "arithmetic", instruction.size


def _count_routine(instruction: HloInstruction, operands: list[HloInstruction]) -> int:
    """Return the number of operations of a sort, a Fourier transform, a factorization or a solution."""
    first, length = operands[0], operands[0].dims[-1]
    if instruction.opcode == "cholesky":
        return first.size * length // 3
    if instruction.opcode == "triangular-solve":
        return operands[1].size * length
    if instruction.opcode == "fft":
        return count_fft(instruction, operands)
    stages = (math.prod(first.dims[axis] for axis in instruction.axes("dimensions") or ()) - 1).bit_length()
    return first.size * stages * (stages + 1) // 2  # a bitonic network


def count_fft(instruction: HloInstruction, operands: Sequence[HloInstruction]) -> int:
    """Return 5 n log2 n real operations for each Fourier transform of n numbers, or half if they are real."""
    length = math.prod(instruction.axes("fft_length") or ())
    operations = 5 * max(instruction.size, operands[0].size) * math.log2(max(2, length))
    return round(operations / (2 if "RFFT" in instruction.attributes else 1))


def _count_product(instruction: HloInstruction, operands: list[HloInstruction]) -> tuple[str, int]:
    """Return ("products", number of operations) for a matrix product or convolution, otherwise ("", 0)."""
    if instruction.opcode == "convolution" and len(operands) == 2:
        return "products", _count_convolution(instruction.attributes, operands[0], operands[1], instruction)
    if "__cudnn$conv" in instruction.attributes and len(operands) > 1:
        arrays = _forward_roles(instruction, operands[0], operands[1])
        return "products", _count_convolution(instruction.attributes, *arrays)
    contracting = _CONTRACTING.search(instruction.attributes)
    if contracting is None or not operands:
        return ("products", 2 * instruction.size) if instruction.opcode == "dot" else ("", 0)
    contracted = (operands[0].dims[axis] for axis in hlo.parse_integers(contracting[1]))
    return "products", 2 * instruction.size * math.prod(contracted)


def _forward_roles(
    instruction: HloInstruction, first: HloInstruction, second: HloInstruction
) -> tuple[HloInstruction, HloInstruction, HloInstruction]:
    """Return the input, the kernel and the output of the forward convolution that a cuDNN call refers to.

    The attributes of a backward convolution in cuDNN describe the corresponding forward convolution.
    """
    if "convBackwardInput" in instruction.attributes:
        return instruction, second, first
    if "convBackwardFilter" in instruction.attributes:
        return first, instruction, second
    return first, second, instruction


def _count_convolution(
    attributes: str, image: HloInstruction, kernel: HloInstruction, output: HloInstruction
) -> int:
    """Return the number of operations of a convolution, with zeros of padding but not of a dilated input.

    On TPUs, products are convolutions, with the batch as an axis of the window.
    """
    labels = DIM_LABELS.search(attributes)
    if labels is None:
        return 0
    image_labels, kernel_labels, _ = labels.groups()
    dilation = re.search(r"lhs_dilate=([\dx]+)", attributes)
    count = 2 * output.size * kernel.dims[kernel_labels.index("i")]
    for axis in filter(str.isdigit, image_labels):
        count *= min(kernel.dims[kernel_labels.index(axis)], image.dims[image_labels.index(axis)])
    return count // math.prod(hlo.parse_integers(dilation[1]) if dilation else ())


def _is_transposing(instruction: HloInstruction, operand: HloInstruction) -> bool:
    if instruction.minor_axis is None or operand.minor_axis is None:
        return False
    order = instruction.axes("dimensions") if instruction.opcode == "transpose" else None
    return (order[instruction.minor_axis] if order else instruction.minor_axis) != operand.minor_axis


def library_name(instruction: HloInstruction) -> str:
    """Return the name of the unknown work of an instruction, such as a library function, or "" if none."""
    if instruction.opcode != "custom-call":
        return instruction.opcode if instruction.opcode in _UNKNOWN else ""
    match = re.search(r'custom_call_target="([^"]*)"', instruction.attributes)
    name = match[1] if match else "a call"
    return "" if name in _ANNOTATIONS else name
