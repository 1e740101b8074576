"""Find series of cases with one varying size: their times (`SizeSweep`), fastest modes (`FastestModeMap`).

The exponent of a time is the slope of a line fitted to log(time) against log(size). It describes the measured
sizes, and not the asymptotic growth.
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
from scaling.analysis.ratios import estimate_ratio, p_value
from scaling.analysis.timings import Timing, significant_floor
from scaling.core.formatting import format_count
from scaling.core.grouping import group_by

_LEAST_SIZES = 3  # a line through two sizes has no residuals
_FALSE_MODES = 0.05  # largest probability that chance names a fastest mode without a doubt in a map
_ROUNDING = 1e-6  # a quadratic coefficient up to this size is attributed to rounding


@dataclass(frozen=True)
class _SizeSeries(Subject):
    swept: str  # the varying size, such as "m", or "points = m" if both are equal
    fixed_sizes: str  # the constant sizes, such as "points=6 o=2"


@dataclass(frozen=True)
class SizeSweep(_SizeSeries):
    """The times of each AD method for several values of one problem size. `case` has the largest size."""

    lines: Mapping[Method, tuple[tuple[int, Timing], ...]]  # method -> (size, timing) pairs, sorted by size

    @functools.cached_property
    def exponents(self) -> dict[Method, Estimate]:
        """Return the exponent p of each method, for a time that is proportional to size ** p.

        Times shorter than ten empty calls are ignored. Methods with fewer than three remaining times are
        omitted.
        """
        lines = {
            method: [(size, timing) for size, timing in line if significant_floor(timing) is None]
            for method, line in self.lines.items()
        }
        return {method: _fit_exponent(line) for method, line in lines.items() if len(line) >= _LEAST_SIZES}


@dataclass(frozen=True)
class FastestModeMap(_SizeSeries):
    """The fastest AD mode of one function for each problem size and device count."""

    sizes: tuple[int, ...]
    devices: tuple[int, ...]
    cells: Mapping[tuple[int, int], Ranking]  # (size, device count) -> ranking; missing if not measured

    def size_ranges(self, devices: int) -> list[tuple[str, int, int]]:
        """Return the ranges of sizes with one fastest mode, each as (mode, smallest size, largest size).

        Only times on `devices` devices are considered. The mode is '' if no mode is significantly faster than
        all others.
        """
        line = [(size, self.cells[size, devices]) for size in self.sizes if (size, devices) in self.cells]
        groups = itertools.groupby(line, lambda pair: pair[1].fastest_mode)
        runs = [(mode, [size for size, _ in group]) for mode, group in groups]
        return [(mode, sizes[0], sizes[-1]) for mode, sizes in runs]

    def doubts(self, devices: int) -> list[str]:
        """Return the reasons why the fastest modes on `devices` devices may be wrong."""
        named = [r for (_, count), r in self.cells.items() if count == devices and r.fastest_mode]
        doubts = list(dict.fromkeys(doubt for ranking in named for doubt in ranking.doubts))
        ratios = (estimate_ratio(slow.records, r.fastest.records) for r in named for slow in r.others)
        largest_p_value = max((p_value(ratio) or 0.0 for ratio in ratios), default=0.0)
        if largest_p_value * len(self.cells) > _FALSE_MODES:  # the correction of Bonferroni
            doubts.append(f"chance may explain one of {format_count(len(self.cells), 'comparison')}")
        return doubts


def group_varying_sizes(rows: Sequence[Mapping[str, int]]) -> list[list[str]]:
    """Return the names of the sizes that differ between rows. Sizes that vary together are in one list.

    A row is a dict from the name of a size to its value. Sizes vary together if each determines the other.
    """
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    names_by_pattern = group_by(columns, lambda name: tuple(map(columns[name].index, columns[name])))
    return [names for pattern, names in names_by_pattern.items() if any(pattern)]


def _find_series(subjects: Sequence[S]) -> Iterator[tuple[str, str, list[tuple[int, S]]]]:
    """Yield the series of `subjects` (timings or rankings) in which one problem size varies.

    Each item has three elements: the names of the sizes that vary together (such as "points = m"), the
    constant sizes as text (such as "points=6 o=2"), and the pairs of a size and a subject.
    """
    rows = [subject.all_sizes for subject in subjects]
    varying = group_varying_sizes(rows)
    longest_sweep = max(varying, key=lambda names: _count_values(names[0], subjects), default=None)
    for swept in varying:
        are_equal = all(len({row[name] for name in swept}) == 1 for row in rows)
        title = (" = " if are_equal else " and ").join(swept)
        for fixed_sizes, group in group_by(subjects, functools.partial(_name_other_sizes, swept)).items():
            # Two values are enough for the size with the most values.
            if _count_values(swept[0], group) >= (2 if swept is longest_sweep else _LEAST_SIZES):
                yield title, fixed_sizes, [(subject.all_sizes[swept[0]], subject) for subject in group]


def _name_other_sizes(swept: Sequence[str], subject: Subject) -> str:
    return " ".join(f"{name}={size}" for name, size in subject.all_sizes.items() if name not in swept)


def _count_values(name: str, subjects: Iterable[Subject]) -> int:
    """Return the largest number of values that the size `name` has on one number of devices."""
    # The number of points may be proportional to the number of devices.
    by_devices = group_by(subjects, lambda subject: subject.case.devices).values()
    return max(len({subject.all_sizes[name] for subject in on_devices}) for on_devices in by_devices)


def size_sweeps(timings: Iterable[Timing]) -> list[SizeSweep]:
    """Return a `SizeSweep` for each series of cases that differ only in AD method and in one problem size.

    If a case was measured with several device meshes, only the fastest mesh is included.
    """
    no_method = Method("jacfwd", "vmap")._asdict() | {"points": 1, "sizes": {}, "mesh": None}
    groups = group_by(
        keep_fastest_meshes(timings),
        lambda t: (t.environment, t.honest, dataclasses.replace(t.case, **no_method), tuple(t.case.sizes)),
    )
    sweeps = []
    for (environment, honest, *_), group in groups.items():
        for title, fixed_sizes, series in _find_series(group):
            rows = sorted(series, key=lambda row: row[0])
            case = with_fields(max((t for _, t in rows), key=lambda t: t.volume).case, mesh=None)
            methods = sorted(group_by(rows, lambda row: row[1].method).items(), key=lambda line: line[0].name)
            lines = {method: tuple(line) for method, line in methods}
            sweeps.append(SizeSweep(case, environment, honest, title, fixed_sizes, lines))
    return sweeps


def _fit_exponent(line: Sequence[tuple[int, Timing]]) -> Estimate:
    """Return the slope of log(time) against log(size), with its 95 % interval.

    `line` contains pairs of a size and a timing. If a parabola fits significantly better, the interval also
    covers the slopes at both ends of the parabola.
    """
    sizes = np.array([math.log(size) for size, _ in line])  # a size may exceed 64 bits
    sizes -= sizes.mean()
    # Relative to the first time, so that constant times have a slope of exactly 0.
    times = np.log([timing.median / line[0][1].median for _, timing in line])
    (slope, _), covariance = np.polyfit(sizes, times, 1, cov=True)
    half_width = stdtrit(len(line) - 2, 0.975) * math.sqrt(covariance[0, 0])
    slopes = [slope - half_width, slope + half_width]
    if len(line) > _LEAST_SIZES:
        (curvature, middle, _), covariance = np.polyfit(sizes, times, 2, cov=True)
        if abs(curvature) > stdtrit(len(line) - 3, 0.975) * math.sqrt(covariance[0, 0]) + _ROUNDING:
            # The slopes of the parabola at both ends widen the interval.
            slopes += [middle + 2 * curvature * end for end in (sizes[0], sizes[-1])]
    return Estimate(float(slope), float(min(slopes)), float(max(slopes)))


def fastest_mode_maps(fastest: Iterable[Ranking]) -> list[FastestModeMap]:
    """Return a `FastestModeMap` for each series of problems that differ only in one size."""
    maps = []
    for family in group_by(fastest, lambda ranking: (ranking.family_key, tuple(ranking.case.sizes))).values():
        for title, fixed_sizes, series in _find_series(family):
            cells = {(size, ranking.case.devices): ranking for size, ranking in series}
            sizes, devices = (tuple(sorted(set(axis))) for axis in zip(*cells, strict=True))
            largest = max(cells.values(), key=lambda ranking: (ranking.volume, ranking.case.devices))
            subject = (largest.case, largest.environment, largest.honest)
            maps.append(FastestModeMap(*subject, title, fixed_sizes, sizes, devices, cells))
    return maps
