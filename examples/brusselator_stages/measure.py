"""Measure the stages of sparse differentiation: detection, coloring, compressed products, decompression.

    python -m examples.brusselator_stages.measure          measures into docs/data/brusselator.jsonl (2 minutes)
    python -m examples.brusselator_stages.measure small    the same at small sizes; prints the table
    python -m examples.brusselator_stages.measure table    writes the table of docs/brusselator.md and its figure

Run it from the root of the repository. Detection and coloring are those of the package, of which each call
is timed. The compressed Jacobian and the decompression are two programs; the package makes one program of
both, whose result is compared with the closed form before its first time is kept.
"""

import functools
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from examples import brusselator, diffusion, pages, rosenbrock, side_by_side
from scaling.core import run_case, workload
from scaling.core.case import Case
from scaling.core.derivative import describe_derivative
from scaling.core.formatting import format_duration
from scaling.core.record import Record
from scaling.core.timing import Sampling
from scaling.options.coloring import Coloring, find_coloring
from scaling.study import case_rules

NAME = "brusselator"
CELLS = Path(__file__).with_name("published.yaml")
FUNCTIONS = {  # name -> the function of one point that is analyzed
    "brusselator": brusselator.rate,
    "diffusion": diffusion.rate,
    "rosenbrock": jax.grad(rosenbrock.value),
}
SIZE = {"brusselator": "side", "diffusion": "n", "rosenbrock": "n"}
FULL = (("brusselator", 6), ("brusselator", 24), ("brusselator", 32), ("brusselator", 64), ("diffusion", 200),
        ("diffusion", 1000), ("rosenbrock", 200))  # fmt: skip
DOUBLE = (("brusselator", 32), ("diffusion", 1000))  # also in float64, the dtype of the published times
SMALL = (("brusselator", 6), ("diffusion", 20), ("rosenbrock", 20))
MOST_DENSE = 2048  # inputs of a dense Jacobian
HERE = {"digest": "examples", "platform": "cpu"}


def make_input(name: str, size: int) -> jax.Array:
    """Return one point of an example, uniform on (0.5, 1.5)."""
    dimensions = (2, size, size) if name == "brusselator" else (size,)
    return jnp.asarray(np.random.default_rng(0).uniform(0.5, 1.5, dimensions), jnp.float32)


def analyze(name: str, size: int, count: int) -> tuple[list[pages.Row], Coloring]:
    """Detect and color a sparsity pattern `count` times. Return (lines of the result file, column coloring).

    There is one line with the times in seconds of the detection, of the coloring by columns and of the one by
    rows. The first call of each, which also traces the function, has a line of its own.
    """
    x, rows = make_input(name, size), dict[str, list[float]]()
    coloring: Coloring | None = None
    for number in range(count + 1):
        columns = find_coloring((name, size, number), FUNCTIONS[name], (x,), "columns")
        by_rows = find_coloring((name, size, number), FUNCTIONS[name], (x,), "rows")
        first = ", first" if number == 0 else ""
        rows.setdefault(f"detection{first}", []).append(columns.detect_seconds)
        rows.setdefault(f"coloring{first}", []).append(columns.color_seconds)
        rows.setdefault(f"coloring by rows{first}", []).append(by_rows.color_seconds)
        coloring = columns
    assert coloring is not None
    facts = {"colors": coloring.column_count, "nonzeros": len(coloring.pattern.rows)}
    lines = [{"name": f"{name} {size}/{stage}", "seconds": times} | facts for stage, times in rows.items()]
    return lines, coloring


def split_stages(name: str, size: int, coloring: Coloring) -> dict[str, Callable[[], Any]]:
    """Return two compiled functions without arguments: the compressed Jacobian, and its decompression.

    The compressed Jacobian has one JVP for each color, (colors, outputs). Its decompression returns the
    nonzeros, (nonzeros,), row by row.
    """
    x, function = make_input(name, size), FUNCTIONS[name]
    colors, pattern = np.asarray(coloring.columns), coloring.pattern
    seeds = jnp.asarray(colors == np.arange(coloring.column_count)[:, None], jnp.float32).reshape(
        -1, *x.shape
    )
    positions = jnp.asarray(colors[pattern.cols] * pattern.outputs + pattern.rows)

    @jax.jit
    def compress(x, seeds):
        return jax.vmap(lambda v: jax.jvp(function, (x,), (v,))[1].ravel())(seeds)

    decompress = jax.jit(lambda compressed, positions: jnp.take(compressed.ravel(), positions, mode="clip"))
    compressed = compress(x, seeds)
    if x.size <= MOST_DENSE:
        dense = jax.jacfwd(function)(x).reshape(pattern.outputs, -1)
        expected, scale = dense[pattern.rows, pattern.cols], float(jnp.abs(dense).max())
        np.testing.assert_allclose(decompress(compressed, positions), expected, rtol=1e-5, atol=1e-6 * scale)
    return {
        "compressed products": functools.partial(compress, x, seeds),
        "decompression": functools.partial(decompress, compressed, positions),
    }


