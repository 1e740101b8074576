"""HLO: the optimised program of one device, read as XLA prints it: its kernels and the messages between devices, with their work.

A kernel, which is a fusion or a lone instruction, reads its operands and writes its results, as if no cache held anything between
two of them; of an operand that it only slices it reads the slices, of one that it updates in place it writes the update. Does not
know cases, devices or clocks, nor what a library does inside a call other than a product of matrices.
"""

import functools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")


@dataclass(frozen=True)
class Kernel:
    """What one device does in one run of a kernel, and how often it runs; infinitely often where that is unknown."""

    bytes: int = 0  # read and written
    turned: int = 0  # of these, the bytes of arrays that change which axis is the fastest
    products: int = 0  # operations of products of matrices, a multiplication and an addition being two
    arithmetic: int = 0  # other operations on numbers; a comparison, a choice and a conversion are each one too
    divisions: int = 0
    transcendentals: int = 0
    reductions: int = 0  # terms that are added up along the fastest axis; along others, it is arithmetic of many at once
    library: str = ""  # a call in it of which nothing but its bytes is known
    times: float = 1.0


@dataclass(frozen=True)
class Message:
    """A collective: its kind, the larger of what one device gives and gets, how many devices take part, and how often."""

    kind: str
    bytes: int
    group: int
    times: float = 1.0


@dataclass(frozen=True)
class Traffic:
    """What one device moves, in bytes; None where unknown."""

    hbm_bytes: int | None  # read and written by kernels
    collective_bytes: int | None  # of every collective, the larger of operand and result
    collectives: dict[str, int]  # kind -> how many are in the text; an asynchronous start and its end are one


@dataclass(frozen=True)
class Read:
    """A program: its kernels and messages in their order, and how many collectives of each kind stand in its text."""

    kernels: tuple[Kernel, ...]
    messages: tuple[Message, ...]
    collectives: dict[str, int]

    @property
    def traffic(self) -> Traffic:
        """What it moves in all."""

        def total(some: Sequence[Kernel] | Sequence[Message]) -> int | None:
            moved = sum(one.bytes * one.times for one in some if one.bytes)
            return None if math.isinf(moved) else int(moved)

        return Traffic(total(self.kernels), total(self.messages), self.collectives)


class _Line(NamedTuple):
    """An instruction of HLO, in XLA's words."""

    name: str
    bytes: int  # of its result in the device's memory; of an asynchronous start, without the operands that it carries along
    anywhere: int  # the same wherever it lies
    dims: tuple[int, ...]  # of its result, or of the first of several
    dtype: str
    fastest: int | None  # the axis along which neighbours lie side by side; None where there is but one number
    opcode: str
    operands: list[str]
    called: list[str]
    trips: float | None  # as XLA says; None where it does not
    root: bool
    given: str  # what stands in its parentheses: a constant's value
    rest: str  # its attributes

    @property
    def size(self) -> int:
        """How many numbers its result is."""
        return math.prod(self.dims)


_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*-> .*\{$")
_LINE = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\(([^)]*)(.*)")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"\b(?:body|condition|to_apply|calls|\w+_computations?)=\{?((?:%[\w.\-]+(?:, )?)+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_ARRAY = re.compile(r"([a-z]+)(\d*)(\w*)\[([\d,]*)\](?:\{([\d,]*)([^}]*)\})?")
_TEST, _BODY = re.compile(r"condition=%([\w.\-]+)"), re.compile(r"body=%([\w.\-]+)")
_SCRATCH = re.compile(r", [su]8\[\d+\]\{0\}\)$")  # what a library's call works in comes last of its results
_ON_CHIP = re.compile(r"S\([1-46-9]\)")  # a memory that is neither the device's own (nothing said) nor the host's (5)
_FRESH = 'custom_call_target="AllocateBuffer"'  # moves nothing
_WITHOUT_WORK = {
    "AllocateBuffer", "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "MoveToHost", "MoveToDevice", "Pin", "Unpin",
    "ConcatBitcast", "AssumeGatherIndicesInBound", "annotate_device_placement", "LayoutConstraint",
}  # fmt: skip
_PARTITIONS = re.compile(r"\bnum_partitions=(\d+)")
_REPLICAS = re.compile(r"\breplica_count=(\d+)")
_GROUPS = re.compile(r"replica_groups=(?:\[\d+,(\d+)\]|\{\{([\d,]*)\})")
_CONTRACTING = re.compile(r'lhs_contracting_dim(?:s=\{|ensions":\[)([\d,"]*)')
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"window=\{size=([\dx]+)")
_STILL = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier", "partition-id", "replica-id",
}  # fmt: skip
_SLICES = {"slice", "dynamic-slice", "gather"}  # read as much of their first operand as they give
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}  # write this operand into the first, in place where that is a parameter
_MOVES = _STILL | _SLICES | {
    "broadcast", "iota", "reshape", "pad", "concatenate", "reverse", "transpose", "copy", "dynamic-update-slice", "fusion",
    "rng-bit-generator", "sort", "domain", "infeed", "outfeed", "send", "recv",
}  # fmt: skip
_TRANSCENDENTAL = {
    "exponential", "exponential-minus-one", "log", "log-plus-one", "power", "tanh", "sine", "cosine", "tan", "sqrt", "rsqrt",
    "cbrt", "logistic", "erf", "atan2",
}  # fmt: skip
_DIVIDES = {"divide", "remainder"}


