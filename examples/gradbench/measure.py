"""Measure the derivatives of GradBench's problems in JAX and in C++, in alternating calls on one core.

    python -m examples.gradbench.measure [PROBLEM...] [first|small] [out=docs/data/gradbench.jsonl]

For each cell (a problem of one size), `scaling advise` chooses among the AD modes of JAX by measuring. Then the
advised one, its closest rivals, the function itself and the C++ programs alternate: one sample of each in a
shuffled order, until the seconds of the cell are spent. All derivatives are compared with the hand-written ones
before a time is kept. One JSON line per cell has all samples; examples/gradbench/table.py makes the table. `first`
measures one cell of each problem, `small` a tiny one.
"""

import dataclasses
import datetime
import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax

from examples import pages, side_by_side
from examples.gradbench import problems
from examples.gradbench.problems import CPP, CPP_FAST, CPP_FUNCTION, FUNCTION
from scaling.advice import advisor
from scaling.core import environment, inputs, workload
from scaling.core.case import Case
from scaling.study import case_rules

ADVICE_SECONDS, TURN_SECONDS = 6.0, 4.0
LEAST, MOST, SHORTEST = 9, 1000, 4e-3  # samples of each program, and seconds of a sample
MOST_RIVALS = 2
MOST_DIFFERENCE = 1e-9  # relative to the largest entry, float64


def choose_cases(advice: advisor.Advice, base: Case, modes: tuple[str, ...]) -> tuple[dict[str, Case], str]:
    """Return (dict from name to case to measure, name of the case advised by compiling alone).

    The cases are those advised by measuring and by compiling alone, the next fastest ones that the advice
    measured, and the case `base` in each of `modes`.
    """
    measured = [record.case for record in advice.records if record.seconds]
    times = {record.case: record.predicted["seconds"] for record in advice.records if record.predicted}
    by_compiling = min(times, key=lambda case: times[case])
    of_modes = [case_rules.complete(dataclasses.replace(base, mode=mode)) for mode in modes]
    cases: dict[str, Case] = {}
    for case in [advice.best.case, by_compiling, *measured[1 : 1 + MOST_RIVALS], *of_modes]:
        cases.setdefault(advice.describe(case), case)
    return cases, advice.describe(by_compiling)


def measure_cell(cell: problems.Cell, programs: tuple[Path, Path], folder: Path, scale: float) -> dict:
    """Measure a problem in JAX and in C++. Return its line of the result file, a dict of JSON values.

    Raise `ValueError` if a derivative differs from the one written by hand.

    Args:
        programs: the C++ programs without and with -ffast-math.
        folder: a folder for temporary files.
        scale: the factor by which the measuring times are multiplied.
    """
    base = case_rules.complete(
        Case(f"examples.{cell.problem}", mode="jacfwd", **problems.COMMON | cell.fields)
    )
    began = time.monotonic()
    budget = ADVICE_SECONDS * scale
    advice = advisor.advise_case(base, budget, devices=1, hardware=None, note=None)
    advice_seconds = time.monotonic() - began
    cases, by_compiling = choose_cases(advice, base, cell.modes)
    built = workload.build(base)
    problem_file, result_file = folder / "problem", folder / "result"
    problems.write_problem(problem_file, base, inputs.input_arrays(base, built))
    with (
        problems.Program(programs[0], problem_file) as cpp,
        problems.Program(programs[1], problem_file) as fast,
    ):
        fields = problems.COMMON | {"points": base.points, "sizes": base.sizes}
        run_value, collect_value = problems.compile_jax(
            case_rules.complete(Case(base.workload, mode="value", **fields)), cell
        )
        value = collect_value(run_value())
        differences = {}
        for name, program in {CPP: cpp, CPP_FAST: fast}.items():
            program.seconds_per_call("derivative", 1)
            program.seconds_per_call("value", 1)
            by_hand = program.results(result_file, value.size, cell)
            if name == CPP:
                expected = by_hand
            differences[name] = problems.relative_difference(by_hand[1], expected[1])
        differences[FUNCTION] = problems.relative_difference(value, expected[0])
        timers = {
            CPP: functools.partial(cpp.seconds_per_call, "derivative"),
            CPP_FAST: functools.partial(fast.seconds_per_call, "derivative"),
            CPP_FUNCTION: functools.partial(cpp.seconds_per_call, "value"),
            FUNCTION: functools.partial(side_by_side.time_calls, run_value),
        }
        for name, case in cases.items():
            run, collect = problems.compile_jax(case, cell)
            differences[name] = problems.relative_difference(collect(run()), expected[1])
            timers[name] = functools.partial(side_by_side.time_calls, run)
        wrong = {name: error for name, error in differences.items() if not error <= MOST_DIFFERENCE}
        if wrong:
            raise ValueError(f"{cell.problem} {cell.label}: differences from the C++ program: {wrong}")
        samples = side_by_side.sample_in_turns(timers, TURN_SECONDS * scale, LEAST, MOST, SHORTEST)
    return {
        "problem": cell.problem, "label": cell.label, "fields": dict(cell.fields),
        "advised": advice.describe(advice.best.case), "advised_by_compiling": by_compiling,
        "candidates": list(cases), "advice_seconds": round(advice_seconds, 1),
        "largest_difference": max(differences.values()),
        "seconds": {name: [float(f"{s:.5g}") for s in times] for name, times in samples.items()},
    }  # fmt: skip


def describe_machine() -> dict:
    """Return the fields that all lines of the result file share: processor, versions, flags and date."""
    compiler = subprocess.run(
        [problems.find_compiler() or "g++", "--version"], capture_output=True, text=True
    )
    commit, is_dirty = environment.commit()
    return {
        "machine": environment.processor(), "cores": len(os.sched_getaffinity(0)), "jax": jax.__version__,
        "compiler": compiler.stdout.splitlines()[0], "flags": " ".join(problems.FLAGS),
        "xla_flags": os.environ.get("XLA_FLAGS", ""), "commit": commit, "dirty": is_dirty,
        "date": datetime.date.today().isoformat(),
    }  # fmt: skip


def main(words: list[str]) -> None:
    """Measure the cells of the named problems, by default all, and write one JSON line for each."""
    side_by_side.restart_on_one_core()
    out = Path(next((word[4:] for word in words if word.startswith("out=")), "docs/data/gradbench.jsonl"))
    names = {word for word in words if "=" not in word} - {"small", "first"}
    is_small = "small" in words
    cells = problems.small_cells() if is_small else problems.full_cells()
    cells = [cell for cell in cells if not names or cell.problem in names]
    if "first" in words:
        cells = list({cell.problem: cell for cell in reversed(cells)}.values())[::-1]
    jax.config.update("jax_enable_x64", True)
    common, lines = describe_machine(), []
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        programs = {
            name: tuple(problems.compile_program(name, folder, *more) for more in ((), (problems.FAST_MATH,)))
            for name in dict.fromkeys(cell.problem for cell in cells)
        }
        for cell in cells:
            line = measure_cell(cell, programs[cell.problem], folder, 0.1 if is_small else 1.0)
            lines.append(line | common)
            pages.write_lines(out, lines)  # after each cell, so that Ctrl-C loses one cell
            ratio = statistics.median(line["seconds"][line["advised"]]) / statistics.median(
                line["seconds"][CPP]
            )
            print(
                f"{cell.problem} {cell.label}: {line['advised']}, {ratio:.3g} times the time of C++",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
