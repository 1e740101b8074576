"""Compute the classes Timing, Curve, FastestMethod and SizeSweep from records; name functions and sizes."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scaling.analysis import certainty, ratios
from scaling.analysis.estimate_text import is_ratio_determined
from scaling.analysis.grouping import group_by, least_by
from scaling.analysis.methods import MEMORY_FIELDS, Method, base_method, method_of
from scaling.analysis.ratios import Estimate, Ratio
from scaling.analysis.sweeps import find_sweeps, size_values
from scaling.core.case import AUTO, Case, label, problem
from scaling.core.formatting import count_of, format_number
from scaling.core.record import Record
from scaling.core.store import latest

KINDS = ("strong", "weak")
_UNKNOWN = (None, None, None)  # replaces an Estimate
_WORK_TOLERANCE = 0.01  # relative variation of work per device allowed in a weak scaling curve


@dataclass(frozen=True)
class Timing:
    """The measured time of one benchmark case in one environment, from one record per process."""

    records: tuple[Record, ...]
    median: float  # seconds; median of the medians of the processes
    # 95 % interval in seconds; None if there are too few samples
    interval: tuple[float, float] | None

    @property
    def case(self) -> Case:
        """Return the benchmark case (program, problem and devices) that was timed."""
        return self.records[0].case

    @property
    def seconds(self) -> tuple[float, ...]:
        """Return the time samples of all processes, in seconds."""
        return tuple(seconds for record in self.records for seconds in record.seconds)

    @property
    def replicates(self) -> int:
        """Return the number of processes. If it is 1, `interval` describes the samples of that process."""
        return len(self.records)

    @property
    def environment(self) -> str:
        """Return the digest of hardware and software. Only times with equal digests are compared."""
        return self.records[0].setting

    @property
    def honest(self) -> bool:
        """Return whether each CPU device had its own core. It is always true for other kinds of devices.

        Timings for which it is false are never part of a scaling curve.
        """
        return self.records[0].honest

    @property
    def nodes(self) -> int | None:
        """Return the number of nodes on which the case ran, or None if it was not recorded."""
        return nodes_of(self.records[0])


@dataclass(frozen=True)
class CurvePoint:
    """The time, speed-up and parallel efficiency of a scaling curve on one device count.

    The fields `low`, `high`, `*_low` and `*_high` are the limits of 95 % confidence intervals. They are None
    if there are too few samples.
    """

    devices: int
    points: int  # batch elements
    seconds: float
    low: float | None
    high: float | None
    samples: int
    baseline_devices: int  # the smallest device count of the curve
    speedup: float  # ideally devices / baseline_devices
    speedup_low: float | None
    speedup_high: float | None
    efficiency: float
    efficiency_low: float | None
    efficiency_high: float | None
    against_jit: float | None  # speed-up over the best plain jit program on one device
    against_jit_low: float | None
    against_jit_high: float | None

    @property
    def ideal(self) -> float:
        """Return the ideal speed-up: the device count divided by the device count of the baseline."""
        return self.devices / self.baseline_devices

    @property
    def is_baseline(self) -> bool:
        """Return whether the device count is the smallest of the curve."""
        return self.devices == self.baseline_devices


@dataclass(frozen=True)
class Curve:
    """A scaling curve: the times of one program on several device counts.

    The number of points (batch elements) is constant for strong scaling, and the number of points per device
    for weak scaling.
    """

    name: str
    case: Case  # the case on the smallest device count, without its mesh
    kind: str
    environment: str
    points: tuple[CurvePoint, ...]
    timings: tuple[Timing, ...]  # one per device count, with its fastest mesh

    @property
    def baseline_devices(self) -> int:
        """Return the smallest measured device count, which is the baseline of the speed-up."""
        return self.points[0].devices

    @property
    def baseline(self) -> str:
        """Return the baseline as text, such as '2 devices'."""
        return baseline_name(self.baseline_devices)

    @property
    def relative(self) -> str:
        """Return the baseline as text such as ' relative to 2 devices', or '' if it is one device."""
        return relative_to(self.baseline_devices)

    @property
    def size(self) -> str:
        """Return the problem size (for weak scaling, per device) as text, such as 'm=100 points=6'."""
        if self.kind == "strong":
            return size_name(self.case)
        share = dataclasses.replace(self.case, devices=1, points=self.case.points // self.case.devices)
        return f"{size_name(share)} for each device"


@dataclass(frozen=True)
class FastestMethod:
    """The fastest JAX method for one problem on one device count, compared with the runner-up."""

    first: Timing
    second: Timing | None  # fastest other mode; if there is none, another setting of the same mode
    ratio: float | None  # time of `second` divided by the time of `first`
    ratio_low: float | None
    ratio_high: float | None
    by_hand: float | None  # time of `first` divided by that of the handwritten derivative
    others: tuple[Timing, ...] = ()  # handwritten derivatives and other engines, for the same problem

    @property
    def empty(self) -> bool:
        """Return whether the fastest time cannot be distinguished from that of an empty call."""
        return certainty.is_empty_call(self.first)

    @property
    def distinguished(self) -> bool:
        """Return whether the runner-up is significantly slower than `first`.

        The result is false if the time of `first` cannot be distinguished from that of an empty call.
        """
        return self.ratio_low is not None and self.ratio_low > 1 and not self.empty

    @property
    def doubts(self) -> tuple[str, ...]:
        """Return the reasons to doubt that `first` is the fastest method, such as 'foreign load'."""
        if self.second is None:
            return ()
        determined = is_ratio_determined(self.ratio_low, self.ratio_high)
        wide = () if determined else ("the ratio is not determined",)
        return (*certainty.doubts(self.first, self.second), *wide)

    @property
    def sure(self) -> bool:
        """Return whether the two methods are distinguished and there is no reason for doubt."""
        return self.distinguished and not self.doubts

    @property
    def certainty(self) -> str:
        """Return the certainty of the result as text for a table cell, such as 'not distinguished'."""
        if self.second is None or self.empty:
            return "an empty call" if self.empty else "no other method"
        if not self.distinguished:
            return "not distinguished"
        return "sure" if self.sure else f"not sure: {', '.join(self.doubts)}"


@dataclass(frozen=True)
class SizeSweep:
    """Times against one problem size, with one line for each method. Devices and other sizes are constant."""

    case: Case  # the case with the largest size
    environment: str
    honest: bool
    swept: str  # such as "m", or "points = m" if both vary together
    held: str  # the constant sizes, such as "points=6 o=2"
    lines: Mapping[Method, tuple[tuple[int, Timing], ...]]  # method -> (size, timing) pairs, sorted by size


def nodes_of(record: Record) -> int | None:
    """Return the number of nodes on which a case ran, or None if it was not recorded."""
    shape, hosts = record.environment.get("shape"), record.environment.get("hosts")
    nodes = shape.get("nodes") if isinstance(shape, dict) else None
    return nodes or (len(hosts) if isinstance(hosts, list) and hosts else None)


# Fields of a case by which timings are sorted, most significant first.
_ORDER = (
    "workload", "target", "variant", "wrt", "reduce", "dtype", "formulation", "sizes", "points", "data_seed",
    "engine", "mode", "batch", "seeds", "forward", "split", "api", "precision", "jit", *MEMORY_FIELDS,
    "devices", "overlap", "axes",
)  # fmt: skip


def pool_processes(records: Iterable[Record]) -> list[Timing]:
    """Return one Timing for each measured case and environment, from the records of its processes.

    The timings are sorted. Oversubscribed cases, whose devices shared CPU cores, are included.
    """
    measured = (record for record in latest(records) if record.status == "ok")
    groups = group_by(measured, lambda record: (record.setting, record.key, record.honest)).values()
    timings = (Timing(tuple(g), ratios.case_median(g), ratios.case_interval(g)) for g in groups)
    return sorted(timings, key=_sort_key)


def _sort_key(timing: Timing) -> tuple:
    fields = (_sortable(getattr(timing.case, name)) for name in _ORDER)
    return timing.environment, *fields, timing.honest


def _sortable(value: Any) -> tuple:
    """Return a sort key for a value: None sorts before numbers, and numbers sort before strings."""
    if isinstance(value, Mapping):
        return tuple(value.items())
    return isinstance(value, str), value or 0


def family_key(case: Case) -> tuple:
    """Return a hashable key of the differentiated function, regardless of its size."""
    what = (case.workload, case.target, case.variant, case.wrt, case.reduce)
    return (*what, case.dtype, case.precision, case.data_seed)


def problem_size(case: Case) -> int:
    """Return the product of the number of points and all sizes, a number that orders problems by size."""
    return case.points * math.prod(case.sizes.values())


def family_name(case: Case) -> str:
    """Return the name of the differentiated function, regardless of its size, such as 'rbf grad float64'."""
    words = [case.workload, case.target, case.variant, case.wrt and f"by {case.wrt}"]
    words += [case.reduce and f"reduce={case.reduce}", "" if case.dtype == "float32" else case.dtype]
    words.append("" if case.precision == "highest" else f"{case.precision} precision")
    return " ".join(str(word) for word in words if word)


def size_name(case: Case) -> str:
    """Return the sizes, the number of points and the data seed as text, such as 'm=100 points=6'."""
    seed = [f"seed={case.data_seed}"] if case.data_seed else []
    return " ".join(
        [*(f"{name}={size}" for name, size in case.sizes.items()), f"points={case.points}", *seed]
    )


def baseline_name(devices: int) -> str:
    """Return the device count of a baseline as text, such as 'one device' or '2 devices'."""
    return "one device" if devices == 1 else count_of(devices, "device")


def relative_to(devices: int) -> str:
    """Return a baseline as text such as ' relative to 2 devices', or '' if it is one device."""
    return "" if devices == 1 else f" relative to {baseline_name(devices)}"


def scaling_curves(records: Iterable[Record], scaling: Sequence[str] = ("strong",)) -> list[Curve]:
    """Return the scaling curves of the given kinds, "strong" and "weak", each within one environment.

    Timings on devices that shared CPU cores are omitted, and so are weak curves with unequal work per device.
    """
    timings = [timing for timing in pool_processes(records) if timing.honest]
    plain = _best_plain_programs(timings)
    series = {kind: _series_of_kind(timings, kind) if kind in scaling else [] for kind in KINDS}
    if len(scaling) > 1:  # a series with one device count may belong to a series of the other kind
        series["weak"] = [s for s in series["weak"] if len(s) > 1]
        growing = {(t.environment, t.case) for s in series["weak"] for t in s if t.case.devices > 1}
        series["strong"] = [
            s for s in series["strong"] if len(s) > 1 or (s[0].environment, s[0].case) not in growing
        ]
    series["weak"] = [s for s in series["weak"] if _describe_unequal_work(s) is None]
    return [_build_curve(kind, s, plain) for kind in KINDS for s in series[kind]]


def weak_refusals(records: Iterable[Record]) -> list[str]:
    """Return a sentence for each series of timings that is rejected as a weak scaling curve.

    The sentence states the reason: the work per device varies or was not counted.
    """
    timings = [timing for timing in pool_processes(records) if timing.honest]
    return [
        f"Not weak scaling: {curve_name('weak', series[0].case)}: {reason}."
        for series in _series_of_kind(timings, "weak")
        if (reason := _describe_unequal_work(series))
    ]


def _series_of_kind(timings: Iterable[Timing], kind: str) -> list[list[Timing]]:
    """Return a list of timings for each scaling curve of a kind, in ascending order of device count.

    On each device count, only the fastest mesh is included. For weak scaling, a case is omitted if its points
    do not divide evenly over the devices.
    """
    whole = (t for t in timings if kind == "strong" or t.case.points % t.case.devices == 0)
    groups = group_by(whole, lambda t: (t.environment, stem(t.case, kind))).values()
    return [sorted(keep_fastest_meshes(group), key=lambda timing: timing.case.devices) for group in groups]


def stem(case: Case, kind: str) -> Case:
    """Return a case that identifies a scaling curve, because it is equal for all cases of the curve.

    It has one device and no mesh. If `kind` is "weak", its number of points (batch elements) is the number
    per device.
    """
    points = case.points if kind == "strong" else case.points // case.devices
    return dataclasses.replace(case, devices=1, mesh=None, points=points)


def keep_fastest_meshes(timings: Iterable[Timing]) -> list[Timing]:
    """Return the timing of the fastest device mesh for each program and device count."""
    programs = group_by(timings, lambda t: (t.environment, t.honest, dataclasses.replace(t.case, mesh=None)))
    return [min(meshes, key=lambda t: t.median) for meshes in programs.values()]


def _describe_unequal_work(series: Sequence[Timing]) -> str | None:
    """Return why a series is not weak scaling (unequal or unknown work per device), or None if it is."""
    if len(series) < 2:
        return None
    for name, attribute in (("flops", "flops"), ("compulsory_bytes", "compulsory")):
        counts = [(t.case.devices, getattr(record, attribute)) for t in series for record in t.records]
        if unknown := sorted({devices for devices, count in counts if count is None}):
            where = ", ".join(map(str, unknown))
            return f"{name} per device were not counted on {where} devices, so constant work cannot be shown"
        (least_on, least), (most_on, most) = (best(counts, key=lambda c: c[1]) for best in (min, max))
        if most > least * (1 + _WORK_TOLERANCE):
            more = f", {most / least - 1:.1%} more" if least else ""
            name += derived_bytes_note(series) if attribute == "compulsory" else ""
            values = f"{least:.6g} on {least_on} and {most:.6g} on {most_on} devices"
            return f"{name} per device are {values}{more}; 1 % is allowed"
    return None


def derived_bytes_note(series: Iterable[Timing]) -> str:
    """Return ' (derived: argument_bytes + output_bytes)' if old records are included, otherwise ''.

    Old records do not contain the compulsory bytes.
    """
    old = any(record.compulsory_bytes is None for timing in series for record in timing.records)
    return " (derived: argument_bytes + output_bytes)" if old else ""


def _best_plain_programs(timings: Iterable[Timing]) -> dict[tuple, Timing]:
    """Return a dict from (environment, problem) to the timing of the fastest plain jit program on one device.

    Handwritten derivatives and other engines are excluded.
    """
    plain = (t for t in timings if t.case.api == "jit" and t.case.devices == 1 and _competes(t.case))
    return least_by(plain, lambda t: (t.environment, problem(t.case)), lambda t: t.median)


def _build_curve(kind: str, series: Sequence[Timing], plain: Mapping[tuple, Timing]) -> Curve:
    case = dataclasses.replace(series[0].case, mesh=None)
    weak = kind == "weak"
    points = [_point(t, series[0], weak, plain.get((t.environment, problem(t.case)))) for t in series]
    return Curve(curve_name(kind, case), case, kind, series[0].environment, tuple(points), tuple(series))


def curve_name(kind: str, case: Case) -> str:
    """Return the name of a scaling curve: the label of its case without the fields that vary on the curve."""
    mesh = " fastest mesh" if case.split == "both" else ""
    if kind == "strong":
        return label(case, ("devices", "mesh")) + mesh
    return f"{label(case, ('devices', 'mesh', 'points'))} points/device={case.points // case.devices}{mesh}"


def _point(timing: Timing, base: Timing, weak: bool, plain: Timing | None) -> CurvePoint:
    more = timing.case.devices / base.case.devices
    work = more if weak else 1.0  # total work relative to the baseline
    low, high = timing.interval or (None, None)
    speedup, against_jit = _speedup_over(base, timing), _speedup_over(plain, timing) if plain else _UNKNOWN
    return CurvePoint(
        timing.case.devices, timing.case.points, timing.median, low, high, len(timing.seconds),
        base.case.devices, *_scaled(speedup, work), *_scaled(speedup, work / more), *against_jit,
    )  # fmt: skip


def _scaled(estimate: Estimate, factor: float) -> Estimate:
    low, high = (None if end is None else end * factor for end in estimate[1:])
    return Estimate(estimate.value * factor, low, high)


def _speedup_over(base: Timing, timing: Timing) -> Estimate:
    return Estimate(1.0, 1.0, 1.0) if base is timing else time_ratio(base, timing)


def compare_times(top: Timing, bottom: Timing) -> Ratio:
    """Estimate the ratio of the times of two cases, `top` over `bottom`, with its standard error."""
    return ratios.estimate_ratio(top.records, bottom.records)


def time_ratio(top: Timing, bottom: Timing) -> Estimate:
    """Return the ratio of the times of two cases, `top` over `bottom`, with its 95 % confidence interval."""
    return compare_times(top, bottom).estimate


def note_on_pairs(top: Timing, bottom: Timing) -> str:
    """Return a note such as ' (from 3 pairs in turns; the medians give 1.2x)' on a ratio of times, or ''.

    If processes took their samples alternately, the ratio is computed from pairs of processes and may differ
    from the ratio of the medians. The note is '' if both differ by at most 2 %.
    """
    ratio = compare_times(top, bottom)
    if not ratio.differs_from_medians:
        return ""
    return f" (from {ratio.pairs} pairs in turns; the medians give {format_number(ratio.of_medians)}x)"


def fastest_methods(records: Iterable[Record]) -> list[FastestMethod]:
    """Return the fastest JAX method for each problem, device count and environment, with its runner-up."""
    timings = (timing for timing in pool_processes(records) if not timing.case.ad_mode.is_value)
    groups = group_by(timings, lambda t: (t.environment, t.honest, problem(t.case), t.case.devices)).values()
    return [_find_fastest(rivals, g) for g in groups if (rivals := [t for t in g if _competes(t.case)])]


def _competes(case: Case) -> bool:
    """Return whether a case may be called the fastest: it uses a named AD mode of JAX, and not mode=auto.

    Handwritten derivatives are excluded.
    """
    return case.engine == "jax" and not case.ad_mode.closed_form and case.mode != AUTO


def _find_fastest(rivals: Sequence[Timing], group: Sequence[Timing]) -> FastestMethod:
    first = min(rivals, key=lambda t: t.median)
    other_modes = [t for t in rivals if base_method(t.case) != base_method(first.case)]
    others = other_modes or [t for t in rivals if method_of(t.case) != method_of(first.case)]
    second = min(others, key=lambda t: t.median, default=None)
    ratio, low, high = time_ratio(second, first) if second else _UNKNOWN
    # A handwritten sparse derivative is dense or only its nonzeros; never compare the two.
    written = (t for t in group if t.case.engine == "jax" and t.case.ad_mode.closed_form)
    hand = min((t.median for t in written if t.case.seeds == first.case.seeds), default=None)
    excluded = tuple(t for t in group if not _competes(t.case))
    return FastestMethod(first, second, ratio, low, high, first.median / hand if hand else None, excluded)


def size_sweeps(records: Iterable[Record]) -> list[SizeSweep]:
    """Return a SizeSweep for each program and each of its sizes that was measured with several values."""
    no_method = Method("jacfwd", "vmap")._asdict() | {"points": 1, "sizes": {}, "mesh": None}
    groups = group_by(
        keep_fastest_meshes(pool_processes(records)),
        lambda t: (t.environment, t.honest, dataclasses.replace(t.case, **no_method)),
    )
    return [sweep for group in groups.values() for sweep in _sweeps_of_group(group)]


def _sweeps_of_group(group: Sequence[Timing]) -> list[SizeSweep]:
    sweeps = []
    for swept, held, timings in find_sweeps(group, lambda timing: timing.case):
        largest = max(timings, key=lambda t: problem_size(t.case))
        case = dataclasses.replace(largest.case, mesh=None)
        rows = sorted(((size_values(t.case)[swept.name], t) for t in timings), key=lambda row: row[0])
        methods = group_by(rows, lambda row: method_of(row[1].case))
        lines = {method: tuple(methods[method]) for method in sorted(methods, key=lambda method: method.name)}
        sweeps.append(SizeSweep(case, largest.environment, largest.honest, swept.title, held, lines))
    return sweeps
