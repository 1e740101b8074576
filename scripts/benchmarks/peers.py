"""Benchmark of peers: run time of the fastest method of each installed peer relative to that of JAX.

Runs the study `peers` three times, each case in its own process, and prints the ratio of medians with its
confidence interval for each workload and size.
"""

import dataclasses
import subprocess
import sys
import tempfile
from pathlib import Path

from scaling.analysis.baselines import Baseline, find_baselines
from scaling.analysis.estimate import format_ratio
from scaling.analysis.timings import Timing, format_time, pool_processes
from scaling.results.store import load

ROUNDS = 3


def measure_timings() -> list[Timing]:
    """Return the timing of every case, with the samples of all rounds."""
    records = []
    for turn in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            words = [
                "run",
                "study=peers",
                "devices=1",
                f"results={folder}",
                f"order_seed={turn}",
                "sampling.seconds=0.3",
            ]
            command = [str(Path(sys.executable).parent / "scaling"), *words, *sys.argv[1:]]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            records += [dataclasses.replace(record, replicate=turn) for record in load(Path(folder)).records]
    return pool_processes(records)


def main() -> None:
    """Print one line per problem and peer."""
    best: dict[tuple[str, str, str], Baseline] = {}
    for standing in find_baselines(measure_timings()):
        timing = standing.timing
        if standing.over_jax and standing.jax:
            of = (timing.family, timing.size, timing.case.engine)
            best[of] = min(best.get(of, standing), standing, key=lambda s: s.timing.median)
    for (family, size, _), standing in sorted(best.items()):
        assert standing.jax and standing.over_jax
        ours = f"{standing.jax.method.name} in JAX: {format_time(standing.jax)}"
        print(
            f"{family} {size}: {standing.timing.method.name} takes {format_ratio(*standing.over_jax)} as long as {ours}"
        )


if __name__ == "__main__":
    main()
