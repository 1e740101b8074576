"""Estimate the work of CPU kernels from their LLVM IR: loops, branches and the costs of instructions.

XLA compiles each kernel to a function in LLVM IR. Unlike HLO, the optimized IR shows which loops are
vectorized or unrolled, and which values are computed outside a loop. The number of executions of a basic
block is estimated from the trip counts of the loops that contain the block, and from the branches in these
loops. A branch on a loop counter is counted exactly. Any other branch is assumed to be taken half of the
time.
"""

import functools
import math
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_IR_FILES = "*ir-with-opt.ll"  # names of the files with optimized IR that XLA writes
_FUNCTION = re.compile(r'define .*@"?([\w.\-]+)"?\(')
_BLOCK_LABEL = re.compile(r'("?[\w.\-$]+"?):')
_BRANCH_TARGET = re.compile(r'label (%"?[\w.\-$]+"?)')
_CONDITIONAL_BRANCH = re.compile(r"br i1 (%[^,]+), label (%[^,]+), label (%[^,]+)")
_ASSIGNMENT = re.compile(r"(%[^ ]+) = (.*)")
_COMPARISON = re.compile(r"icmp (?:samesign )?(\w+) i\d+ (%[^,]+), (-?\d+)")
_SUM_WITH_CONSTANT = re.compile(r"(?:add|or disjoint) [^%]*(%[^,]+), (?:splat \(i\d+ )?(-?\d+)")
_PHI = re.compile(r"(%[^ ]+) = phi (.*)")
_CONSTANT_INPUT, _VARIABLE_INPUT = re.compile(r"\[ (-?\d+), "), re.compile(r"\[ (%[^,]+), ")
_VECTOR_TYPE = re.compile(r"<(\d+) x ([a-z]+)(\d*)>")
_REGISTER_WIDTH = re.compile(r'"prefer-vector-width"="(\d+)"')
_CALLED_FUNCTION = re.compile(r'@"?(?:llvm\.)?(\w+)(?:\.v(\d+)f)?')
_CALLEE = re.compile(r'call [^@]*@"?([\w.\-]+)')
# The first counter, the step and the trip count of a loop, in the text of a compiled program.
_LOOP = re.compile(r'(?:"init":"(-?\d+)","step":"(-?\d+)"\},)?"known_trip_count":\{"n":"(\d+)"')
_COPIED_BYTES = re.compile(r"i64 (\d+)")  # the number of bytes of a memcpy

_COMPARISON_OPERATORS = {
    "eq": operator.eq, "ne": operator.ne, "ult": operator.lt, "slt": operator.lt, "ule": operator.le,
    "sle": operator.le, "ugt": operator.gt, "sgt": operator.gt, "uge": operator.ge, "sge": operator.ge,
}  # fmt: skip
Loops = Sequence[tuple[int, int, int]]  # (first counter, step, trip count) of the loops of a program
_BITS_OF_TYPE = {"float": 32, "double": 64, "half": 16, "bfloat": 16, "ptr": 64}
# The assumed trip count of a loop whose count is unknown, such as the remainder of a vectorized loop.
_UNKNOWN_TRIPS = 4
_MAX_COUNTED_TRIPS = 10_000  # the highest trip count of a loop whose branches are counted exactly

# The costs of instructions, in units of one addition. The address of a load or store is free, and a load is
# often part of the instruction that uses it.
_COSTS = {"getelementptr": 0, "phi": 0, "zext": 0, "sext": 0, "trunc": 0, "load": 0.5, "br": 0.5, "fdiv": 20}
_FREE_CALLS = {"experimental", "lifetime", "assume", "stacksave", "stackrestore"}
_MEMORY_CALLS = {"memcpy", "memmove", "memset"}
_MEMORY_CALL_COST = 10  # the start of a call that copies memory
# The cost per element. Measured on an AMD EPYC: 2 to 4 ns for sin, 10 ns for tan, 0.13 ns for an addition.
_FUNCTION_COSTS = {"sin": 30, "cos": 30, "tan": 80, "pow": 45, "atan2": 85, "cbrt": 85}


class Comparison(NamedTuple):
    """A comparison in LLVM IR of an integer variable with a constant, such as value < bound."""

    predicate: str  # the name of the operator, a key of `_COMPARISON_OPERATORS`
    value: str  # the name of the variable
    bound: int


