"""The kind and the amount of work of an instruction of HLO, as each backend writes it.

Does not know what an instruction moves (hlo_cost.py), nor the work of library calls other than matrix
products.
"""

import math
import re
from collections.abc import Mapping

from scaling.options.program import hlo
from scaling.options.program.hlo import HloLine

COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
)
_WITHOUT_WORK = {
    "AllocateBuffer", "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "MoveToHost", "MoveToDevice", "Pin", "Unpin",
    "ConcatBitcast", "AssumeGatherIndicesInBound", "annotate_device_placement", "LayoutConstraint", "PrepareAsyncCallStart",
    "PrepareAsyncCallDone",
}  # fmt: skip
_CONTRACTING = re.compile(r'lhs_contracting_dim(?:s=\{|ensions":\[)([\d,"]*)')
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"window=\{size=([\dx]+)")
_WINDOWED = (("pad", 0), ("stride", 1), ("lhs_dilate", 1), ("rhs_dilate", 1))
STILL = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier", "partition-id", "replica-id",
}  # fmt: skip
SLICES = {"slice", "dynamic-slice", "gather"}  # read as much of their first operand as they give
UPDATES = {
    "dynamic-update-slice": 1,
    "scatter": 2,
}  # write this operand into the first, in place where that is a parameter
_MOVES = STILL | SLICES | {
    "broadcast", "iota", "reshape", "pad", "concatenate", "reverse", "transpose", "copy", "dynamic-update-slice", "fusion",
    "rng-bit-generator", "sort", "domain", "infeed", "outfeed", "send", "recv",
}  # fmt: skip
_TRANSCENDENTAL = {
    "exponential", "exponential-minus-one", "log", "log-plus-one", "power", "tanh", "sine", "cosine", "tan", "sqrt", "rsqrt",
    "cbrt", "logistic", "erf", "atan2",
}  # fmt: skip
_DIVIDES = {"divide", "remainder"}


def work(line: HloLine, lines: Mapping[str, HloLine]) -> tuple[str, int]:
    """Return the work of an instruction: the name of a field of `Kernel`, and an amount; ("", 0) for what
    only moves.
    """
    operands = [lines[x] for x in line.operands if x in lines]
    kind = line.opcode
    if kind in ("transpose", "copy"):
        return ("turned", 2 * line.bytes) if operands and _turns(line, operands[0]) else ("", 0)
    if kind in _MOVES or kind.removesuffix("-start") in COLLECTIVES or kind.endswith(("-done", "-start")):
        return "", 0
    if kind in ("dot", "convolution", "custom-call"):
        return _product(line, operands)
    if kind == "reduce":
        along = re.search(r"dimensions=\{([\d,]*)\}", line.rest)
        fast = along is None or operands[0].fastest in hlo.whole(along[1])
        return "reductions" if fast else "arithmetic", operands[0].size
    if kind == "reduce-window":
        window = _WINDOW.search(line.rest)
        sizes = hlo.whole(window[1]) if window else operands[0].dims
        fast = operands[0].fastest is not None and sizes[operands[0].fastest] > 1
        return "reductions" if fast else "arithmetic", line.size * math.prod(sizes)
    if kind == "scatter":
        return "arithmetic", operands[-1].size
    number = line.dtype.startswith(("f", "bf"))
    if kind in _TRANSCENDENTAL and number:
        return "transcendentals", line.size
    if kind in _DIVIDES and number:
        return "divisions", line.size
    return "arithmetic", line.size


def _product(line: HloLine, operands: list[HloLine]) -> tuple[str, int]:
    """Return the work of a matrix product or convolution, as each backend writes it; ("", 0) for other
    library calls.
    """
    if line.opcode == "convolution" and len(operands) == 2:
        return "products", _convolution(line.rest, operands[0], operands[1], line)
    if "__cudnn$conv" in line.rest and len(operands) > 1:
        return "products", _convolution(line.rest, *_forward(line, operands[0], operands[1]))
    contracting = _CONTRACTING.search(line.rest)
    if contracting is None or not operands:
        return ("products", 2 * line.size) if line.opcode == "dot" else ("", 0)
    return "products", 2 * line.size * math.prod(operands[0].dims[axis] for axis in hlo.whole(contracting[1]))


def _forward(line: HloLine, first: HloLine, second: HloLine) -> tuple[HloLine, HloLine, HloLine]:
    """Return input, kernel and result of one of cuDNN's convolutions, all of which it describes by the
    forward one.
    """
    if "convBackwardInput" in line.rest:
        return line, second, first
    return (first, line, second) if "convBackwardFilter" in line.rest else (first, second, line)


def _convolution(words: str, given: HloLine, kernel: HloLine, made: HloLine) -> int:
    """Return the multiplications and additions of a convolution, without those with zeros of padding and
    dilation.
    """
    labels = _LABELS.search(words)
    if labels is None:
        return 0
    found = re.search(r"window=\{([^}]*)\}", words)
    window = dict(part.split("=") for part in found[1].split()) if found else {}
    count = (
        2
        * made.dims[labels[3].index("b")]
        * made.dims[labels[3].index("f")]
        * kernel.dims[labels[2].index("i")]
    )
    for place, axis in enumerate(sorted(label for label in labels[3] if label.isdigit())):
        sizes = (
            given.dims[labels[1].index(axis)],
            kernel.dims[labels[2].index(axis)],
            made.dims[labels[3].index(axis)],
        )
        count *= _taps(*sizes, *(_along(window, name, place, usual) for name, usual in _WINDOWED))
    return count


def _along(window: Mapping[str, str], name: str, axis: int, usual: int) -> int:
    """Return the first number of an attribute of a window, such as pad=3_3x0_0, for one axis."""
    return int(window[name].split("x")[axis].split("_")[0]) if name in window else usual


def _taps(given: int, kernel: int, made: int, pad: int, stride: int, spread: int, dilate: int) -> int:
    """Return how many pairs of an element of the result and one of the kernel meet an element of the
    input, on one axis.
    """
    count = 0
    for tap in range(kernel):
        # The result's i meets i * stride + tap * dilate - pad, which must be a multiple of `spread` within
        # what is given.
        first, last = pad - tap * dilate, (given - 1) * spread + pad - tap * dilate
        low, high = max(0, -(-first // stride)), min(made - 1, last // stride)
        if stride == spread == 1:
            count += max(0, high - low + 1)
        else:
            count += sum((i * stride - first) % spread == 0 for i in range(low, high + 1))
    return count


def _turns(line: HloLine, operand: HloLine) -> bool:
    """Return whether a copy or a transposition changes which axis is the fastest."""
    if line.fastest is None or operand.fastest is None:
        return False
    order = re.search(r"dimensions=\{([\d,]*)\}", line.rest) if line.opcode == "transpose" else None
    return (hlo.whole(order[1])[line.fastest] if order else line.fastest) != operand.fastest


def library(line: HloLine) -> str:
    """Return the name of a call whose work is not known; "" for one that only says where data lie."""
    found = re.search(r'custom_call_target="([^"]*)"', line.rest)
    name = found[1] if found else "a call"
    return "" if name in _WITHOUT_WORK else name
