"""The kernels that the optimised program of one device runs, and the messages between devices.

A kernel, which is a fusion or a lone instruction, reads its operands and writes its results, as if no
cache held anything between two of them; of an operand that it only slices it reads the slices, of one that
it updates in place it writes the update. Does not know cases, devices or clocks.
"""

import functools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scaling.options.program import hlo, hlo_ops
from scaling.options.program.hlo import HloLine

_FRESH = 'custom_call_target="AllocateBuffer"'  # moves nothing
_DEVICES = re.compile(r"\b(?:num_partitions|replica_count)=(\d+)")
_GROUPS = re.compile(r"replica_groups=(?:\[\d+,(\d+)\]|\{\{([\d,]*)\})")


@dataclass(frozen=True)
class Kernel:
    """The work of one device in one run of a kernel, and how often it runs; infinitely often where that is
    unknown.
    """

    bytes: int = 0  # read and written
    turned: int = 0  # of these, the bytes of arrays that change which axis is the fastest
    products: int = 0  # operations of products of matrices, a multiplication and an addition being two
    arithmetic: int = (
        0  # other operations on numbers; a comparison, a choice and a conversion are each one too
    )
    divisions: int = 0
    transcendentals: int = 0
    reductions: int = 0  # terms that are added up along the fastest axis; along others, it is arithmetic
    library: str = ""  # a call in it of which nothing but its bytes is known
    times: float = 1.0


@dataclass(frozen=True)
class Message:
    """A collective: its kind, the larger of a device's input and output, how many devices take part, and
    how often.
    """

    kind: str
    bytes: int
    group: int
    times: float = 1.0


@dataclass(frozen=True)
class ProgramCost:
    """The kernels and messages of a program in order, and how many collectives of each kind are in its
    text.
    """

    kernels: tuple[Kernel, ...]
    messages: tuple[Message, ...]
    collectives: dict[str, int]

    @property
    def hbm_bytes(self) -> int | None:
        """Return the bytes that kernels read and write; None where unknown."""
        return _total_bytes(self.kernels)

    @property
    def collective_bytes(self) -> int | None:
        """Return the bytes of all collectives, the larger of operand and result; None where unknown."""
        return _total_bytes(self.messages)


def _total_bytes(parts: Sequence[Kernel] | Sequence[Message]) -> int | None:
    moved = sum(part.bytes * part.times for part in parts if part.bytes)
    return None if math.isinf(moved) else int(moved)


def read(text: str) -> ProgramCost:
    """Return the kernels and messages of an optimised HLO module, given as `compiled.as_text()` prints it.

    Of several branches, the one that moves most. The trips of a loop are XLA's `known_trip_count` or
    follow from its counter; otherwise they are infinite.
    """
    computations, entry = hlo.parse(text)
    devices = math.prod(map(int, _DEVICES.findall(text[: text.find("\n")])))

    @functools.cache
    def inside(name: str) -> tuple[tuple[Kernel, ...], tuple[Message, ...]]:
        """Return the kernels and messages of one run of a computation."""
        kernels, messages = list[Kernel](), list[Message]()
        for line in computations[name].values():
            kind = line.opcode.removesuffix("-start")
            if kind in ("while", "call", "async", "conditional"):
                if kind == "while" and len(line.called) != 2:  # condition and body
                    raise ValueError(f"an unknown kind of loop: {line.name}")
                runs = [inside(called) for called in line.called]
                trips = hlo.trips(line, computations[name], computations) if kind == "while" else 1.0
                for some, sent in [max(runs, key=_moved)] if kind == "conditional" else runs:
                    kernels += (_again(kernel, trips) for kernel in some)
                    messages += (_again(message, trips) for message in sent)
            elif kind not in hlo_ops.STILL and not (
                line.opcode.endswith(("-done", "-update")) or _FRESH in line.rest
            ):
                given = {x: computations[name][x] for x in line.operands}
                body = computations[line.called[0]] if kind == "fusion" else _lone(line, given)
                messages += _messages(body if kind == "fusion" else {}, line, given, devices)
                kernels.append(_kernel(body, computations))
        return tuple(kernels), tuple(messages)

    opcodes = Counter(
        line.opcode.removesuffix("-start") for lines in computations.values() for line in lines.values()
    )
    try:
        kernels, messages = inside(entry)
    except (LookupError, ValueError):  # another version of XLA may write it otherwise
        kernels, messages = (Kernel(1, times=math.inf),), (Message("", 1, 1, math.inf),)
    return ProgramCost(kernels, messages, {kind: opcodes[kind] for kind in hlo_ops.COLLECTIVES})


def as_work(one: Kernel | Message) -> dict[str, Any]:
    """Return the fields of a kernel or a message, without those that are 0 and without `times` of 1."""
    return {name: value for name, value in vars(one).items() if value and (name, value) != ("times", 1)}


def _again(one: Any, trips: float) -> Any:
    """Return a kernel or message that runs in a loop."""
    return type(one)(**(vars(one) | {"times": one.times * trips}))


