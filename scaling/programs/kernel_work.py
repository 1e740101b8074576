"""Count the work of HLO kernels by kind (`KernelWork`): operations, and overhead of libraries on a CPU.

The kernels are compiled for a CPU, GPU or TPU. Each element of a result counts once, although the loops that
XLA generates may compute an element several times. Among custom calls, only matrix products, convolutions,
TopK and common routines of LAPACK are counted. programs/hlo.py counts the bytes.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scaling.core.record import RecordFields
from scaling.programs import hlo
from scaling.programs.hlo import Computations, HloInstruction, HloProgram, Instructions

_ANNOTATION_TARGETS = {  # targets of custom calls that do no work
    "AllocateBuffer", "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "MoveToHost",
    "MoveToDevice", "Pin", "Unpin", "ConcatBitcast", "AssumeGatherIndicesInBound",
    "annotate_device_placement", "LayoutConstraint", "PrepareAsyncCallStart", "PrepareAsyncCallDone",
}  # fmt: skip
_CONTRACTING_DIMENSIONS = re.compile(r'lhs_contracting_dim(?:s=\{|ensions":\[)([\d,"]*)')
_CONVOLUTION_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->\w+")
_CUDNN_TARGET = re.compile(r"__cudnn\$conv\w*?(Forward|BackwardInput|BackwardFilter)")
# The attributes of a backward convolution in cuDNN describe the corresponding forward convolution. The roles
# are the indices of its input, kernel and output among (operand 0, operand 1, result).
_CUDNN_ROLES = {"Forward": (0, 1, 2), "BackwardInput": (2, 1, 0), "BackwardFilter": (0, 2, 1)}
_WINDOW_SIZE = re.compile(r"window=\{size=([\dx]+)")
# Opcodes whose number of operations is not known. The last four are transfers to and from the host.
_UNCOUNTED_OPCODES = {"topk", "rng", "rng-bit-generator", "infeed", "outfeed", "send", "recv"}
_OPCODES_WITHOUT_OPERATIONS = hlo.NO_KERNEL | hlo.SLICES | _UNCOUNTED_OPCODES | {
    *hlo.COLLECTIVES, "broadcast", "iota", "reshape", "pad", "concatenate", "reverse", "transpose", "copy",
    "dynamic-update-slice", "fusion", "domain", "call",
}  # fmt: skip
# Opcode -> kind of work on floating-point numbers. Other elementwise operations are arithmetic.
_FLOATING_POINT_KINDS = {"divide": "divisions", "remainder": "divisions"} | dict.fromkeys((
    "exponential", "exponential-minus-one", "log", "log-plus-one", "power", "tanh", "sine", "cosine", "tan",
    "sqrt", "rsqrt", "cbrt", "logistic", "erf", "atan2",
), "transcendentals")  # fmt: skip


# Constants of the overhead on a CPU, in picoseconds. Libraries compute matrix products, sorts, and
# convolutions whose features are the last axis. XLA compiles other kernels to loops. The times in the
# comments were measured in float32 with jaxlib 0.10.2 on one core of two AMD EPYCs. Their rates of arithmetic
# differ by a factor of 1.6, but the times to start kernels and products do not.
CACHE_BYTES = 2**19  # bytes of a kernel in a while loop that a CPU core keeps in its cache
KERNEL_START = 450_000  # the start of a kernel: 0.4 to 0.8 us
KERNEL_START_IN_LOOP = 30_000  # the same in a while loop, when the code is in the cache: 10 to 40 ns
PRODUCT = 400_000  # each product of a batch, and the start of the library: 0.4 us
PACKED_ELEMENT = 60  # an element of the operands or the result of a product in the library: 0.04 to 0.3 ns
NARROW_PRODUCT_ELEMENT = 200  # the same for the left operand if the right one is narrow: 0.17 to 0.29 ns
NARROW_COLUMNS = 7  # the largest number of columns of a narrow matrix
CONVOLUTION_PATCH = 30_000  # an output position of a convolution: 15 to 80 ns
SORT_COMPARISON = 9000  # a comparison of two elements: 5 to 14 ns
FFT_START = 1_400_000  # the start of the library of Fourier transforms: 0.7 to 1.5 us
FFT_OPERATION = 45  # the additional time of an operation of a Fourier transform: 20 to 100 ps
# An element of the operands of a routine that a custom call executes, for matrices of 3 x 3 to 300 x 300:
# 0.4 to 0.6 ns for trsm, 1 to 5 ns for gtsv and TopK.
ROUTINE_ELEMENTS = {
    "TopK": 2500, "potrf": 1600, "getrf": 2200, "trsm": 600, "gtsv": 2600, "geqrf": 7800, "orgqr": 7800,
    "ungqr": 7800, "gehrd": 20_000, "sytrd": 20_000, "hetrd": 20_000, "syevd": 45_000, "heevd": 45_000,
    "gesdd": 80_000, "gesvd": 100_000, "geev": 180_000, "gees": 180_000,
}  # fmt: skip
# Fusions that XLA leaves to the library YNNPACK. The time of a single one can be wrong by a factor of 2.
FUSION_START = 3_000_000  # the start of a fusion: 1 to 8 us
FUSION_START_IN_LOOP = 1_000_000  # the same in a while loop: 0.5 to 1 us
SUMMED_ROW = 4000  # a row of a reduction in a library: 3 to 5 ns
_ROUTINE_TARGET = re.compile(r'custom_call_target="(?:lapack_[sdcz](\w+)_ffi|(TopK))"')


_Counter = Callable[[HloInstruction, Sequence[HloInstruction]], int]  # of an instruction and its operands
KernelWork = dict[str, Any]  # the work of a kernel on one device: {one of `FIELDS`: value per execution}
FIELDS = (  # a missing field is 0 or ""
    "bytes",  # bytes that are read and written; of small arrays in a loop on a CPU, divided by its iterations
    "products",  # multiplications and additions in matrix products and convolutions
    "arithmetic",  # other operations, including sums, comparisons, selections and conversions
    "divisions",  # floating-point divisions
    "transcendentals",  # evaluations of transcendental functions
    "operations",  # instructions that a CPU executes (llvm_instructions.py), if known
    "overhead",  # additional time on a CPU, in picoseconds
    "library",  # an opcode or a library function whose operations are unknown
    "times",  # the number of executions, or infinity if it is unknown
)


def program_fields(program: HloProgram, operations: Mapping[str, float] | None, steps: int) -> RecordFields:
    """Return the record fields with the kernels, collectives and operations of `steps` runs of a program.

    `operations` is the result of `llvm_instructions.count_operations` for a CPU, otherwise None.
    """
    executions = defaultdict[tuple[Any, ...], float](float)
    for kernel in count_kernels(program, operations):
        executions[tuple(item for item in kernel.items() if item[0] != "times")] += kernel["times"] * steps
    # The field `times` of a kernel counts the executions of all equal kernels.
    merged: list[KernelWork] = [{**dict(fields), "times": count} for fields, count in executions.items()]

    def total(*kinds: str) -> float:
        return sum(kernel["times"] * sum(kernel.get(kind, 0) for kind in kinds) for kernel in merged)

    return {
        "kernels": list(map(_omit_single_execution, merged)),
        "messages": [_omit_single_execution(vars(message)) for message in program.messages or ()],
        "program_flops": total("products", "arithmetic", "divisions"),
        "program_transcendentals": total("transcendentals"),
    }


def _omit_single_execution(work: KernelWork) -> KernelWork:
    """Return the fields of a kernel or collective. Omit `times`, the number of executions, if it is 1."""
    return {name: value for name, value in work.items() if (name, value) != ("times", 1)}


def count_kernels(program: HloProgram, operations: Mapping[str, float] | None = None) -> list[KernelWork]:
    """Return the work of each kernel of a compiled program as a list.

    `operations` is the result of `llvm_instructions.count_operations` for a CPU, otherwise None. If the
    kernels are unknown, return one kernel with `times=inf`, for which no time can be predicted.
    """
    if program.kernels is None:
        return [{"bytes": 1, "times": math.inf}]
    by_name = None if operations is None else _operations_by_name(program.computations, operations)
    return [_count_kernel(kernel, by_name) for kernel in program.kernels]


def _operations_by_name(computations: Computations, operations: Mapping[str, float]) -> dict[str, float]:
    """Return the number of operations of each kernel by name, including all identical fusions.

    XLA compiles only one of several identical fusions, and `operations` contains only this one.
    """

    def fusion_key(fusion: HloInstruction) -> tuple[Any, ...]:  # equal for identical fusions
        fused = computations[fusion.called[0]].values()
        return (fusion.dims, *((x.opcode, x.dims, x.dtype, x.minor_axis) for x in fused))

    instructions = (x for computation in computations.values() for x in computation.values())
    fusion_keys = {x.name: fusion_key(x) for x in instructions if x.opcode == "fusion"}
    by_key = {fusion_keys[name]: operations[name] for name in fusion_keys if name in operations}
    return {name: by_key[key] for name, key in fusion_keys.items() if key in by_key} | dict(operations)


def _count_kernel(kernel: hlo.Kernel, operations: Mapping[str, float] | None) -> KernelWork:
    """Return the work of one execution of a kernel.

    `operations` maps the name of each CPU kernel to the number of its operations. It is None for a GPU or
    TPU.
    """
    work, library = Counter(bytes=kernel.bytes), ""
    for instruction in kernel.body.values():
        field_name, amount = _count_instruction(instruction, kernel.body)
        if field_name:
            work[field_name] += amount
        else:
            library = _library_name(instruction) or library
    if operations is not None:
        if kernel.in_loop and kernel.bytes <= CACHE_BYTES:  # the first iteration loads the arrays
            work["bytes"] = math.ceil(kernel.bytes / kernel.times)
        loop_operations = operations.get(kernel.instruction.name, 0.0)  # 0 if a library computes the result
        work["overhead"] = _kernel_overhead(kernel, loop_operations)
        work["operations"], library = round(loop_operations), "" if loop_operations else library
    values = {**work, "library": library}
    return {name: values[name] for name in FIELDS if values.get(name)} | {"times": kernel.times}


def _count_instruction(instruction: HloInstruction, instructions: Instructions) -> tuple[str, int]:
    """Return the work of an HLO instruction: the name of one of `FIELDS`, and the number to add to it.

    If the work is unknown or 0, return ("", 0). `instructions` contains the instructions of the same
    computation by name.
    """
    operands = [instructions[x] for x in instruction.operands if x in instructions]
    opcode = instruction.opcode
    if opcode in _OPCODES_WITHOUT_OPERATIONS or opcode.endswith(("-done", "-start")):
        return "", 0
    if operands and _routine_name(instruction):  # at least one operation for each element
        return "arithmetic", operands[0].size
    if opcode in ("dot", "convolution", "custom-call"):
        return _count_product(instruction, operands)
    if opcode in _OPERATION_COUNTERS:
        return "arithmetic", _OPERATION_COUNTERS[opcode](instruction, operands)
    is_floating = instruction.dtype.startswith(("f", "bf"))
    kind = _FLOATING_POINT_KINDS.get(opcode, "arithmetic") if is_floating else "arithmetic"
    return kind, instruction.size


def _count_window_terms(instruction: HloInstruction, operands: Sequence[HloInstruction]) -> int:
    """Return the number of terms that a reduction over windows adds."""
    window = _WINDOW_SIZE.search(instruction.attributes)
    return instruction.size * math.prod(hlo.parse_integers(window[1]) if window else operands[0].dims)


def _count_fft(instruction: HloInstruction, operands: Sequence[HloInstruction]) -> int:
    """Return the operations of a Fourier transform: 5 n log2 n for n complex numbers, half for real ones."""
    points = math.prod(instruction.axes("fft_length") or ())
    operations = 5 * max(instruction.size, operands[0].size) * math.log2(max(2, points))
    return round(operations / (2 if "RFFT" in instruction.attributes else 1))


def _count_sort(instruction: HloInstruction, operands: Sequence[HloInstruction]) -> int:
    """Return the number of comparisons of a sort by a bitonic network."""
    stages = (_sorted_elements(instruction, operands) - 1).bit_length()
    return operands[0].size * stages * (stages + 1) // 2


def _sorted_elements(instruction: HloInstruction, operands: Sequence[HloInstruction]) -> int:
    """Return the number of elements along the sorted axes."""
    return math.prod(operands[0].dims[axis] for axis in instruction.axes("dimensions") or ())


# opcode -> function (instruction, operands) that returns the number of operations of kind "arithmetic"
_OPERATION_COUNTERS: dict[str, _Counter] = {
    "reduce": lambda _, operands: operands[0].size,
    "reduce-window": _count_window_terms,
    "scatter": lambda _, operands: operands[-1].size,
    "cholesky": lambda _, operands: operands[0].size * operands[0].dims[-1] // 3,
    "triangular-solve": lambda _, operands: operands[1].size * operands[0].dims[-1],
    "fft": _count_fft,
    "sort": _count_sort,
}


def _count_product(instruction: HloInstruction, operands: Sequence[HloInstruction]) -> tuple[str, int]:
    """Return "products" and the number of operations for a matrix product or convolution, else ("", 0)."""
    cudnn = _CUDNN_TARGET.search(instruction.attributes)
    if cudnn or instruction.opcode == "convolution":
        roles = _CUDNN_ROLES[cudnn[1] if cudnn else "Forward"]
        arrays = [(*operands[:2], instruction)[role] for role in roles]
        return "products", _count_convolution(instruction.attributes, *arrays)
    contracting = _CONTRACTING_DIMENSIONS.search(instruction.attributes)
    if contracting is None:
        return ("products", 2 * instruction.size) if instruction.opcode == "dot" else ("", 0)
    contracted = (operands[0].dims[axis] for axis in hlo.parse_integers(contracting[1]))
    return "products", 2 * instruction.size * math.prod(contracted)


def _count_convolution(
    attributes: str, image: HloInstruction, kernel: HloInstruction, output: HloInstruction
) -> int:
    """Return the number of multiplications and additions of a convolution, or 0 if it is unknown."""
    labels = _CONVOLUTION_LABELS.search(attributes)
    if labels is None:
        return 0
    image_labels, kernel_labels = labels.groups()
    # Multiplications by zeros from dilation are not counted. On a TPU, XLA also writes a batch of matrix
    # products as a dilated convolution.
    dilation = re.search(r"lhs_dilate=([\dx]+)", attributes)
    count = 2 * output.size * kernel.dims[kernel_labels.index("i")]
    for axis in filter(str.isdigit, image_labels):
        count *= min(kernel.dims[kernel_labels.index(axis)], image.dims[image_labels.index(axis)])
    return count // math.prod(hlo.parse_integers(dilation[1]) if dilation else ())


def _library_name(instruction: HloInstruction) -> str:
    """Return the name of the library function that an uncounted instruction calls, or "" if it does no work.

    The name is the target of a custom call, or the opcode of any other instruction. An uncounted instruction
    is one for which `_count_instruction` returns ("", 0).
    """
    if instruction.opcode != "custom-call":
        return instruction.opcode if instruction.opcode in _UNCOUNTED_OPCODES else ""
    match = re.search(r'custom_call_target="([^"]*)"', instruction.attributes)
    name = match[1] if match else "a call"
    return "" if name in _ANNOTATION_TARGETS else name


def _kernel_overhead(kernel: hlo.Kernel, loop_operations: float) -> int:
    """Return the time in picoseconds to start a CPU kernel, plus the overhead of its library calls.

    `loop_operations` is the number of operations in compiled loops, or 0 if a library computes the result.
    The overhead is at least 1, because 0 would mean that the kernel runs on an accelerator.
    """
    if kernel.in_call:
        return 1  # a called kernel has no start
    start, start_in_loop = KERNEL_START, KERNEL_START_IN_LOOP
    if "__ynn_fusion" in kernel.instruction.attributes:
        start, start_in_loop = FUSION_START, FUSION_START_IN_LOOP
    # The first iteration of a loop loads the code.
    overhead = start_in_loop + round((start - start_in_loop) / kernel.times) if kernel.in_loop else start
    if loop_operations:
        return overhead
    return overhead + sum(_library_overhead(each, kernel.body) for each in kernel.body.values())


def _library_overhead(instruction: HloInstruction, body: Instructions) -> int:
    """Return the overhead of a library call in picoseconds, or 0 if an instruction calls no known library.

    `body` contains the instructions of the same kernel.
    """
    operands = [body[name] for name in instruction.operands]
    overhead = _LIBRARY_OVERHEADS.get(instruction.opcode)
    return overhead(instruction, operands) if overhead else 0


def _product_overhead(product: HloInstruction, operands: Sequence[HloInstruction]) -> int:
    """Return the overhead in picoseconds of a batch of matrix products in a library."""
    left, right = operands
    batch = math.prod(left.dims[axis] for axis in product.axes("lhs_batch_dims") or ())
    is_narrow = not product.dims or product.dims[-1] <= NARROW_COLUMNS
    left_element = NARROW_PRODUCT_ELEMENT if is_narrow else PACKED_ELEMENT
    packing = left_element * left.size + PACKED_ELEMENT * (product.size + right.size)
    return PRODUCT * (1 + batch) + packing


def _convolution_overhead(convolution: HloInstruction, _operands: Sequence[HloInstruction]) -> int:
    """Return the overhead in picoseconds of a convolution in a library.

    Return 0 for a convolution that XLA computes as a matrix product.
    """
    is_product = "lhs_dilate=" in convolution.attributes
    return 0 if is_product else CONVOLUTION_PATCH * convolution.size // max(1, convolution.dims[-1])


def _routine_overhead(call: HloInstruction, operands: Sequence[HloInstruction]) -> int:
    """Return the overhead in picoseconds of a custom call that executes a routine."""
    return ROUTINE_ELEMENTS.get(_routine_name(call), 0) * sum(operand.size for operand in operands)


def _sort_overhead(sort: HloInstruction, operands: Sequence[HloInstruction]) -> int:
    """Return the overhead in picoseconds of a sort in a library."""
    return round(SORT_COMPARISON * operands[0].size * math.log2(max(2, _sorted_elements(sort, operands))))


# opcode -> function (instruction, operands) that returns the overhead of its library in picoseconds
_LIBRARY_OVERHEADS: dict[str, _Counter] = {
    "dot": _product_overhead,
    "reduce": lambda _, operands: SUMMED_ROW * (operands[0].size // max(1, *operands[0].dims[-1:])),
    "convolution": _convolution_overhead,
    "custom-call": _routine_overhead,
    "fft": lambda fft, operands: FFT_START + FFT_OPERATION * _count_fft(fft, operands),
    "sort": _sort_overhead,
}


def _routine_name(instruction: HloInstruction) -> str:
    """Return the routine that a custom call executes, a key of `ROUTINE_ELEMENTS`, or "" if unknown."""
    match = _ROUTINE_TARGET.search(instruction.attributes)
    name = (match[1] or match[2]) if match else ""
    return name if name in ROUTINE_ELEMENTS else ""
