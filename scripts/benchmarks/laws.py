"""Benchmark of scaling fits: refit synthetic curves with 5 % noise that follow a known scaling law.

For each law, its parts and its device counts: how often the interval of each part holds the truth (of 500 curves; 95 % is meant,
90 % asked for), half the length of the intervals in the median, and how often AICc prefers the law that the curve was made from.
Below it the intervals of a ratio of two cases. Exit status 1 where an interval of a law holds
the truth in less than 90 %.
"""

import dataclasses
import math
import sys

import numpy as np

from scaling.analysis import ratios, scaling_fits
from scaling.analysis.curves import Curve, CurvePoint
from scaling.analysis.estimate import format_percentage
from scaling.analysis.scaling_fits import AMDAHL, GUSTAFSON, UNIVERSAL
from scaling.analysis.timings import Timing
from scaling.core.case import Case
from scaling.core.record import Record

CURVES, RATIOS, NOISE, HELD = 500, 1000, 0.05, 0.9
COUNTS = {
    "1 to 128, doubling": [2**i for i in range(8)],
    "1 to 8": list(range(1, 9)),
    "1 to 8, doubling": [1, 2, 4, 8],
}
PARTS = {
    AMDAHL: [(0.0,), (0.01,), (0.05,), (0.1,), (0.2,), (0.5,)],
    UNIVERSAL: [(0.0, 0.0), (0.05, 0.0), (0.0, 1e-4), (0.01, 1e-3), (0.05, 1e-4), (0.2, 1e-4), (0.05, 0.01)],
    GUSTAFSON: [(0.0,), (0.05,), (0.2,)],
}
CASE = Case("linear")


def make_curve(law: str, parts: tuple[float, ...], devices: list[int], noise: np.ndarray) -> Curve:
    """Return a synthetic curve that follows a law, multiplied by noise."""
    counts = np.array(devices, float)
    first, second = (*parts, 0.0)[:2]
    ideal = (1 + first * (counts - 1) + second * counts * (counts - 1)) / counts
    times = (counts / (counts - first * (counts - 1)) if law == GUSTAFSON else ideal) * np.exp(noise)
    timings = [
        Timing(dataclasses.replace(CASE, devices=d), "made", True, (), float(t), None)
        for d, t in zip(devices, times, strict=True)
    ]
    points = tuple(CurvePoint(timing, devices[0], *[None] * 3) for timing in timings)
    return Curve(CASE, "made", True, "weak" if law == GUSTAFSON else "strong", points)


def check_law_coverage() -> bool:
    """Print one line per law and setting. Return whether every interval has the required coverage."""
    good = True
    for where, devices in COUNTS.items():
        for law, several in PARTS.items():
            for parts in several:
                generator, held, halves, best = np.random.default_rng(0), np.zeros(len(parts)), [], 0
                for _ in range(CURVES):
                    fitted = scaling_fits.fit_laws(
                        make_curve(law, parts, devices, NOISE * generator.normal(size=len(devices)))
                    )
                    one = next(each for each in fitted if each.name == law)
                    held += [
                        e.low <= part <= e.high for e, part in zip(one.parts.values(), parts, strict=True)
                    ]
                    halves.append([(e.high - e.low) / 2 for e in one.parts.values()])
                    best += one.best
                good &= bool((held >= HELD * CURVES).all())
                often, half = ", ".join(f"{each:.1%}" for each in held / CURVES), np.median(halves, axis=0)
                widths = ", ".join(f"{each:.2g}" for each in half)
                named = ", ".join(f"{name} {part:g}" for name, part in zip(one.parts, parts, strict=True))
                print(
                    f"{where}, {law}, {named}: held {often}; half {widths}; best {format_percentage(best / CURVES)}",
                    flush=True,
                )
    return good


def make_processes(
    generator: np.random.Generator, count: int, between: float, samples: int, jobs: int
) -> list[Record]:
    """Return synthetic records of processes, whose medians vary between processes and between jobs."""
    levels = between * (
        generator.normal(size=count) + (generator.normal(size=jobs)[np.arange(count) % jobs] if jobs else 0)
    )
    rows = np.exp(levels[:, None] + NOISE * generator.normal(size=(count, samples)))
    around = [{"digest": "made", "job": f"{generator.integers(2**60)}"} for _ in range(jobs)] or [
        {"digest": "made"}
    ]
    return [
        Record(CASE, "ok", around[i % len(around)], seconds=row.tolist(), replicate=i)
        for i, row in enumerate(rows)
    ]


def print_ratio_coverage() -> None:
    """Print a line for each number of processes, jobs and samples: how often the interval holds the ratio."""
    for count, jobs, samples in (
        (1, 0, 7),
        (1, 0, 30),
        (2, 0, 15),
        (3, 0, 15),
        (5, 0, 15),
        (10, 0, 15),
        (6, 2, 15),
        (6, 3, 15),
    ):
        between = 0.03 if count > 1 else 0.0
        generator, rows = np.random.default_rng(0), []
        for _ in range(RATIOS):
            found = ratios.estimate_ratio(
                *(make_processes(generator, count, between, samples, jobs) for _ in range(2))
            )
            rows.append((found.low <= 1 <= found.high, math.log(found.high / found.low) / 2))
        often, half = np.mean([held for held, _ in rows]), np.median([half for _, half in rows])
        of = f"processes a side: {count}" + (f" in {jobs} jobs" if jobs else f" of {samples} samples")
        print(f"{of}: held {often:.1%}, half {half:.3f}", flush=True)


if __name__ == "__main__":
    good = check_law_coverage()
    print_ratio_coverage()
    sys.exit(not good)
