"""Build scaling curves (`Curve`), the times of a program by device count, and select them for a report.

A weak scaling curve is omitted if the work per device is not constant.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scaling.analysis.cases import (
    Subject,
    curve_case,
    is_candidate,
    largest_problems,
    size_name,
    with_fields,
)
from scaling.analysis.estimate import Estimate, format_fraction, format_ratio
from scaling.analysis.ranking import Ranking
from scaling.analysis.timings import Timing, is_empty_call, time_ratio
from scaling.core.case import Case, label, problem_fields
from scaling.core.formatting import format_count
from scaling.core.grouping import group_by, least_by

KINDS = ("strong", "weak")
_WORK_TOLERANCE = 0.01  # relative variation of work per device allowed in a weak scaling curve


@dataclass(frozen=True)
class CurvePoint:
    """A point of a scaling curve: time, speed-up and efficiency of a program on one number of devices."""

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
        """Return a key that is equal at all points: the kind of scaling, and the case on one device."""
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
    """Return the scaling curves, and texts that state why weak curves are omitted.

    `kinds` contains "strong", "weak" or both. A weak curve is omitted if its work per device varies or is
    unknown. An omitted curve has no text if all its timings are also on strong curves. Timings on shared CPU
    cores are ignored.
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
    """Return the kind ("strong" or "weak") and the timings of each scaling curve, as pairs.

    The timings are in ascending order of device count. A curve with a single timing has the kind `kinds[0]`.
    It is omitted if this timing is on several devices and also on a longer curve.
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
    """Return the scaling kinds in `study` (study.json or a plan file as a dict), by default ["strong"]."""
    scaling = study.get("scaling")
    requested = scaling if isinstance(scaling, list) else [scaling]
    return [kind for kind in KINDS if kind in requested] or ["strong"]


def _series_of_kind(timings: Iterable[Timing], kind: str) -> list[list[Timing]]:
    """Return the timings of each scaling curve of one kind, "strong" or "weak", from few to many devices.

    If a curve has several meshes with the same number of devices, only the fastest is included. Weak curves
    omit cases whose points do not divide evenly over their devices.
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
    """Return why the work per device is not constant on a weak-scaling curve, or '' if it is constant.

    Work means the floating-point operations, and the bytes of the inputs and the result. Return a reason
    also if the work was not counted.
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
    """Return a ratio as text, such as '3.8x (3.7 to 3.9)'. The interval is omitted at the baseline."""
    return (
        format_ratio(ratio.value, suffix=suffix) if point.is_baseline else format_ratio(*ratio, suffix=suffix)
    )


def format_serial_part(curve: Curve, point: CurvePoint) -> str:
    """Return the fraction of the time that more devices do not shorten, such as '0.120 (0.100 to 0.150)'.

    On a strong curve, it is a fraction of the time on one device (Amdahl's law). On a weak curve, it is a
    fraction of the time on all devices (Gustafson's law). Return '' if it cannot be determined, or if the
    speed-up is significantly below 1 or above the ideal. Source: Karp and Flatt 1990, Measuring parallel
    processor performance.
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
    """Return the curves of the largest problem, in one list for each function and kind of scaling.

    If `mixed` is false, curves that start at different numbers of devices are in different lists. Curves with
    one number of devices are omitted. `largest_problems` selects the problems. Lists with mode=value come
    last.
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
