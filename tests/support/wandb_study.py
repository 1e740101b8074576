"""A made-up results folder to publish, and what the tests of publishing ask of it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from scaling.analysis import findings
from scaling.core import store
from scaling.core.case import Case
from scaling.core.record import Record
from scaling.wandb.plots import make_plots
from scaling.wandb.runs import TrackedRun, study_runs

SECONDS = {1: 0.040, 2: 0.022, 4: 0.013}


def record(mode: str, devices: int, **fields) -> Record:
    """A record of one case; the median of its samples is that of SECONDS."""
    made_on: dict = {
        "digest": "e1",
        "platform": "cpu",
        "device_kind": "A Processor",
        "cores": list(range(devices)),
    }
    made_on |= {"versions": {"jax": "0.10.2", "numpy": "2.3.1"}, "hosts": ["node-7"]}
    sizes, points = fields.pop("sizes", {"m": 48}), fields.pop("points", 32)
    target = fields.pop("target", "grad_map")
    case = Case("rbf", target=target, sizes=sizes, points=points, mode=mode, devices=devices)
    samples = [SECONDS[devices] * (1 + 0.001 * i) for i in range(8)]
    return Record(case, **{"status": "ok", "environment": made_on, "seconds": samples} | fields)


def results(folder: Path, study: str = "made-up", scaling: tuple[str, ...] = ("strong",)) -> Path:
    """Two curves of three points, one failure with its reason, and a figure."""
    folder.mkdir()
    store.write_json(folder / "study.json", {"study": study, "scaling": list(scaling)})
    writer = store.Writer(folder)
    for mode in ("jacfwd", "jacrev"):
        for devices in SECONDS:
            writer.append(record(mode, devices))
    writer.append(
        record("linearize", 2, status="failed", reason="wrong_answer", text="off by **0.3** <b>", seconds=[])
    )
    (folder / "report").mkdir()
    from PIL import Image

    Image.new("RGB", (10, 7), "white").save(folder / "report" / "speedup.png")
    return folder


def weak(folder: Path, counts: tuple[int, ...], flops: float = 1e6, more: float = 0.0) -> Path:
    """A series that grows its points with its devices; more: by how many operations per device each device adds."""
    folder.mkdir()
    store.write_json(folder / "study.json", {"study": "made-up", "scaling": ["weak"]})
    writer = store.Writer(folder)
    for devices in counts:
        work = {"flops": flops + more * devices, "compulsory_bytes": 200000}
        writer.append(record("jacfwd", devices, points=32 * devices, **work))
    return folder


def runs_of(folder: Path) -> list[TrackedRun]:
    """Return the runs that a folder makes, that of the study last."""
    loaded = store.load(folder)
    found = findings.read(folder, loaded=loaded)
    return study_runs(folder, found, make_plots(found), loaded.records)


def read_back(folder: Path, run: TrackedRun) -> list[dict]:
    """What W&B's own reader finds in the offline copy of a run."""
    (path,) = (folder / "wandb").glob(f"offline-run-*-{run.digest}-*/*.wandb")
    command = [str(Path(sys.executable).with_name("wandb")), "leet", "inspect", "--json", str(path)]
    return [
        json.loads(line)
        for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    ]


def copies(folder: Path) -> list[str]:
    """The folders of runs that wandb left beside the records."""
    return sorted(path.name for path in (folder / "wandb").glob("*run-*"))


def brought(server: Any, folder: Path) -> bool:
    """Whether the server has, of what is not superseded, exactly what the records say, once."""
    planned = runs_of(folder)
    current = [run for run in server.runs.values() if "superseded" not in run.tags]
    there = {run.values["series"]: run for run in current}
    return len(there) == len(planned) == len(current) and all(
        there[run.series].values == run.config
        and run.summary.items() <= there[run.series].summary.items()
        and [row for row in there[run.series].rows if "_type" not in str(row)] == run.rows
        and (there[run.series].told["displayName"], there[run.series].state) == (run.name, "finished")
        for run in planned
    )


def clear_environment(patch, folder: Path) -> None:
    """No key, no netrc and no settings but those of a test."""
    for name in list(os.environ):
        if name.startswith("WANDB_"):
            patch.delenv(name)
    patch.setenv("NETRC", str(folder / "no-netrc"))
    patch.setenv("WANDB_CONFIG_DIR", str(folder / "no-config"))
