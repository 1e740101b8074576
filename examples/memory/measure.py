"""Measure the out-of-memory reports of this folder at their reported sizes; write docs/data/memory.jsonl.

    python -m examples.memory.measure               # all cases, one after the other
    python -m examples.memory.measure kernel genes  # some of them
    python -m examples.memory.measure --small       # at the default sizes; writes nothing

Each module of this folder is a case: an out-of-memory report from a GitHub thread. Each case has a process of
its own, which is bound to one core. It (1) compiles the reported call without running it, (2) asks for advice
on the reported function by compiling alone, and again by measuring if that is quick enough, and (3) runs the
study memory_CASE. Advice by measuring and the study check each result.
Bytes are those of arguments, temporaries and result, as XLA states them.
"""

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax

import scaling
from examples import pages, side_by_side
from scaling.core import environment

FOLDER = Path(__file__).parent
DATA = pages.data_path("memory")
CASES = (
    "atoms", "pairs", "kernel", "visibilities", "fields", "burgers", "scaled_rows", "genes", "last_layer",
    "lenet", "tangent_kernel", "first_order", "upsampling", "neighbors",
)  # fmt: skip
MOST_SECONDS, MOST_BYTES, BUDGET = 10.0, 2e9, 20.0  # of advice that is measured, and seconds to measure it
LIMITS = [
    "memory_limit=24GB",
    "case_seconds=120",
    "sampling.least=7",
    "sampling.turns=1",
    "sampling.seconds=0.2",
]
COLUMNS = [
    "key", "mode", "chunk", "case.block", "seeds", "reduce", "status",
    "text", "median", "low", "high", "samples", "argument_bytes", "temp_bytes", "output_bytes", "error",
    "tolerance", "check_seconds", "compile_seconds", "checked.entries", "checked.points", "colors.columns", "colors.rows",
]  # fmt: skip


def is_shape(value):
    """Return whether a value is a shape, a tuple of integers."""
    return isinstance(value, tuple) and all(isinstance(size, int) for size in value)


def as_structs(shapes, dtype, leading=()):
    """Return a dict of pytrees of `jax.ShapeDtypeStruct` from a dict of pytrees of shapes, in its order.

    `leading` is a tuple of sizes that precedes each shape.
    """
    struct = lambda shape: jax.ShapeDtypeStruct((*leading, *shape), dtype)  # noqa: E731
    return {name: jax.tree.map(struct, tree, is_leaf=is_shape) for name, tree in shapes.items()}


def compile_call(function, transform, shapes, dtype):
    """Return a dict with the bytes of a reported call and the seconds to compile it, or with an "error".

    Args:
        transform: a transformation of JAX, such as `jax.hessian`.
        shapes: a dict from input to shape.
    """
    began = time.perf_counter()
    try:
        compiled = jax.jit(transform(function)).lower(*as_structs(shapes, dtype).values()).compile()
    except Exception as error:  # beyond what XLA can address
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    needs = compiled.memory_analysis()
    parts = {
        f"{part}_bytes": getattr(needs, f"{part}_size_in_bytes") for part in ("argument", "temp", "output")
    }
    return parts | {"bytes": sum(parts.values()), "compile_seconds": time.perf_counter() - began}


def advise(function, transform, shapes, dtype):
    """Return a dict with the advice of `scaling.advise` by compiling: method, bytes, predicted seconds.

    If it is small and fast enough, it is also measured: `side_by_side.measure_regret` describes the other keys.
    """
    began, target = time.perf_counter(), "hessian" if transform is jax.hessian else "jacobian"
    options = {"target": target}
    first, *others = shapes
    points = as_structs({first: shapes[first]}, dtype, (1,))
    shared = as_structs({name: shapes[name] for name in others}, dtype)
    try:
        advice = scaling.advise(function, points, shared, budget=0, **options)
        best = advice.table.iloc[0]
        method = advice.describe(advice.best.case)
    except Exception as error:
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return {"error": text, "advice_seconds": time.perf_counter() - began}
    row = {
        "method": method, "bytes": float(best.memory_bytes), "predicted_seconds": best.predicted_seconds,
        "predicted_low": best.predicted_low, "predicted_high": best.predicted_high,
        "advice_seconds": time.perf_counter() - began,
    }  # fmt: skip
    if best.predicted_seconds > MOST_SECONDS or best.memory_bytes > MOST_BYTES:
        return row
    return row | side_by_side.measure_regret(advice, BUDGET, function, points, shared, **options)


def run_study(name, sizes, results):
    """Run the study memory_NAME with some sizes. Return one dict per record: its method, times and memory."""
    fields = [f"points={size}" if key == "points" else f"sizes.{key}={size}" for key, size in sizes.items()]
    command = [Path(sys.executable).with_name("scaling"), "run", "--config-dir", FOLDER.parent / "conf"]
    study = [f"study=memory_{name}", f"results={results}", *fields, *LIMITS]
    subprocess.run([*command, *study], stdout=sys.stderr, check=False)
    lines = [line for path in Path(results).glob("*.jsonl") for line in path.read_text().splitlines()]
    chosen = {record["key"]: {"chosen": record["chosen"]} for record in map(json.loads, lines)}
    frame = scaling.load(results).reindex(columns=COLUMNS)
    rows = [row | chosen[row["key"]] for row in frame.to_dict("records")]
    return [{name: x for name, x in row.items() if x is not None and x == x} for row in rows]


def find_case(name, small):
    """Import the module examples.memory.NAME. Return (module, sizes, dtype), with float64 enabled if needed.

    `small` selects sizes for trials in place of the reported sizes.
    """
    case = importlib.import_module(f"examples.memory.{name}")
    dtype = getattr(case, "DTYPE", "float32")
    jax.config.update("jax_enable_x64", dtype == "float64")
    return case, getattr(case, "SMALL", case.SIZES) if small else case.THREAD, dtype


def measure(name, small):
    """Return the line of the result file for a case: the reported call, the advice and the study."""
    case, sizes, dtype = find_case(name, small)
    call = case.reported_call(sizes)
    url = re.search(r"https://[\w./-]+\d", case.__doc__)[0]
    row = {"case": name, **case.REPORT, "url": url, "sizes": sizes, "dtype": dtype, "jax": jax.__version__}
    row["processor"] = environment.processor()
    row |= {"plain": compile_call(*call, dtype), "advice": advise(*call, dtype)}
    with tempfile.TemporaryDirectory() as results:
        return row | {"runs": run_study(name, sizes, results)}


def main(words):
    small, names = "--small" in words, [word for word in words if not word.startswith("--")] or CASES
    if "--here" in words:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        print(json.dumps(measure(*names, small)))
        return
    rows = {row["case"]: row for row in pages.read_lines(DATA)} if DATA.exists() else {}
    for name in names:
        began, options = time.perf_counter(), [option for option in ("--small",) if small]
        case, sizes, dtype = find_case(name, small)
        default = compile_call(*case.reported_call(sizes), dtype)
        command = [sys.executable, "-m", "examples.memory.measure", "--here", name, *options]
        flags = {"XLA_FLAGS": environment.variables("cpu")["XLA_FLAGS"]}  # as in a study
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | flags)
        rows[name] = json.loads(done.stdout) | {
            "plain_default": default,
            "seconds": time.perf_counter() - began,
        }
        if not small:
            pages.write_lines(DATA, (rows[each] for each in CASES if each in rows))
        print(f"{name}: {rows[name]['seconds']:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
