"""Curves: what the records of a study show: scaling over devices, time over sizes, and the fastest method.

Takes records and returns values; does not format or draw them.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scaling.analysis import certainty, ratios
from scaling.analysis.grouping import group_by, least_by
from scaling.analysis.methods import MEMORY_FIELDS, Method, base_method, method_of
from scaling.analysis.ratios import Estimate, Ratio
from scaling.analysis.sweeps import find_sweeps, size_values
from scaling.core.case import Case, label, problem
from scaling.core.formatting import count_of, format_number, is_ratio_determined
from scaling.core.record import Record
from scaling.core.store import latest

KINDS = ("strong", "weak")
_UNKNOWN = (None, None, None)  # in place of an estimate
_WORK_TOLERANCE = 0.01  # by how much the work per device may differ within a weak curve (law 8)


@dataclass(frozen=True)
class Timing:
    """The time of one case in one environment, from one record per process."""

    records: tuple[Record, ...]
    median: float  # of the processes' medians
    # 95 %, between processes, or within the only one; None: too few samples
    interval: tuple[float, float] | None

    @property
    def case(self) -> Case:
        """Return the case that was timed."""
        return self.records[0].case

    @property
    def seconds(self) -> tuple[float, ...]:
        """Return every sample of every process."""
        return tuple(seconds for record in self.records for seconds in record.seconds)

    @property
    def replicates(self) -> int:
        """Return the number of processes; with one, the interval is within that process."""
        return len(self.records)

    @property
    def environment(self) -> str:
        """Return the digest of the environment; timings are compared within one environment only."""
        return self.records[0].setting

    @property
    def honest(self) -> bool:
        """Return whether each device had a core of its own; other timings are never drawn as scaling."""
        return self.records[0].honest

    @property
    def nodes(self) -> int | None:
        """Return the number of nodes, None where a record does not know them."""
        return nodes_of(self.records[0])


@dataclass(frozen=True)
class CurvePoint:
    """One device count of a curve. `*_low` and `*_high` are 95 % intervals, None for too few samples."""

    devices: int
    points: int
    seconds: float
    low: float | None
    high: float | None
    samples: int
    baseline_devices: int  # the smallest number of devices of the curve
    speedup: float  # over the same program on the baseline: 1 there, ideally devices / baseline_devices
    speedup_low: float | None
    speedup_high: float | None
    efficiency: float
    efficiency_low: float | None
    efficiency_high: float | None
    against_jit: float | None  # speed-up over the best plain jit program on one device, not written by hand
    against_jit_low: float | None
    against_jit_high: float | None

    @property
    def ideal(self) -> float:
        """Return the speed-up without any loss."""
        return self.devices / self.baseline_devices

    @property
    def is_baseline(self) -> bool:
        """Return whether this is the point that the others of its curve are compared with."""
        return self.devices == self.baseline_devices


@dataclass(frozen=True)
class Curve:
    """Timings that differ only in devices (strong), or in devices at constant points per device (weak)."""

    name: str
    case: Case  # that of the smallest device count, without its mesh
    kind: str
    environment: str
    points: tuple[CurvePoint, ...]
    timings: tuple[Timing, ...]  # one for each point; of several meshes the fastest

    @property
    def baseline_devices(self) -> int:
        """Return the smallest number of devices that was measured, the baseline of speed-up."""
        return self.points[0].devices

    @property
    def baseline(self) -> str:
        """Return the baseline in words, such as '2 devices'."""
        return baseline_name(self.baseline_devices)

    @property
    def relative(self) -> str:
        """Return ' relative to 2 devices' where the baseline is not one device, else ''."""
        return relative_to(self.baseline_devices)

    @property
    def size(self) -> str:
        """Return the size of the problem in words; for a weak curve that of each device."""
        if self.kind == "strong":
            return size_name(self.case)
        share = dataclasses.replace(self.case, devices=1, points=self.case.points // self.case.devices)
        return f"{size_name(share)} for each device"


@dataclass(frozen=True)
class FastestMethod:
    """The fastest method for one problem on one number of devices, compared with the best of the others."""

    first: Timing
    second: Timing | None  # the best of the other modes, or memory settings where there is one mode
    ratio: float | None  # second over first
    ratio_low: float | None
    ratio_high: float | None
    by_hand: float | None  # first over the derivative written by hand, where that was measured
    others: tuple[Timing, ...] = ()  # of the same problem, but written by hand or by another engine

    @property
    def empty(self) -> bool:
        """Return whether the first cannot be distinguished from an empty call: no mode is the fastest."""
        return certainty.is_empty_call(self.first)

    @property
    def distinguished(self) -> bool:
        """Return whether the interval of the ratio excludes 1, and the first is more than an empty call."""
        return self.ratio_low is not None and self.ratio_low > 1 and not self.empty

    @property
    def doubts(self) -> tuple[str, ...]:
        """Return in words what makes it doubtful that the first is the fastest."""
        if self.second is None:
            return ()
        determined = is_ratio_determined(self.ratio_low, self.ratio_high)
        wide = () if determined else ("the ratio is not determined",)
        return (*certainty.doubts(self.first, self.second), *wide)

    @property
    def sure(self) -> bool:
        """Return whether the two are distinguished without any doubt."""
        return self.distinguished and not self.doubts

    @property
    def certainty(self) -> str:
        """Return in words how sure the answer is, for a cell of a table."""
        if self.second is None or self.empty:
            return "an empty call" if self.empty else "no other method"
        if not self.distinguished:
            return "not distinguished"
        return "sure" if self.sure else f"not sure: {', '.join(self.doubts)}"


@dataclass(frozen=True)
class SizeSweep:
    """Time against one size, with a line for each method; everything else is the same."""

    case: Case  # that of the largest size
    environment: str
    honest: bool
    swept: str  # such as "m", or "points = m" where both vary together
    held: str  # the other sizes, such as "points=6 o=2"
    lines: Mapping[Method, tuple[tuple[int, Timing], ...]]  # method -> (size, timing), sorted by size


def nodes_of(record: Record) -> int | None:
    """Return the number of nodes of a case, None where its record does not know them."""
    shape, hosts = record.environment.get("shape"), record.environment.get("hosts")
    nodes = shape.get("nodes") if isinstance(shape, dict) else None
    return nodes or (len(hosts) if isinstance(hosts, list) and hosts else None)


# By which timings are sorted.
_ORDER = (
    "workload", "target", "variant", "wrt", "reduce", "dtype", "formulation", "sizes", "points", "data_seed",
    "engine", "mode", "batch", "seeds", "forward", "split", "api", "precision", "jit", *MEMORY_FIELDS,
    "devices", "overlap", "axes",
)  # fmt: skip


def pool_processes(records: Iterable[Record]) -> list[Timing]:
    """Return the timing of every measured case in each environment, sorted; oversubscribed ones too."""
    measured = (record for record in latest(records) if record.status == "ok")
    groups = group_by(measured, lambda record: (record.setting, record.key, record.honest)).values()
    timings = (Timing(tuple(g), ratios.case_median(g), ratios.case_interval(g)) for g in groups)
    return sorted(timings, key=_sort_key)


def _sort_key(timing: Timing) -> tuple:
    fields = (_sortable(getattr(timing.case, name)) for name in _ORDER)
    return timing.environment, *fields, timing.honest


def _sortable(value: Any) -> tuple:
    """Return a value so that None comes before numbers, and numbers before words."""
    if isinstance(value, Mapping):
        return tuple(value.items())
    return isinstance(value, str), value or 0


def family_key(case: Case) -> tuple:
    """Return what identifies the function that is differentiated, whatever its size."""
    what = (case.workload, case.target, case.variant, case.wrt, case.reduce)
    return (*what, case.dtype, case.precision, case.data_seed)


def problem_size(case: Case) -> int:
    """Return the product of the points and every size, by which problems of a family are ordered."""
    return case.points * math.prod(case.sizes.values())


def family_name(case: Case) -> str:
    """Return the function that is differentiated in words, whatever its size."""
    words = [case.workload, case.target, case.variant, case.wrt and f"by {case.wrt}"]
    words += [case.reduce and f"reduce={case.reduce}", "" if case.dtype == "float32" else case.dtype]
    words.append("" if case.precision == "highest" else f"{case.precision} precision")
    return " ".join(str(word) for word in words if word)


def size_name(case: Case) -> str:
    """Return the sizes and points in words."""
    seed = [f"seed={case.data_seed}"] if case.data_seed else []
    return " ".join(
        [*(f"{name}={size}" for name, size in case.sizes.items()), f"points={case.points}", *seed]
    )


def baseline_name(devices: int) -> str:
    """Return the baseline of a speed-up in words."""
    return "one device" if devices == 1 else count_of(devices, "device")


def relative_to(devices: int) -> str:
    """Return ' relative to 2 devices' where a baseline is not one device, else ''."""
    return "" if devices == 1 else f" relative to {baseline_name(devices)}"


def scaling_curves(records: Iterable[Record], scaling: Sequence[str] = ("strong",)) -> list[Curve]:
    """Return the curves of these kinds, each within one environment.

    Oversubscribed records and weak series without constant work per device are left out.
    """
    timings = [timing for timing in pool_processes(records) if timing.honest]
    plain = _best_plain_programs(timings)
    series = {kind: _series_of_kind(timings, kind) if kind in scaling else [] for kind in KINDS}
    if len(scaling) > 1:  # a series of one device count may be a point of a series of the other kind
        series["weak"] = [s for s in series["weak"] if len(s) > 1]
        growing = {(t.environment, t.case) for s in series["weak"] for t in s if t.case.devices > 1}
        series["strong"] = [
            s for s in series["strong"] if len(s) > 1 or (s[0].environment, s[0].case) not in growing
        ]
    series["weak"] = [s for s in series["weak"] if _describe_unequal_work(s) is None]
    return [_curve(kind, s, plain) for kind in KINDS for s in series[kind]]


def weak_refusals(records: Iterable[Record]) -> list[str]:
    """Return a sentence for each series that grows with its devices but is not weak scaling, with numbers."""
    timings = [timing for timing in pool_processes(records) if timing.honest]
    return [
        f"Not weak scaling: {curve_name('weak', series[0].case)}: {reason}."
        for series in _series_of_kind(timings, "weak")
        if (reason := _describe_unequal_work(series))
    ]


def _series_of_kind(timings: Iterable[Timing], kind: str) -> list[list[Timing]]:
    """Return the timings of each curve, sorted by devices; of several meshes the fastest."""
    whole = (t for t in timings if kind == "strong" or t.case.points % t.case.devices == 0)
    groups = group_by(whole, lambda t: (t.environment, stem(t.case, kind))).values()
    return [sorted(keep_fastest_meshes(group), key=lambda timing: timing.case.devices) for group in groups]


def stem(case: Case, kind: str) -> Case:
    """Return what the cases of a curve share: the case on one device, if weak with its part of the points."""
    points = case.points if kind == "strong" else case.points // case.devices
    return dataclasses.replace(case, devices=1, mesh=None, points=points)


def keep_fastest_meshes(timings: Iterable[Timing]) -> list[Timing]:
    """Return for each program and number of devices the timing of the fastest mesh."""
    programs = group_by(timings, lambda t: (t.environment, t.honest, dataclasses.replace(t.case, mesh=None)))
    return [min(meshes, key=lambda t: t.median) for meshes in programs.values()]


def _describe_unequal_work(series: Sequence[Timing]) -> str | None:
    """Return why a series is not weak scaling; None if operations and bytes per device are constant."""
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
    """Return a note where compulsory bytes are derived because a record was written before they were kept."""
    old = any(record.compulsory_bytes is None for timing in series for record in timing.records)
    return " (derived: argument_bytes + output_bytes)" if old else ""


def _best_plain_programs(timings: Iterable[Timing]) -> dict[tuple, Timing]:
    """Return the fastest plain jit program on one device by (environment, problem), none by hand."""
    plain = (t for t in timings if t.case.api == "jit" and t.case.devices == 1 and _competes(t.case))
    return least_by(plain, lambda t: (t.environment, problem(t.case)), lambda t: t.median)


def _curve(kind: str, series: Sequence[Timing], plain: Mapping[tuple, Timing]) -> Curve:
    case = dataclasses.replace(series[0].case, mesh=None)
    weak = kind == "weak"
    points = [_point(t, series[0], weak, plain.get((t.environment, problem(t.case)))) for t in series]
    return Curve(curve_name(kind, case), case, kind, series[0].environment, tuple(points), tuple(series))


def curve_name(kind: str, case: Case) -> str:
    """Return the name of a curve: its case without what varies."""
    mesh = " fastest mesh" if case.split == "both" else ""
    if kind == "strong":
        return label(case, ("devices", "mesh")) + mesh
    return f"{label(case, ('devices', 'mesh', 'points'))} points/device={case.points // case.devices}{mesh}"


def _point(timing: Timing, base: Timing, weak: bool, plain: Timing | None) -> CurvePoint:
    more = timing.case.devices / base.case.devices
    work = more if weak else 1.0  # how many times the work of the baseline was done
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
    """Return the speed-up over a baseline; exactly 1 for the baseline itself."""
    return Estimate(1.0, 1.0, 1.0) if base is timing else time_ratio(base, timing)


def compare_times(top: Timing, bottom: Timing) -> Ratio:
    """Return the time of one timing over that of another, with what it was estimated from."""
    return ratios.estimate_ratio(top.records, bottom.records)


def time_ratio(top: Timing, bottom: Timing) -> Estimate:
    """Return the time of one timing over that of another, with its interval."""
    return compare_times(top, bottom).estimate


def note_on_pairs(top: Timing, bottom: Timing) -> str:
    """Return a note where a ratio of pairs differs visibly from that of the times shown, else ''."""
    ratio = compare_times(top, bottom)
    if not ratio.differs_from_medians:
        return ""
    return f" (from {ratio.pairs} pairs in turns; the medians give {format_number(ratio.of_medians)}x)"


def fastest_methods(records: Iterable[Record]) -> list[FastestMethod]:
    """Return JAX's fastest method for each problem on each number of devices, in each environment."""
    timings = (timing for timing in pool_processes(records) if not timing.case.ad_mode.is_value)
    groups = group_by(timings, lambda t: (t.environment, t.honest, problem(t.case), t.case.devices)).values()
    return [_fastest(rivals, g) for g in groups if (rivals := [t for t in g if _competes(t.case)])]


