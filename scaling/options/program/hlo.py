"""Parse the text of an HLO module into `HloInstruction`s with shapes and layouts, and count loop trips.

Layouts include the tiles of TPUs. See hlo_ops.py for the operations that an instruction performs, and
hlo_cost.py for the bytes that it reads and writes.
"""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*-> .*\{$")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\(([^)]*)(.*)")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"\b(?:body|condition|to_apply|calls|\w+_computations?)=\{?((?:%[\w.\-]+(?:, )?)+)")
_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_ARRAY = re.compile(r"([a-z]+)(\d*)(\w*)\[([\d,]*)\](?:\{([\d,]*)([^}]*)\})?")
_SCRATCH = re.compile(r", [su]8\[\d+\]\{0\}\)$")  # the workspace of a library call is its last result
_TILE = re.compile(r"T\(([\d,]+)\)")  # the outermost tile; inner tiles add no padding
_ON_CHIP = re.compile(r"S\([1-46-9]\)")  # memory spaces other than device (no number) and host (5)

_COPIES = ("copy", "bitcast")

Instructions = Mapping[str, "HloInstruction"]
Computations = Mapping[str, Instructions]


class HloInstruction(NamedTuple):
    """An instruction of an HLO computation.

    The sizes of an asynchronous start, such as "copy-start", exclude the operands that its result contains.

    Attributes:
        bytes: the bytes of the result in device memory, with the padding of its layout.
        unpadded_bytes: the bytes of the result in all memory spaces, without padding.
        dims, dtype: the dimensions and element type of the result, or of the first array of a tuple.
        minor_axis: the minor-most axis of this array that is longer than one, or None if there is none.
        operands, called: the names of the operands, and of the computations that the instruction calls.
        argument_text: the text in the parentheses: the operands, the value of a constant, or the number of a
            parameter.
        attributes: the text after the parentheses, such as ", dimensions={0,1}, to_apply=%add".
    """

    name: str
    bytes: int
    unpadded_bytes: int
    dims: tuple[int, ...]
    dtype: str
    minor_axis: int | None
    opcode: str
    operands: list[str]
    called: list[str]
    root: bool
    argument_text: str
    attributes: str

    @property
    def size(self) -> int:
        """Return the number of elements of the result."""
        return math.prod(self.dims)

    @property
    def is_library_fusion(self) -> bool:
        """Return whether this is a fusion that the CPU library YNNPACK computes, instead of XLA loops."""
        return self.opcode == "fusion" and "__ynn_fusion" in self.attributes

    def axes(self, attribute: str) -> tuple[int, ...] | None:
        """Return the axes in an attribute, such as (0, 2) for "dimensions={0,2}", or None if absent."""
        match = re.search(rf"\b{attribute}=\{{([\d,]*)\}}", self.attributes)
        return parse_integers(match[1]) if match else None


def parse(text: str) -> tuple[dict[str, dict[str, HloInstruction]], str]:
    """Return the computations of an HLO module, each a dict of instructions, and the name of the entry."""
    computations = dict[str, dict[str, HloInstruction]]()
    instructions, entry = dict[str, HloInstruction](), ""
    for row in text.splitlines():
        if header := _HEADER.match(row):
            instructions = computations[header[2]] = {}
            entry = header[2] if header[1] else entry
        elif match := _INSTRUCTION.match(row):
            instruction = _parse_instruction(match, instructions)
            instructions[instruction.name] = instruction
    assert entry, "not the text of an HLO module"
    return computations, entry


def _parse_instruction(match: re.Match[str], instructions: Instructions) -> HloInstruction:
    root, name, shape, opcode, argument_text, attributes = match.groups()
    operands, called = _NAME.findall(argument_text), _NAME.findall(" ".join(_CALLED.findall(attributes)))
    arrays = _ARRAY.findall(_SCRATCH.sub(")", shape) if opcode == "custom-call" else shape)
    size = sum(_array_bytes(array, padded=True) for array in arrays)
    unpadded_bytes = sum(_array_bytes(array) for array in arrays)
    if opcode.endswith("-start"):
        included = [instructions[x] for x in operands if x in instructions]
        is_copy = opcode == "copy-start"
        size = _without_operands(size, sum(x.bytes for x in included), is_copy)
        unpadded_bytes = _without_operands(unpadded_bytes, sum(x.unpadded_bytes for x in included), is_copy)
    return HloInstruction(
        name, size, unpadded_bytes, *_describe_first(arrays), opcode, operands, called, bool(root),
        argument_text, attributes,
    )  # fmt: skip


def _without_operands(size: int, operands: int, is_copy: bool) -> int:
    """Return the result bytes of an asynchronous start, without the operands that the result may contain.

    `size` is the size of the whole result in bytes, and `operands` is the size of the operands. The result of
    a copy-start always contains the operand. Any other result is assumed to contain the operands if it is
    larger than the operands; the result of some asynchronous all-reduces does not contain them.
    """
    return max(0, size - operands) if size > operands or is_copy else size


