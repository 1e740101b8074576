"""Count the arithmetic operations of one HLO instruction, such as a dot, a convolution or a reduction.

The instructions may come from the CPU, GPU or TPU backend. Library calls are counted only if they are matrix
products or convolutions. See hlo_cost.py for the bytes that an instruction reads and writes.
"""

import math
import re
from collections.abc import Mapping

from scaling.options.program import hlo
from scaling.options.program.hlo import HloLine, Instructions

COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
)
_ANNOTATIONS = {  # custom calls without work
    "AllocateBuffer", "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "MoveToHost",
    "MoveToDevice", "Pin", "Unpin", "ConcatBitcast", "AssumeGatherIndicesInBound",
    "annotate_device_placement", "LayoutConstraint", "PrepareAsyncCallStart", "PrepareAsyncCallDone",
}  # fmt: skip
_CONTRACTING = re.compile(r'lhs_contracting_dim(?:s=\{|ensions":\[)([\d,"]*)')
LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"window=\{size=([\dx]+)")
_WINDOW_DEFAULTS = (("pad", 0), ("stride", 1), ("lhs_dilate", 1), ("rhs_dilate", 1))
NO_KERNEL = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier",
    "partition-id", "replica-id",
}  # fmt: skip
SLICES = {"slice", "dynamic-slice", "gather"}  # read only the bytes of their result from their first operand
# Opcode -> index of the operand that is written into operand 0, in place if operand 0 is a parameter.
UPDATES = {"dynamic-update-slice": 1, "scatter": 2}
_DATA_MOVEMENT = NO_KERNEL | SLICES | {
    "broadcast", "iota", "reshape", "pad", "concatenate", "reverse", "transpose", "copy",
    "dynamic-update-slice", "fusion", "rng-bit-generator", "sort", "domain", "infeed", "outfeed",
    "send", "recv",
}  # fmt: skip
_TRANSCENDENTAL = (
    "exponential", "exponential-minus-one", "log", "log-plus-one", "power", "tanh", "sine", "cosine",
    "tan", "sqrt", "rsqrt", "cbrt", "logistic", "erf", "atan2",
)  # fmt: skip
# Opcode -> kind of work on floating-point numbers. Other elementwise operations are arithmetic.
_FLOATING_KINDS = {
    **dict.fromkeys(_TRANSCENDENTAL, "transcendentals"), "divide": "divisions", "remainder": "divisions",
}  # fmt: skip


def count_work(line: HloLine, lines: Instructions) -> tuple[str, int]:
    """Return the kind of work that an HLO instruction does, and the amount of this work.

    The kind is the name of a field of `hlo_cost.Kernel`, such as "products", whose description gives the unit
    of the amount. Return ("", 0) if the instruction only moves data without changing the minor-most axis.
    """
    operands = [lines[x] for x in line.operands if x in lines]
    kind = line.opcode
    if kind in ("transpose", "copy"):
        return ("turned", 2 * line.bytes) if operands and _is_transposing(line, operands[0]) else ("", 0)
    is_collective = kind.removesuffix("-start") in COLLECTIVES
    if kind in _DATA_MOVEMENT or is_collective or kind.endswith(("-done", "-start")):
        return "", 0
    if kind in ("dot", "convolution", "custom-call"):
        return _count_product(line, operands)
    if kind == "reduce":
        axes = line.axes("dimensions")
        is_fastest = axes is None or operands[0].fastest in axes
        return "reductions" if is_fastest else "arithmetic", operands[0].size
    if kind == "reduce-window":
        window = _WINDOW.search(line.rest)
        sizes = hlo.parse_integers(window[1]) if window else operands[0].dims
        is_fastest = operands[0].fastest is not None and sizes[operands[0].fastest] > 1
        return "reductions" if is_fastest else "arithmetic", line.size * math.prod(sizes)
    if kind == "scatter":
        return "arithmetic", operands[-1].size
    is_floating = line.dtype.startswith(("f", "bf"))
    return _FLOATING_KINDS.get(kind, "arithmetic") if is_floating else "arithmetic", line.size


