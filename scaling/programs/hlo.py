"""Parse the text of an HLO module: instructions, kernels, collectives, and the bytes that they move.

A kernel is a fusion or a single instruction. A kernel reads its operands from memory and writes its results
to memory; caches are ignored. If an operand is sliced, only the slices are read. If an operand is updated in
place, only the update is written. programs/kernel_work.py counts the operations of the kernels.
"""

import contextlib
import dataclasses
import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

COLLECTIVES = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast",
)  # fmt: skip
NO_KERNEL = {  # opcodes of instructions that execute no kernel
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier",
    "partition-id", "replica-id",
}  # fmt: skip
SLICES = {"slice", "dynamic-slice", "gather"}  # read only as many bytes of operand 0 as the result has
# Opcode -> index of the operand that contains the update of operand 0. If operand 0 is a parameter of the
# fusion, XLA updates it in place.
UPDATES = {"dynamic-update-slice": 1, "scatter": 2}

_COMPUTATION_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*-> .*\{$")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\(([^)]*)(.*)")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"\b(?:body|condition|to_apply|calls|\w+_computations?)=\{?((?:%[\w.\-]+(?:, )?)+)")
_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_ARRAY = re.compile(r"([a-z]+)(\d*)(\w*)\[([\d,]*)\](?:\{([\d,]*)([^}]*)\})?")
_SCRATCH = re.compile(r", [su]8\[\d+\]\{0\}\)$")  # the workspace of a library call is its last result
_TILE = re.compile(r"T\(([\d,]+)\)")  # the outermost tile; inner tiles add no padding
_ON_CHIP = re.compile(r"S\([1-46-9]\)")  # memory spaces other than device (no number) and host (5)
_COPIES = ("copy", "bitcast")
_ALLOCATION = 'custom_call_target="AllocateBuffer"'  # moves no data
_SMALL_CALL = 'xla_cpu_small_call="true"'  # XLA compiles the called computation to one CPU function
_DEVICES = re.compile(r"\b(?:num_partitions|replica_count)=(\d+)")
_GROUPS = re.compile(r"replica_groups=(?:\[\d+,(\d+)\]|\{\{([\d,]*)\})")

Instructions = Mapping[str, "HloInstruction"]
Computations = Mapping[str, Instructions]


class HloInstruction(NamedTuple):
    """An instruction of an HLO computation, such as an add or a fusion."""

    name: str
    # For an asynchronous start, such as "copy-start", the sizes exclude operands that are in the result.
    bytes: int  # the bytes of the result in device memory, with the padding of its layout
    unpadded_bytes: int  # the bytes of the result in all memory spaces, without padding
    dims: tuple[int, ...]  # the dimensions of the result, or of the first array of a tuple
    dtype: str  # the element type of this array
    minor_axis: int | None  # the minor-most axis of this array that is longer than one element, or None
    opcode: str
    operands: list[str]  # the names of the operands
    called: list[str]  # the names of the computations that the instruction calls
    root: bool
    argument_text: str  # the text in the parentheses after the opcode, such as the number of a parameter
    attributes: str  # the text after the parentheses, such as ", dimensions={0,1}, to_apply=%add"

    @property
    def size(self) -> int:
        """Return the number of elements of the result, or of its first array if the result is a tuple."""
        return math.prod(self.dims)

    @property
    def kind(self) -> str:
        """Return the opcode, without the ending "-start" of an asynchronous instruction."""
        return self.opcode.removesuffix("-start")

    def axes(self, attribute: str) -> tuple[int, ...] | None:
        """Return the axes in an attribute, such as (0, 2) for "dimensions={0,2}", or None if it is absent."""
        match = re.search(rf"\b{attribute}=\{{([\d,]*)\}}", self.attributes)
        return parse_integers(match[1]) if match else None


@dataclass(frozen=True)
class Kernel:
    """An HLO instruction that runs as a kernel, and the bytes that one execution reads and writes."""

    instruction: HloInstruction
    body: Instructions  # the parameters and all instructions that are fused, including nested fusions
    in_loop: bool  # whether the kernel is in a while loop
    bytes: int
    times: float = 1.0  # the number of executions, or infinity if it is unknown
    in_call: bool = False  # whether XLA compiles it into the kernel of a small call


