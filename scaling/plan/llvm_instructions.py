"""Parse LLVM IR: loops, branches and the costs of instructions, to count the operations of CPU kernels.

XLA compiles each kernel to a function in LLVM IR. Unlike HLO, the optimized IR shows which loops are
vectorized or unrolled, and which values are computed outside a loop. The number of executions of a basic
block is estimated from the trip counts of the loops that contain the block, and from the branches in these
loops. A branch on a loop counter is counted exactly. Any other branch is assumed to be taken half of the
time.
"""

import functools
import itertools
import math
import operator
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scaling.core import environment

_IR_FILES = "*ir-with-opt.ll"  # names of the files with optimized IR that XLA writes
_FUNCTION = re.compile(r'define .*@"?([\w.\-]+)"?\(')
_BLOCK_LABEL = re.compile(r'("?[\w.\-$]+"?):')
_BRANCH_TARGET = re.compile(r'label (%"?[\w.\-$]+"?)')
_CONDITIONAL_BRANCH = re.compile(r"br i1 (%[^,]+), label (%[^,]+), label (%[^,]+)")
_ASSIGNMENT = re.compile(r"(%[^ ]+) = (.*)")
_COMPARISON = re.compile(r"icmp (?:samesign )?(\w+) i\d+ (%[^,]+), (-?\d+)")
_SUM_WITH_CONSTANT = re.compile(r"(?:add|or disjoint) [^%]*(%[^,]+), (?:splat \(i\d+ )?(-?\d+)")
# A sum of two indices, or of a pointer and an index that is multiplied by the bytes of an element.
_SUM = re.compile(
    r"(?:add|or disjoint|getelementptr) .*?(?:\[(\d+) x i8\], ptr )?(%[^,]+), "
    r"(?:i64 |splat \(i\d+ )?(%[^,)]+|-?\d+)\)?$"
)
_MULTIPLE = re.compile(r"(mul|shl) [^%]*(%[^,]+), (?:splat \(i\d+ )?(\d+)")
_SAME_VALUE = re.compile(
    r"(?:zext|sext|extractelement|insertelement|shufflevector) [^%]*(%[^, ]+)(?:, i64 (\d+))?"
)
_CONSTANT_INPUT, _VARIABLE_INPUT = re.compile(r"\[ (-?\d+), "), re.compile(r"\[ (%[^,]+), ")
_VECTOR_TYPE = re.compile(r"<(\d+) x ([a-z]+)(\d*)>")
_REGISTER_WIDTH = re.compile(r'"prefer-vector-width"="(\d+)"')
_MASK_CONVERSION = re.compile(r"uitofp <\d+ x i1> (%\S+) to")
_WIDE_COMPARISON = re.compile(r"icmp .*<\d+ x i64>")
_VECTOR_INSERTION = re.compile(r"insertelement .*, \w+ (%[^,]+), i64 [1-9]")
_SCALAR_LOAD = re.compile(r"load \w+, ptr (%[^,]+)")
_VECTOR_LOAD = re.compile(r".* = load <[^>]+>, ptr (%[^,]+)")
# A store of one element, or a copy of a number of bytes that takes several stores.
_PARTIAL_STORE = re.compile(
    r"store (?:float|double) .*, ptr (%[^,]+)|memcpy[^%]*(%[^,]+), .*, i64 (?!(?:8|16|32|64),)"
)
_SHUFFLE = re.compile(r"shufflevector <\d+ x \w+> (%[^,]+), .*, <(\d+) x i32>")
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
# An element that is loaded into a vector on its own, often from another cache line: 0.2 to 0.9 ns on a Xeon.
_GATHER_COST = 1.5
# The same if its cache line was evicted, because the lines that were loaded since then share the same few
# sets of the cache, as in the transpose of a matrix with 128 columns: 0.5 to 1.2 ns on an AMD EPYC.
_MISS_COST = 9
_CACHE_SETS, _CACHE_WAYS, _LINE_BYTES = 64, 12, 64  # the cache of a core
_MAX_LINES = 2**12  # a limit on the lines that are listed for a load
# A mask of 64-bit comparisons that is converted to numbers, on an Intel CPU with AVX-512: 1.3 to 6.6 ns on a
# Xeon. The instruction VPMOVM2D waits for the previous value of its register, so that vectors do not overlap.
_MASK_COST = 10
# A vector that is loaded from the stack, where it was stored in parts: 7 to 17 ns on an AMD EPYC. The load
# waits until the parts are in the cache. XLA generates such code for a minor-most axis of length 3 or 7.
_STORED_PARTS_COST = 180
_FREE_CALLS = {"experimental", "lifetime", "assume", "stacksave", "stackrestore"}
_MEMORY_CALLS = {"memcpy", "memmove", "memset"}
_MEMORY_CALL_COST = 10  # the start of a call that copies memory
# The cost per element. Measured on an AMD EPYC: 2 to 4 ns for sin, 10 ns for tan, 0.13 ns for an addition.
_FUNCTION_COSTS = {"sin": 30, "cos": 30, "tan": 80, "pow": 45, "atan2": 85, "cbrt": 85}


