"""How long do two thousand curves take to publish, online and offline? Made-up records, against the tests' own server.

Each curve has four numbers of devices. Online stands for sent, read back, compared, and the dashboard saved; then the same once
more, which sends nothing. Exit status 1 when a publish takes 180 s or more, or brings anything but what the records say.
"""

import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))
from pytest import MonkeyPatch
from wandb_server import serving

from scaling.wandb.publish import publish
from scaling.wandb.settings import TrackingSettings
from tests.support import made_up

CURVES, DEVICES, MOST_SECONDS = int((*sys.argv[1:], 2000)[0]), (1, 2, 4, 8), 180.0


def main() -> int:
    """Publish one folder three times, a line each; the exit status."""
    with (
        tempfile.TemporaryDirectory() as name,
        MonkeyPatch.context() as patch,
        serving(patch, Path(name)) as server,
    ):
        folder = made_up.write(Path(name) / "made", list(records()))
        online = TrackingSettings(mode="online", timeout=60.0)
        told = [timed(words, folder, how) for words, how in (
            ("online", online), ("online again", online), ("offline", TrackingSettings(mode="offline")),
        )]  # fmt: skip
        drawn = sum(
            name.startswith("time/") for run in server.of("method") for row in run.rows for name in row
        )
    brought = drawn >= CURVES * len(DEVICES) and all(published.well for _, published in told)
    return 0 if brought and max(seconds for seconds, _ in told) < MOST_SECONDS else 1


def records():
    """The records of so many curves: sizes of the four workloads in four modes, on each number of devices."""
    import numpy as np

    draw, ways = np.random.default_rng(0), [(w, m) for w in made_up.FAMILIES for m in made_up.MODES]
    for number in range(CURVES):
        workload, mode = ways[number % len(ways)]
        for devices in DEVICES:
            case = made_up.case_of(workload, mode, devices=devices)
            sizes = {**case.sizes, made_up.FAMILIES[workload][2]: 100 + number}
            yield made_up.record(draw, made_up.case_of(workload, mode, devices=devices, sizes=sizes))


def timed(words: str, folder: Path, settings: TrackingSettings):
    """Publish, print a line, and give the seconds with what came of it."""
    began = time.perf_counter()
    published = publish(folder, settings)
    seconds = time.perf_counter() - began
    print(f"{words}: {seconds:.0f} s; {'; '.join(published.lines).replace(str(folder), 'DIR')}", flush=True)
    return seconds, published


if __name__ == "__main__":
    sys.exit(main())