def _moved(run: tuple[tuple[Kernel, ...], tuple[Message, ...]]) -> float:
    return sum(one.bytes * one.times for some in run for one in some)


def _lone(line: HloLine, given: Mapping[str, HloLine]) -> dict[str, HloLine]:
    """Return an instruction as a fusion of one."""
    return {x: one._replace(opcode="parameter", operands=[], root=False) for x, one in given.items()} | {
        line.name: line._replace(root=True)
    }


def _messages(
    body: Mapping[str, HloLine], line: HloLine, given: Mapping[str, HloLine], devices: int
) -> Iterator[Message]:
    """Yield the collectives of a kernel: itself, or those in a fusion."""
    for one, operands in [
        (line, given),
        *((each, {x: body[x] for x in each.operands}) for each in body.values()),
    ]:
        kind = one.opcode.removesuffix("-start")
        if kind in hlo_ops.COLLECTIVES:
            groups = _GROUPS.search(one.rest)
            group = devices if groups is None else int(groups[1]) if groups[1] else len(groups[2].split(","))
            yield Message(kind, max(one.anywhere, sum(x.anywhere for x in operands.values())), group)


def _kernel(lines: Mapping[str, HloLine], computations: Mapping[str, Mapping[str, HloLine]]) -> Kernel:
    """Return the work of a fusion."""
    done: Counter[str] = Counter()
    library = ""
    for line in lines.values():
        kind, amount = hlo_ops.work(line, lines)
        done[kind] += amount
        if line.opcode == "custom-call" and not kind:
            library = hlo_ops.library(line) or library
        if line.opcode == "fusion":  # within another
            within = _kernel(computations[line.called[0]], computations)
            library = within.library or library
            done.update(
                {
                    name: value
                    for name, value in vars(within).items()
                    if name not in ("bytes", "times", "library")
                }
            )
    done.pop("", None)
    return Kernel(bytes=_kernel_bytes(lines, computations), library=library, **done)


def _kernel_bytes(lines: Mapping[str, HloLine], computations: Mapping[str, Mapping[str, HloLine]]) -> int:
    """Return the bytes that a fusion reads of its parameters and writes of its results."""
    placed = _in_place(lines, computations)
    written = sum(placed[x.name][1] if x.name in placed else x.bytes for x in _results(lines))
    return written + sum(_reads(lines, placed, computations).values())


def _results(lines: Mapping[str, HloLine]) -> list[HloLine]:
    root = hlo.root_of(lines)
    return [hlo.origin(name, lines) for name in (root.operands if root.opcode == "tuple" else [root.name])]


def _in_place(
    lines: Mapping[str, HloLine], computations: Mapping[str, Mapping[str, HloLine]]
) -> dict[str, tuple[HloLine, int]]:
    """Return the results that are written into a parameter, by name: the parameter, and the bytes written."""
    found = {}
    for result in _results(lines):
        into, size = None, 0
        if result.opcode in hlo_ops.UPDATES:
            into, size = (
                hlo.origin(result.operands[0], lines),
                lines[result.operands[hlo_ops.UPDATES[result.opcode]]].bytes,
            )
        elif (
            result.opcode == "fusion"
            and len(within := _in_place(computations[result.called[0]], computations)) == 1
        ):
            ((parameter, size),) = within.values()
            into = hlo.origin(result.operands[int(parameter.given)], lines)
        if into is not None and into.opcode == "parameter":
            found[result.name] = into, size
    return found


def _reads(
    lines: Mapping[str, HloLine],
    placed: Mapping[str, tuple[HloLine, int]],
    computations: Mapping[str, Mapping[str, HloLine]],
) -> Counter[str]:
    """Return the bytes that are read of each parameter, by its name."""
    reads: Counter[str] = Counter()
    for line in lines.values():
        within = _reads_within(line, line.name in placed, computations) if line.opcode == "fusion" else {}
        for place, source in enumerate(hlo.origin(name, lines) for name in line.operands):
            if source.opcode == "parameter" and line.opcode != "bitcast":
                part = within.get(place, 0) if line.opcode == "fusion" else source.bytes
                if place == 0 and line.opcode in hlo_ops.SLICES:
                    part = line.bytes
                elif place == 0 and line.opcode in hlo_ops.UPDATES and line.name in placed:
                    part = (
                        placed[line.name][1] if line.opcode == "scatter" else 0
                    )  # which adds to what is there
                reads[source.name] += part
    return Counter({name: min(size, lines[name].bytes) for name, size in reads.items()})


def _reads_within(
    line: HloLine, placed: bool, computations: Mapping[str, Mapping[str, HloLine]]
) -> dict[int, int]:
    """Return the bytes that a nested fusion reads of each operand: on TPUs it slices what is then
    multiplied.
    """
    lines = computations[line.called[0]]
    reads = _reads(lines, _in_place(lines, computations) if placed else {}, computations)
    whole = {x.name: x.bytes for x in _results(lines)}
    return {
        int(x.given): reads[x.name] or whole.get(x.name, 0) for x in lines.values() if x.opcode == "parameter"
    }
