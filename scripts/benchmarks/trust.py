"""Benchmark of comparisons: false alarms of a program against itself, and detection of a 10 % slowdown.

Three parts, each with hundreds of cases:

    A/A      `versus=self`: the variants are equal, so that every reported difference is a false alarm; at most 5 %
    planted  `versus=commit:HEAD~1` of a repository whose workload has 10 % more work since; at least 95 % detected
    naive    two plain runs, before and after the others: cases that would be reported as different if the samples
             of one process were independent repetitions

The exit status is 1 if one of the first two limits is exceeded. Takes 15 to 30 minutes.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from scaling.analysis import folder_comparison
from scaling.analysis.ratios import ratio_interval
from scaling.results.store import latest_records, load

FALSE_ALARMS, FOUND = 0.05, 0.95
QUICK = ("sampling.seconds=0.1", "sampling.warm_up=0.02", "devices=1")
WORKLOAD = """
import jax
import jax.numpy as jnp
from scaling.workload import Workload, uniform

STEPS = {steps}
SIZES = {{"k": 8}}


def function(x):
    return jax.lax.fori_loop(0, STEPS, lambda _, y: jnp.sin(y) + 0.1 * x, x)


def workload(case):
    return Workload(function, points={{"x": uniform(case.sizes["k"])}})
"""
PLANTED = """
grids:
  - workload: planted
    api: jit
    points: [64, 128, 256]
    sizes: {k: [6, 8, 12, 16]}
    mode: [value, jacfwd, jacrev, linearize, finite_difference]
"""
SAME = """
api: jit
grids:
  - workload: linear
    points: [16, 64]
    sizes: {p: [8, 16, 32, 64], o: [2, 3, 5, 8]}
    mode: [vmap_jacfwd, vmap_jacrev, vmap_grad, linearize, value]
  - workload: poisson
    points: [1024, 4096, 16384, 65536, 262144]
    mode: [jacfwd, jacrev, analytic, grad_of_sum]
  - workload: residual
    points: [64, 256, 1024, 4096]
    wrt: [m, d+m]
    mode: [jacfwd, jacrev, linearize]
  - workload: rbf
    variant: squared
    points: [64, 128, 256]
    mode: [jacfwd, jacrev, analytic]
  - workload: rbf
    points: [64, 128, 256, 512]
    formulation: rowwise
    mode: [jacfwd, linearize, analytic]
"""


def run(folder: Path, name: str, *words: str) -> Path:
    """Run the study `name` in a folder with its configuration and workloads. Return the results folder.

    Those `words` that contain "=" are arguments of `scaling run`. The others are part of the folder's name.
    """
    results = folder / "results" / "-".join([name, *(w for w in words if "=" not in w)])
    command = [str(Path(sys.executable).parent / "scaling"), "run", "--config-dir", "conf"]
    command += [f"study={name}", f"results={results}", *QUICK, *(w for w in words if "=" in w)]
    subprocess.run([*command, *sys.argv[1:]], check=True, cwd=folder, stdout=subprocess.DEVNULL)
    return results


def count_verdicts(results: Path) -> tuple[Counter, int]:
    """Return the number of cases with each verdict, and the total number of cases."""
    found = folder_comparison.compare(*folder_comparison.find_folders(str(results), None))
    return Counter(row.verdict for row in found.rows), len(found.rows)


def count_naive_differences(first: Path, second: Path) -> tuple[int, int]:
    """Return the number of cases whose samples differ between two runs, and the number of all cases."""
    a, b = ({record.key: record.seconds for record in latest_records(load(folder).records) if record.status == "ok"}
            for folder in (first, second))  # fmt: skip
    intervals = [ratio_interval(b[key], a[key]) for key in a.keys() & b.keys()]
    return sum(1 for found in intervals if found and not found[1] <= 1 <= found[2]), len(intervals)


def prepare(folder: Path) -> None:
    """Write the studies, and a repository with two revisions, the later of which has 10 % more work."""
    (folder / "conf" / "study").mkdir(parents=True)
    (folder / "conf" / "study" / "same.yaml").write_text(SAME)
    (folder / "conf" / "study" / "planted.yaml").write_text(PLANTED)
    who = {"GIT_AUTHOR_NAME": "bench", "GIT_AUTHOR_EMAIL": "bench@localhost"}
    who |= {name.replace("AUTHOR", "COMMITTER"): value for name, value in who.items()}
    for steps in (200, 220):
        (folder / "planted.py").write_text(WORKLOAD.format(steps=steps))
        for words in (["init", "-q"], ["add", "planted.py"], ["commit", "-qm", f"{steps} steps"]):
            subprocess.run(["git", *words], cwd=folder, check=True, env=os.environ | who)


def main() -> int:
    """Run the parts, print one line each, and return the exit status."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        began = time.monotonic()
        first = run(folder, "same", "first")
        verdicts, count = count_verdicts(run(folder, "same", "versus=self"))
        alarms = sum(verdicts[verdict] for verdict in (folder_comparison.SLOWER, folder_comparison.FASTER))
        print(f"A/A: {alarms} of {count} cases are reported as different ({alarms / count:.1%})", flush=True)
        verdicts, planted = count_verdicts(run(folder, "planted", "versus=commit:HEAD~1"))
        found = verdicts[folder_comparison.SLOWER]
        print(
            f"planted: {found} of {planted} cases are reported as slower ({found / planted:.1%}); {dict(verdicts)}",
            flush=True,
        )
        apart = (time.monotonic() - began) / 60
        wrong, of = count_naive_differences(first, run(folder, "same", "second"))
        print(
            f"naive: two plain runs, {apart:.0f} minutes apart, differ in {wrong} of {of} cases ({wrong / of:.1%})"
        )
    return int(alarms > FALSE_ALARMS * count or found < FOUND * planted or count < 200)


if __name__ == "__main__":
    sys.exit(main())