def list_cases(name: str, size: int, dtype: str = "float32") -> dict[str, Case]:
    """Return a dict from a name, such as "dense jacobian", to the case of an example that computes it."""
    fields = {"workload": f"examples.{name}", "sizes": {SIZE[name]: size}, "api": "jit", "dtype": dtype}
    if name == "rosenbrock":
        hessian = {"target": "hessian", "mode": "fwd_over_rev"}
        settings = {"hessian": {"seeds": "colored"} | hessian, "dense hessian": hessian}
    else:
        settings = {
            "jacobian": {"mode": "jacfwd", "seeds": "colored"},
            "jacobian by rows": {"mode": "jacrev", "seeds": "colored"},
            "dense jacobian": {"mode": "jacfwd"},
            "dense jacobian by rows": {"mode": "jacrev"},
        }
    inputs = 2 * size * size if name == "brusselator" else size
    if inputs > MOST_DENSE:
        settings = {what: setting for what, setting in settings.items() if "dense" not in what}
    cases = {what: case_rules.complete(Case(**fields, **setting)) for what, setting in settings.items()}
    return {
        what + (", float64" if dtype == "float64" else ""): case_rules.without_trivial_blocks(
            describe_derivative(case, workload.build(case))
        ).case
        for what, case in cases.items()
    }


def measure_cases(name: str, size: int, seconds: float, dtype: str = "float32") -> list[pages.Row]:
    """Check and measure the cases of an example in turns. Return one line of the result file per case.

    Raise `ValueError` if a case fails. `seconds` is the time to sample each case.
    """
    sampling = Sampling(least=side_by_side.LEAST, seconds=seconds)
    group = run_case.ProcessGroup(jax.devices()[:1], "cpu")
    cases = list_cases(name, size, dtype)
    attempts = [
        run_case.prepare_case(Record(case, "failed", HERE), group, sampling) for case in cases.values()
    ]
    active = [attempt for attempt in attempts if not attempt.ended]
    while active:
        active = [attempt for attempt in active if not run_case.take_turn(attempt) and not attempt.ended]
    lines = []
    for what, attempt in zip(cases, attempts, strict=True):
        record = run_case.finish_case(attempt)
        if record.status != "ok":
            raise ValueError(f"{name} {size}, {what}: {record.status}: {record.text}")
        lines.append(
            {"name": f"{name} {size}/{what}", "seconds": list(record.seconds), "error": record.error}
        )
    return lines


def advise_examples(problems: Sequence[tuple[str, int]], budget: float) -> list[pages.Row]:
    """Return one line of the result file per example: the advice for its Jacobian or Hessian.

    `budget` is the time in seconds to measure the candidates of an example.
    """
    lines = []
    for name, size in problems:
        function = rosenbrock.value if name == "rosenbrock" else FUNCTIONS[name]
        parameter = {"brusselator": "state", "diffusion": "u", "rosenbrock": "x"}[name]
        points = {parameter: np.asarray(make_input(name, size))[None]}
        target = "hessian" if name == "rosenbrock" else "jacobian"
        lines.append(side_by_side.advise(f"{name}, {size}", budget, function, points, target=target))
    return lines


def measure(problems: tuple[tuple[str, int], ...], seconds: float, budget: float) -> list[pages.Row]:
    """Measure all stages of all problems, pairs (example, size). Return the lines of the result file.

    `seconds` is the time to sample a case, and `budget` the time to measure the candidates of an advice.
    """
    lines = [side_by_side.describe_machine()]
    for name, size in problems:
        stage_lines, coloring = analyze(name, size, side_by_side.LEAST)
        lines += stage_lines
        for line in side_by_side.sample_calls(split_stages(name, size, coloring), seconds):
            lines.append(line | {"name": f"{name} {size}/{line['name']}"})
        lines += measure_cases(name, size, seconds)
    lines += advise_examples([problem for problem in problems if problem != ("brusselator", 64)], budget)
    jax.config.update("jax_enable_x64", True)
    for name, size in DOUBLE if problems == FULL else problems[:2]:
        lines += measure_cases(name, size, seconds, "float64")
    return lines


def stage_table(lines: Sequence[pages.Row]) -> str:
    """Return a Markdown table of the median times of all stages, with one row for each problem."""
    by_name = {line["name"]: line for line in lines if "name" in line}
    stages = ("detection, first", "detection", "coloring", "compressed products", "decompression")
    titles = (*stages, "both in one program", "by rows", "dense")
    rows = []
    for problem in dict.fromkeys(name.split("/")[0] for name in by_name):
        result = "hessian" if f"{problem}/hessian" in by_name else "jacobian"
        names = (*stages, result, f"{result} by rows", f"dense {result}")
        samples = [by_name.get(f"{problem}/{name}", {}).get("seconds") for name in names]
        times = [format_duration(statistics.median(seconds)) if seconds else "" for seconds in samples]
        facts = by_name[f"{problem}/detection"]
        rows.append((problem, str(facts["colors"]), f"{facts['nonzeros']:,}", *times))
    return pages.make_table(("problem", "colors", "nonzeros", *titles), rows) + "\n\n"


def main() -> None:
    """Measure into docs/data/brusselator.jsonl, or with `table` write docs/brusselator.md and its figure."""
    if sys.argv[1:] == ["table"]:
        more = stage_table(pages.read_lines(pages.data_path(NAME)))
        side_by_side.publish(NAME, CELLS, "Stages of sparse differentiation", "milliseconds", more)
        return
    side_by_side.restart_on_one_core()
    if sys.argv[1:] == ["small"]:
        lines = measure(SMALL, 0.1, 1.0)
        print(stage_table(lines) + side_by_side.make_table(CELLS, lines))
        return
    side_by_side.write_lines(pages.data_path(NAME), measure(FULL, 2.0, 15.0))


if __name__ == "__main__":
    main()
