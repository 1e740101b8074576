"""Benchmark of harness overhead: wall time of a 200-case study with minimal sampling, by stage.

The useful stages are compiling (tracing, lowering, compiling, and the first call), checking, and sampling.
The exit status is 1 if they take less than 90 % of the time of the study.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from scaling.results.store import load

USEFUL = 0.9
STUDY = """
devices: 1
grids:
  - workload: linear
    points: 32
    sizes: {p: [8, 16, 64], o: [2, 5]}
    mode: [vmap_jacfwd, vmap_jacrev, vmap_grad, linearize, finite_difference]
    api: [jit, shard_map]
  - workload: residual
    points: [64, 1024]
    variant: [vector, scalar]
    wrt: [m, d, d+m]
    mode: [jacfwd, jacrev, linearize, finite_difference]
    api: jit
  - workload: rbf
    points: [32, 64]
    variant: [source, squared]
    target: [grad, grad_map]
    mode: [jacfwd, jacrev, linearize, analytic]
    api: [jit, shard_map]
  - workload: poisson
    points: [1024, 16384]
    mode: [jacfwd, jacrev, linearize, analytic, grad_of_sum]
    api: [jit, shard_map]
  - workload: poisson
    points: 1024
    target: hessian
    mode: [fwd_over_rev, rev_over_fwd, rev_over_rev, fwd_over_fwd]
    api: [jit, shard_map, pmap]
"""
COMPILING = ("trace_seconds", "lower_seconds", "compile_seconds", "first_seconds")


def main() -> int:
    """Run the study, print the seconds of each stage, and return the exit status."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "conf" / "study").mkdir(parents=True)
        (folder / "conf" / "study" / "many.yaml").write_text(STUDY)
        words = [
            "run",
            "--config-dir",
            f"{name}/conf",
            "study=many",
            f"results={name}/results",
            "sampling.seconds=0.1",
            *sys.argv[1:],
        ]
        began = time.perf_counter()
        process = subprocess.Popen(
            [str(Path(sys.executable).parent / "scaling"), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        moments = [time.perf_counter() for line in process.stdout if line.startswith("[")]
        process.wait()
        wall = time.perf_counter() - began
        records = load(folder / "results").records
    parts = {
        "compiling": sum(getattr(record, stage) or 0.0 for record in records for stage in COMPILING),
        "checking": sum(record.check_seconds or 0.0 for record in records),
        "sampling": sum(record.sampling_seconds or 0.0 for record in records),
        "the report": began + wall - moments[-1],
    }
    study = wall - parts["the report"]
    useful = parts["compiling"] + parts["checking"] + parts["sampling"]
    parts["composing, starting JAX, overhead"] = study - useful
    print(f"{len(records)} cases in {wall:.1f} s")
    for part, seconds in parts.items():
        print(f"  {part:34} {seconds:6.1f} s  {seconds / wall:5.1%}")
    print(
        f"{useful / study:.1%} of the study's time (without the report) is compiling, checking and sampling"
    )
    return int(useful / study < USEFUL)


if __name__ == "__main__":
    sys.exit(main())