class Comparison(NamedTuple):
    """A comparison of an integer variable in LLVM IR with a constant bound, such as value < bound."""

    predicate: str  # the name of the operator, a key of `_COMPARISON_OPERATORS`
    value: str  # the name of the variable
    bound: int


def dump_options(folder: str) -> dict[str, str]:
    """Return XLA compiler options with which XLA writes the LLVM IR of a program to `folder`."""
    # jaxlib 0.11 needs `xla_dump_emitter_re`. It must not match MLIR, whose writing can abort the process.
    return {"xla_dump_to": folder, "xla_dump_emitter_re": "llvm"}


def count_operations(folder: Path, program_text: str = "") -> dict[str, float]:
    """Return {kernel name: weighted number of operations in one execution} for the CPU kernels of a program.

    `folder` contains the LLVM IR of the program, compiled with the options that `dump_options` returns.
    `program_text` is the optimized HLO text, with the trip counts of loops. Each operation is weighted by its
    time. The unit is the time per element of a vectorized float32 addition. If a vector register holds 8
    float32 values, an addition of two registers therefore counts as 8 operations. An addition of two scalars
    takes the same time, and also counts as 8 operations.
    """
    operations, has_slow_masks = dict[str, float](), _has_slow_masks()  # of Boolean vectors
    loops = [(int(first or 0), int(step or 1), int(n)) for first, step, n in _LOOP.findall(program_text)]
    for path in folder.glob(_IR_FILES):
        for name, count in _count_in_module(path.read_text(), has_slow_masks, loops).items():
            operations[name.removesuffix("_kernel")] = count  # the ending of a kernel that is not a fusion
    return operations


def _count_in_module(text: str, has_slow_masks: bool, loops: Loops) -> dict[str, float]:
    """Return {function name: weighted number of operations in one execution} for a module in LLVM IR."""
    match = _REGISTER_WIDTH.search(text)
    bits = int(match[1]) if match else 128
    functions = {name: LlvmFunction(blocks, loops) for name, blocks in parse_functions(text)}

    @functools.cache
    def find_cost(name: str) -> float:  # 0 for a function of a library
        return functions[name].total_cost(bits, has_slow_masks, find_cost) if name in functions else 0.0

    return {name: find_cost(name) * bits / 32 for name in functions}


@functools.cache
def _has_slow_masks() -> bool:
    """Return whether the CPU is an Intel CPU with AVX-512. Such a CPU converts Boolean vectors slowly."""
    description = environment.contents("/proc/cpuinfo") or ""
    return "GenuineIntel" in description and "avx512dq" in description


