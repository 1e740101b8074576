"""Estimate the bytes that each kernel of an HLO module reads and writes, and the bytes of each collective.

A kernel is a fusion or a single instruction. It is assumed to read its operands from memory and to write its
results to memory, without caching between kernels. If a kernel slices an operand, only the slices are read.
If it updates an operand in place, only the update is written. The operations are counted by hlo_ops.py.
"""

import dataclasses
import functools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scaling.options.program import cpu_overhead, hlo, hlo_loops, hlo_ops
from scaling.options.program.hlo import Computations, HloLine, Instructions

_ALLOCATION = 'custom_call_target="AllocateBuffer"'  # moves no data
_DEVICES = re.compile(r"\b(?:num_partitions|replica_count)=(\d+)")
_GROUPS = re.compile(r"replica_groups=(?:\[\d+,(\d+)\]|\{\{([\d,]*)\})")


@dataclass(frozen=True)
class Kernel:
    """The work of one execution of a kernel on one device.

    Attributes:
        bytes: the number of bytes that are read and written.
        turned: the number of these bytes in transposes that change the minor-most axis of an array.
        products: the number of multiplications and additions in matrix products and convolutions.
        arithmetic: the number of other operations, including comparisons, selections and conversions.
        divisions: the number of floating-point divisions.
        transcendentals: the number of evaluations of transcendental functions.
        operations: the work of all instructions that a CPU executes, as llvm_instructions.py counts it; 0 if
            it is unknown.
        overhead: the additional time on a CPU, in the unit that cpu_overhead.py defines.
        reductions: the number of terms of sums along the minor-most axis. Other sums are arithmetic.
        library: the name of a library call whose operations are unknown, or "" if there is none.
        times: the number of executions, or infinity if it is unknown.
    """

    bytes: int = 0
    turned: int = 0
    products: int = 0
    arithmetic: int = 0
    divisions: int = 0
    transcendentals: int = 0
    operations: int = 0
    overhead: int = 0
    reductions: int = 0
    library: str = ""
    times: float = 1.0


@dataclass(frozen=True)
class Message:
    """One execution of a collective operation on one device.

    Attributes:
        kind: the opcode of the collective, such as "all-reduce".
        bytes: the size of the input or of the output of a device in bytes, whichever is larger.
        group: the number of participating devices.
        times: the number of executions, or infinity if it is unknown.
    """

    kind: str
    bytes: int
    group: int
    times: float = 1.0


@dataclass(frozen=True)
class ProgramCost:
    """The kernels and the collective operations of a compiled program on one device.

    `collectives` is a dict from each collective opcode, such as "all-reduce", to its number of instructions.
    """

    kernels: tuple[Kernel, ...]
    messages: tuple[Message, ...]
    collectives: dict[str, int]

    @property
    def hbm_bytes(self) -> int | None:
        """Return the bytes that all kernels read and write, or None if a trip count is unknown."""
        return _known_bytes(self.kernels)

    @property
    def collective_bytes(self) -> int | None:
        """Return the bytes of all collectives, or None if a trip count is unknown."""
        return _known_bytes(self.messages)


def _total_bytes(parts: Sequence[Kernel | Message]) -> float:
    return sum(part.bytes * part.times for part in parts if part.bytes)


def _known_bytes(parts: Sequence[Kernel | Message]) -> int | None:
    total = _total_bytes(parts)
    return None if math.isinf(total) else int(total)