class LoopCounter(NamedTuple):
    """An integer variable with the value `first + k * step` in iteration k = 0, 1, ... of a loop."""

    loop: str  # the label of the first block (header) of the loop
    first: int
    step: int


def dump_options(folder: str) -> dict[str, str]:
    """Return the compiler options, by name, with which XLA writes the LLVM IR of a program to `folder`."""
    # jaxlib 0.11 needs `xla_dump_emitter_re`. It must not match MLIR, whose writing can abort the process.
    return {"xla_dump_to": folder, "xla_dump_emitter_re": "llvm"}


def count_operations(folder: Path, program_text: str = "") -> dict[str, float]:
    """Return the time of one execution of each CPU kernel, as a number of operations by kernel name.

    One operation is the addition of one element of a float32 vector. With vector registers of 8 elements, an
    addition of two registers counts as 8 operations. An addition of two scalars takes the same time, and also
    counts as 8 operations.

    `folder` contains the LLVM IR of the program, compiled with the options that `dump_options` returns.
    `program_text` is its optimized HLO text, which contains the trip counts of loops.
    """
    operations = dict[str, float]()
    loops = [(int(first or 0), int(step or 1), int(n)) for first, step, n in _LOOP.findall(program_text)]
    for path in folder.glob(_IR_FILES):
        for name, count in _count_in_module(path.read_text(), loops).items():
            operations[name.removesuffix("_kernel")] = count  # the ending of a kernel that is not a fusion
    return operations


def _count_in_module(text: str, loops: Loops) -> dict[str, float]:
    """Return the number of operations of one call of each function by name (see `count_operations`)."""
    match = _REGISTER_WIDTH.search(text)
    bits = int(match[1]) if match else 128
    functions = {name: LlvmFunction(blocks, loops) for name, blocks in parse_functions(text)}

    @functools.cache
    def find_cost(name: str) -> float:  # 0 for a function of a library
        return functions[name].total_cost(bits, find_cost) if name in functions else 0.0

    return {name: find_cost(name) * bits / 32 for name in functions}


def parse_functions(text: str) -> Iterator[tuple[str, dict[str, list[str]]]]:
    """Yield the name of each function in LLVM IR, and its basic blocks: a dict from label to lines.

    The label of the first block of a function is "".
    """
    name, blocks, lines = "", dict[str, list[str]](), list[str]()
    for line in text.splitlines():
        if match := _FUNCTION.match(line):
            name, lines = match[1], []
            blocks = {"": lines}
        elif line.startswith("}") and name:
            yield name, {label: block for label, block in blocks.items() if block}
            name = ""
        elif match := _BLOCK_LABEL.match(line):
            lines = blocks[f"%{match[1]}"] = []
        elif line.strip() and not line.lstrip().startswith(";"):
            lines.append(line.strip())