def _competes(case: Case) -> bool:
    """Return whether a case may be the fastest: one of JAX that is not written by hand."""
    return case.engine == "jax" and not case.ad_mode.closed_form


def _fastest(rivals: Sequence[Timing], group: Sequence[Timing]) -> FastestMethod:
    first = min(rivals, key=lambda t: t.median)
    other_modes = [t for t in rivals if base_method(t.case) != base_method(first.case)]
    others = other_modes or [t for t in rivals if method_of(t.case) != method_of(first.case)]
    second = min(others, key=lambda t: t.median, default=None)
    ratio, low, high = time_ratio(second, first) if second else _UNKNOWN
    # A sparse derivative written by hand may be dense or its nonzeros: never compare one with the other.
    written = (t for t in group if t.case.engine == "jax" and t.case.ad_mode.closed_form)
    hand = min((t.median for t in written if t.case.seeds == first.case.seeds), default=None)
    excluded = tuple(t for t in group if not _competes(t.case))
    return FastestMethod(first, second, ratio, low, high, first.median / hand if hand else None, excluded)


def size_sweeps(records: Iterable[Record]) -> list[SizeSweep]:
    """Return time against size, for everything that was measured at two sizes or more."""
    no_method = Method("jacfwd", "vmap")._asdict() | {"points": 1, "sizes": {}, "mesh": None}
    groups = group_by(
        keep_fastest_meshes(pool_processes(records)),
        lambda t: (t.environment, t.honest, dataclasses.replace(t.case, **no_method)),
    )
    return [sweep for group in groups.values() for sweep in _sweeps_of_group(group)]


def _sweeps_of_group(group: Sequence[Timing]) -> list[SizeSweep]:
    """Return the sweeps of timings that differ in method and size alone."""
    sweeps = []
    for swept, held, timings in find_sweeps(group, lambda timing: timing.case):
        largest = max(timings, key=lambda t: problem_size(t.case))
        case = dataclasses.replace(largest.case, mesh=None)
        rows = sorted(((size_values(t.case)[swept.name], t) for t in timings), key=lambda row: row[0])
        methods = group_by(rows, lambda row: method_of(row[1].case))
        lines = {method: tuple(methods[method]) for method in sorted(methods, key=lambda method: method.name)}
        sweeps.append(SizeSweep(case, largest.environment, largest.honest, swept.title, held, lines))
    return sweeps