def read(text: str, operations: Mapping[str, float] | None = None) -> ProgramCost:
    """Return the cost of an optimized HLO module from the text that `jax.stages.Compiled.as_text` returns.

    Of the branches of a conditional, only the one with the most bytes is counted. If the trip count of a loop
    is unknown, its kernels and collectives have an infinite number of executions. If an instruction has an
    unexpected format, as in another version of XLA, all bytes of the module are unknown.

    Args:
        operations: the result of `llvm_instructions.count_operations` for a program of a CPU; None for other
            programs, whose kernels have no overhead.
    """
    computations, entry = hlo.parse(text)
    operations_of = _find_operations(computations, operations or {})
    devices = math.prod(map(int, _DEVICES.findall(text[: text.find("\n")])))

    @functools.cache
    def parts_of(name: str, in_loop: bool = False) -> tuple[Kernel | Message, ...]:
        parts = list[Kernel | Message]()
        for line in computations[name].values():
            kind = line.opcode.removesuffix("-start")
            if kind in ("while", "call", "async", "conditional"):
                if kind == "while" and len(line.called) != 2:  # condition and body
                    raise ValueError(f"a while loop that calls {len(line.called)} computations: {line.name}")
                runs = [parts_of(called, in_loop or kind == "while") for called in line.called]
                runs = [max(runs, key=_total_bytes)] if kind == "conditional" else runs
                trips = hlo.count_trips(line, computations[name], computations) if kind == "while" else 1.0
                parts += (dataclasses.replace(part, times=part.times * trips) for run in runs for part in run)
            elif kind not in hlo_ops.NO_KERNEL and not (
                line.opcode.endswith(("-done", "-update")) or _ALLOCATION in line.rest
            ):
                operands = {x: computations[name][x] for x in line.operands}
                fused = computations[line.called[0]] if kind == "fusion" else {}
                parts += _collectives(fused, line, operands, devices)
                kernel = _analyze_fusion(fused or _as_fusion(line, operands), computations, in_loop)
                parts.append(
                    dataclasses.replace(
                        kernel,
                        operations=round(operations_of.get(line.name, 0)),
                        overhead=0 if operations is None else kernel.overhead,
                    )
                )
        return tuple(parts)

    opcodes = Counter(
        line.opcode.removesuffix("-start") for lines in computations.values() for line in lines.values()
    )
    try:
        parts = parts_of(entry)
    except (LookupError, ValueError):  # the format of another version of XLA: the cost is unknown
        parts = Kernel(1, times=math.inf), Message("", 1, 1, math.inf)
    kernels = tuple(part for part in parts if isinstance(part, Kernel))
    messages = tuple(part for part in parts if isinstance(part, Message))
    return ProgramCost(kernels, messages, {kind: opcodes[kind] for kind in hlo_ops.COLLECTIVES})


def _find_operations(computations: Computations, operations: Mapping[str, float]) -> dict[str, float]:
    """Return the operations of all fusions by name. XLA compiles equal fusions to one kernel."""
    fusions = [line for lines in computations.values() for line in lines.values() if line.opcode == "fusion"]
    shapes = {
        line.name: (
            line.dims,
            *((x.opcode, x.dims, x.dtype, x.fastest) for x in computations[line.called[0]].values()),
        )
        for line in fusions
    }
    compiled = {shapes[name]: operations[name] for name in shapes if name in operations}
    return {name: compiled[shape] for name, shape in shapes.items() if shape in compiled} | dict(operations)


def as_work(part: Kernel | Message) -> dict[str, Any]:
    """Return the fields of a kernel or a collective as a dict, without zeros, "" and `times` of 1."""
    return {name: value for name, value in vars(part).items() if value and (name, value) != ("times", 1)}


def _as_fusion(line: HloLine, operands: Instructions) -> dict[str, HloLine]:
    parameters = {
        name: x._replace(opcode="parameter", operands=[], root=False) for name, x in operands.items()
    }
    return parameters | {line.name: line._replace(root=True)}


def _collectives(
    fused: Instructions, line: HloLine, operands: Instructions, devices: int
) -> Iterator[Message]:
    """Yield a `Message` for each collective of a kernel: `line` itself, or instructions that it fuses.

    `devices` is the number of devices of the program. All of them take part in a collective without
    `replica_groups`.
    """
    for candidate, lines in [(line, operands), *((inner, fused) for inner in fused.values())]:
        kind = candidate.opcode.removesuffix("-start")
        if kind in hlo_ops.COLLECTIVES:
            match = _GROUPS.search(candidate.rest)
            group = devices if match is None else int(match[1]) if match[1] else len(match[2].split(","))
            inputs = sum(lines[name].anywhere for name in set(candidate.operands))
            yield Message(kind, max(candidate.anywhere, inputs), group)


def _analyze_fusion(lines: Instructions, computations: Computations, in_loop: bool) -> Kernel:
    evaluations = hlo_loops.count_evaluations(lines)
    work_of = {
        line.name: _repeat_work(*hlo_ops.count_work(line, lines), evaluations[line.name] / max(line.size, 1))
        for line in lines.values()
    }
    work: Counter[str] = Counter()
    for kind, amount in work_of.values():
        work[kind] += amount
    work["overhead"] = cpu_overhead.count_overhead(lines, work_of, in_loop)
    library = ""
    for line in lines.values():
        if line.opcode == "custom-call" and not work_of[line.name][0]:
            library = hlo_ops.library_name(line) or library
        if line.opcode == "fusion":  # a nested fusion
            nested = _analyze_fusion(computations[line.called[0]], computations, in_loop)
            library = nested.library or library
            not_summed = ("bytes", "times", "library")
            work.update({name: value for name, value in vars(nested).items() if name not in not_summed})
    work.pop("", None)
    return Kernel(bytes=_kernel_bytes(lines, computations), library=library, **work)


