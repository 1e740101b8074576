"""Build scaling curves (`Curve`), sweeps of a problem size (`SizeSweep`), and maps (`FastestModeMap`).

A weak scaling curve is omitted if the work per device is not constant. The exponent of a sweep is the slope
of a line fitted to log(time) against log(size). It describes the measured sizes, and not the asymptotic
growth.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

from scaling.analysis.cases import (
    Method,
    S,
    Subject,
    curve_case,
    is_candidate,
    largest_problems,
    size_name,
    with_fields,
)
from scaling.analysis.estimate import Estimate, format_fraction, format_ratio
from scaling.analysis.ranking import Ranking
from scaling.analysis.ratios import estimate_ratio, p_value
from scaling.analysis.timings import Timing, is_empty_call, significant_floor, time_ratio
from scaling.core.case import Case, label, problem_fields
from scaling.core.formatting import format_count
from scaling.core.grouping import group_by, least_by

KINDS = ("strong", "weak")
_WORK_TOLERANCE = 0.01  # relative variation of work per device allowed in a weak scaling curve
_LEAST_SIZES = 3  # a line through two sizes has no residuals
_FALSE_MODES = 0.05  # largest probability that chance names a fastest mode without a doubt in a map
_ROUNDING = 1e-6  # a quadratic coefficient up to this size is attributed to rounding


@dataclass(frozen=True)
class CurvePoint:
    """The time, speed-up and efficiency of a program on one of the device counts of its scaling curve."""

    timing: Timing
    baseline_devices: int  # the smallest device count of the curve
    speedup: Estimate  # ideally devices / baseline_devices
    efficiency: Estimate
    against_jit: Estimate | None  # speed-up over the best plain jit program on one device

    @property
    def devices(self) -> int:
        """Return the device count."""
        return self.timing.case.devices

    @property
    def seconds(self) -> float:
        """Return the median time of a call, in seconds."""
        return self.timing.median

    @property
    def is_baseline(self) -> bool:
        """Return whether this is the smallest device count of the curve."""
        return self.devices == self.baseline_devices

    @property
    def relative(self) -> str:
        """Return '' if the baseline is one device, otherwise text such as ' relative to 2 devices'."""
        count = self.baseline_devices
        return "" if count == 1 else f" relative to {format_count(count, 'device')}"


@dataclass(frozen=True)
class Curve(Subject):
    """The measured or predicted times of one program, with one point per device count."""

    # The field `case` is the case on the fewest devices, without its mesh.
    kind: str  # "strong" or "weak"
    points: tuple[CurvePoint, ...]  # in ascending order of device count, each with its fastest mesh

    @property
    def name(self) -> str:
        """Return a label of the case, without the number of devices and the mesh."""
        mesh = " fastest mesh" if self.case.split == "both" else ""
        if self.kind == "strong":
            return label(self.case, ("devices", "mesh")) + mesh
        points = self.case.points // self.case.devices
        return f"{label(self.case, ('devices', 'mesh', 'points'))} points/device={points}{mesh}"

    @property
    def program(self) -> tuple[str, Case]:
        """Return the kind of scaling and the case on one device, which a predicted curve has in common."""
        return self.kind, curve_case(self.case, self.kind)

    @property
    def size(self) -> str:
        """Return the problem size as text, such as 'm=100 points=6' or 'm=100 points=6 for each device'."""
        return size_name(self.program[1]) + (" for each device" if self.kind == "weak" else "")

    @property
    def timings(self) -> list[Timing]:
        """Return the timings of the curve, in ascending order of device count."""
        return [point.timing for point in self.points]

    @property
    def baseline_devices(self) -> int:
        """Return the smallest device count, on which the speed-up is 1."""
        return self.points[0].devices

    @property
    def baseline(self) -> str:
        """Return the baseline as text, such as 'one device' or '2 devices'."""
        return "one device" if self.baseline_devices == 1 else format_count(self.baseline_devices, "device")


def scaling_curves(
    timings: Iterable[Timing], kinds: Sequence[str] = ("strong",)
) -> tuple[list[Curve], list[str]]:
    """Return the scaling curves, and a list of texts that name each omitted weak curve with the reason.

    `kinds` contains "strong", "weak" or both. A weak curve is omitted if its work per device varies or is
    unknown. If all its timings are also on strong curves, it has no text. Timings on shared CPU cores are
    ignored.
    """
    timings = [timing for timing in timings if timing.honest]
    on_one_device = (timing for timing in timings if timing.case.api == "jit" and timing.case.devices == 1)
    jit_timings = (timing for timing in on_one_device if timing.case.jit and is_candidate(timing.case))
    plain_jit = least_by(jit_timings, lambda timing: timing.problem_key, lambda timing: timing.median)
    built = [build_curve(kind, series, plain_jit) for kind, series in select_series(timings, kinds)]
    curves_and_reasons = [(curve, _describe_unequal_work(curve)) for curve in built]
    strong = (curve for curve in built if curve.kind == "strong" and len(curve.points) > 1)
    on_strong_curves = {timing for curve in strong for timing in curve.timings}
    refusals = [
        f"{curve.name}: {reason}"
        for curve, reason in curves_and_reasons
        if reason and not on_strong_curves.issuperset(curve.timings)
    ]
    return [curve for curve, reason in curves_and_reasons if not reason], refusals


def select_series(timings: Sequence[Timing], kinds: Sequence[str]) -> list[tuple[str, list[Timing]]]:
    """Return the kind ("strong" or "weak") and the timings of each scaling curve, from few to many devices.

    A single timing is a curve of the first of `kinds`, unless it is on several devices and also part of a
    longer curve.
    """
    kinds_and_series = [(kind, series) for kind in kinds for series in _series_of_kind(timings, kind)]
    longer_series = (series for _, series in kinds_and_series if len(series) > 1)
    longer = {timing for series in longer_series for timing in series if timing.case.devices > 1}
    return [
        (kind, series)
        for kind, series in kinds_and_series
        if len(series) > 1 or (kind == kinds[0] and series[0] not in longer)
    ]


def requested_kinds(study: Mapping[str, Any]) -> list[str]:
    """Return the kinds of scaling in the content of study.json or of a plan file, by default ["strong"]."""
    scaling = study.get("scaling")
    requested = scaling if isinstance(scaling, list) else [scaling]
    return [kind for kind in KINDS if kind in requested] or ["strong"]


def _series_of_kind(timings: Iterable[Timing], kind: str) -> list[list[Timing]]:
    """Return the timings of each scaling curve of one kind, "strong" or "weak", from few to many devices.

    Of several meshes on as many devices, only the fastest is included. Weak curves omit cases whose points do
    not divide evenly over their devices.
    """
    divisible = (t for t in timings if kind == "strong" or t.case.points % t.case.devices == 0)
    groups = group_by(divisible, lambda timing: (timing.environment, curve_case(timing.case, kind))).values()
    fastest = map(keep_fastest_meshes, groups)
    return [sorted(series, key=lambda timing: timing.case.devices) for series in fastest]


def keep_fastest_meshes(timings: Iterable[Timing]) -> list[Timing]:
    """Return the timing with the fastest device mesh for each program and number of devices."""
    fastest = least_by(
        timings, lambda t: (t.environment, t.honest, with_fields(t.case, mesh=None)), lambda t: t.median
    )
    return list(fastest.values())


def _describe_unequal_work(curve: Curve) -> str:
    """Return why a weak curve is not weak scaling, or '' if the work per device is constant.

    The work is the floating-point operations, and the bytes of the inputs and the result. It must be known.
    """
    if curve.kind == "strong" or len(curve.points) < 2:
        return ""
    for name, attribute in (("flops", "flops"), ("compulsory_bytes", "compulsory")):
        counts = [(t.case.devices, getattr(record, attribute)) for t in curve.timings for record in t.records]
        if unknown := sorted({devices for devices, count in counts if count is None}):
            where = ", ".join(map(str, unknown))
            return f"{name} per device were not counted on {where} devices, so constant work cannot be shown"
        least_on, least = min(counts, key=lambda pair: pair[1])
        most_on, most = max(counts, key=lambda pair: pair[1])
        if most > least * (1 + _WORK_TOLERANCE):
            values = f"{least:.6g} on {least_on} and {most:.6g} on {most_on} devices"
            return f"{name} per device are {values}; 1 % is allowed"
    return ""


def build_curve(kind: str, series: Sequence[Timing], plain_jit: Mapping[tuple, Timing]) -> Curve:
    """Return the scaling curve of a program from its timings `series`, in ascending order of device count.

    `kind` is "strong" or "weak". `plain_jit` maps each `Timing.problem_key` to the fastest timing with
    api=jit on one device.
    """
    baseline, points = series[0], []
    for timing in series:
        ideal = timing.case.devices / baseline.case.devices
        relative_work = ideal if kind == "weak" else 1.0  # total work relative to the baseline
        gain, jit_timing = time_ratio(baseline, timing), plain_jit.get(timing.problem_key)
        speedup, efficiency = gain.scaled(relative_work), gain.scaled(relative_work / ideal)
        against_jit = time_ratio(jit_timing, timing) if jit_timing else None
        points.append(CurvePoint(timing, baseline.case.devices, speedup, efficiency, against_jit))
    case = with_fields(baseline.case, mesh=None)
    return Curve(case, baseline.environment, baseline.honest, kind, tuple(points))


def format_relative(point: CurvePoint, ratio: Estimate, suffix: str = "x") -> str:
    """Return a ratio as text, such as '3.8x (3.7 to 3.9)'. The baseline of a curve has no interval."""
    return (
        format_ratio(ratio.value, suffix=suffix) if point.is_baseline else format_ratio(*ratio, suffix=suffix)
    )


def format_serial_part(curve: Curve, point: CurvePoint) -> str:
    """Return the part of a program's time that more devices do not shorten, such as '0.120 (0.100 to 0.150)'.

    On a strong curve, it is a fraction of the time on one device (Amdahl's law), on a weak curve of the time
    on all devices (Gustafson's law). Return '' if the speed-up is significantly below 1 or above the ideal.
    Source: Karp and Flatt 1990, Measuring parallel processor performance.
    """
    count, (value, low, high) = point.devices, point.speedup
    if point.is_baseline or curve.baseline_devices > 1:
        return ""
    if is_empty_call(point.timing) or is_empty_call(curve.timings[0]):
        return ""
    if not low or high is None or high < 1 or low > count:
        return ""
    weak = curve.kind == "weak"
    undivided = [count - speedup if weak else count / speedup - 1 for speedup in (value, high, low)]
    value, low, high = (min(max(0.0, part / (count - 1)), 1.0) for part in undivided)
    return format_fraction(value, low, high)


def curves_of_largest_problems(curves: Iterable[Curve], mixed: bool = False) -> list[list[Curve]]:
    """Return the curves of the largest problem of each function and kind of scaling, in one list for each.

    The curves of a list start at the same number of devices unless `mixed` is true. Curves with one number of
    devices are omitted. `largest_problems` selects the problems. Lists with mode=value come last.
    """
    long_curves = (curve for curve in curves if len(curve.points) > 1)
    largest = largest_problems(
        long_curves,
        lambda curve: (curve.kind, mixed or curve.baseline_devices, curve.family_key),
        lambda problem_curves: max(len(curve.points) for curve in problem_curves),
    )
    return sorted(largest, key=lambda problem_curves: problem_curves[0].case.ad_mode.is_value)


def fastest_curves(curves: Iterable[Curve], rankings: Iterable[Ranking]) -> list[Curve]:
    """Return the best scaling curve for the largest problem of each function, for each kind of scaling.

    Curves of function values (mode=value) are omitted. The best curve is the first one in this order:

    1. JAX methods before other AD systems, handwritten derivatives and mode=auto
    2. the largest device count
    3. curves whose last timing is the fastest of one of the `rankings`
    4. the shortest time on the largest device count
    """
    derivatives = (curve for curve in curves if not curve.case.ad_mode.is_value)
    largest = itertools.chain(*curves_of_largest_problems(derivatives))
    fastest_timings = {ranking.fastest for ranking in rankings}

    def rank(curve: Curve) -> tuple[bool, int, bool, float]:
        last = curve.points[-1]
        return not is_candidate(curve.case), -last.devices, last.timing not in fastest_timings, last.seconds

    return list(
        least_by(largest, lambda c: (c.environment, c.kind, problem_fields(c.program[1])), rank).values()
    )


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
        """Return the exponent p of each method. The time of the method is proportional to size ** p.

        Times shorter than ten empty calls are ignored. Methods with fewer than three other times are omitted.
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


def _find_series(subjects: Sequence[S]) -> Iterator[tuple[str, str, str, list[S]]]:
    """Yield the series of `subjects` (timings or rankings) in which one problem size varies.

    Each item has four elements: the name of the varying size, a title that also names the sizes that vary
    with it (such as "points = m"), the constant sizes as text (such as "points=6 o=2"), and the subjects.
    """
    columns = {name: [subject.all_sizes[name] for subject in subjects] for name in subjects[0].all_sizes}
    # Sizes that vary together (each determines the other) form one series.
    names_by_pattern = group_by(columns, lambda name: tuple(map(columns[name].index, columns[name])))
    varying = [names for pattern, names in names_by_pattern.items() if any(pattern)]
    longest_sweep = max(varying, key=lambda names: _count_values(names[0], subjects), default=None)
    for swept in varying:
        title = (" = " if len({tuple(columns[name]) for name in swept}) == 1 else " and ").join(swept)
        for fixed_sizes, group in group_by(subjects, functools.partial(_name_other_sizes, swept)).items():
            # Two values are enough for the size with the most values.
            if _count_values(swept[0], group) >= (2 if swept is longest_sweep else _LEAST_SIZES):
                yield swept[0], title, fixed_sizes, group


def _name_other_sizes(swept: Sequence[str], subject: Subject) -> str:
    return " ".join(f"{name}={size}" for name, size in subject.all_sizes.items() if name not in swept)


def _count_values(name: str, subjects: Iterable[Subject]) -> int:
    """Return the number of values of the size `name`, on the device count with the most values."""
    # The number of points may be proportional to the number of devices.
    by_devices = group_by(subjects, lambda subject: subject.case.devices).values()
    return max(len({subject.all_sizes[name] for subject in on_devices}) for on_devices in by_devices)


def size_sweeps(timings: Iterable[Timing]) -> list[SizeSweep]:
    """Return a `SizeSweep` for each problem size that varies: the times of all AD methods for its values.

    The cases of a sweep differ only in their method and in this size. Of several device meshes, only the
    fastest is included.
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
    """Return the slope of log(time) against log(size), with its 95 % interval.

    `line` contains pairs of a size and a timing. If a parabola fits better, its slopes at both ends widen the
    interval.
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
        for name, title, fixed_sizes, rankings in _find_series(family):
            cells = {(ranking.all_sizes[name], ranking.case.devices): ranking for ranking in rankings}
            sizes, devices = (tuple(sorted(set(axis))) for axis in zip(*cells, strict=True))
            largest = max(rankings, key=lambda ranking: (ranking.volume, ranking.case.devices))
            subject = (largest.case, largest.environment, largest.honest)
            maps.append(FastestModeMap(*subject, title, fixed_sizes, sizes, devices, cells))
    return maps