class LlvmFunction:
    """The control flow of a function in LLVM IR: its basic blocks, branches, loops and trip counts."""

    def __init__(self, blocks: dict[str, list[str]], program_loops: Loops = ()) -> None:
        self.blocks, self.program_loops = blocks, program_loops
        reachable = {label for label, lines in blocks.items() if lines != ["unreachable"]}
        self.successors = {
            label: [
                target for line in lines for target in _BRANCH_TARGET.findall(line) if target in reachable
            ]
            for label, lines in blocks.items()
        }
        lines = [line for block in blocks.values() for line in block]
        # variable -> the instruction that computes it
        self.definitions = {match[1]: match[2] for match in filter(None, map(_ASSIGNMENT.match, lines))}
        self.loops = self._find_loops()
        self.counters = self._find_counters()
        self.trips = {header: self._count_trips(header) for header in self.loops}

    def total_cost(self, bits: int, find_cost: Callable[[str], float] = lambda name: 0.0) -> float:
        """Return the cost of all instructions that one call of the function executes.

        An addition of vectors of `bits` bits costs 1. `find_cost` returns the cost of a called function.
        """
        executions = self.count_executions()
        return self._count_work_groups() * sum(
            executions[label] * (instruction_cost(line, bits) + sum(map(find_cost, _CALLEE.findall(line))))
            for label, lines in self.blocks.items()
            for line in lines
        )

    def _find_loops(self) -> dict[str, set[str]]:
        """Return the labels of the blocks in each loop, by the label of its first block (header).

        The blocks of a loop are assumed to be consecutive, and the blocks of a function to be in the order in
        which they run. A branch to the same or an earlier block then ends an iteration.
        """
        labels, loops = list(self.blocks), dict[str, set[str]]()
        positions = {label: position for position, label in enumerate(labels)}
        for position, label in enumerate(labels):
            for target in self.successors[label]:
                if positions[target] <= position:
                    loops[target] = set(labels[positions[target] : position + 1])
        return loops

    def count_executions(self) -> dict[str, float]:
        """Return the number of executions of each block by label, for one work group (part of the kernel)."""
        executions = defaultdict[str, float](float)
        executions[next(iter(self.blocks))] = 1.0
        for label in self.blocks:
            if label in self.loops:
                executions[label] *= self.trips[label]
            forward_targets = [x for x in self.successors[label] if label not in self.loops.get(x, ())]
            for target, count in zip(
                forward_targets, self._branch_counts(label, forward_targets, executions[label]), strict=True
            ):
                executions[target] += count
        return executions

    def _branch_counts(self, label: str, targets: Sequence[str], count: float) -> list[float]:
        """Estimate how often a block branches to each of `targets`, its successors, in `count` executions."""
        loop = self._innermost_loop(label)
        exits = [target for target in targets if loop is not None and target not in self.loops[loop]]
        if loop is not None and exits:
            exiting = count / self.trips[loop]
            staying = (count - exiting) / max(1, len(targets) - len(exits))
            return [exiting / len(exits) if target in exits else staying for target in targets]
        vectorized = [target.startswith("%vector.") for target in targets]
        if sum(vectorized) == 1:  # the vector loop runs, because arrays do not overlap
            return [count * is_vectorized for is_vectorized in vectorized]
        branch = _CONDITIONAL_BRANCH.match(self.blocks[label][-1])
        if branch and len(targets) == 2:
            taken = self._count_taken(branch[1], count)
            return [taken if target == branch[2] else count - taken for target in targets]
        return [count / len(targets) for _ in targets]

    def _count_taken(self, condition: str, count: float) -> float:
        """Estimate how often a branch condition is true in `count` evaluations."""
        comparison = self._find_comparison(condition)
        if comparison is None:
            return count / 2
        if self._is_loaded(comparison.value):
            return count
        counter = self.counters.get(comparison.value)
        if counter and (trips := self.trips[counter.loop]) <= _MAX_COUNTED_TRIPS:
            values = range(counter.first, counter.first + trips * counter.step, counter.step)
            holds = _COMPARISON_OPERATORS[comparison.predicate]
            return count * sum(holds(value, comparison.bound) for value in values) / trips
        return count / 2

    def _find_comparison(self, condition: str) -> Comparison | None:
        """Return the comparison with a constant whose result is the variable `condition`, or None."""
        match = _COMPARISON.match(self.definitions.get(condition, ""))
        return Comparison(match[1], match[2], int(match[3])) if match else None

    def _count_work_groups(self) -> int:
        """Return the number of work groups (parts that run in parallel) of the kernel.

        The number is the constant with which the kernel compares its work-group index, or 1 without such a
        comparison.
        """
        comparisons = filter(None, map(self._find_comparison, self.definitions))
        loaded = (x for x in comparisons if self.definitions.get(x.value, "").startswith("load i64"))
        return next((comparison.bound for comparison in loaded if comparison.predicate == "ult"), 1)

    def _is_loaded(self, variable: str) -> bool:
        """Return whether a variable is an integer from memory, or the sum of such an integer and a constant.

        A kernel loads work-group indices and counters of HLO loops from memory.
        """
        text = self.definitions.get(variable, "")
        if match := _SUM_WITH_CONSTANT.match(text):
            text = self.definitions.get(match[1], "")
        return text.startswith("load i")

    def _find_program_trips(self, end: int) -> int:
        """Return the trip count of the HLO loop whose counter ends at `end`, or 0 if there is none."""
        trips = (n for a, s, n in self.program_loops if a + (n - 1) * s < end <= a + n * s)
        return max(trips, default=0)

    def _innermost_loop(self, label: str) -> str | None:
        enclosing = [header for header, body in self.loops.items() if label in body]
        return min(enclosing, key=lambda header: len(self.loops[header]), default=None)

    def _count_trips(self, header: str) -> int:
        """Return the number of iterations of the loop whose first block is `header`.

        If the loop has several exits, return the smallest of their trip counts. If no trip count is known,
        return `_UNKNOWN_TRIPS`.
        """
        body, counts = self.loops[header], list[int]()
        for label in body:
            branch = _CONDITIONAL_BRANCH.match(self.blocks[label][-1])
            if branch is None or body.issuperset(self.successors[label]):
                continue
            if self.definitions.get(branch[1], "").startswith("phi i1"):
                counts.append(2)  # true in the first iteration, false in the second
            elif comparison := self._find_comparison(branch[1]):
                if self._is_loaded(comparison.value) and (
                    trips := self._find_program_trips(comparison.bound)
                ):
                    counts.append(trips)
                counter = self.counters.get(comparison.value)
                if counter and counter.loop == header:
                    # Iterations that are left over from an unrolled loop are in another loop, before it.
                    round_trips = math.floor if comparison.predicate in ("eq", "ne") else math.ceil
                    trips = round_trips((comparison.bound - counter.first) / counter.step) + 1
                    counts.append(max(1, trips))
        return min(counts, default=_UNKNOWN_TRIPS)

    def _find_counters(self) -> dict[str, LoopCounter]:
        """Return a `LoopCounter` for each loop counter, and for each sum of a counter and a constant.

        The keys are the names of the variables. A variable whose first value or step is not a constant is
        omitted.
        """
        matches = {name: _SUM_WITH_CONSTANT.match(text) for name, text in self.definitions.items()}
        sums = {name: (match[1], int(match[2])) for name, match in matches.items() if match}
        headers = ((header, line) for header in self.loops for line in self.blocks[header])
        phis = {match[1]: (header, match[2]) for header, line in headers if (match := _PHI.match(line))}
        counters = dict[str, LoopCounter]()
        for name, (header, inputs) in phis.items():
            constants = [int(value) for value in _CONSTANT_INPUT.findall(inputs)]
            updates = [sums[x] for x in _VARIABLE_INPUT.findall(inputs) if x in sums]
            # The updated value may also reach the loop header through another phi instruction.
            steps = [step for updated, step in (*updates, *sums.values()) if updated == name]
            if constants and steps:
                # The remainder of a vectorized loop can begin at several values.
                counters[name] = LoopCounter(header, max(constants), steps[0])
        for name, (variable, difference) in sums.items():
            if counter := counters.get(variable):
                counters[name] = counter._replace(first=counter.first + difference)
        for name, text in self.definitions.items():
            merged = [counters[x] for x in _VARIABLE_INPUT.findall(text) if x in counters]
            if merged and name not in phis:  # a phi instruction outside of the loop headers
                counters[name] = merged[0]
        return counters