def read(text: str) -> Read:
    """The kernels and messages of an optimised HLO module, given as `compiled.as_text()` prints it.

    Of several branches, the one that moves most. A loop runs as often as XLA's `known_trip_count` or its counter says, or else
    infinitely often.
    """
    computations, entry = _parse(text)
    devices = math.prod(int(found[1]) for each in (_PARTITIONS, _REPLICAS) if (found := each.search(text[: text.find("\n")])))

    @functools.cache
    def inside(name: str) -> tuple[tuple[Kernel, ...], tuple[Message, ...]]:
        """The kernels and messages of one run of a computation."""
        kernels, messages = list[Kernel](), list[Message]()
        for line in computations[name].values():
            kind = line.opcode.removesuffix("-start")
            if kind in ("while", "call", "async", "conditional"):
                if kind == "while" and len(line.called) != 2:
                    raise ValueError("a loop is a condition and a body")
                runs = [inside(called) for called in line.called]
                trips = _trips(line, computations[name], computations) if kind == "while" else 1.0
                for some, sent in [max(runs, key=_moved)] if kind == "conditional" else runs:
                    kernels += (_again(kernel, trips) for kernel in some)
                    messages += (_again(message, trips) for message in sent)
            elif kind not in _STILL and not line.opcode.endswith(("-done", "-update")) and _FRESH not in line.rest:
                given = {x: computations[name][x] for x in line.operands}
                body = computations[line.called[0]] if kind == "fusion" else _lone(line, given)
                messages += _messages(body if kind == "fusion" else {}, line, given, devices)
                kernels.append(_kernel(body, computations))
        return tuple(kernels), tuple(messages)

    opcodes = Counter(line.opcode.removesuffix("-start") for lines in computations.values() for line in lines.values())
    try:
        kernels, messages = inside(entry)
    except (LookupError, ValueError):  # another version of XLA may write it otherwise
        kernels, messages = (Kernel(1, times=math.inf),), (Message("", 1, 1, math.inf),)
    return Read(kernels, messages, {kind: opcodes[kind] for kind in COLLECTIVES})


def traffic(text: str) -> Traffic:
    """What a program moves; unknown where nothing says how often a loop runs, its messages only where that holds some."""
    return read(text).traffic


def as_work(one: Kernel | Message) -> dict[str, Any]:
    """A kernel or a message by its fields, without what is 0 or once."""
    return {name: value for name, value in vars(one).items() if value and (name, value) != ("times", 1)}


def _trips(line: _Line, lines: Mapping[str, _Line], computations: Mapping[str, Mapping[str, _Line]]) -> float:
    """How often a loop runs: as XLA says, or as `while counter < end: counter += step` does where all three are numbers."""
    if line.trips is not None:
        return line.trips
    test, body = (computations[found[1]] for part in (_TEST, _BODY) if (found := part.search(line.rest)))
    first = lines[line.operands[0]]
    opcode, compared, how = _operation(_root(test), test, computations)
    places = [_place(one) for one in compared]
    if opcode != "compare" or "direction=LT" not in how or places[0] is None or first.opcode != "tuple":
        return math.inf
    given, after = [_behind(name, lines) for name in first.operands], _root(body).operands
    begin = _number(given[places[0]])
    end = _number(compared[1] if places[1] is None else given[places[1]])
    opcode, added, _ = _operation(body[after[places[0]]], body, computations) if len(after) > places[0] else ("", [], "")
    steps = [number for one in added if (number := _number(one)) is not None]
    counter = any(_place(one) == places[0] for one in added)
    if begin is None or end is None or opcode != "add" or not counter or len(steps) != 1 or steps[0] < 1:
        return math.inf
    return float(max(0, math.ceil((end - begin) / steps[0])))