@dataclass(frozen=True)
class Collective:
    """A collective operation, such as an all-reduce, that a group of devices executes together."""

    kind: str  # the opcode, such as "all-reduce"
    bytes: int  # the bytes of the input or of the output of a device, whichever is larger, in one execution
    group: int  # the number of devices in the group
    times: float = 1.0  # the number of executions, or infinity if it is unknown


@dataclass(frozen=True)
class HloProgram:
    """A compiled program: its HLO instructions, and the kernels and collectives that it executes."""

    computations: Computations
    kernels: Sequence[Kernel] | None  # the executed kernels, or None if unknown
    messages: Sequence[Collective] | None  # the executed collectives, or None if unknown
    collectives: dict[str, int]  # the opcode of a collective, such as "all-reduce" -> number of instructions

    @property
    def hbm_bytes(self) -> int | None:
        """Return the number of bytes that all kernels together read and write, or None if it is unknown."""
        return _known_bytes(self.kernels)

    @property
    def collective_bytes(self) -> int | None:
        """Return the total number of bytes of all executed collectives, or None if it is unknown."""
        return _known_bytes(self.messages)


def _total_bytes(executed: Iterable[Kernel | Collective]) -> float:
    return sum(item.bytes * item.times for item in executed if item.bytes)


def _known_bytes(executed: Iterable[Kernel | Collective] | None) -> int | None:
    total = math.inf if executed is None else _total_bytes(executed)
    return None if math.isinf(total) else int(total)


def read(text: str) -> HloProgram:
    """Parse the text of an optimized HLO module, such as the result of `jax.stages.Compiled.as_text`.

    For a conditional, `kernels` and `messages` contain only the branch that moves the most bytes. In a loop
    with an unknown trip count, the field `times` of a kernel or collective is infinity.
    """
    computations, entry = parse(text)
    opcodes = Counter(x.kind for instructions in computations.values() for x in instructions.values())
    devices = math.prod(map(int, _DEVICES.findall(text[: text.find("\n")])))
    kernels: list[Kernel] | None = None
    messages: list[Collective] | None = None
    with contextlib.suppress(LookupError, ValueError):  # the format of another version of XLA
        kernels = _list_executed(computations, entry)
        messages = [message for kernel in kernels for message in _find_collectives(kernel, devices)]
    return HloProgram(computations, kernels, messages, {kind: opcodes[kind] for kind in COLLECTIVES})


def _list_executed(computations: Computations, entry: str) -> list[Kernel]:
    """Return the kernels that a computation executes, including the computations that it calls.

    `entry` is the name of the computation.
    """

    @functools.cache
    def executed_by(name: str, in_loop: bool = False) -> list[Kernel]:
        executed, instructions = list[Kernel](), computations[name]
        for instruction in instructions.values():
            opcode_kind, called = instruction.kind, instruction.called
            if opcode_kind in ("call", "async"):
                kernels = [kernel for computation in called for kernel in executed_by(computation, in_loop)]
                if _SMALL_CALL in instruction.attributes:
                    kernels = [dataclasses.replace(kernel, in_call=True) for kernel in kernels]
                    kernels.append(Kernel(instruction, _as_fusion(instruction, instructions), in_loop, 0))
                executed += kernels
            elif opcode_kind == "conditional":
                executed += max((executed_by(branch, in_loop) for branch in called), key=_total_bytes)
            elif opcode_kind == "while":
                trips = _count_trips(instruction, instructions, computations)
                # The condition of a loop whose trip count is known is not evaluated.
                evaluated = called[1:] if _TRIP_COUNT.search(instruction.attributes) else called
                iteration = [kernel for computation in evaluated for kernel in executed_by(computation, True)]
                executed += (dataclasses.replace(x, times=x.times * trips) for x in iteration)
            elif _executes_kernel(instruction):
                body = _flatten(_as_fusion(instruction, instructions), computations)
                executed.append(Kernel(instruction, body, in_loop, _count_kernel_bytes(body)))
        return executed

    return executed_by(entry)


