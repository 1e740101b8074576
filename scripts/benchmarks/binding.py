"""Benchmark of core binding: the speed-up from one to two devices, with bound and with unbound processes.

Runs the study `large` at 8,192 points, bound and unbound in turn, three times, each in new processes. Prints
the speed-up with its confidence interval for both.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from scaling.core.timing import ratio_interval
from scaling.results.store import load

ROUNDS = 3


def main() -> None:
    """Run the rounds and print one line per setting."""
    seconds: dict[tuple[str, int], list[float]] = {}
    for _ in range(ROUNDS):
        for bind in ("true", "false"):
            with tempfile.TemporaryDirectory() as folder:
                words = [
                    "run",
                    "study=large",
                    "points=8192",
                    "api=shard_map",
                    f"bind={bind}",
                    f"results={folder}",
                ]
                command = [str(Path(sys.executable).parent / "scaling"), *words]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                for record in load(Path(folder)).records:
                    seconds.setdefault((bind, record.case.devices), []).extend(record.seconds)
    for bind, words in (("true", "bound to as many cores as devices"), ("false", "unbound")):
        found = ratio_interval(seconds[bind, 1], seconds[bind, 2])
        assert found is not None
        print(f"{words}: {found[0]:.2f} times as fast on two devices ({found[1]:.2f} to {found[2]:.2f})")


if __name__ == "__main__":
    main()