def _root(lines: Mapping[str, _Line]) -> _Line:
    return next(line for line in lines.values() if line.root)


def _operation(
    line: _Line, lines: Mapping[str, _Line], computations: Mapping[str, Mapping[str, _Line]]
) -> tuple[str, list[_Line], str]:
    """The opcode, operands and attributes of an instruction, or of the last one in a fusion; its operands may be without."""
    if line.opcode != "fusion":
        return line.opcode, [_behind(name, lines) for name in line.operands], line.rest
    inner = computations[line.called[0]]
    root = _root(inner)
    within = [_behind(name, inner) for name in root.operands]
    given = [_behind(line.operands[int(one.given)], lines) if one.opcode == "parameter" else one for one in within]
    return root.opcode, given, root.rest


def _behind(name: str, lines: Mapping[str, _Line]) -> _Line:
    """What a copy is of."""
    line = lines[name]
    return _behind(line.operands[0], lines) if line.opcode in ("copy", "bitcast") else line


def _number(line: _Line) -> int | None:
    """A whole number that stands in the program."""
    return int(line.given) if line.opcode == "constant" and re.fullmatch(r"-?\d+", line.given) else None


def _place(line: _Line) -> int | None:
    """Which of the things that a loop carries this is."""
    found = re.search(r"index=(\d+)", line.rest)
    return int(found[1]) if line.opcode == "get-tuple-element" and found else None


def _again(one: Any, trips: float) -> Any:
    """What runs in a loop."""
    return type(one)(**(vars(one) | {"times": one.times * trips}))


def _moved(run: tuple[tuple[Kernel, ...], tuple[Message, ...]]) -> float:
    return sum(one.bytes * one.times for some in run for one in some)


def _lone(line: _Line, given: Mapping[str, _Line]) -> dict[str, _Line]:
    """An instruction by itself, as if it were a fusion of one."""
    return {x: one._replace(opcode="parameter", operands=[], root=False) for x, one in given.items()} | {
        line.name: line._replace(root=True)
    }


def _messages(body: Mapping[str, _Line], line: _Line, given: Mapping[str, _Line], devices: int) -> Iterator[Message]:
    """The collectives of a kernel: itself, or those that a fusion holds."""
    for one, operands in [(line, given), *((each, {x: body[x] for x in each.operands}) for each in body.values())]:
        kind = one.opcode.removesuffix("-start")
        if kind in COLLECTIVES:
            groups = _GROUPS.search(one.rest)
            group = devices if groups is None else int(groups[1]) if groups[1] else len(groups[2].split(","))
            yield Message(kind, max(one.anywhere, sum(x.anywhere for x in operands.values())), group)


def _parse(text: str) -> tuple[dict[str, dict[str, _Line]], str]:
    """The computations of a module by name, their lines by name, and which is the entry."""
    computations: dict[str, dict[str, _Line]] = {}
    lines: dict[str, _Line] = {}
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
            anywhere = _less(_bytes(shape, anywhere=True), sum(x.anywhere for x in carried), copied)
            known = _TRIPS.search(rest)
            trips = float(known[1]) if known else None
            like = _first(shape)
            lines[name] = _Line(name, size, anywhere, *like, opcode, operands, called, trips, bool(root), given, rest)
    assert entry, "not the text of an HLO module"
    return computations, entry


def _less(size: int, carried: int, copied: bool) -> int:
    """A result without what it carries along, where it does; what a sum over devices starts with may be of results alone."""
    return max(0, size - carried) if size > carried or copied else size


