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

from scaling.wandb.publish import publish
from scaling.wandb.settings import TrackingSettings
from tests.support import made_up
from tests.support.wandb_server import run_server

CURVES, DEVICES, MOST_SECONDS = int((*sys.argv[1:], 2000)[0]), (1, 2, 4, 8), 180.0


def main() -> int:
    """Publish one folder three times, print one line each, and return the exit status."""
    with (
        tempfile.TemporaryDirectory() as name,
        MonkeyPatch.context() as patch,
        run_server(patch, Path(name)) as server,
    ):
        folder = made_up.write(Path(name) / "made", list(make_records()))
        online = TrackingSettings(mode="online", timeout=60.0)
        told = [time_publish(words, folder, how) for words, how in (
            ("online", online), ("online again", online), ("offline", TrackingSettings(mode="offline")),
        )]  # fmt: skip
        drawn = sum(
            name.startswith("time/")
            for run in server.runs_of_type("method")
            for row in run.rows
            for name in row
        )
    brought = drawn >= CURVES * len(DEVICES) and all(published.succeeded for _, published in told)
    return 0 if brought and max(seconds for seconds, _ in told) < MOST_SECONDS else 1


def make_records():
    """Yield the records of all curves: sizes of the four workloads in four modes, on each device count."""
    import numpy as np

    draw, ways = np.random.default_rng(0), [(w, m) for w in made_up.FAMILIES for m in made_up.MODES]
    for number in range(CURVES):
        workload, mode = ways[number % len(ways)]
        for devices in DEVICES:
            case = made_up.case_of(workload, mode, devices=devices)
            sizes = {**case.sizes, made_up.FAMILIES[workload][2]: 100 + number}
            yield made_up.record(draw, made_up.case_of(workload, mode, devices=devices, sizes=sizes))


def time_publish(words: str, folder: Path, settings: TrackingSettings):
    """Publish the folder and print a line. Return the seconds and the result."""
    began = time.perf_counter()
    published = publish(folder, settings)
    seconds = time.perf_counter() - began
    print(f"{words}: {seconds:.0f} s; {'; '.join(published.lines).replace(str(folder), 'DIR')}", flush=True)
    return seconds, published


if __name__ == "__main__":
    sys.exit(main())
