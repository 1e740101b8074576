"""List the kernels and collectives of an HLO module (`ProgramCost`) with the bytes that each one moves.

A kernel is a fusion or a single instruction. It reads its operands from memory and writes its results to
memory, without caching between kernels. Only the slices of a sliced operand are read. Only the update of an
in-place update is written. hlo_ops.py counts the operations.
"""

import dataclasses
import functools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scaling.options.program import hlo, hlo_ops
from scaling.options.program.hlo import Computations, HloInstruction, Instructions

_ALLOCATION = 'custom_call_target="AllocateBuffer"'  # moves no data
_DEVICES = re.compile(r"\b(?:num_partitions|replica_count)=(\d+)")
_GROUPS = re.compile(r"replica_groups=(?:\[\d+,(\d+)\]|\{\{([\d,]*)\})")


@dataclass(frozen=True)
class Kernel:
    """The work of one execution of a kernel on one device.

    Attributes:
        bytes: bytes that are read and written.
        turned: bytes in transposes that change the minor-most axis.
        products: multiplications and additions in matrix products and convolutions.
        arithmetic: other operations, including comparisons, selections and conversions.
        divisions, transcendentals: floating-point divisions, and evaluations of transcendental functions.
        operations: instructions that a CPU executes (llvm_instructions.py), or 0 if this is unknown.
        overhead: additional time on a CPU, in the unit of cpu_overhead.py.
        reductions: terms of sums along the minor-most axis. Other sums are arithmetic.
        library: name of an instruction or library call whose operations are unknown, or "".
        times: number of executions, or infinity if it is unknown.
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
        kind: opcode, such as "all-reduce".
        bytes: bytes of the input or of the output of a device, whichever is larger.
        group: number of participating devices.
        times: number of executions, or infinity if it is unknown.
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


def _total_bytes(parts: Iterable[Kernel | Message]) -> float:
    return sum(part.bytes * part.times for part in parts if part.bytes)


def _known_bytes(parts: Iterable[Kernel | Message]) -> int | None:
    total = _total_bytes(parts)
    return None if math.isinf(total) else int(total)


def read(text: str, operations: Mapping[str, float] | None = None, counts_work: bool = True) -> ProgramCost:
    """Return the kernels and collectives of a compiled program with the bytes and operations of each.

    Of the branches of a conditional, only the one with the most bytes is counted. If the trip count of a loop
    is unknown, its kernels and collectives have an infinite number of executions. If an instruction has an
    unexpected format, as in another version of XLA, all bytes of the module are unknown.

    Args:
        text: the optimized HLO module, as `jax.stages.Compiled.as_text` returns it.
        operations: the result of `llvm_instructions.count_operations` for a CPU program; None for other
            programs, whose kernels have no overhead.
        counts_work: whether the operations of each kernel are counted, and not only its bytes.
    """
    computations, entry = hlo.parse(text)
    operations = operations if operations is None else _find_operations(computations, operations)
    devices = math.prod(map(int, _DEVICES.findall(text[: text.find("\n")])))

    @functools.cache
    def parts_of(name: str, in_loop: bool = False) -> list[Kernel | Message]:
        parts, instructions = list[Kernel | Message](), computations[name]
        for instruction in instructions.values():
            called = [(x, in_loop or instruction.opcode == "while") for x in instruction.called]
            kind = instruction.opcode.removesuffix("-start")
            if kind in ("call", "async"):
                parts += (part for arguments in called for part in parts_of(*arguments))
            elif kind == "conditional":
                parts += max((parts_of(*arguments) for arguments in called), key=_total_bytes)
            elif kind == "while":
                if len(called) != 2:
                    raise ValueError(f"the loop {instruction.name} does not call a condition and a body")
                trips = hlo.count_trips(instruction, instructions, computations)
                iteration = (part for arguments in called for part in parts_of(*arguments))
                parts += (dataclasses.replace(part, times=part.times * trips) for part in iteration)
            elif _executes_kernel(instruction):
                operands = {x: instructions[x] for x in instruction.operands}
                fused = computations[instruction.called[0]] if kind == "fusion" else {}
                parts += _collectives(fused, instruction, operands, devices)
                fused = fused or _as_fusion(instruction, operands)
                kernel = Kernel(_kernel_bytes(fused, computations))
                if counts_work:
                    kernel = _add_work(kernel, fused, computations)
                if operations is not None:
                    executed = operations.get(instruction.name, 0.0)
                    kernel = _add_cpu_work(kernel, executed, instruction, operands, fused, in_loop)
                parts.append(kernel)
        return parts

    opcodes = Counter(
        x.opcode.removesuffix("-start") for each in computations.values() for x in each.values()
    )
    try:
        parts = parts_of(entry)
    except (LookupError, ValueError):  # the format of another version of XLA: the cost is unknown
        parts = [Kernel(1, times=math.inf), Message("", 1, 1, math.inf)]
    kernels = tuple(part for part in parts if isinstance(part, Kernel))
    messages = tuple(part for part in parts if isinstance(part, Message))
    return ProgramCost(kernels, messages, {kind: opcodes[kind] for kind in hlo_ops.COLLECTIVES})


def _find_operations(computations: Computations, operations: Mapping[str, float]) -> dict[str, float]:
    """Return a dict from kernel name to number of operations.

    XLA compiles equal fusions to one kernel, which has the name of one of them in `operations`. The result
    contains the names of all of them.
    """
    contents = dict[str, tuple[Any, ...]]()  # name of a fusion -> a value that is equal for equal fusions
    for instructions in computations.values():
        for fusion in instructions.values():
            if fusion.opcode == "fusion":
                fused = computations[fusion.called[0]].values()
                inner = ((x.opcode, x.dims, x.dtype, x.minor_axis) for x in fused)
                contents[fusion.name] = (fusion.dims, *inner)
    compiled = {contents[name]: operations[name] for name in contents if name in operations}
    return {name: compiled[key] for name, key in contents.items() if key in compiled} | dict(operations)


def _add_cpu_work(
    kernel: Kernel, executed: float, instruction: HloInstruction, operands: Instructions, fused: Instructions,
    in_loop: bool,
) -> Kernel:  # fmt: skip
    """Return a copy of the kernel of an instruction with its operations and overhead on a CPU.

    `executed` is the number of operations in its compiled loops, or 0 if a library computes the result.
    """
    from scaling.options.program import cpu_overhead

    overhead = cpu_overhead.start(instruction, in_loop)
    if instruction.is_library_fusion:
        overhead += cpu_overhead.library_fusion_overhead(fused)
    elif not executed:
        overhead += cpu_overhead.library_overhead(instruction, [operands[x] for x in instruction.operands])
    elif instruction.opcode == "convolution":
        executed *= cpu_overhead.convolution_slowdown(executed, kernel.products)
    library = "" if executed else kernel.library
    return dataclasses.replace(kernel, operations=round(executed), overhead=overhead, library=library)


def _executes_kernel(instruction: HloInstruction) -> bool:
    if instruction.opcode.endswith(("-done", "-update")) or _ALLOCATION in instruction.attributes:
        return False
    return instruction.opcode.removesuffix("-start") not in hlo_ops.NO_KERNEL


def as_work(part: Kernel | Message) -> dict[str, Any]:
    """Return the fields of a kernel or collective as a dict, without the values 0 and "" and `times` of 1."""
    return {name: value for name, value in vars(part).items() if value and (name, value) != ("times", 1)}


def _as_fusion(instruction: HloInstruction, operands: Instructions) -> dict[str, HloInstruction]:
    """Return the instructions of a fusion that contains only `instruction` and parameters."""
    parameters = {
        name: x._replace(opcode="parameter", operands=[], root=False) for name, x in operands.items()
    }
    return parameters | {instruction.name: instruction._replace(root=True)}


def _collectives(
    fused: Instructions, instruction: HloInstruction, operands: Instructions, devices: int
) -> Iterator[Message]:
    """Yield a `Message` for each collective of a kernel: `instruction` itself, or instructions fused into it.

    All `devices` of the program take part in a collective without `replica_groups`.
    """
    for candidate, instructions in [(instruction, operands), *((inner, fused) for inner in fused.values())]:
        kind = candidate.opcode.removesuffix("-start")
        if kind in hlo_ops.COLLECTIVES:
            match = _GROUPS.search(candidate.attributes)
            group = devices if match is None else int(match[1]) if match[1] else len(match[2].split(","))
            inputs = sum(instructions[name].unpadded_bytes for name in set(candidate.operands))
            yield Message(kind, max(candidate.unpadded_bytes, inputs), group)


def _add_work(kernel: Kernel, instructions: Instructions, computations: Computations) -> Kernel:
    """Return a copy of a kernel with the operations of its fusion, and the name of a library that it calls.

    Each element counts once, although the loops of XLA may evaluate an element several times.
    """
    work, library = Counter[str](), ""
    for instruction in instructions.values():
        kind, amount = hlo_ops.count_work(instruction, instructions)
        if kind:
            work[kind] += amount
        elif instruction.opcode == "fusion":
            nested = _add_work(Kernel(0), computations[instruction.called[0]], computations)
            library = nested.library or library
            not_summed = ("bytes", "times", "library")
            work.update({name: value for name, value in vars(nested).items() if name not in not_summed})
        else:
            library = hlo_ops.library_name(instruction) or library
    return dataclasses.replace(kernel, library=library, **work)


def _kernel_bytes(instructions: Instructions, computations: Computations) -> int:
    """Return the bytes that one execution of a fusion reads and writes."""
    in_place = _in_place_updates(instructions, computations)
    written = sum(in_place.get(x.name, (x, x.bytes))[1] for x in _result_instructions(instructions))
    return written + _bytes_read(instructions, in_place, computations).total()


def _result_instructions(instructions: Instructions) -> list[HloInstruction]:
    """Return the instructions that produce the results of a computation, with bitcasts skipped."""
    root = hlo.root_of(instructions)
    names = root.operands if root.opcode == "tuple" else [root.name]
    return [hlo.source_of(name, instructions) for name in names]


def _in_place_updates(
    instructions: Instructions, computations: Computations
) -> dict[str, tuple[HloInstruction, int]]:
    """Return a dict of (parameter, written bytes) for each fusion result that updates a parameter in place.

    The keys are the names of the instructions that produce the results.
    """
    updates = {}
    for result in _result_instructions(instructions):
        target, size = None, 0
        if result.opcode in hlo_ops.UPDATES:
            target = hlo.source_of(result.operands[0], instructions)
            size = instructions[result.operands[hlo_ops.UPDATES[result.opcode]]].bytes
        elif result.opcode == "fusion":
            nested = _in_place_updates(computations[result.called[0]], computations)
            if len(nested) == 1:
                ((parameter, size),) = nested.values()
                target = hlo.source_of(result.operands[int(parameter.argument_text)], instructions)
        if target is not None and target.opcode == "parameter":
            updates[result.name] = target, size
    return updates


def _bytes_read(
    instructions: Instructions, in_place: Mapping[str, tuple[HloInstruction, int]], computations: Computations
) -> Counter[str]:
    """Return the number of bytes that a fusion reads from each parameter, by parameter name.

    `in_place` is the result of `_in_place_updates`.
    """
    reads: Counter[str] = Counter()
    for instruction in instructions.values():
        if instruction.opcode == "bitcast":
            continue
        opcode, is_updated = instruction.opcode, instruction.name in in_place
        nested = _bytes_read_by_operand(instruction, is_updated, computations) if opcode == "fusion" else {}
        for index, operand in enumerate(instruction.operands):
            source = hlo.source_of(operand, instructions)
            if source.opcode != "parameter":
                continue
            size = nested.get(index, 0) if opcode == "fusion" else source.bytes
            if index == 0 and opcode in hlo_ops.SLICES:
                size = instruction.bytes
            elif index == 0 and opcode in hlo_ops.UPDATES and is_updated:
                size = in_place[instruction.name][1] if opcode == "scatter" else 0  # a scatter accumulates
            reads[source.name] += size
    return Counter({name: min(size, instructions[name].bytes) for name, size in reads.items()})


def _bytes_read_by_operand(
    instruction: HloInstruction, is_updated: bool, computations: Computations
) -> dict[int, int]:
    """Return the number of bytes that a nested fusion reads from each operand, by operand index.

    If `is_updated` is true, the nested fusion updates a parameter of the enclosing fusion in place.
    """
    instructions = computations[instruction.called[0]]
    in_place = _in_place_updates(instructions, computations) if is_updated else {}
    reads = _bytes_read(instructions, in_place, computations)
    returned = {x.name: x.bytes for x in _result_instructions(instructions)}
    return {
        int(x.argument_text): reads[x.name] or returned.get(x.name, 0)
        for x in instructions.values()
        if x.opcode == "parameter"
    }