def _repeat_work(kind: str, amount: int, repeats: float) -> tuple[str, int]:
    """Return the kind and amount of work of an instruction whose elements are evaluated `repeats` times.

    A fraction below 1 means that only some elements are evaluated, for example those that a slice selects.
    Larger values are rounded to integers. If the loop nest does not reach the instruction, `repeats` is 0 and
    the work is counted once.
    """
    return kind, round(amount * (repeats if 0 < repeats < 1 else max(1, round(repeats))))


def _kernel_bytes(lines: Instructions, computations: Computations) -> int:
    in_place = _in_place_updates(lines, computations)
    written = sum(in_place[x.name][1] if x.name in in_place else x.bytes for x in _result_instructions(lines))
    return written + sum(_bytes_read(lines, in_place, computations).values())


def _result_instructions(lines: Instructions) -> list[HloLine]:
    """Return the instructions that produce the results of a computation, with bitcasts skipped."""
    root = hlo.root_of(lines)
    names = root.operands if root.opcode == "tuple" else [root.name]
    return [hlo.skip_bitcasts(name, lines) for name in names]


def _in_place_updates(lines: Instructions, computations: Computations) -> dict[str, tuple[HloLine, int]]:
    """Return the results of a fusion that update a parameter in place.

    The returned dict maps the name of such a result to the parameter and the number of bytes written.
    """
    updates = {}
    for result in _result_instructions(lines):
        target, size = None, 0
        if result.opcode in hlo_ops.UPDATES:
            target = hlo.skip_bitcasts(result.operands[0], lines)
            size = lines[result.operands[hlo_ops.UPDATES[result.opcode]]].bytes
        elif result.opcode == "fusion":
            nested = _in_place_updates(computations[result.called[0]], computations)
            if len(nested) == 1:
                ((parameter, size),) = nested.values()
                target = hlo.skip_bitcasts(result.operands[int(parameter.given)], lines)
        if target is not None and target.opcode == "parameter":
            updates[result.name] = target, size
    return updates


def _bytes_read(
    lines: Instructions, in_place: Mapping[str, tuple[HloLine, int]], computations: Computations
) -> Counter[str]:
    """Return a dict from the name of each parameter of a fusion to the number of bytes that are read from it.

    Args:
        in_place: the results that update a parameter in place, in the form of `_in_place_updates`.
    """
    reads: Counter[str] = Counter()
    for line in lines.values():
        if line.opcode == "bitcast":
            continue
        is_updated = line.name in in_place
        nested = _bytes_read_by_operand(line, is_updated, computations) if line.opcode == "fusion" else {}
        for index, source in enumerate(hlo.skip_bitcasts(name, lines) for name in line.operands):
            if source.opcode != "parameter":
                continue
            size = nested.get(index, 0) if line.opcode == "fusion" else source.bytes
            if index == 0 and line.opcode in hlo_ops.SLICES:
                size = line.bytes
            elif index == 0 and line.opcode in hlo_ops.UPDATES and is_updated:
                size = in_place[line.name][1] if line.opcode == "scatter" else 0  # a scatter accumulates
            reads[source.name] += size
    return Counter({name: min(size, lines[name].bytes) for name, size in reads.items()})


def _bytes_read_by_operand(line: HloLine, is_updated: bool, computations: Computations) -> dict[int, int]:
    """Return a dict from the index of each operand of a nested fusion to the number of bytes read from it.

    `is_updated` specifies whether the fusion updates a parameter of the enclosing fusion in place.
    """
    lines = computations[line.called[0]]
    in_place = _in_place_updates(lines, computations) if is_updated else {}
    reads = _bytes_read(lines, in_place, computations)
    returned = {x.name: x.bytes for x in _result_instructions(lines)}
    return {
        int(x.given): reads[x.name] or returned.get(x.name, 0)
        for x in lines.values()
        if x.opcode == "parameter"
    }
