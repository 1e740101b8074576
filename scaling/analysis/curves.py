"""Curves: what the records of a study say, as values: scaling over devices, time over sizes, and the fastest mode.

Takes records and gives values. Does not know the disk, JAX, how a number is written or drawn, or why a time is what it is.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scaling.analysis import certainty, ratios, resampling
from scaling.analysis.methods import SETTINGS, Method, method_of
from scaling.analysis.sweeps import numbers, sweeps
from scaling.core.case import Case, label, problem
from scaling.core.formatting import count_of, is_ratio_determined
from scaling.core.record import Record
from scaling.core.store import latest

KINDS = ("strong", "weak")
_WORK_SPREAD = 0.01  # law 8: how much the work per device may differ within a weak series


@dataclass(frozen=True)
class Timing:
    """One case in one environment, from its processes: samples of one are never taken for independent repeats."""

    records: tuple[Record, ...]  # one of each process
    median: float  # of the processes' medians
    interval: tuple[float, float] | None  # 95 %: between processes, or within the only one; None when there are too few samples

    @property
    def case(self) -> Case:
        """The case that was timed."""
        return self.records[0].case

    @property
    def processes(self) -> tuple[tuple[float, ...], ...]:
        """The samples of each process, in order."""
        return tuple(tuple(record.seconds) for record in self.records)

    @property
    def seconds(self) -> tuple[float, ...]:
        """Every sample of every process, to be counted or drawn."""
        return sum(self.processes, ())

    @property
    def replicates(self) -> int:
        """How many processes measured it; with one, the interval is within that process."""
        return len(self.records)

    @property
    def environment(self) -> str:
        """The digest of what may be compared."""
        return self.records[0].setting

    @property
    def honest(self) -> bool:
        """Whether each device had a core of its own; otherwise it is never drawn as scaling."""
        return self.records[0].honest


@dataclass(frozen=True)
class CurvePoint:
    """One device count of a curve. `low` and `high` are 95 % intervals, None when there are too few samples."""

    devices: int
    points: int
    seconds: float
    low: float | None
    high: float | None
    samples: int
    baseline_devices: int  # the smallest number of devices of the curve
    speedup: float  # over the same program on that many devices: 1 there, ideally devices / baseline_devices
    speedup_low: float | None
    speedup_high: float | None
    efficiency: float
    efficiency_low: float | None
    efficiency_high: float | None
    against_jit: float | None  # speed-up over the best plain jit program, not written by hand, on one device
    against_jit_low: float | None
    against_jit_high: float | None

    @property
    def ideal(self) -> float:
        """Return the speed-up without any loss."""
        return self.devices / self.baseline_devices

    @property
    def is_baseline(self) -> bool:
        """Return whether this is what the others of its curve are compared with."""
        return self.devices == self.baseline_devices


@dataclass(frozen=True)
class Curve:
    """Measurements that differ only in devices (strong), or in devices with as many points for each (weak)."""

    name: str
    case: Case  # that of the smallest device count, without its mesh
    kind: str
    environment: str
    points: tuple[CurvePoint, ...]
    timings: tuple[Timing, ...]  # what each point rests on; of several meshes on as many devices the fastest

    @property
    def baseline_devices(self) -> int:
        """Return the smallest number of devices that was measured, against which speed-up and efficiency stand."""
        return self.points[0].devices

    @property
    def baseline(self) -> str:
        """Return the baseline in words, such as '2 devices'."""
        return baseline_name(self.baseline_devices)

    @property
    def relative(self) -> str:
        """Return what must stand beside a speed-up that is not over one device: ' relative to 2 devices'."""
        return relative_to(self.baseline_devices)

    @property
    def size(self) -> str:
        """Return the size of the problem in words; of a weak curve that of each device."""
        if self.kind == "strong":
            return size_name(self.case)
        share = dataclasses.replace(self.case, devices=1, points=self.case.points // self.case.devices)
        return f"{size_name(share)} for each device"


@dataclass(frozen=True)
class Fastest:
    """The fastest way to one problem on so many devices, beside the best of the other modes."""

    first: Timing
    second: Timing | None  # the best of the other modes, or settings where there is one mode; None if no other was measured
    ratio: float | None  # second over first
    ratio_low: float | None
    ratio_high: float | None
    by_hand: float | None  # first over the hand-written derivative, where that was measured

    others: tuple[Timing, ...] = ()  # of the same problem, but no rivals: written by hand, or by another system

    @property
    def empty(self) -> bool:
        """Return whether the first is not distinguishable from an empty call, so that no mode is the fastest."""
        return certainty.is_empty_call(self.first)

    @property
    def distinguished(self) -> bool:
        """Return whether the interval of the ratio excludes 1, and the first is more than an empty call."""
        return self.ratio_low is not None and self.ratio_low > 1 and not self.empty

    @property
    def doubts(self) -> tuple[str, ...]:
        """Return what speaks against calling the first surely the fastest, in words."""
        if self.second is None:
            return ()
        wide = () if is_ratio_determined(self.ratio_low, self.ratio_high) else ("the ratio is not determined",)
        return (*certainty.doubts(self.first, self.second), *wide)

    @property
    def sure(self) -> bool:
        """Return whether the two are distinguished and nothing speaks against calling it so."""
        return self.distinguished and not self.doubts


@dataclass(frozen=True)
class Panel:
    """Time against one size, a line for each mode; everything else is the same."""

    case: Case  # that of the largest size
    environment: str
    honest: bool
    swept: str  # such as "m", or "points = m" where both move together
    held: str  # the other sizes, such as "points=6 o=2"
    lines: Mapping[Method, tuple[tuple[int, Timing], ...]]  # way -> (size, timing), sorted by size


def pooled(records: Iterable[Record]) -> list[Timing]:
    """Every measured case once for each environment, of all its processes, the dishonest ones too; sorted."""
    groups: dict[tuple[str, str, bool], list[Record]] = {}
    for record in latest(records):
        if record.status == "ok":
            groups.setdefault((record.setting, record.key, record.honest), []).append(record)
    return sorted((Timing(tuple(group), ratios.median(group), ratios.interval(group)) for group in groups.values()), key=_order)


def _order(timing: Timing) -> tuple:
    case = timing.case
    names = (case.workload, case.target, case.variant, case.wrt, case.reduce, case.dtype, case.formulation)
    how = (case.engine, case.mode, case.batch, case.seeds, case.forward or "", case.split, case.api, case.precision, case.jit)
    setting = [(isinstance(value, str), value) for value in ((getattr(case, name) or 0) for name in SETTINGS)]  # all before auto
    cut = (case.devices, case.overlap, case.axes)
    sizes = (list(case.sizes.items()), case.points, case.data_seed)
    return (timing.environment, [name or "" for name in names], *sizes, how, setting, *cut, timing.honest)


def family(case: Case) -> tuple:
    """What is computed, whatever its size."""
    return case.workload, case.target, case.variant, case.wrt, case.reduce, case.dtype, case.precision, case.data_seed


def volume(case: Case) -> int:
    """The product of the points and every size: which of two problems of a family is the larger."""
    return case.points * math.prod(case.sizes.values())


def family_name(case: Case) -> str:
    """What is computed, in words, whatever its size."""
    words = [case.workload, case.target, case.variant, case.wrt and f"by {case.wrt}", case.reduce and f"reduce={case.reduce}"]
    words.append("" if case.dtype == "float32" else case.dtype)
    words.append("" if case.precision == "highest" else f"{case.precision} precision")
    return " ".join(str(word) for word in words if word)


def size_name(case: Case) -> str:
    """How large it is, in words."""
    seed = [f"seed={case.data_seed}"] if case.data_seed else []
    return " ".join([*(f"{name}={size}" for name, size in case.sizes.items()), f"points={case.points}", *seed])


def baseline_name(devices: int) -> str:
    """Return what a speed-up stands against, in words."""
    return "one device" if devices == 1 else count_of(devices, "device")


def relative_to(devices: int) -> str:
    """Return what must stand beside a speed-up that is not over one device; nothing where it is."""
    return "" if devices == 1 else f" relative to {baseline_name(devices)}"


def curves(records: Iterable[Record], scaling: Sequence[str] = ("strong",)) -> list[Curve]:
    """The curves of these kinds, each within one environment; dishonest records and refused weak series are left out."""
    timings = [timing for timing in pooled(records) if timing.honest]
    plain = _best_plain(timings)
    series = {kind: _series(timings, kind) if kind in scaling else [] for kind in KINDS}
    if len(scaling) > 1:  # where both are asked for, a series of one device count is but a point of one of the other kind
        series["weak"] = [s for s in series["weak"] if len(s) > 1]
        growing = {(t.environment, t.case) for s in series["weak"] for t in s if t.case.devices > 1}
        series["strong"] = [s for s in series["strong"] if len(s) > 1 or (s[0].environment, s[0].case) not in growing]
    series["weak"] = [s for s in series["weak"] if _unequal_work(s) is None]
    return [_curve(kind, s, plain) for kind in KINDS for s in series[kind]]


def weak_refusals(records: Iterable[Record]) -> list[str]:
    """A sentence for each series that grows with its devices but may not be called weak: which one, and why, with numbers."""
    timings = [timing for timing in pooled(records) if timing.honest]
    told = []
    for series in _series(timings, "weak"):
        if why := _unequal_work(series):
            told.append(f"Not weak scaling: {_name('weak', series[0].case)}: {why}.")
    return told


def _series(timings: Iterable[Timing], kind: str) -> list[list[Timing]]:
    """Timings that belong to one curve, sorted by devices; of several meshes on as many the fastest."""
    groups: dict[tuple[str, Case], list[Timing]] = {}
    for timing in timings:
        case = timing.case
        share, left = (case.points, 0) if kind == "strong" else divmod(case.points, case.devices)
        if not left:
            stem = dataclasses.replace(case, devices=1, points=share, mesh=None)
            groups.setdefault((timing.environment, stem), []).append(timing)
    return [sorted(fastest_meshes(group), key=lambda timing: timing.case.devices) for group in groups.values()]


def fastest_meshes(timings: Iterable[Timing]) -> list[Timing]:
    """The same, less those that another mesh of as many devices is faster than."""
    best: dict[tuple[str, bool, Case], Timing] = {}
    for timing in timings:
        of = (timing.environment, timing.honest, dataclasses.replace(timing.case, mesh=None))
        best[of] = min(best.get(of, timing), timing, key=lambda each: each.median)
    return list(best.values())


def _unequal_work(series: Sequence[Timing]) -> str | None:
    """Why a series may not be called weak; None if operations and compulsory bytes per device are constant (law 8)."""
    if len(series) < 2:
        return None
    for name, of in (("flops", "flops"), ("compulsory_bytes", "compulsory")):
        counts = [(t.case.devices, getattr(record, of)) for t in series for record in t.records]
        if unknown := sorted({devices for devices, count in counts if count is None}):
            return (
                f"{name} per device were not counted on {', '.join(map(str, unknown))} devices, so constant work cannot be shown"
            )
        (least_on, least), (most_on, most) = min(counts, key=lambda c: c[1]), max(counts, key=lambda c: c[1])
        if most > least * (1 + _WORK_SPREAD):
            more = f", {most / least - 1:.1%} more" if least else ""
            name += derived(series) if of == "compulsory" else ""
            return f"{name} per device are {least:.6g} on {least_on} and {most:.6g} on {most_on} devices{more}; 1 % is allowed"
    return None


def derived(series: Iterable[Timing]) -> str:
    """Return in words whether compulsory bytes are derived, because a record was written before they were kept."""
    old = any(record.compulsory_bytes is None for timing in series for record in timing.records)
    return " (derived: argument_bytes + output_bytes)" if old else ""


def derived_words(series: Iterable[Timing]) -> str:
    """Return the same as a part of a sentence."""
    return f"; compulsory bytes{derived(series)}" if derived(series) else ""


def _best_plain(timings: Iterable[Timing]) -> dict[tuple, Timing]:
    """(environment, problem) -> the fastest plain jit program on one device. The hand-written derivative is no baseline."""
    best: dict[tuple, Timing] = {}
    for timing in timings:
        where = (timing.environment, problem(timing.case))
        case = timing.case
        if case.api == "jit" and case.devices == 1 and not case.ad_mode.closed_form and case.engine == "jax":
            best[where] = min(best.get(where, timing), timing, key=lambda t: t.median)
    return best


def _curve(kind: str, series: Sequence[Timing], plain: Mapping[tuple, Timing]) -> Curve:
    case = dataclasses.replace(series[0].case, mesh=None)
    points = [_point(t, series[0], kind == "weak", plain.get((t.environment, problem(t.case)))) for t in series]
    return Curve(_name(kind, case), case, kind, series[0].environment, tuple(points), tuple(series))


def _name(kind: str, case: Case) -> str:
    mesh = " fastest mesh" if case.split == "both" else ""
    if kind == "strong":
        return label(case, ("devices", "mesh")) + mesh
    return f"{label(case, ('devices', 'mesh', 'points'))} points/device={case.points // case.devices}{mesh}"


def _point(timing: Timing, base: Timing, weak: bool, plain: Timing | None) -> CurvePoint:
    devices = timing.case.devices
    more = devices / base.case.devices
    ratio, low, high = _against(base, timing)
    jit = _against(plain, timing) if plain else (None, None, None)
    work = more if weak else 1.0  # that many times the work of the baseline was done
    speedup_low, speedup_high = (None if value is None else value * work for value in (low, high))
    efficiency_low, efficiency_high = (None if value is None else value * work / more for value in (low, high))
    return CurvePoint(
        devices=devices,
        points=timing.case.points,
        seconds=timing.median,
        low=timing.interval[0] if timing.interval else None,
        high=timing.interval[1] if timing.interval else None,
        samples=len(timing.seconds),
        baseline_devices=base.case.devices,
        speedup=ratio * work,
        speedup_low=speedup_low,
        speedup_high=speedup_high,
        efficiency=ratio * work / more,
        efficiency_low=efficiency_low,
        efficiency_high=efficiency_high,
        against_jit=jit[0],
        against_jit_low=jit[1],
        against_jit_high=jit[2],
    )


def _against(base: Timing, timing: Timing) -> tuple[float, float | None, float | None]:
    """How many times as fast as a baseline, with its interval; a program is its own baseline: 1 by definition, known exactly."""
    return (1.0, 1.0, 1.0) if base is timing else resampling.ratio(base.records, timing.records)


def ratio_of(top: Timing, bottom: Timing) -> tuple[float, float | None, float | None]:
    """How many times as long the top takes, with the 95 % interval; None where there are too few samples. See ratios.py."""
    found = ratios.ratio(top.records, bottom.records)
    return found.value, found.low, found.high


def fastest(records: Iterable[Record]) -> list[Fastest]:
    """JAX's fastest way to each problem on each number of devices, in each environment; the hand-written one does not compete."""
    groups: dict[tuple, list[Timing]] = {}
    for timing in pooled(records):
        if not timing.case.ad_mode.is_value:
            where = (timing.environment, timing.honest, problem(timing.case), timing.case.devices)
            groups.setdefault(where, []).append(timing)
    return [_fastest(rivals, group) for group in groups.values() if (rivals := [t for t in group if _competes(t.case)])]


