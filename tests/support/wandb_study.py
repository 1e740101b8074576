"""A made-up results folder to publish, and helpers that compare it with what was published."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from scaling.analysis import findings
from scaling.core.case import Case
from scaling.core.record import Record, Writer
from scaling.results import store
from scaling.wandb.job import TrackedRun
from scaling.wandb.publish import make_plots, study_runs

SECONDS = {1: 0.040, 2: 0.022, 4: 0.013}


def record(mode: str, devices: int, **fields) -> Record:
    """Return a record of one case with times near SECONDS."""
    environment: dict[str, Any] = {"digest": "e1", "platform": "cpu", "device_kind": "A Processor"}
    environment |= {"versions": {"jax": "0.10.2", "numpy": "2.3.1"}, "hosts": ["node-7"]}
    environment["cores"] = list(range(devices))
    sizes, points = fields.pop("sizes", {"m": 48}), fields.pop("points", 32)
    target = fields.pop("target", "grad_map")
    case = Case("rbf", target=target, sizes=sizes, points=points, mode=mode, devices=devices)
    samples = [SECONDS[devices] * (1 + 0.001 * i) for i in range(8)]
    return Record(case, **{"status": "ok", "environment": environment, "seconds": samples} | fields)


def write_results(folder: Path, study: str = "made-up", scaling: tuple[str, ...] = ("strong",)) -> Path:
    """Write a folder with two curves of three device counts, and one failure with its reason."""
    folder.mkdir()
    store.write_json(folder / "study.json", {"study": study, "scaling": list(scaling)})
    writer = Writer(folder)
    for mode in ("jacfwd", "jacrev"):
        for devices in SECONDS:
            writer.append(record(mode, devices))
    writer.append(
        record("linearize", 2, status="failed", reason="wrong_answer", text="off by **0.3** <b>", seconds=[])
    )
    return folder


def write_weak_results(
    folder: Path, counts: tuple[int, ...], flops: float = 1e6, growth: float = 0.0
) -> Path:
    """Write a folder whose points grow with the devices; each device adds `growth` operations per device."""
    folder.mkdir()
    store.write_json(folder / "study.json", {"study": "made-up", "scaling": ["weak"]})
    writer = Writer(folder)
    for devices in counts:
        work = {"flops": flops + growth * devices, "compulsory_bytes": 200000}
        writer.append(record("jacfwd", devices, points=32 * devices, **work))
    return folder


def runs_of(folder: Path) -> list[TrackedRun]:
    """Return the W&B runs of a folder, the run of the study last."""
    study = findings.read(folder)
    return study_runs(study, make_plots(study), folder)


def read_back(folder: Path, run: TrackedRun) -> list[dict]:
    """Return the records in the offline copy of a run, as read by W&B."""
    (path,) = (folder / "wandb").glob(f"offline-run-*-{run.digest}-*/*.wandb")
    command = [str(Path(sys.executable).with_name("wandb")), "leet", "inspect", "--json", str(path)]
    return [
        json.loads(line)
        for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    ]


def offline_copies(folder: Path) -> list[str]:
    """Return the names of the folders of offline runs in a results folder."""
    return sorted(path.name for path in (folder / "wandb").glob("*run-*"))


def is_published(server: Any, folder: Path) -> bool:
    """Return whether the runs on the server that are not superseded match the records exactly, each once."""
    expected = runs_of(folder)
    current = [run for run in server.runs.values() if "superseded" not in run.tags]
    by_series = {run.values["series"]: run for run in current}
    return len(by_series) == len(expected) == len(current) and all(
        by_series[run.series].values == run.config
        and run.summary.items() <= by_series[run.series].summary.items()
        and by_series[run.series].rows == run.rows
        and (by_series[run.series].metadata["displayName"], by_series[run.series].state)
        == (run.name, "finished")
        for run in expected
    )


def clear_environment(patch, folder: Path) -> None:
    """Remove the W&B settings of the user, such as the key and the netrc file, from the environment."""
    for name in list(os.environ):
        if name.startswith("WANDB_"):
            patch.delenv(name)
    patch.setenv("NETRC", str(folder / "no-netrc"))
    patch.setenv("WANDB_CONFIG_DIR", str(folder / "no-config"))


def states(outcome: Any) -> dict[str, int]:
    """Return the number of runs in each state of the outcome of a publish."""
    return dict(sorted(outcome.states.items()))
