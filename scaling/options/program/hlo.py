"""The optimised program of one device as XLA prints it: computations, their instructions, and the trips of
loops.

Knows how arrays are laid out, in a TPU's tiles too; not what an instruction computes (hlo_ops.py) or moves
(hlo_cost.py).
"""

import itertools
import math
import re
from collections.abc import Mapping
from typing import NamedTuple

_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*-> .*\{$")
_LINE = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\(([^)]*)(.*)")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"\b(?:body|condition|to_apply|calls|\w+_computations?)=\{?((?:%[\w.\-]+(?:, )?)+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_ARRAY = re.compile(r"([a-z]+)(\d*)(\w*)\[([\d,]*)\](?:\{([\d,]*)([^}]*)\})?")
_TEST, _BODY = re.compile(r"condition=%([\w.\-]+)"), re.compile(r"body=%([\w.\-]+)")
_SCRATCH = re.compile(r", [su]8\[\d+\]\{0\}\)$")  # what a library's call works in comes last of its results
_TILE = re.compile(r"T\(([\d,]+)\)")  # the outermost; those within do not fill up anything
_ON_CHIP = re.compile(
    r"S\([1-46-9]\)"
)  # a memory that is neither the device's (no number) nor the host's (5)


class HloLine(NamedTuple):
    """An instruction of HLO, in the terms of XLA."""

    name: str
    bytes: int  # of the result in device memory; an asynchronous start excludes the operands it carries
    anywhere: int  # the same of its numbers alone, wherever they lie
    dims: tuple[int, ...]  # of its result, or of the first of several
    dtype: str
    fastest: (
        int | None
    )  # the axis along which neighbours lie side by side; None where there is but one number
    opcode: str
    operands: list[str]
    called: list[str]
    trips: float | None  # as XLA says; None where it does not
    root: bool
    given: str  # what stands in its parentheses: a constant's value
    rest: str  # its attributes

    @property
    def size(self) -> int:
        """Return the number of elements of its result."""
        return math.prod(self.dims)


def parse(text: str) -> tuple[dict[str, dict[str, HloLine]], str]:
    """Return the computations of a module by name, each with its lines by name, and the name of the entry."""
    computations: dict[str, dict[str, HloLine]] = {}
    lines: dict[str, HloLine] = {}
    entry = ""
    for row in text.splitlines():
        if header := _HEADER.match(row):
            lines = computations[header[2]] = {}
            entry = header[2] if header[1] else entry
        elif found := _LINE.match(row):
            root, name, shape, opcode, given, rest = found.groups()
            operands, called = _NAME.findall(given), _NAME.findall(" ".join(_CALLED.findall(rest)))
            shape = _SCRATCH.sub(")", shape) if opcode == "custom-call" else shape
            carried = [lines[x] for x in operands if x in lines] if opcode.endswith("-start") else []
            copied = opcode == "copy-start"
            size = _less(_bytes(shape), sum(x.bytes for x in carried), copied)
            anywhere = _less(_numbers(shape), sum(x.anywhere for x in carried), copied)
            known = _TRIPS.search(rest)
            trips = float(known[1]) if known else None
            like = _first(shape)
            lines[name] = HloLine(
                name, size, anywhere, *like, opcode, operands, called, trips, bool(root), given, rest
            )
    assert entry, "not the text of an HLO module"
    return computations, entry


def _less(size: int, carried: int, copied: bool) -> int:
    """Return the bytes of a result without those that it carries along. The start of a sum over devices
    may carry results alone.
    """
    return max(0, size - carried) if size > carried or copied else size


def _bytes(shape: str) -> int:
    """Return the bytes of a device's memory that an array or a tuple of them takes, with the padding of
    tiles.
    """
    return sum(
        _stored(array) * _bits(array) // 8 for array in _ARRAY.findall(shape) if not _ON_CHIP.search(array[5])
    )


def _numbers(shape: str) -> int:
    """Return the bytes of the numbers of an array or a tuple of them, in any memory and layout."""
    return sum(math.prod(whole(array[3])) * _bits(array) // 8 for array in _ARRAY.findall(shape))


def _bits(array: tuple[str, ...]) -> int:
    return int(array[1] or 8)  # a type without a width takes a byte


def _stored(array: tuple[str, ...]) -> int:
    """Return how many elements an array has room for: its fastest axes are padded to whole tiles, as on
    TPUs.
    """
    dims, order, tiles = whole(array[3]), whole(array[4]), _TILE.search(array[5])
    if not tiles or len(order) != len(dims):
        return math.prod(dims)
    lengths = [dims[axis] for axis in order]  # the fastest first
    tile = whole(tiles[1])[::-1]
    lengths += [1] * (len(tile) - len(lengths))
    return math.prod(
        -(-length // side) * side for length, side in itertools.zip_longest(lengths, tile, fillvalue=1)
    )


def _first(shape: str) -> tuple[tuple[int, ...], str, int | None]:
    """Return dimensions, type and the fastest axis longer than one of an array, or of the first of
    several.
    """
    found = _ARRAY.search(shape)
    if found is None:
        return (), "", None
    dims = whole(found[4])
    order = whole(found[5] or "") or tuple(reversed(range(len(dims))))
    return (
        dims,
        found[1] + found[2],
        next((axis for axis in order if axis < len(dims) and dims[axis] > 1), None),
    )


def whole(numbers: str) -> tuple[int, ...]:
    """Return the whole numbers in a text such as 2,1,0."""
    return tuple(int(n) for n in re.findall(r"\d+", numbers))


def root_of(lines: Mapping[str, HloLine]) -> HloLine:
    """Return the instruction whose result is that of a computation."""
    (root,) = (line for line in lines.values() if line.root)
    return root


def origin(name: str, lines: Mapping[str, HloLine]) -> HloLine:
    """Return the instruction whose result a chain of bitcasts passes on."""
    return origin(lines[name].operands[0], lines) if lines[name].opcode == "bitcast" else lines[name]


def behind(name: str, lines: Mapping[str, HloLine]) -> HloLine:
    """Return the instruction whose result a chain of copies and bitcasts passes on."""
    line = lines[name]
    return behind(line.operands[0], lines) if line.opcode in ("copy", "bitcast") else line


def _number(line: HloLine) -> int | None:
    """Return a whole number that is written in the program; None for any other instruction."""
    return int(line.given) if line.opcode == "constant" and re.fullmatch(r"-?\d+", line.given) else None


def _place(line: HloLine) -> int | None:
    """Return the index of an element of what a loop carries; None for any other instruction."""
    found = re.search(r"index=(\d+)", line.rest)
    return int(found[1]) if line.opcode == "get-tuple-element" and found else None


def trips(
    line: HloLine, lines: Mapping[str, HloLine], computations: Mapping[str, Mapping[str, HloLine]]
) -> float:
    """Return how often a loop runs: by XLA, or of `while counter < end: counter += step` where all three
    are numbers.
    """
    if line.trips is not None:
        return line.trips
    test, body = (computations[found[1]] for part in (_TEST, _BODY) if (found := part.search(line.rest)))
    first = lines[line.operands[0]]
    opcode, compared, how = _operation(root_of(test), test, computations)
    places = [_place(one) for one in compared]
    if opcode != "compare" or "direction=LT" not in how or places[0] is None or first.opcode != "tuple":
        return math.inf
    given, after = [behind(name, lines) for name in first.operands], root_of(body).operands
    begin = _number(given[places[0]])
    end = _number(compared[1] if places[1] is None else given[places[1]])
    opcode, added, _ = (
        _operation(body[after[places[0]]], body, computations) if len(after) > places[0] else ("", [], "")
    )
    steps = [number for one in added if (number := _number(one)) is not None]
    counter = any(_place(one) == places[0] for one in added)
    if begin is None or end is None or opcode != "add" or not counter or len(steps) != 1 or steps[0] < 1:
        return math.inf
    return float(max(0, math.ceil((end - begin) / steps[0])))


def _operation(
    line: HloLine, lines: Mapping[str, HloLine], computations: Mapping[str, Mapping[str, HloLine]]
) -> tuple[str, list[HloLine], str]:
    """Return opcode, operands and attributes of an instruction, or of the last one in a fusion, through
    copies.
    """
    if line.opcode != "fusion":
        return line.opcode, [behind(name, lines) for name in line.operands], line.rest
    inner = computations[line.called[0]]
    root = root_of(inner)
    within = [behind(name, inner) for name in root.operands]
    given = [
        behind(line.operands[int(one.given)], lines) if one.opcode == "parameter" else one for one in within
    ]
    return root.opcode, given, root.rest
