"""Benchmark of W&B publishing: two thousand synthetic curves, online and offline, to the test server.

Each curve has four device counts. An online publication sends the curves, reads them back, compares them, and
saves the dashboard. Its repetition sends nothing. The exit status is 1 if a publication takes 180 s or more,
or if the server has other data than the records.
"""

import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))
from pytest import MonkeyPatch

from scaling.wandb.job import TrackingSettings
from scaling.wandb.publish import publish
from tests.support import made_up
from tests.support.wandb_server import run_server

CURVES, DEVICES, MOST_SECONDS = int((*sys.argv[1:], 2000)[0]), (1, 2, 4, 8), 180.0


def main() -> int:
    """Publish a results folder to W&B three times, print one line each, and return the exit status."""
    with (
        tempfile.TemporaryDirectory() as name,
        MonkeyPatch.context() as patch,
        run_server(patch, Path(name)) as server,
    ):
        folder = made_up.write(Path(name) / "made", list(make_records()))
        online = TrackingSettings(mode="online", timeout=60.0)
        publications = [time_publish(title, folder, settings) for title, settings in (
            ("online", online), ("online again", online), ("offline", TrackingSettings(mode="offline")),
        )]  # fmt: skip
        count = sum(
            name.startswith("time/")
            for run in server.runs_of_type("method")
            for row in run.rows
            for name in row
        )
    is_complete = count >= CURVES * len(DEVICES) and all(result.succeeded for _, result in publications)
    return 0 if is_complete and max(seconds for seconds, _ in publications) < MOST_SECONDS else 1


def make_records():
    """Yield synthetic records of all curves: four workloads in four modes, on each number of devices."""
    import numpy as np

    generator = np.random.default_rng(0)
    methods = [(workload, mode) for workload in made_up.FAMILIES for mode in made_up.MODES]
    for number in range(CURVES):
        workload, mode = methods[number % len(methods)]
        for devices in DEVICES:
            case = made_up.case_of(workload, mode, devices=devices)
            sizes = {**case.sizes, made_up.FAMILIES[workload][2]: 100 + number}
            yield made_up.record(generator, made_up.case_of(workload, mode, devices=devices, sizes=sizes))


def time_publish(title: str, folder: Path, settings: TrackingSettings):
    """Publish a results folder to W&B and print one line. Return (seconds, result of `publish`)."""
    began = time.perf_counter()
    result = publish(folder, settings)
    seconds = time.perf_counter() - began
    print(f"{title}: {seconds:.0f} s; {'; '.join(result.lines).replace(str(folder), 'DIR')}", flush=True)
    return seconds, result


if __name__ == "__main__":
    sys.exit(main())
