"""Benchmark of core binding: the speed-up from one to two devices, with bound and with unbound processes.

Runs the study `large` at 8,192 points, bound and unbound in turn, three times, each in new processes. Prints
the speed-up with its confidence interval for both.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from scaling.analysis.ratios import ratio_interval
from scaling.results.store import load

ROUNDS = 3


def main() -> None:
    """Run the study bound and unbound in several rounds, and print the speed-up of both."""
    seconds: dict[tuple[str, int], list[float]] = {}
    for _ in range(ROUNDS):
        for bind in ("true", "false"):
            with tempfile.TemporaryDirectory() as folder:
                words = ["run", "study=large", "points=8192", "api=shard_map"]
                words += [f"bind={bind}", f"results={folder}"]
                command = [str(Path(sys.executable).parent / "scaling"), *words]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                for record in load(Path(folder)).records:
                    seconds.setdefault((bind, record.case.devices), []).extend(record.seconds)
    for bind, title in (("true", "bound to as many cores as devices"), ("false", "unbound")):
        interval = ratio_interval(seconds[bind, 1], seconds[bind, 2])
        assert interval is not None
        ratio, low, high = interval
        print(f"{title}: {ratio:.2f} times as fast on two devices ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