def instruction_cost(line: str, bits: int) -> float:
    """Return the cost of a line of LLVM IR, such as "%z = fmul float %x, %y". An addition costs 1.

    The cost of most vector instructions is proportional to the number of registers, of `bits` bits each, that
    a vector needs.
    """
    text = line.partition(" = ")[2] if line.startswith("%") else line
    opcode = text.split(maxsplit=1)[0]
    vectors = [
        int(count) * (_BITS_OF_TYPE.get(kind) or int(width))
        for count, kind, width in _VECTOR_TYPE.findall(text)
    ]
    registers = max((math.ceil(size / bits) for size in vectors), default=1)
    if opcode in ("tail", "call", "musttail", "notail"):
        return _call_cost(text, registers, bits)
    if opcode.endswith("element"):
        return 1
    if opcode == "icmp" and " x i64>" in text:
        return 2 * registers
    return _COSTS.get(opcode, 1) * registers


def _call_cost(text: str, registers: int, bits: int) -> float:
    match = _CALLED_FUNCTION.search(text)
    if match is None or match[1] in _FREE_CALLS:
        return 0
    if match[1] in _MEMORY_CALLS:
        size = _COPIED_BYTES.search(text)
        return _MEMORY_CALL_COST + (2 * math.ceil(8 * int(size[1]) / bits) if size else _MEMORY_CALL_COST)
    per_element = _FUNCTION_COSTS.get(match[1].removesuffix("f"))  # cbrtf is cbrt in float32
    if per_element is not None:
        return per_element * int(match[2] or 1)
    return registers