def _competes(case: Case) -> bool:
    """Return whether a case may be the fastest: JAX's modes, less what is written by hand."""
    return case.engine == "jax" and not case.ad_mode.closed_form


def _fastest(rivals: Sequence[Timing], group: Sequence[Timing]) -> Fastest:
    first = min(rivals, key=lambda t: t.median)
    own = method_of(first.case)
    others = [t for t in rivals if method_of(t.case).plain != own.plain] or [t for t in rivals if method_of(t.case) != own]
    second = min(others, key=lambda t: t.median, default=None)
    # Written by hand it may give the entries of a sparse derivative alone, or all of it: never one for the other.
    by_hand = (t for t in group if _by_hand(t.case) and t.case.seeds == first.case.seeds)
    hand = min((t.median for t in by_hand), default=None)
    ratio, low, high = ratio_of(second, first) if second else (None, None, None)
    return Fastest(
        first, second, ratio, low, high,
        by_hand=first.median / hand if hand else None, others=tuple(t for t in group if not _competes(t.case)),
    )  # fmt: skip


def _by_hand(case: Case) -> bool:
    return case.engine == "jax" and case.ad_mode.closed_form


def panels(records: Iterable[Record]) -> list[Panel]:
    """Time against size, for everything that was measured at two sizes or more."""
    groups: dict[tuple[str, bool, Case], list[Timing]] = {}
    for timing in fastest_meshes(pooled(records)):
        like = dataclasses.replace(timing.case, **Method("jacfwd", "vmap")._asdict(), points=1, sizes={}, mesh=None)
        groups.setdefault((timing.environment, timing.honest, like), []).append(timing)
    return [panel for group in groups.values() for panel in _panels(group)]


def _panels(group: Sequence[Timing]) -> list[Panel]:
    """The panels of timings that differ in mode and size alone: one size is swept, the others tell the panels apart."""
    made = []
    for swept, held, timings in sweeps(group, lambda timing: timing.case):
        largest = max(timings, key=lambda t: volume(t.case))
        case = dataclasses.replace(largest.case, mesh=None)
        made.append(Panel(case, largest.environment, largest.honest, swept.title, held, _lines(timings, swept.name)))
    return made


def _lines(timings: Sequence[Timing], name: str) -> dict[Method, tuple[tuple[int, Timing], ...]]:
    ways: dict[Method, list[tuple[int, Timing]]] = {}
    for timing in sorted(timings, key=lambda t: numbers(t.case)[name]):
        ways.setdefault(method_of(timing.case), []).append((numbers(timing.case)[name], timing))
    return {way: tuple(rows) for way, rows in sorted(ways.items(), key=lambda line: line[0].name)}
