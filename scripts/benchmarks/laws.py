"""Benchmark of scaling fits: refit synthetic curves with 5 % noise that follow a known scaling law.

For each law, with several parameters and device counts, 500 curves are fitted. Prints how often the 95 %
confidence interval of each parameter contains the true value, half the median width of the intervals, and how
often the F test prefers the true law. Then prints how often the interval of a ratio of two cases contains 1. The
exit status is 1 if an interval of a law contains the true value in less than 90 % of the curves.
"""

import dataclasses
import math
import sys

import numpy as np

from scaling.analysis import ratios, scaling_fits
from scaling.analysis.curves import Curve, CurvePoint
from scaling.analysis.estimate import Estimate, format_percentage
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
    """Return a synthetic scaling curve that follows a law, with times multiplied by exp(noise).

    Args:
        parts: the parameters of the law, such as the serial fraction.
        devices: the numbers of devices.
        noise: an array with the noise of each number of devices.
    """
    counts = np.array(devices, float)
    first, second = (*parts, 0.0)[:2]
    ideal = (1 + first * (counts - 1) + second * counts * (counts - 1)) / counts
    times = (counts / (counts - first * (counts - 1)) if law == GUSTAFSON else ideal) * np.exp(noise)
    timings = [
        Timing(dataclasses.replace(CASE, devices=d), "made", True, (), Estimate(float(t), None, None))
        for d, t in zip(devices, times, strict=True)
    ]
    points = tuple(CurvePoint(timing, devices[0], *[None] * 3) for timing in timings)
    return Curve(CASE, "made", True, "weak" if law == GUSTAFSON else "strong", points)


def check_law_coverage() -> bool:
    """Fit the curves of all laws, and print one line per law, parameters and device counts.

    Return whether each interval contains the true parameter in the required fraction of the curves.
    """
    is_covered = True
    for title, devices in COUNTS.items():
        for law, settings in PARTS.items():
            for parts in settings:
                generator, held, halves, best = np.random.default_rng(0), np.zeros(len(parts)), [], 0
                for _ in range(CURVES):
                    curve = make_curve(law, parts, devices, NOISE * generator.normal(size=len(devices)))
                    fit = next(each for each in scaling_fits.fit_laws(curve) if each.name == law)
                    estimates = list(fit.parameters.values())
                    held += [e.low <= part <= e.high for e, part in zip(estimates, parts, strict=True)]
                    halves.append([(e.high - e.low) / 2 for e in estimates])
                    best += fit.best
                is_covered &= bool((held >= HELD * CURVES).all())
                fractions = ", ".join(f"{fraction:.1%}" for fraction in held / CURVES)
                widths = ", ".join(f"{half:.2g}" for half in np.median(halves, axis=0))
                named = ", ".join(
                    f"{name} {part:g}" for name, part in zip(fit.parameters, parts, strict=True)
                )
                share = format_percentage(best / CURVES)
                print(f"{title}, {law}, {named}: held {fractions}; half {widths}; best {share}", flush=True)
    return is_covered


def make_processes(
    generator: np.random.Generator, count: int, between: float, samples: int, jobs: int
) -> list[Record]:
    """Return synthetic records of one case in several processes.

    Args:
        count: the number of processes, each with one record.
        between: the standard deviation of log(time) between processes, and again between jobs.
        samples: the number of samples of a record.
        jobs: the number of Slurm jobs that the processes belong to, or 0.
    """
    levels = between * (
        generator.normal(size=count) + (generator.normal(size=jobs)[np.arange(count) % jobs] if jobs else 0)
    )
    rows = np.exp(levels[:, None] + NOISE * generator.normal(size=(count, samples)))
    environments = [{"digest": "made", "job": f"{generator.integers(2**60)}"} for _ in range(jobs)]
    environments = environments or [{"digest": "made"}]
    return [
        Record(CASE, "ok", environments[i % len(environments)], seconds=row.tolist(), replicate=i)
        for i, row in enumerate(rows)
    ]


def print_ratio_coverage() -> None:
    """Print how often the interval of the ratio of two equal cases contains 1, for several sample sizes."""
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
            ratio = ratios.estimate_ratio(
                *(make_processes(generator, count, between, samples, jobs) for _ in range(2))
            ).estimate
            rows.append((ratio.low <= 1 <= ratio.high, math.log(ratio.high / ratio.low) / 2))
        fraction, half = np.mean([held for held, _ in rows]), np.median([half for _, half in rows])
        title = f"processes a side: {count}" + (f" in {jobs} jobs" if jobs else f" of {samples} samples")
        print(f"{title}: held {fraction:.1%}, half {half:.3f}", flush=True)


if __name__ == "__main__":
    is_covered = check_law_coverage()
    print_ratio_coverage()
    sys.exit(not is_covered)
