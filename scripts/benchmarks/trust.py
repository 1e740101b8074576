"""Can a verdict be trusted? A program against itself, and against a revision of itself that is 10 % slower.

Three parts, each of hundreds of cases, printed as shares:

    A/A      `versus=self`: nothing differs, so every difference that is reported is a false alarm; at most 5 %
    planted  `versus=commit:HEAD~1` of a repository whose workload does 10 % more work than before; at least 95 % are found
    naive    two plain runs, before and after the others: how many cases would have been called different by intervals that take
             the samples of one process for independent repeats

Exit status 1 when one of the first two is missed. Takes a quarter of an hour.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from scaling.analysis import compare
from scaling.core.intervals import ratio_interval
from scaling.core.store import latest, load

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
    """Run a study in a folder, in which its configuration and any module of its own stand; its results."""
    results = folder / "results" / "-".join([name, *(w for w in words if "=" not in w)])
    command = [
        str(Path(sys.executable).parent / "scaling"),
        "run",
        "--config-dir",
        "conf",
        f"study={name}",
        f"results={results}",
    ]
    asked = [word for word in words if "=" in word]
    subprocess.run(
        [*command, *QUICK, *asked, *sys.argv[1:]], check=True, cwd=folder, stdout=subprocess.DEVNULL
    )
    return results


def told(results: Path) -> tuple[Counter, int]:
    """How many cases got which verdict, and how many there are."""
    found = compare.compare(*compare.find_folders(str(results), None))
    return Counter(row.verdict for row in found.rows), len(found.rows)


def naive(first: Path, second: Path) -> tuple[int, int]:
    """Of how many cases the samples of two runs would be called different, and how many there are."""
    a, b = ({record.key: record.seconds for record in latest(load(folder).records) if record.status == "ok"}
            for folder in (first, second))  # fmt: skip
    intervals = [ratio_interval(b[key], a[key]) for key in a.keys() & b.keys()]
    return sum(1 for found in intervals if found and not found[1] <= 1 <= found[2]), len(intervals)


def prepare(folder: Path) -> None:
    """The studies, and a repository of two revisions, the later of which works 10 % more."""
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
    """Run the parts and print a line each; the exit status."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        began = time.monotonic()
        first = run(folder, "same", "first")
        verdicts, count = told(run(folder, "same", "versus=self"))
        alarms = sum(verdicts[verdict] for verdict in (compare.SLOWER, compare.FASTER))
        print(f"A/A: {alarms} of {count} cases are reported as different ({alarms / count:.1%})", flush=True)
        verdicts, planted = told(run(folder, "planted", "versus=commit:HEAD~1"))
        found = verdicts[compare.SLOWER]
        print(
            f"planted: {found} of {planted} cases are reported as slower ({found / planted:.1%}); {dict(verdicts)}",
            flush=True,
        )
        apart = (time.monotonic() - began) / 60
        wrong, of = naive(first, run(folder, "same", "second"))
        print(
            f"naive: two plain runs, {apart:.0f} minutes apart, differ in {wrong} of {of} cases ({wrong / of:.1%})"
        )
    return int(alarms > FALSE_ALARMS * count or found < FOUND * planted or count < 200)


if __name__ == "__main__":
    sys.exit(main())