def parse_functions(text: str) -> Iterator[tuple[str, dict[str, list[str]]]]:
    """Yield (function name, {label of a basic block: lines of the block}) for each function in LLVM IR.

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
    """The control flow of an LLVM function, with the trip counts of its loops."""

    def __init__(self, blocks: dict[str, list[str]], program_loops: Loops = ()) -> None:
        self.blocks, self.program_loops = blocks, program_loops
        reachable = {label for label, lines in blocks.items() if lines != ["unreachable"]}
        self.successors = {
            label: [
                target for line in lines for target in _BRANCH_TARGET.findall(line) if target in reachable
            ]
            for label, lines in blocks.items()
        }
        self.definitions, self.block_of = dict[str, str](), dict[str, str]()
        for label, lines in blocks.items():
            for match in filter(None, map(_ASSIGNMENT.match, lines)):
                self.definitions[match[1]], self.block_of[match[1]] = match[2], label
        inserted = filter(None, map(_VECTOR_INSERTION.search, itertools.chain(*blocks.values())))
        loads = {match[1]: _SCALAR_LOAD.match(self.definitions.get(match[1], "")) for match in inserted}
        self.gathered = {name: load[1] for name, load in loads.items() if load}  # element -> its pointer
        stores = filter(None, map(_PARTIAL_STORE.search, itertools.chain(*blocks.values())))
        self.stored_in_parts = {match[1] or match[2] for match in stores}  # pointers to vectors
        self.shuffled_elements = Counter[str]()  # vector -> elements that shuffle instructions read from it
        for vector, count in _SHUFFLE.findall("\n".join(self.definitions.values())):
            self.shuffled_elements[vector] += int(count)
        self.order, self.back_edges = _order_blocks(self.successors)
        self.loops = _find_loops(self.order, self.successors, self.back_edges)
        self.trips = {header: self._count_trips(header) for header in self.loops}
        self.gather_cost = _GATHER_COST + _MISS_COST * self._estimate_miss_share()

    def total_cost(
        self,
        bits: int,
        has_slow_masks: bool = False,
        find_cost: Callable[[str], float] = lambda name: 0.0,
    ) -> float:
        """Return the total cost of all executed instructions. An addition of `bits`-bit vectors costs 1.

        `has_slow_masks` states whether the CPU converts Boolean vectors (masks) to numbers slowly.
        `find_cost` returns the additional cost of a call of the function with a name.
        """
        executions = self.count_executions()
        return self._count_work_groups() * sum(
            executions[label] * (instruction_cost(line, bits) + self._operand_cost(line, has_slow_masks))
            + executions[label] * sum(map(find_cost, _CALLEE.findall(line)))
            for label in self.order
            for line in self.blocks[label]
        )

    def _operand_cost(self, line: str, has_slow_masks: bool) -> float:
        """Return the additional cost of a line of LLVM IR that depends on how its operand was computed.

        `gather_cost`         if the line inserts a loaded element into a vector
        `_STORED_PARTS_COST`  if the line loads a vector from the stack that was stored in parts
        a negative cost       if the line calls a function of a vector, and only some elements of the result
                              are used. The function is assumed to be computed for these elements only.
        `_MASK_COST`          if `has_slow_masks` is true, and the line converts the result of a vector
                              comparison of 64-bit integers to floating point
        0                     otherwise
        """
        if match := _VECTOR_INSERTION.search(line):
            return self.gather_cost if match[1] in self.gathered else 0
        if match := _VECTOR_LOAD.match(line):
            is_on_stack = self.definitions.get(match[1], "").startswith("alloca ")
            return _STORED_PARTS_COST if is_on_stack and match[1] in self.stored_in_parts else 0
        name = line.partition(" = ")[0]
        if name in self.shuffled_elements and (call := _CALLED_FUNCTION.search(line)):
            unread_count = max(0, int(call[2] or 1) - self.shuffled_elements[name])
            return -unread_count * _FUNCTION_COSTS.get(call[1], 0)
        match = _MASK_CONVERSION.search(line) if has_slow_masks else None
        return _MASK_COST if match and _WIDE_COMPARISON.match(self.definitions.get(match[1], "")) else 0

    def count_executions(self) -> dict[str, float]:
        """Return {label of a basic block: number of executions of the block in one work group}."""
        executions = defaultdict[str, float](float)
        executions[self.order[0]] = 1.0
        for label in self.order:
            if label in self.loops:
                executions[label] *= self.trips[label]
            forward_targets = [x for x in self.successors[label] if (label, x) not in self.back_edges]
            for target, count in zip(
                forward_targets, self._branch_counts(label, forward_targets, executions[label]), strict=True
            ):
                executions[target] += count
        return executions

    def _branch_counts(self, label: str, targets: Sequence[str], count: float) -> list[float]:
        """Return the estimated number of branches from a block to each successor in `targets`.

        `count` is the number of executions of the block.
        """
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
        """Return the estimated number of times that a branch condition is true in `count` evaluations."""
        comparison = self._find_comparison(condition)
        if comparison is None:
            return count / 2
        if self._is_loaded(comparison.value):
            return count
        for header, first_value, step in self._find_counters(comparison.value):
            if (trips := self.trips[header]) <= _MAX_COUNTED_TRIPS:
                values = range(first_value, first_value + trips * step, step)
                holds = _COMPARISON_OPERATORS[comparison.predicate]
                return count * sum(holds(value, comparison.bound) for value in values) / trips
        return count / 2

    def _find_comparison(self, condition: str) -> Comparison | None:
        """Return the comparison that computes the variable `condition`, or None if there is none.

        Only comparisons with a constant are recognized.
        """
        match = _COMPARISON.match(self.definitions.get(condition, ""))
        return Comparison(match[1], match[2], int(match[3])) if match else None

    def _count_work_groups(self) -> int:
        """Return the number of work groups of the kernel.

        It is the constant with which the kernel compares its work-group index, or 1 without such a
        comparison.
        """
        comparisons = filter(None, map(self._find_comparison, self.definitions))
        loaded = (x for x in comparisons if self.definitions.get(x.value, "").startswith("load i64"))
        return next((comparison.bound for comparison in loaded if comparison.predicate == "ult"), 1)

    def _is_loaded(self, variable: str) -> bool:
        """Return whether an integer, or its predecessor, is a work-group index or a counter in memory."""
        text = self.definitions.get(variable, "")
        if match := _SUM_WITH_CONSTANT.match(text):
            text = self.definitions.get(match[1], "")
        return text.startswith("load i")

    def _find_program_trips(self, end: int) -> int:
        """Return the trip count of the loop in `program_loops` whose counter ends at `end`, or 0."""
        trips = (n for a, s, n in self.program_loops if a + (n - 1) * s < end <= a + n * s)
        return max(trips, default=0)

    def _innermost_loop(self, label: str) -> str | None:
        enclosing = [header for header, body in self.loops.items() if label in body]
        return min(enclosing, key=lambda header: len(self.loops[header]), default=None)

    def _count_trips(self, header: str) -> int:
        """Return the trip count of the loop whose header is the block `header`.

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
                counters = self._find_counters(comparison.value, header)
                # Iterations that are left over from an unrolled loop are in another loop, before it.
                round_trips = math.floor if comparison.predicate in ("eq", "ne") else math.ceil
                for _, first_value, step in itertools.islice(counters, 1):
                    counts.append(max(1, round_trips((comparison.bound - first_value) / step) + 1))
        return min(counts, default=_UNKNOWN_TRIPS)

    def _find_counters(self, variable: str, header: str | None = None) -> Iterator[tuple[str, int, int]]:
        """Yield (loop header, first value, step) for each loop that may use `variable` as its counter.

        A counter has the value `first value + k * step` in iteration k = 0, 1, ... of the loop. If `header`
        is not None, only the loop with this header is searched.
        """
        for phi, offset in self._find_phis(variable, header):
            block, inputs = self.block_of[phi], _VARIABLE_INPUT.findall(self.definitions[phi])
            changes = [change for name in inputs for change in self._find_phis(name, block)]
            if steps := [step for source_phi, step in changes if source_phi == phi and step]:
                yield block, self._initial_value(phi) + offset, steps[0]

    def _find_phis(self, variable: str, header: str | None) -> list[tuple[str, int]]:
        """Return (name, c) for each phi instruction whose value may be `variable - c`, where c is a constant.

        Only phi instructions in loop headers are returned. If `header` is not None, only those in this header
        are returned.
        """
        phis, pending, visited = list[tuple[str, int]](), [(variable, 0)], set[str]()
        while pending:
            value, offset = pending.pop()
            if value in visited:
                continue
            visited.add(value)
            text, block = self.definitions.get(value, ""), self.block_of.get(value, "")
            if match := _SUM_WITH_CONSTANT.match(text):
                pending.append((match[1], offset + int(match[2])))
            elif text.startswith(("phi i", "phi <")) and block in self.loops and header in (None, block):
                phis.append((value, offset))
            elif text.startswith("phi i"):
                pending += [(name, offset) for name in _VARIABLE_INPUT.findall(text)]
        return phis

    def _estimate_miss_share(self) -> float:
        """Return the share of the elements in `gathered` whose cache line is evicted before it is read again.

        A line is read again in the next iteration of the innermost loop in which the address changes by less
        than a line. Until then, each set of the cache keeps `_CACHE_WAYS` lines.
        """
        offsets = defaultdict[frozenset[str], int](itertools.count(step=2**40).__next__)  # of the arrays
        lines = list[np.ndarray]()  # of each load
        for name, pointer in self.gathered.items():
            terms = self._expand_address(pointer)
            counters = {variable: next(self._find_counters(variable), None) for variable in terms}
            array = frozenset(variable for variable, counter in counters.items() if not counter)
            strides = {counter[0]: terms[x] * counter[2] for x, counter in counters.items() if counter}
            addresses = np.array([offsets[array] + terms[""]])
            enclosing = [header for header, body in self.loops.items() if self.block_of[name] in body]
            for header in sorted(enclosing, key=lambda header: len(self.loops[header])):
                if abs(stride := strides.get(header, 0)) < _LINE_BYTES:
                    lines.append(addresses // _LINE_BYTES)
                    break
                trips = min(self.trips[header], math.ceil(_MAX_LINES / len(addresses)))
                addresses = np.add.outer(stride * np.arange(trips), addresses).ravel()
        if not lines:
            return 0.0
        lines_of_set = np.bincount(np.unique(np.concatenate(lines)) % _CACHE_SETS)
        return float(np.maximum(0, lines_of_set - _CACHE_WAYS).sum()) / sum(map(len, lines))

    def _expand_address(self, value: str, element: int = 0) -> Counter[str]:
        """Return {variable: factor, "": constant} whose sum of products is a pointer or an integer.

        `value` is a variable or a constant. If it is a vector, the result is for the element with the index
        `element`.
        """
        text, terms = self.definitions.get(value, ""), Counter[str]()
        if match := _SAME_VALUE.match(text):
            return self._expand_address(match[1], int(match[2] or element))
        if match := _SUM.match(text):
            summands = [(match[2], 1), (match[3], int(match[1] or 1))]
        elif match := _MULTIPLE.match(text):
            summands = [(match[2], int(match[3]) if match[1] == "mul" else 2 ** int(match[3]))]
        else:
            if not value.startswith("%"):
                return Counter({"": int(value)})
            offset = element if text.startswith("phi <") else 0  # a vector of consecutive indices
            return Counter({value: 1, "": offset})
        for summand, factor in summands:
            for variable, number in self._expand_address(summand, element).items():
                terms[variable] += factor * number
        return terms

    def _initial_value(self, phi: str) -> int:
        """Return the largest initial value of the loop counter `phi`, or 0 if it is unknown."""
        pending, visited = [phi], set[str]()
        while pending:
            visited.update(pending)
            phis = [text for name in pending if (text := self.definitions.get(name, "")).startswith("phi i")]
            # The remainder of a vectorized loop can begin at several values.
            if constants := [int(value) for text in phis for value in _CONSTANT_INPUT.findall(text)]:
                return max(constants)
            inputs = [name for text in phis for name in _VARIABLE_INPUT.findall(text)]
            # An unrolled loop begins after a loop with the iterations that are left over.
            sums = [_SUM_WITH_CONSTANT.match(self.definitions.get(name, "")) for name in inputs]
            pending = [name for name in inputs + [x[1] for x in sums if x] if name not in visited]
        return 0


def _order_blocks(successors: dict[str, list[str]]) -> tuple[list[str], set[tuple[str, str]]]:
    """Return (labels of the basic blocks in reverse postorder, back edges).

    A back edge is a pair (last block of a loop, first block of the loop). `successors` maps the label of each
    block to the labels of the blocks that may follow.
    """
    entry = next(iter(successors))
    finished, back_edges = dict[str, None](), set[tuple[str, str]]()
    visited, pending = {entry}, [(entry, iter(successors[entry]))]
    while pending:
        label, targets = pending[-1]
        if (target := next(targets, None)) is None:
            finished[label] = None
            pending.pop()
        elif target not in visited:
            visited.add(target)
            pending.append((target, iter(successors[target])))
        elif target not in finished:
            back_edges.add((label, target))
    return list(reversed(finished)), back_edges


def _find_loops(
    order: Sequence[str], successors: dict[str, list[str]], back_edges: set[tuple[str, str]]
) -> dict[str, set[str]]:
    """Return {label of the first block (header) of a loop: labels of all blocks in the loop}."""
    predecessors = defaultdict[str, list[str]](list)
    for label in order:
        for target in successors[label]:
            predecessors[target].append(label)
    loops = dict[str, set[str]]()
    for last_block, header in back_edges:
        body, pending = loops.setdefault(header, {header}), [last_block]
        while pending:
            label = pending.pop()
            if label not in body:
                body.add(label)
                pending += predecessors[label]
    return loops


def instruction_cost(line: str, bits: int) -> float:
    """Return the cost of a line of LLVM IR, such as "%z = fmul float %x, %y". An addition costs 1.

    The cost of most vector instructions is proportional to the number of registers that a vector needs. A
    register has `bits` bits.
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
    if opcode == "insertelement" and "poison" in text and text.endswith("i64 0"):
        return 0  # with the shuffle that follows, one instruction
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