def _bytes(shape: str, anywhere: bool = False) -> int:
    """Of an array or a tuple of them, of what lies in a device's memory; a type without a width takes one a number."""
    found = _ARRAY.findall(shape)
    arrays = ((bits, dims) for _, bits, _, dims, _, where in found if anywhere or not _ON_CHIP.search(where))
    return sum(int(bits or 8) * math.prod(_whole(dims)) // 8 for bits, dims in arrays)


def _first(shape: str) -> tuple[tuple[int, ...], str, int | None]:
    """Of an array, or of the first of several: its dimensions, its type, the axis that is fastest of those longer than one."""
    found = _ARRAY.search(shape)
    if found is None:
        return (), "", None
    dims = _whole(found[4])
    order = _whole(found[5] or "") or tuple(reversed(range(len(dims))))
    return dims, found[1] + found[2], next((axis for axis in order if axis < len(dims) and dims[axis] > 1), None)


def _whole(numbers: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", numbers))


def _kernel(lines: Mapping[str, _Line], computations: Mapping[str, Mapping[str, _Line]]) -> Kernel:
    """The work of a fusion, its parameters, results and what it does between them."""
    done: Counter[str] = Counter()
    library = ""
    for line in lines.values():
        kind, amount = _work(line, lines)
        done[kind] += amount
        if line.opcode == "custom-call" and not kind:
            library = _library(line) or library
        if line.opcode == "fusion":  # within another
            within = _kernel(computations[line.called[0]], computations)
            library = within.library or library
            done.update({name: value for name, value in vars(within).items() if name not in ("bytes", "times", "library")})
    done.pop("", None)
    return Kernel(bytes=_kernel_bytes(lines, computations), library=library, **done)


def _library(line: _Line) -> str:
    """What a call is called whose work is not known; nothing for one that only says where something lies."""
    found = re.search(r'custom_call_target="([^"]*)"', line.rest)
    name = found[1] if found else "a call"
    return "" if name in _WITHOUT_WORK else name


def _work(line: _Line, lines: Mapping[str, _Line]) -> tuple[str, int]:
    """What an instruction is counted as, by the name of a field of `Kernel`, and how much of it; nothing for what only moves."""
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
        fast = along is None or operands[0].fastest in _whole(along[1])
        return "reductions" if fast else "arithmetic", operands[0].size
    if kind == "reduce-window":
        window = _WINDOW.search(line.rest)
        sizes = _whole(window[1]) if window else operands[0].dims
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


def _product(line: _Line, operands: list[_Line]) -> tuple[str, int]:
    """A product of matrices, as each backend writes it; another call of a library is not known."""
    if line.opcode == "convolution" and len(operands) == 2:
        return "products", _convolution(line.rest, operands[0], operands[1], line)
    if "__cudnn$conv" in line.rest and len(operands) > 1:
        return "products", _convolution(line.rest, *_forward(line, operands[0], operands[1]))
    contracting = _CONTRACTING.search(line.rest)
    if contracting is None or not operands:
        return ("products", 2 * line.size) if line.opcode == "dot" else ("", 0)
    return "products", 2 * line.size * math.prod(operands[0].dims[axis] for axis in _whole(contracting[1]))


def _forward(line: _Line, first: _Line, second: _Line) -> tuple[_Line, _Line, _Line]:
    """What is given, the kernel and what is made, of cuDNN's convolutions, all of which are told as the one that goes forward."""
    if "convBackwardInput" in line.rest:
        return line, second, first
    return (first, line, second) if "convBackwardFilter" in line.rest else (first, second, line)


def _convolution(words: str, given: _Line, kernel: _Line, made: _Line) -> int:
    """Multiplications and additions of a convolution, without those that its padding and dilation make with zeros."""
    labels = _LABELS.search(words)
    if labels is None:
        return 0
    found = re.search(r"window=\{([^}]*)\}", words)
    window = dict(part.split("=") for part in found[1].split()) if found else {}
    count = 2 * made.dims[labels[3].index("b")] * made.dims[labels[3].index("f")] * kernel.dims[labels[2].index("i")]
    for place, axis in enumerate(sorted(label for label in labels[3] if label.isdigit())):
        sizes = given.dims[labels[1].index(axis)], kernel.dims[labels[2].index(axis)], made.dims[labels[3].index(axis)]
        count *= _taps(*sizes, *(_along(window, name, place, usual) for name, usual in _WINDOWED))
    return count


_WINDOWED = (("pad", 0), ("stride", 1), ("lhs_dilate", 1), ("rhs_dilate", 1))


def _along(window: Mapping[str, str], name: str, axis: int, usual: int) -> int:
    """Of a window's attribute, such as pad=3_3x0_0, what it says first of one axis."""
    return int(window[name].split("x")[axis].split("_")[0]) if name in window else usual


def _taps(given: int, kernel: int, made: int, pad: int, stride: int, spread: int, dilate: int) -> int:
    """How many pairs of a number of one axis of the result and one of the kernel meet a number of what is given."""
    count = 0
    for tap in range(kernel):
        # The result's i meets i * stride + tap * dilate - pad, which must be a multiple of `spread` within what is given.
        first, last = pad - tap * dilate, (given - 1) * spread + pad - tap * dilate
        low, high = max(0, -(-first // stride)), min(made - 1, last // stride)
        if stride == spread == 1:
            count += max(0, high - low + 1)
        else:
            count += sum((i * stride - first) % spread == 0 for i in range(low, high + 1))
    return count


def _turns(line: _Line, operand: _Line) -> bool:
    """Whether a copy or a transposition changes which axis is the fastest."""
    if line.fastest is None or operand.fastest is None:
        return False
    order = re.search(r"dimensions=\{([\d,]*)\}", line.rest) if line.opcode == "transpose" else None
    return (_whole(order[1])[line.fastest] if order else line.fastest) != operand.fastest


def _kernel_bytes(lines: Mapping[str, _Line], computations: Mapping[str, Mapping[str, _Line]]) -> int:
    """The bytes that a fusion reads of its parameters and writes of its results."""
    placed = _in_place(lines, computations)
    written = sum(placed[x.name][1] if x.name in placed else x.bytes for x in _results(lines))
    return written + sum(_reads(lines, placed, computations).values())


def _origin(name: str, lines: Mapping[str, _Line]) -> _Line:
    """What a bitcast is of."""
    return _origin(lines[name].operands[0], lines) if lines[name].opcode == "bitcast" else lines[name]


def _results(lines: Mapping[str, _Line]) -> list[_Line]:
    (root,) = (line for line in lines.values() if line.root)
    return [_origin(name, lines) for name in (root.operands if root.opcode == "tuple" else [root.name])]


def _in_place(lines: Mapping[str, _Line], computations: Mapping[str, Mapping[str, _Line]]) -> dict[str, tuple[_Line, int]]:
    """Results that are written into a parameter, by name: which, and the bytes of what is written."""
    found = {}
    for result in _results(lines):
        into, size = None, 0
        if result.opcode in _UPDATES:
            into, size = _origin(result.operands[0], lines), lines[result.operands[_UPDATES[result.opcode]]].bytes
        elif result.opcode == "fusion" and len(within := _in_place(computations[result.called[0]], computations)) == 1:
            ((parameter, size),) = within.values()
            into = _origin(result.operands[int(parameter.given)], lines)
        if into is not None and into.opcode == "parameter":
            found[result.name] = into, size
    return found


def _reads(
    lines: Mapping[str, _Line], placed: Mapping[str, tuple[_Line, int]], computations: Mapping[str, Mapping[str, _Line]]
) -> Counter[str]:
    """The bytes that are read of each parameter, by its name."""
    reads: Counter[str] = Counter()
    for line in lines.values():
        within = _reads_within(line, line.name in placed, computations) if line.opcode == "fusion" else {}
        for place, source in enumerate(_origin(name, lines) for name in line.operands):
            if source.opcode == "parameter" and line.opcode != "bitcast":
                part = within.get(place, 0) if line.opcode == "fusion" else source.bytes
                if place == 0 and line.opcode in _SLICES:
                    part = line.bytes
                elif place == 0 and line.opcode in _UPDATES and line.name in placed:
                    part = placed[line.name][1] if line.opcode == "scatter" else 0  # which adds to what is there
                reads[source.name] += part
    return Counter({name: min(size, lines[name].bytes) for name, size in reads.items()})


def _reads_within(line: _Line, placed: bool, computations: Mapping[str, Mapping[str, _Line]]) -> dict[int, int]:
    """The bytes that a fusion within another reads of each operand: TPUs slice there what is then multiplied."""
    lines = computations[line.called[0]]
    reads = _reads(lines, _in_place(lines, computations) if placed else {}, computations)
    whole = {x.name: x.bytes for x in _results(lines)}
    return {int(x.given): reads[x.name] or whole.get(x.name, 0) for x in lines.values() if x.opcode == "parameter"}