def _count_trips(loop: HloInstruction, instructions: Instructions, computations: Computations) -> float:
    """Return the number of iterations of the while instruction `loop`, or infinity if it is unknown.

    `instructions` are the instructions of the computation that contains the loop.
    """
    condition, body = (computations[name] for name in loop.called)
    if reported := _TRIP_COUNT.search(loop.attributes):
        return float(reported[1])
    # On TPUs, XLA reports no trip count. JAX lowers loops to `while counter < end: counter += step`.
    test, carried = _root(condition), instructions[loop.operands[0]].operands
    try:
        counter, end = (source_of(name, condition, _COPIES) for name in test.operands)
        index = _tuple_index(counter)
        update, start = body[_root(body).operands[index]], source_of(carried[index], instructions, _COPIES)
        terms = [source_of(name, body, _COPIES) for name in update.operands]
        (step,) = (_constant_value(term) for term in terms if term.opcode == "constant")
        (updated,) = (_tuple_index(term) for term in terms if term.opcode != "constant")
        trips = math.ceil((_constant_value(end) - _constant_value(start)) / step)
    except (LookupError, ValueError, ZeroDivisionError):
        return math.inf
    is_counter = (test.opcode, update.opcode, updated) == ("compare", "add", index) and step > 0
    return float(max(0, trips)) if is_counter and "direction=LT" in test.attributes else math.inf


def _tuple_index(instruction: HloInstruction) -> int:
    """Return the index of a get-tuple-element instruction. Raise `ValueError` for any other instruction."""
    return int(instruction.attributes.partition(", index=")[2].partition(",")[0])


def _constant_value(constant: HloInstruction) -> int:
    """Return the value of an integer constant. Raise `ValueError` for any other instruction."""
    return int(constant.argument_text if constant.opcode == "constant" else "")


def _executes_kernel(instruction: HloInstruction) -> bool:
    if instruction.opcode.endswith(("-done", "-update")) or _ALLOCATION in instruction.attributes:
        return False
    return instruction.kind not in NO_KERNEL


def _as_fusion(instruction: HloInstruction, instructions: Instructions) -> dict[str, HloInstruction]:
    """Return a fusion of one instruction, as a dict by name. The operands become parameters."""
    operands = (instructions[name] for name in instruction.operands)
    parameters = {x.name: x._replace(opcode="parameter", operands=[], root=False) for x in operands}
    return parameters | {instruction.name: instruction._replace(root=True)}


def _flatten(body: Instructions, computations: Computations) -> dict[str, HloInstruction]:
    """Return the instructions of a fusion by name, with nested fusions replaced by their instructions."""
    flat = dict[str, HloInstruction]()
    for instruction in body.values():
        if instruction.opcode != "fusion":
            flat[instruction.name] = instruction
            continue
        nested = _flatten(computations[instruction.called[0]], computations)
        names = {
            x.name: instruction.name if x.root else f"{instruction.name}/{x.name}" for x in nested.values()
        }
        for inner in nested.values():
            operands, opcode = [names[name] for name in inner.operands], inner.opcode
            if opcode == "parameter":  # another name of an operand of the nested fusion
                operands, opcode = [instruction.operands[int(inner.argument_text)]], "bitcast"
            flat[names[inner.name]] = inner._replace(
                name=names[inner.name], operands=operands, opcode=opcode, root=inner.root and instruction.root
            )
    return flat


def _find_collectives(kernel: Kernel, devices: int) -> Iterator[Collective]:
    """Yield the collectives in a kernel. Without replica groups, all `devices` devices form one group."""
    for instruction in kernel.body.values():
        if instruction.kind in COLLECTIVES:
            match = _GROUPS.search(instruction.attributes)
            group_size = devices if match is None else int(match[1]) if match[1] else len(match[2].split(","))
            inputs = sum(kernel.body[name].unpadded_bytes for name in set(instruction.operands))
            moved_bytes = max(instruction.unpadded_bytes, inputs)
            yield Collective(instruction.kind, moved_bytes, group_size, kernel.times)


def _count_kernel_bytes(body: Instructions) -> int:
    """Return the bytes that one execution of the fusion `body` reads from and writes to memory."""
    root = _root(body)
    result_names = root.operands if root.opcode == "tuple" else [root.name]
    results = [source_of(name, body) for name in result_names]  # without bitcasts
    in_place = dict[str, int]()  # name of a result that updates a parameter in place -> bytes of the update
    for result in results:
        if result.opcode in UPDATES and source_of(result.operands[0], body).opcode == "parameter":
            in_place[result.name] = body[result.operands[UPDATES[result.opcode]]].bytes
    written = sum(in_place.get(result.name, result.bytes) for result in results)
    reads: Counter[str] = Counter()  # name of a parameter -> bytes that are read from it
    for instruction in body.values():
        for index, operand in enumerate(instruction.operands):
            read_parameter = source_of(operand, body)
            if read_parameter.opcode != "parameter" or instruction.opcode == "bitcast":
                continue
            read_bytes = read_parameter.bytes
            if index == 0 and instruction.opcode in SLICES:
                read_bytes = instruction.bytes
            elif index == 0 and instruction.name in in_place:  # a scatter also reads the old values
                read_bytes = in_place[instruction.name] if instruction.opcode == "scatter" else 0
            reads[read_parameter.name] += read_bytes
    return written + sum(min(read_bytes, body[name].bytes) for name, read_bytes in reads.items())


