"""Describe how the time and the fastest AD mode depend on a problem size (`SizeSweep`, `FastestModeMap`).

The exponent of a time is the slope of a line fitted to log(time) against log(size). It describes the measured
sizes and not the asymptotic growth.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from scaling.analysis.cases import Method, S, Subject, with_fields
from scaling.analysis.curves import keep_fastest_meshes
from scaling.analysis.estimate import Estimate
from scaling.analysis.ranking import Ranking
from scaling.analysis.timings import Timing, near_floor
from scaling.core.grouping import group_by

_LEAST_SIZES = 3  # a line through two sizes has no residuals
_ROUNDING = 1e-6  # a quadratic coefficient up to this size is attributed to rounding


@dataclass(frozen=True)
class _SizeSeries(Subject):
    swept: str  # the varying size, such as "m", or "points = m" if both are equal
    fixed_sizes: str  # the constant sizes, such as "points=6 o=2"


@dataclass(frozen=True)
class SizeSweep(_SizeSeries):
    """The times of each AD method for several values of one problem size.

    The attribute `case` is the case with the largest size.
    """

    lines: Mapping[Method, tuple[tuple[int, Timing], ...]]  # method -> (size, timing) pairs, sorted by size

    @functools.cached_property
    def exponents(self) -> dict[Method, Estimate]:
        """Return {method: exponent p}, where the time is proportional to size ** p.

        Times shorter than ten dispatch latencies are ignored. A method with fewer than three longer times is
        omitted.
        """
        lines = {
            method: [(size, timing) for size, timing in line if near_floor(timing) is None]
            for method, line in self.lines.items()
        }
        return {method: _fit_exponent(line) for method, line in lines.items() if len(line) >= _LEAST_SIZES}


@dataclass(frozen=True)
class FastestModeMap(_SizeSeries):
    """The fastest AD mode of one function for each problem size and device count."""

    sizes: tuple[int, ...]
    devices: tuple[int, ...]
    cells: Mapping[tuple[int, int], Ranking]  # (size, device count) -> ranking; missing if not measured

    def runs(self, devices: int) -> list[tuple[str, int, int]]:
        """Return (fastest mode, smallest size, largest size) for each run of sizes with one fastest mode.

        The mode is '' if no mode is significantly faster than all others.
        """
        line = [(size, self.cells[size, devices]) for size in self.sizes if (size, devices) in self.cells]
        groups = itertools.groupby(line, lambda pair: pair[1].fastest_mode)
        runs = [(mode, [size for size, _ in group]) for mode, group in groups]
        return [(mode, sizes[0], sizes[-1]) for mode, sizes in runs]

    def doubts(self, devices: int) -> list[str]:
        """Return the reasons why the fastest modes on a device count may be wrong."""
        named = [r for (_, count), r in self.cells.items() if count == devices and r.fastest_mode]
        return list(dict.fromkeys(doubt for ranking in named for doubt in ranking.doubts))


def _find_series(items: Sequence[S]) -> Iterator[tuple[str, str, str, list[S]]]:
    """Yield (name, title, constant sizes, items) for each series of items in which one size varies.

    `name` is the name of the varying size. `title` also names the sizes that vary together with it, such as
    "points = m". The constant sizes are text, such as "points=6 o=2".
    """
    columns = {name: [item.all_sizes[name] for item in items] for name in items[0].all_sizes}
    # Sizes that vary together (each determines the other) form one series.
    names_by_pattern = group_by(columns, lambda name: tuple(map(columns[name].index, columns[name])))
    varying = [names for pattern, names in names_by_pattern.items() if any(pattern)]
    longest_sweep = max(varying, key=lambda names: _count_values(names[0], items), default=None)
    for swept in varying:
        title = (" = " if len({tuple(columns[name]) for name in swept}) == 1 else " and ").join(swept)
        for fixed_sizes, group in group_by(items, functools.partial(_name_other_sizes, swept)).items():
            # Two values are enough for the size with the most values.
            if _count_values(swept[0], group) >= (2 if swept is longest_sweep else _LEAST_SIZES):
                yield swept[0], title, fixed_sizes, group


def _name_other_sizes(swept: Sequence[str], item: Subject) -> str:
    return " ".join(f"{name}={size}" for name, size in item.all_sizes.items() if name not in swept)


def _count_values(name: str, items: Iterable[Subject]) -> int:
    """Count the distinct values of the size `name` on each device count, and return the largest number."""
    # The number of points may be proportional to the number of devices.
    by_devices = group_by(items, lambda item: item.case.devices).values()
    return max(len({item.all_sizes[name] for item in items_on_devices}) for items_on_devices in by_devices)


def size_sweeps(timings: Iterable[Timing]) -> list[SizeSweep]:
    """Return the times of all AD methods against each problem size that varies.

    The cases of a sweep differ only in their method and in this size. If a case was measured on several
    device meshes, only the fastest one is included.
    """
    no_method = Method("jacfwd", "vmap")._asdict() | {"points": 1, "sizes": {}, "mesh": None}
    groups = group_by(
        keep_fastest_meshes(timings),
        lambda t: (t.environment, t.honest, dataclasses.replace(t.case, **no_method), tuple(t.case.sizes)),
    )
    sweeps = []
    for (environment, honest, *_), group in groups.items():
        for name, title, fixed_sizes, series in _find_series(group):
            case = with_fields(max(series, key=lambda t: t.volume).case, mesh=None)
            rows = sorted(((t.all_sizes[name], t) for t in series), key=lambda row: row[0])
            methods = sorted(group_by(rows, lambda row: row[1].method).items(), key=lambda line: line[0].name)
            lines = {method: tuple(line) for method, line in methods}
            sweeps.append(SizeSweep(case, environment, honest, title, fixed_sizes, lines))
    return sweeps


def _fit_exponent(line: Sequence[tuple[int, Timing]]) -> Estimate:
    """Return the slope of log(time) against log(size), with its 95 % interval."""
    sizes = np.array([math.log(size) for size, _ in line])  # a size may exceed 64 bits
    sizes -= sizes.mean()
    # Relative to the first time, so that constant times have a slope of exactly 0.
    times = np.log([timing.median / line[0][1].median for _, timing in line])
    (slope, _), covariance = np.polyfit(sizes, times, 1, cov=True)
    half = stdtrit(len(line) - 2, 0.975) * math.sqrt(covariance[0, 0])
    slopes = [slope - half, slope + half]
    if len(line) > _LEAST_SIZES:
        (curvature, middle, _), covariance = np.polyfit(sizes, times, 2, cov=True)
        if abs(curvature) > stdtrit(len(line) - 3, 0.975) * math.sqrt(covariance[0, 0]) + _ROUNDING:
            # The slopes of the parabola at both ends widen the interval.
            slopes += [middle + 2 * curvature * end for end in (sizes[0], sizes[-1])]
    return Estimate(float(slope), float(min(slopes)), float(max(slopes)))


def fastest_mode_maps(fastest: Iterable[Ranking]) -> list[FastestModeMap]:
    """Group problems that differ only in one size, and return a map of the fastest AD modes of each group.

    `fastest` contains a ranking for each problem and device count.
    """
    maps = []
    for family in group_by(fastest, lambda ranking: (ranking.family_key, tuple(ranking.case.sizes))).values():
        for name, title, fixed_sizes, rankings in _find_series(family):
            cells = {(ranking.all_sizes[name], ranking.case.devices): ranking for ranking in rankings}
            sizes, devices = (tuple(sorted(set(axis))) for axis in zip(*cells, strict=True))
            largest = max(rankings, key=lambda ranking: (ranking.volume, ranking.case.devices))
            subject = (largest.case, largest.environment, largest.honest)
            maps.append(FastestModeMap(*subject, title, fixed_sizes, sizes, devices, cells))
    return maps
