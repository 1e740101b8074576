"""Does binding matter? The same case on one and on two devices, in processes bound to as many cores and in unbound ones.

Runs the study `large` at 8,192 points, bound and unbound in turn, three times over, each in fresh processes; prints the speed-up
from one device to two with its interval, both ways.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from scaling.core.intervals import ratio_interval
from scaling.core.store import load

ROUNDS = 3


def main() -> None:
    """Run the rounds and print two lines."""
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
