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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scaling.options.program import hlo, hlo_ops
from scaling.options.program.hlo import Computations, HloInstruction, Instructions

_ALLOCATION = 'custom_call_target="AllocateBuffer"'  # moves no data
_DEVICES = re.compile(r"\b(?:num_partitions|replica_count)=(\d+)")
_GROUPS = re.compile(r"replica_groups=(?:\[\d+,(\d+)\]|\{\{([\d,]*)\})")


@dataclass(frozen=True)
class Kernel:
    """The work of one execution of a kernel, a fusion or a single HLO instruction, on one device.

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


def _total_bytes(parts: Iterable[Kernel | Message]) -> float:
    return sum(part.bytes * part.times for part in parts if part.bytes)


def _known_bytes(parts: Sequence[Kernel | Message]) -> int | None:
    total = _total_bytes(parts)
    return None if math.isinf(total) else int(total)


def read(text: str, operations: Mapping[str, float] | None = None, counts_work: bool = True) -> ProgramCost:
    """Return the kernels and collectives of a compiled program with the bytes and operations of each.

    Of the branches of a conditional, only the one with the most bytes is counted. If the trip count of a loop
    is unknown, its kernels and collectives have an infinite number of executions. If an instruction has an
    unexpected format, as in another version of XLA, all bytes of the module are unknown.

    Args:
        text: the optimized HLO module, as `jax.stages.Compiled.as_text` returns it.
        operations: the result of `llvm_instructions.count_operations` for a program of a CPU; None for other
            programs, whose kernels have no overhead.
        counts_work: whether the operations of each kernel are counted, and not only its bytes.
    """
    computations, entry = hlo.parse(text)
    operations_of = _find_operations(computations, operations or {})
    devices = math.prod(map(int, _DEVICES.findall(text[: text.find("\n")])))

    @functools.cache
    def parts_of(name: str, in_loop: bool = False) -> tuple[Kernel | Message, ...]:
        parts = list[Kernel | Message]()
        instructions = computations[name]
        for instruction in instructions.values():
            kind = instruction.opcode.removesuffix("-start")
            if kind in ("call", "async"):
                parts += (part for called in instruction.called for part in parts_of(called, in_loop))
            elif kind == "conditional":
                branches = [parts_of(called, in_loop) for called in instruction.called]
                parts += max(branches, key=_total_bytes)
            elif kind == "while":
                if len(instruction.called) != 2:
                    raise ValueError(f"the loop {instruction.name} does not call a condition and a body")
                trips = hlo.count_trips(instruction, instructions, computations)
                iteration = (part for called in instruction.called for part in parts_of(called, True))
                parts += (dataclasses.replace(part, times=part.times * trips) for part in iteration)
            elif _executes_kernel(instruction):
                operands = {x: instructions[x] for x in instruction.operands}
                fused = computations[instruction.called[0]] if kind == "fusion" else {}
                parts += _collectives(fused, instruction, operands, devices)
                fused = fused or _as_fusion(instruction, operands)
                kernel = Kernel(_kernel_bytes(fused, computations))
                if counts_work:
                    kernel = _analyze_fusion(fused, computations)
                if operations is not None:
                    executed = operations_of.get(instruction.name, 0.0)
                    arrays = [instructions[name] for name in instruction.operands]
                    kernel = _add_cpu_work(kernel, executed, instruction, arrays, in_loop)
                parts.append(kernel)
        return tuple(parts)

    opcodes = Counter(
        instruction.opcode.removesuffix("-start")
        for instructions in computations.values()
        for instruction in instructions.values()
    )
    try:
        parts = parts_of(entry)
    except (LookupError, ValueError):  # the format of another version of XLA: the cost is unknown
        parts = Kernel(1, times=math.inf), Message("", 1, 1, math.inf)
    kernels = tuple(part for part in parts if isinstance(part, Kernel))
    messages = tuple(part for part in parts if isinstance(part, Message))
    return ProgramCost(kernels, messages, {kind: opcodes[kind] for kind in hlo_ops.COLLECTIVES})


def _find_operations(computations: Computations, operations: Mapping[str, float]) -> dict[str, float]:
    """Return a dict from the name of each kernel to its number of operations.

    XLA compiles equal fusions to one kernel, which has the name of one of them. `operations` contains only
    this name. The result contains the names of all equal fusions.
    """
    contents: dict[str, tuple[Any, ...]] = {}  # name of a fusion -> a value that is equal for equal fusions
    for instructions in computations.values():
        for fusion in instructions.values():
            if fusion.opcode == "fusion":
                fused = computations[fusion.called[0]].values()
                inner = ((x.opcode, x.dims, x.dtype, x.minor_axis) for x in fused)
                contents[fusion.name] = (fusion.dims, *inner)
    compiled = {contents[name]: operations[name] for name in contents if name in operations}
    return {name: compiled[key] for name, key in contents.items() if key in compiled} | dict(operations)


def _add_cpu_work(
    kernel: Kernel,
    executed: float,
    instruction: HloInstruction,
    arrays: Sequence[HloInstruction],
    in_loop: bool,
) -> Kernel:
    """Return a kernel with its operations and its overhead on a CPU.

    Args:
        executed: the operations of the compiled loops of the kernel, 0 if a library computes the result.
        arrays: the operands of `instruction`, which the kernel evaluates.
        in_loop: whether the kernel is part of a while loop.
    """
    from scaling.options.program import cpu_overhead

    overhead = cpu_overhead.START_IN_LOOP if in_loop else cpu_overhead.START
    if not executed:
        overhead += cpu_overhead.library_overhead(instruction, arrays)
    elif instruction.opcode == "convolution":
        executed *= cpu_overhead.SLOWDOWN_OF_CONVOLUTION_LOOPS
    return dataclasses.replace(kernel, operations=round(executed), overhead=overhead)


def _executes_kernel(instruction: HloInstruction) -> bool:
    if instruction.opcode.endswith(("-done", "-update")) or _ALLOCATION in instruction.attributes:
        return False
    return instruction.opcode.removesuffix("-start") not in hlo_ops.NO_KERNEL


def as_work(part: Kernel | Message) -> dict[str, Any]:
    """Return a dict from field name to value of a kernel or a collective, as a record stores it.

    Fields that are 0 or "" and a field `times` of 1 are omitted.
    """
    return {name: value for name, value in vars(part).items() if value and (name, value) != ("times", 1)}


def _as_fusion(instruction: HloInstruction, operands: Instructions) -> dict[str, HloInstruction]:
    """Return the instructions of a fusion, by name, that contains only `instruction` and parameters."""
    parameters = {
        name: x._replace(opcode="parameter", operands=[], root=False) for name, x in operands.items()
    }
    return parameters | {instruction.name: instruction._replace(root=True)}


def _collectives(
    fused: Instructions, instruction: HloInstruction, operands: Instructions, devices: int
) -> Iterator[Message]:
    """Yield a `Message` for each collective of a kernel: `instruction` itself, or instructions that it fuses.

    `devices` is the number of devices of the program. All of them take part in a collective without
    `replica_groups`.
    """
    for candidate, instructions in [(instruction, operands), *((inner, fused) for inner in fused.values())]:
        kind = candidate.opcode.removesuffix("-start")
        if kind in hlo_ops.COLLECTIVES:
            match = _GROUPS.search(candidate.attributes)
            group = devices if match is None else int(match[1]) if match[1] else len(match[2].split(","))
            inputs = sum(instructions[name].unpadded_bytes for name in set(candidate.operands))
            yield Message(kind, max(candidate.unpadded_bytes, inputs), group)


def _analyze_fusion(instructions: Instructions, computations: Computations) -> Kernel:
    """Return the bytes and the work of one execution of a fusion."""
    from scaling.options.program import hlo_loops

    evaluations = hlo_loops.count_evaluations(instructions)
    work_of = {
        instruction.name: _repeat_work(
            *hlo_ops.count_work(instruction, instructions),
            evaluations[instruction.name] / max(instruction.size, 1),
        )
        for instruction in instructions.values()
    }
    work: Counter[str] = Counter()
    for kind, amount in work_of.values():
        work[kind] += amount
    library = ""
    for instruction in instructions.values():
        if instruction.opcode == "custom-call" and not work_of[instruction.name][0]:
            library = hlo_ops.library_name(instruction) or library
        if instruction.opcode == "fusion":  # a nested fusion
            nested = _analyze_fusion(computations[instruction.called[0]], computations)
            library = nested.library or library
            not_summed = ("bytes", "times", "library")
            work.update({name: value for name, value in vars(nested).items() if name not in not_summed})
    work.pop("", None)
    return Kernel(bytes=_kernel_bytes(instructions, computations), library=library, **work)


def _repeat_work(kind: str, amount: int, repeats: float) -> tuple[str, int]:
    """Return (kind, amount) of the work of an instruction, with the amount multiplied by `repeats`.

    `repeats` is the average number of evaluations of an element of the result. It is below 1 if only some
    elements are evaluated, for example those that a slice selects. Larger values are rounded to integers. If
    the loop nest does not reach the instruction, `repeats` is 0, and the work is counted once.
    """
    return kind, round(amount * (repeats if 0 < repeats < 1 else max(1, round(repeats))))


def _kernel_bytes(instructions: Instructions, computations: Computations) -> int:
    """Return the number of bytes that a fusion reads and writes."""
    in_place = _in_place_updates(instructions, computations)
    written = sum(
        in_place[x.name][1] if x.name in in_place else x.bytes for x in _result_instructions(instructions)
    )
    return written + sum(_bytes_read(instructions, in_place, computations).values())


def _result_instructions(instructions: Instructions) -> list[HloInstruction]:
    """Return the instructions that produce the results of a computation, with bitcasts skipped."""
    root = hlo.root_of(instructions)
    names = root.operands if root.opcode == "tuple" else [root.name]
    return [hlo.skip_bitcasts(name, instructions) for name in names]


def _in_place_updates(
    instructions: Instructions, computations: Computations
) -> dict[str, tuple[HloInstruction, int]]:
    """Return a dict from each result of a fusion that updates a parameter in place to (parameter, bytes).

    The key is the name of the instruction that produces the result. The bytes are those that are written.
    """
    updates = {}
    for result in _result_instructions(instructions):
        target, size = None, 0
        if result.opcode in hlo_ops.UPDATES:
            target = hlo.skip_bitcasts(result.operands[0], instructions)
            size = instructions[result.operands[hlo_ops.UPDATES[result.opcode]]].bytes
        elif result.opcode == "fusion":
            nested = _in_place_updates(computations[result.called[0]], computations)
            if len(nested) == 1:
                ((parameter, size),) = nested.values()
                target = hlo.skip_bitcasts(result.operands[int(parameter.argument_text)], instructions)
        if target is not None and target.opcode == "parameter":
            updates[result.name] = target, size
    return updates


def _bytes_read(
    instructions: Instructions, in_place: Mapping[str, tuple[HloInstruction, int]], computations: Computations
) -> Counter[str]:
    """Return a dict from the name of each parameter of a fusion to the number of bytes that are read from it.

    Args:
        in_place: a dict from each result that updates a parameter in place, see `_in_place_updates`.
    """
    reads: Counter[str] = Counter()
    for instruction in instructions.values():
        if instruction.opcode == "bitcast":
            continue
        opcode, is_updated = instruction.opcode, instruction.name in in_place
        nested = _bytes_read_by_operand(instruction, is_updated, computations) if opcode == "fusion" else {}
        for index, operand in enumerate(instruction.operands):
            source = hlo.skip_bitcasts(operand, instructions)
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
    """Return a dict from the index of each operand of a nested fusion to the number of bytes read from it.

    `is_updated` specifies whether the fusion updates a parameter of the enclosing fusion in place.
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
