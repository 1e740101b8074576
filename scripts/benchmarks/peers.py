"""Benchmark of other AD libraries (peers): time of the fastest method of each library relative to JAX.

Runs the study `peers` three times, each case in its own process, and prints the ratio of medians with its
confidence interval for each workload and size.
"""

import dataclasses
import subprocess
import sys
import tempfile
from pathlib import Path

from scaling.analysis.estimate import format_ratio
from scaling.analysis.ranking import Baseline, find_baselines
from scaling.analysis.timings import Timing, format_time, pool_processes
from scaling.results.store import load

ROUNDS = 3


def measure_timings() -> list[Timing]:
    """Run the study `peers` in several rounds. Return the timing of every case with all samples."""
    records = []
    for turn in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            words = ["run", "study=peers", "devices=1", f"results={folder}"]
            words += [f"order_seed={turn}", "sampling.seconds=0.3"]
            command = [str(Path(sys.executable).parent / "scaling"), *words, *sys.argv[1:]]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            records += [dataclasses.replace(record, replicate=turn) for record in load(Path(folder)).records]
    return pool_processes(records)


def main() -> None:
    """Print the time of each library's fastest method relative to JAX: one line per problem and library."""
    best: dict[tuple[str, str, str], Baseline] = {}
    for baseline in find_baselines(measure_timings()):
        timing = baseline.timing
        if baseline.over_jax and baseline.jax:
            key = (timing.family, timing.size, timing.case.engine)
            best[key] = min(best.get(key, baseline), baseline, key=lambda b: b.timing.median)
    for (family, size, _), baseline in sorted(best.items()):
        assert baseline.jax and baseline.over_jax
        ratio = format_ratio(*baseline.over_jax)
        jax = f"{baseline.jax.method.name} in JAX: {format_time(baseline.jax)}"
        print(f"{family} {size}: {baseline.timing.method.name} takes {ratio} as long as {jax}")


if __name__ == "__main__":
    main()