def _array_bytes(array: tuple[str, ...], padded: bool = False) -> int:
    """Return the size in bytes of an array, given as a match of `_ARRAY`.

    If `padded` is true, the axes are padded to whole tiles, and arrays in on-chip memory have size 0.
    """
    bits = int(array[1] or 8)  # pred has no number in its name
    dims, order, tile = parse_integers(array[3]), parse_integers(array[4]), _TILE.search(array[5])
    if padded and _ON_CHIP.search(array[5]):
        return 0
    if padded and tile and len(order) == len(dims):
        lengths = [dims[axis] for axis in order]  # minor to major, as the reversed sides of the tile
        sides = parse_integers(tile[1])[::-1]
        pairs = itertools.zip_longest(lengths, sides, fillvalue=1)
        dims = tuple(-(-length // side) * side for length, side in pairs)
    return math.prod(dims) * bits // 8


def _describe_first(arrays: Sequence[tuple[str, ...]]) -> tuple[tuple[int, ...], str, int | None]:
    """Return the dimensions and dtype of the first array, and its minor-most axis that is longer than one."""
    if not arrays:
        return (), "", None
    letters, bits, _, dims_text, order_text, _ = arrays[0]
    dims = parse_integers(dims_text)
    order = parse_integers(order_text) or tuple(reversed(range(len(dims))))
    minor_axis = next((axis for axis in order if axis < len(dims) and dims[axis] > 1), None)
    return dims, letters + bits, minor_axis


def parse_integers(text: str) -> tuple[int, ...]:
    """Return the nonnegative integers in a string such as "2,1,0"."""
    return tuple(int(n) for n in re.findall(r"\d+", text))


def root_of(instructions: Instructions) -> HloInstruction:
    """Return the root instruction of a computation."""
    (root,) = (instruction for instruction in instructions.values() if instruction.root)
    return root


def source_of(name: str, instructions: Instructions, opcodes: Sequence[str] = ("bitcast",)) -> HloInstruction:
    """Return the instruction that computes the value of `name`, skipping instructions with these opcodes."""
    while instructions[name].opcode in opcodes:
        name = instructions[name].operands[0]
    return instructions[name]


def _integer_constant(instruction: HloInstruction) -> int | None:
    is_integer = re.fullmatch(r"-?\d+", instruction.argument_text)
    return int(instruction.argument_text) if instruction.opcode == "constant" and is_integer else None


def _tuple_index(instruction: HloInstruction) -> int | None:
    match = re.search(r"index=(\d+)", instruction.attributes)
    return int(match[1]) if instruction.opcode == "get-tuple-element" and match else None


def count_trips(loop: HloInstruction, instructions: Instructions, computations: Computations) -> float:
    """Return the trip count of a while loop, or infinity if it is unknown.

    The trip count is known if XLA reports it, or if the loop has the form `while counter < end: counter +=
    step` and the initial value of the counter, end and step are constants.

    Args:
        instructions: the instructions of the computation that contains the loop.
    """
    if reported := _TRIP_COUNT.search(loop.attributes):
        return float(reported[1])
    condition, body = (computations[name] for name in loop.called)
    carry = instructions[loop.operands[0]]
    opcode, compared, attributes = _operation(root_of(condition), condition, computations)
    if opcode != "compare" or "direction=LT" not in attributes or carry.opcode != "tuple":
        return math.inf
    initial, updated = (
        [source_of(name, instructions, _COPIES) for name in carry.operands],
        root_of(body).operands,
    )
    counter, end_index = (_tuple_index(instruction) for instruction in compared)
    if counter is None or counter >= len(updated):
        return math.inf
    start = _integer_constant(initial[counter])
    end = _integer_constant(compared[1] if end_index is None else initial[end_index])
    opcode, terms, _ = _operation(body[updated[counter]], body, computations)
    steps = [value for term in terms if (value := _integer_constant(term)) is not None]
    adds_to_counter = opcode == "add" and any(_tuple_index(term) == counter for term in terms)
    if start is None or end is None or not adds_to_counter or len(steps) != 1 or steps[0] < 1:
        return math.inf
    return float(max(0, math.ceil((end - start) / steps[0])))


def _operation(
    instruction: HloInstruction, instructions: Instructions, computations: Computations
) -> tuple[str, list[HloInstruction], str]:
    """Return the opcode, the operands and the attributes of an instruction.

    For a fusion, they belong to the root of the fused computation, in which the operands of the fusion
    replace the parameters. An operand that is a copy is replaced by the instruction that computes the value.
    """
    if instruction.opcode != "fusion":
        operands = [source_of(name, instructions, _COPIES) for name in instruction.operands]
        return instruction.opcode, operands, instruction.attributes
    fused = computations[instruction.called[0]]
    root = root_of(fused)
    operands = [source_of(name, fused, _COPIES) for name in root.operands]
    for index, operand in enumerate(operands):
        if operand.opcode == "parameter":
            outer_name = instruction.operands[int(operand.argument_text)]
            operands[index] = source_of(outer_name, instructions, _COPIES)
    return root.opcode, operands, root.attributes