def _count_product(line: HloLine, operands: list[HloLine]) -> tuple[str, int]:
    """Return ("products", number of operations) for a matrix product or convolution, otherwise ("", 0)."""
    if line.opcode == "convolution" and len(operands) == 2:
        return "products", _count_convolution(line.rest, operands[0], operands[1], line)
    if "__cudnn$conv" in line.rest and len(operands) > 1:
        return "products", _count_convolution(line.rest, *_forward_roles(line, operands[0], operands[1]))
    contracting = _CONTRACTING.search(line.rest)
    if contracting is None or not operands:
        return ("products", 2 * line.size) if line.opcode == "dot" else ("", 0)
    contracted = (operands[0].dims[axis] for axis in hlo.parse_integers(contracting[1]))
    return "products", 2 * line.size * math.prod(contracted)


def _forward_roles(line: HloLine, first: HloLine, second: HloLine) -> tuple[HloLine, HloLine, HloLine]:
    """Return the input, the kernel and the output of the forward convolution that a cuDNN call refers to.

    The attributes of a backward convolution in cuDNN describe the corresponding forward convolution, whose
    arrays are the operands `first` and `second` and the result `line` in a different order.
    """
    if "convBackwardInput" in line.rest:
        return line, second, first
    return (first, line, second) if "convBackwardFilter" in line.rest else (first, second, line)


def _count_convolution(attributes: str, image: HloLine, kernel: HloLine, output: HloLine) -> int:
    """Return the number of operations of a convolution, without those on zeros of padding and dilation."""
    labels = LABELS.search(attributes)
    if labels is None:
        return 0
    image_labels, kernel_labels, output_labels = labels.groups()
    match = re.search(r"window=\{([^}]*)\}", attributes)
    window = dict(part.split("=") for part in match[1].split()) if match else {}
    batch, features = (output.dims[output_labels.index(label)] for label in "bf")
    count = 2 * batch * features * kernel.dims[kernel_labels.index("i")]
    for index, axis in enumerate(sorted(label for label in output_labels if label.isdigit())):
        lengths = (
            image.dims[image_labels.index(axis)],
            kernel.dims[kernel_labels.index(axis)],
            output.dims[output_labels.index(axis)],
        )
        count *= _count_taps(
            *lengths, *(_window_value(window, name, index, default) for name, default in _WINDOW_DEFAULTS)
        )
    return count


def _window_value(window: Mapping[str, str], name: str, axis: int, default: int) -> int:
    """Return an attribute of a convolution window for one axis, such as 3 for axis 0 of pad=3_3x0_0.

    If the window does not have the attribute, return `default`.
    """
    return int(window[name].split("x")[axis].split("_")[0]) if name in window else default


def _count_taps(
    length: int, kernel: int, output: int, pad: int, stride: int, lhs_dilation: int, rhs_dilation: int
) -> int:
    """Return the number of products of a one-dimensional convolution, or of one axis of a convolution.

    A pair of an output index and a kernel index counts if it reads an element of the input instead of a zero
    of padding or dilation. `pad` is the number of zeros before the input.
    """
    count = 0
    for tap in range(kernel):
        # Output i reads index i * stride + tap * rhs_dilation - pad of the dilated input. It is an element of
        # the input if it is in range and a multiple of lhs_dilation.
        first = pad - tap * rhs_dilation
        last = (length - 1) * lhs_dilation + first
        low, high = max(0, -(-first // stride)), min(output - 1, last // stride)
        if stride == lhs_dilation == 1:
            count += max(0, high - low + 1)
        else:
            count += sum((i * stride - first) % lhs_dilation == 0 for i in range(low, high + 1))
    return count


def _is_transposing(line: HloLine, operand: HloLine) -> bool:
    if line.fastest is None or operand.fastest is None:
        return False
    order = line.axes("dimensions") if line.opcode == "transpose" else None
    return (order[line.fastest] if order else line.fastest) != operand.fastest


def library_name(line: HloLine) -> str:
    """Return the target of a custom call, or "" if the call only annotates data and does no work."""
    match = re.search(r'custom_call_target="([^"]*)"', line.rest)
    name = match[1] if match else "a call"
    return "" if name in _ANNOTATIONS else name
