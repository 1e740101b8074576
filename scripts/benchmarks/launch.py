"""Benchmark of launch overhead: 64 cases on Slurm with `scaling run` and with hydra-submitit-launcher.

Both run the same cases with the same number of samples, one task at a time, so that tasks do not disturb each
other. Hydra's launcher submits one job per case, which runs the same code (core/run_case.py) and writes the
same records. The overhead is the wall time of the command minus the recorded times to build, compile, check,
and sample. The exit status is 1 if the overhead of `scaling run` is not ten times smaller. Requires `pip
install -e '.[bench]'` and a cluster such as slurm/cluster, and takes about ten minutes.
"""

import importlib.util
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from scaling.core.record import STAGES, Record
from scaling.results.store import load

TIMES = 10
STUDY = """
devices: 1
grids:
  - workload: linear
    points: 32
    sizes: {p: [8, 16, 32, 64], o: [2, 4]}
    mode: [vmap_jacfwd, vmap_jacrev, vmap_grad, linearize]
    api: [jit, shard_map]
"""
SAMPLING = {"seconds": 0.05, "least": 7, "most": 7, "warm_up": 0.01}
APP = """
import json
import os

import hydra


@hydra.main(version_base=None, config_path=".", config_name="app")
def main(config):
    from scaling.launcher import cores
    from scaling.core import environment

    os.sched_setaffinity(0, cores.usable_cores()[:1])
    os.environ |= environment.variables("cpu")
    import jax

    jax.config.update("jax_platforms", "cpu")
    from pathlib import Path

    from scaling.core.case import from_dict
    from scaling.core import run_case
    from scaling.core.record import Record
    from scaling.core.timing import Sampling
    from scaling.core.record import Writer

    case = from_dict(json.loads(Path(config.cases).read_text())[config.index])
    around = environment.describe("cpu", None, os.environ, None, cores.usable_cores()[:1])
    record = run_case.run_case(Record(case, "failed", around), jax.devices()[:1], "cpu", Sampling(**config.sampling))
    Writer(Path(config.results)).append(record)


main()
"""
CONFIG = """
defaults:
  - _self_
  - override hydra/launcher: submitit_slurm
index: 0
cases: {folder}/cases.json
results: {folder}/theirs
sampling: {sampling}
hydra:
  run: {{dir: {folder}/hydra}}
  sweep: {{dir: {folder}/hydra, subdir: "${{index}}"}}
  launcher: {{timeout_min: 5, cpus_per_task: 1, tasks_per_node: 1, nodes: 1, array_parallelism: 1}}
"""


def main() -> int:
    """Run the cases with both launchers, print the overhead of each, and return the exit status."""
    if importlib.util.find_spec("hydra_plugins.hydra_submitit_launcher") is None:
        print(
            "hydra-submitit-launcher is not installed: .venv/bin/pip install -e '.[bench]'", file=sys.stderr
        )
        return 2
    Path("results").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir="results", prefix=".bench-launch-"
    ) as name:  # the nodes must see it too
        folder = Path(name).resolve()
        ours, cases = _run_scaling(folder)
        theirs = _run_hydra(folder, cases)
    for what, overhead, wall in (("scaling run", *ours), ("hydra-submitit-launcher", *theirs)):
        print(
            f"{what:24} {overhead:6.2f} s overhead per case, {60 * cases / wall:6.1f} cases per minute ({wall:.0f} s)"
        )
    print(f"{theirs[0] / ours[0]:.1f} times smaller")
    return 0 if theirs[0] >= TIMES * ours[0] else 1


def _run_scaling(folder: Path) -> tuple[tuple[float, float], int]:
    """Run the cases with `scaling run`, and write them to cases.json.

    Return ((overhead in seconds per case, wall time in seconds), number of cases).
    """
    (folder / "conf" / "study").mkdir(parents=True)
    (folder / "conf" / "study" / "many.yaml").write_text(STUDY)
    words = [str(Path(sys.executable).parent / "scaling"), "run"]
    words += ["--config-dir", str(folder / "conf"), "study=many"]
    words += ["cluster=slurm", "cluster.at_once=1", "wait=true", f"results={folder}/ours", "sampling.turns=1"]
    words += [f"sampling.{name}={value}" for name, value in SAMPLING.items()]
    began = time.monotonic()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    wall = time.monotonic() - began
    records = load(folder / "ours").records
    return (_overhead(records, wall), wall), _write_cases(folder, records)


def _write_cases(folder: Path, records: list[Record]) -> int:
    """Write the cases of the records to cases.json, and return the number of cases."""
    import json

    from scaling.core.case import to_dict

    (folder / "cases.json").write_text(json.dumps([to_dict(record.case) for record in records]))
    return len(records)


def _run_hydra(folder: Path, cases: int) -> tuple[float, float]:
    """Run the cases with hydra-submitit-launcher. Return (overhead in seconds per case, wall seconds)."""
    (folder / "theirs").mkdir()
    (folder / "app.py").write_text(APP)
    (folder / "app.yaml").write_text(CONFIG.format(folder=folder, sampling=SAMPLING | {"turns": 1}))
    began = time.monotonic()
    words = [sys.executable, str(folder / "app.py"), "--multirun", f"index=range({cases})"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall = time.monotonic() - began
    records = load(folder / "theirs").records
    if (good := sum(record.status == "ok" for record in records)) != cases:
        raise SystemExit(f"only {good} of {cases} cases came back from Hydra's launcher")
    return _overhead(records, wall), wall


def _overhead(records: list[Record], wall: float) -> float:
    """Return the wall seconds per case that are not spent on building, compiling, checking, or sampling."""
    recorded = sum(getattr(record, stage) or 0.0 for record in records for stage in STAGES)
    return (wall - recorded) / len(records)


if __name__ == "__main__":
    sys.exit(main())