def _root(instructions: Instructions) -> HloInstruction:
    (root,) = (instruction for instruction in instructions.values() if instruction.root)
    return root


def source_of(name: str, instructions: Instructions, opcodes: Sequence[str] = ("bitcast",)) -> HloInstruction:
    """Return the instruction that computes the array `name`, without copies.

    A copy is an instruction whose opcode is in `opcodes`. It is replaced by the instruction that computes its
    first operand.
    """
    while instructions[name].opcode in opcodes:
        name = instructions[name].operands[0]
    return instructions[name]


def parse(text: str) -> tuple[dict[str, dict[str, HloInstruction]], str]:
    """Return the instructions of an HLO module, and the name of its entry computation.

    The instructions are a nested dict: {name of computation: {name of instruction: instruction}}.
    """
    computations = dict[str, dict[str, HloInstruction]]()
    instructions, entry = dict[str, HloInstruction](), ""
    for line in text.splitlines():
        if header := _COMPUTATION_HEADER.match(line):
            instructions = computations[header[2]] = {}
            entry = header[2] if header[1] else entry
        elif match := _INSTRUCTION.match(line):
            instruction = _parse_instruction(match, instructions)
            instructions[instruction.name] = instruction
    assert entry, "not the text of an HLO module"
    return computations, entry


def _parse_instruction(match: re.Match[str], instructions: Instructions) -> HloInstruction:
    root, name, shape, opcode, argument_text, attributes = match.groups()
    operands, called = _NAME.findall(argument_text), _NAME.findall(" ".join(_CALLED.findall(attributes)))
    shapes = _ARRAY.findall(_SCRATCH.sub(")", shape) if opcode == "custom-call" else shape)
    arrays = [_parse_array(*groups) for groups in shapes] or [(0, 0, (), "", None)]
    padded, unpadded = sum(array[0] for array in arrays), sum(array[1] for array in arrays)
    if opcode.endswith("-start"):
        inputs = [instructions[operand] for operand in operands if operand in instructions]
        operand_bytes = sum(x.unpadded_bytes for x in inputs)
        # A result that contains the operands is larger. That of some all-reduces does not contain them.
        if unpadded > operand_bytes:
            padded = max(0, padded - sum(x.bytes for x in inputs))
            unpadded -= operand_bytes
    result = (padded, unpadded, *arrays[0][2:])
    return HloInstruction(name, *result, opcode, operands, called, bool(root), argument_text, attributes)


def _parse_array(
    dtype_letters: str, bits: str, _: str, dims_text: str, order_text: str, layout: str
) -> tuple[int, int, tuple[int, ...], str, int | None]:
    """Return the fields of `HloInstruction` from `bytes` to `minor_axis` (without `name`) for one array.

    The arguments are the groups of the regular expression `_ARRAY` in text such as "f32[8,128]{1,0}".
    """
    dims, tile = parse_integers(dims_text), _TILE.search(layout)
    order = parse_integers(order_text) or tuple(reversed(range(len(dims))))
    minor_axis = next((axis for axis in order if axis < len(dims) and dims[axis] > 1), None)
    item_bits = int(bits or 8)  # pred has no number in its name
    unpadded = padded = math.prod(dims) * item_bits // 8
    if _ON_CHIP.search(layout):
        padded = 0
    elif tile and len(order) == len(dims):
        lengths = [dims[axis] for axis in order]  # from minor to major, like the reversed tile below
        lengths_and_tiles = itertools.zip_longest(lengths, parse_integers(tile[1])[::-1], fillvalue=1)
        padded = math.prod(-(-length // side) * side for length, side in lengths_and_tiles) * item_bits // 8
    return padded, unpadded, dims, dtype_letters + bits, minor_axis


def parse_integers(text: str) -> tuple[int, ...]:
    """Return the integers in a string such as "2,1,0" as a tuple. A string without digits yields ()."""
    return tuple(int(n) for n in re.findall(r"\d+", text))
