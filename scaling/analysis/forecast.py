"""Forecast: what a plan says, as values and in words: predicted curves, what does not fit, which count is the cheapest.

Takes planned records; what the machine they are for is called and costs stands in the plan's own file. Does not know the model.
"""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling.analysis.curves import KINDS, family_name, size_name
from scaling.analysis.methods import method_of
from scaling.core.case import Case, label, problem
from scaling.core.formatting import count_of, format_bytes, format_duration, format_number, format_percentage
from scaling.core.record import Record
from scaling.core.store import latest

_LEVEL = (2.5, 97.5)  # per cent
_HALF = 0.5  # the efficiency under which another device is hardly worth it
_PATIENCE = 2.0  # without a deadline, the cheapest count is asked for within so many times the least time


@dataclass(frozen=True)
class Expected:
    """One device count of a predicted curve."""

    record: Record
    efficiency: float  # against the fewest devices that were planned
    around: tuple[float, float] | None = None  # 95 % of its draws, the same machines for both; None where they were not kept

    @property
    def devices(self) -> int:
        """How many."""
        return self.record.case.devices

    @property
    def seconds(self) -> float:
        """Of a call, the middle of the prediction."""
        return self.record.predicted["seconds"]  # type: ignore[index]

    @property
    def interval(self) -> tuple[float, float]:
        """95 % of the draws."""
        return self.record.predicted["low"], self.record.predicted["high"]  # type: ignore[index]

    @property
    def formula(self) -> bool:
        """Whether it is beyond the largest machine that was compiled for."""
        return self.record.predicted["by"] == "formula"  # type: ignore[index]


@dataclass(frozen=True)
class Predicted:
    """A curve of scaling as it is expected: plans that differ only in devices, or in devices with as many points for each."""

    name: str
    case: Case  # that of the fewest devices, without its mesh
    kind: str
    points: tuple[Expected, ...]


@dataclass(frozen=True)
class Forecast:
    """Everything that was planned for one hardware."""

    hardware: str
    title: str
    price: float | None  # of a device for an hour
    memory: float | None  # of a device
    records: tuple[Record, ...]
    curves: tuple[Predicted, ...]

    @property
    def too_large(self) -> list[Record]:
        """What does not fit."""
        return [record for record in self.records if record.reason == "too_large"]


def forecasts(plans: Iterable[Record], told: Mapping[str, Mapping[str, Any]]) -> list[Forecast]:
    """A forecast for each hardware. told: what the plan's own file says, by hardware."""
    by_hardware: dict[str, dict[str, list[Record]]] = {}
    for record in latest(plans):
        hardware = record.environment["hardware"]
        by_hardware.setdefault(str(hardware["name"]), {}).setdefault(record.setting, []).append(record)
    return [_forecast(name, _last(settings), told.get(name, {})) for name, settings in by_hardware.items()]


def only(forecast: Forecast, keys: Collection[str]) -> Forecast:
    """The same of these cases alone."""
    curves = (dataclasses.replace(c, points=tuple(p for p in c.points if p.record.key in keys)) for c in forecast.curves)
    records = tuple(record for record in forecast.records if record.key in keys)
    return dataclasses.replace(forecast, records=records, curves=tuple(curve for curve in curves if curve.points))


_OF_A_PLAN = ("hardware", "versions", "source", "xla_flags")  # of an environment: what all cases of one plan have in common


def _last(settings: Mapping[str, list[Record]]) -> list[Record]:
    """The records of the environment that was planned in last: versions, code, and what the hardware's file said.

    Workloads of one's own have environments of their own: of each the last that is otherwise the same.
    """
    newest = sorted(settings.values(), key=lambda records: max(record.started_at or "" for record in records), reverse=True)
    common = [newest[0][0].environment.get(name) for name in _OF_A_PLAN]
    seen: set[str] = set()
    kept: list[Record] = []
    for records in newest:
        fresh = {record.case.workload for record in records} - seen
        if [records[0].environment.get(name) for name in _OF_A_PLAN] == common:
            kept += [record for record in records if record.case.workload in fresh]
            seen |= fresh
    return kept


def _forecast(name: str, records: list[Record], told: Mapping[str, Any]) -> Forecast:
    hardware = told.get("hardware") if isinstance(told.get("hardware"), Mapping) else {}
    assert isinstance(hardware, Mapping)
    scaling = told.get("scaling")
    kinds = [kind for kind in KINDS if isinstance(scaling, list) and kind in scaling] or ["strong"]
    price, memory = hardware.get("price"), hardware.get("memory")
    return Forecast(
        name, str(hardware.get("title") or name), price if isinstance(price, int | float) else None,
        memory if isinstance(memory, int | float) else None, tuple(records), tuple(_of_kinds(records, kinds)),
    )  # fmt: skip


def _of_kinds(records: Sequence[Record], kinds: Sequence[str]) -> list[Predicted]:
    """The curves of each kind; a count alone is told only where it lies on no curve of the other."""
    curves = [curve for kind in kinds for curve in _curves(records, kind)]
    several = {point.record.key for curve in curves if len(curve.points) > 1 for point in curve.points}
    alone = {curve.points[0].record.key: curve for curve in reversed(curves) if len(curve.points) == 1}
    left = [curve for key, curve in alone.items() if key not in several]
    return [curve for curve in curves if len(curve.points) > 1 or any(curve is one for one in left)]


def _curves(records: Iterable[Record], kind: str) -> list[Predicted]:
    groups: dict[Case, list[Record]] = {}
    for record in records:
        case, left = record.case, 0
        if record.predicted is None:
            continue
        each = case.points
        if kind == "weak":
            each, left = divmod(case.points, case.devices)
        if not left:
            groups.setdefault(dataclasses.replace(case, devices=1, points=each, mesh=None), []).append(record)
    return [_curve(stem, some, kind) for stem, some in groups.items()]


def _curve(stem: Case, records: Iterable[Record], kind: str) -> Predicted:
    best: dict[int, Record] = {}  # of several meshes the fastest
    for record in records:
        devices = record.case.devices
        best[devices] = min(best.get(devices, record), record, key=lambda each: each.predicted["seconds"])  # type: ignore[index]
    ordered = [best[devices] for devices in sorted(best)]
    base = ordered[0]

    def efficiency(record: Record) -> Expected:
        scale = 1.0 if kind == "weak" else base.case.devices / record.case.devices
        gain = base.predicted["seconds"] / record.predicted["seconds"]  # type: ignore[index]
        return Expected(record, gain * scale, _around(base, record, scale))

    points = tuple(efficiency(record) for record in ordered)
    each = f" points/device={stem.points}" if kind == "weak" else ""
    name = label(stem, ("devices", "mesh", *(("points",) if kind == "weak" else ()))) + each
    return Predicted(name, dataclasses.replace(base.case, mesh=None), kind, points)


def _around(base: Record, record: Record, scale: float) -> tuple[float, float] | None:
    """The interval of an efficiency, from the same drawn machines on either side."""
    one, other = ((each.predicted or {}).get("draws") or [] for each in (base, record))
    if not one or len(one) != len(other):
        return None
    low, high = np.percentile(np.divide(one, other) * scale, _LEVEL)
    return float(low), float(high)


def answers(forecast: Forecast, deadline: float | None = None) -> list[str]:
    """What one asks a plan, in sentences: when more devices stop to pay, what does not fit, what is the cheapest."""
    groups: dict[tuple, list[Predicted]] = {}
    for curve in [curve for curve in forecast.curves if not curve.case.ad_mode.closed_form]:  # by hand it competes with no mode
        groups.setdefault((curve.kind, problem(_each(curve))), []).append(curve)
    told = [line for curves in groups.values() for line in _of_problem(curves, forecast, deadline)]
    return [*told, *_memory(forecast), *_formula(forecast)]


def _each(curve: Predicted) -> Case:
    """What every count of a curve has in common: of a weak one, the points of each device."""
    share = curve.case.devices if curve.kind == "weak" else 1
    return dataclasses.replace(curve.case, devices=1, points=curve.case.points // share)


def _of_problem(curves: Sequence[Predicted], forecast: Forecast, deadline: float | None) -> list[str]:
    """What is the fastest, when efficiency falls under a half on the most devices, and which count is the cheapest."""
    largest = max(point.devices for curve in curves for point in curve.points)
    ends = [(curve, curve.points[-1]) for curve in curves if curve.points[-1].devices == largest]
    best, _ = min(ends, key=lambda end: end[1].seconds)
    case, size = best.case, size_name(_each(best))
    what = f"{family_name(case)} {size.replace('points=', 'points/device=') if best.kind == 'weak' else size}"
    lines = [f"{what}: {_fastest(curves, best)}; {_halved(best)}."]
    least = min(point.seconds for curve in curves for point in curve.points)
    within = deadline or _PATIENCE * least
    # What must be in time is so by the upper end of its interval.
    soon = [(c, point) for c in curves for point in c.points if (point.interval[1] if deadline else point.seconds) <= within]
    if not soon:
        return [
            *lines,
            f"{what}: nothing planned is within the deadline of {format_duration(within)} by the end of its interval.",
        ]
    cheap, point = min(soon, key=lambda one: one[1].seconds * one[1].devices)
    hours, low, high = (seconds * point.devices / 3600 * 1e6 for seconds in (point.seconds, *point.interval))
    cost = f"{format_number(hours)} ({format_number(low)} to {format_number(high)}) device-hours for a million calls"
    cost += f", {format_number(hours * forecast.price)} at the price given" if forecast.price else ""
    under = f"a deadline of {format_duration(within)}" if deadline else f"twice the least time ({format_duration(within)})"
    return [
        *lines,
        f"{what}: within {under} the cheapest is {method_of(cheap.case).name} on {count_of(point.devices, 'device')}: {cost}.",
    ]


def _fastest(curves: Sequence[Predicted], most: Predicted) -> str:
    """The fastest of all counts, the fewest devices that are not distinguished from it, and the fastest on the most devices.

    With as many points for each device the counts do different work: then it is the fastest on the most devices alone.
    """
    if most.kind == "weak":
        return f"{_named(most, most.points[-1])}, the fastest planned way"
    rows = [(curve, point) for curve in curves for point in curve.points]
    first = min(rows, key=lambda row: row[1].seconds)
    ties = [row for row in rows if row[1].devices < first[1].devices and _tied(first[1], row[1])]
    text = f"{_named(*first)}, the fastest planned way"
    if ties:
        text += f", not distinguished from {_named(*min(ties, key=lambda row: (row[1].devices, row[1].seconds)))}"
    if first[1].devices < most.points[-1].devices:
        text += f"; {_named(most, most.points[-1])}, the fastest on so many"
    return text


def _named(curve: Predicted, point: Expected) -> str:
    """A way with its time and its devices, in words."""
    return (
        f"{method_of(curve.case).name} {format_duration(point.seconds, *point.interval)} on {count_of(point.devices, 'device')}"
    )


def _tied(one: Expected, other: Expected) -> bool:
    """Return whether two predictions are not distinguished: the interval of their ratio holds 1.

    The ratio is that of the same drawn machines. Without draws, each time must lie in the interval of the other.
    """
    if around := _around(one.record, other.record, 1.0):
        return around[0] <= 1 <= around[1]
    (low, high), (least, most) = one.interval, other.interval
    return low <= other.seconds <= high and least <= one.seconds <= most


def sure(point: Expected) -> str:
    """An efficiency with its interval, in words."""
    around = f", {format_percentage(point.around[0])} to {format_percentage(point.around[1])}" if point.around else ""
    return f"{format_percentage(point.efficiency)}{around}"


def _halved(curve: Predicted) -> str:
    """Between which counts efficiency falls under a half."""
    base = curve.points[0].devices
    against = f"of {count_of(base, 'device')}"
    below = next((point for point in curve.points if point.efficiency < _HALF), None)
    if len(curve.points) == 1:
        return "planned on no other number of devices"
    if below is None:
        last = curve.points[-1]
        return f"its efficiency is {sure(last)} {against} there, and nowhere under 50 %"
    above = max(point.devices for point in curve.points if point.devices < below.devices)
    between = f"between {above:,} and {below.devices:,} devices ({sure(below)} there)"
    return f"its efficiency falls under 50 % {against} {between}"


def _memory(forecast: Forecast) -> list[str]:
    """Which mode runs out of memory first, or how near the nearest comes to it."""
    if gone := forecast.too_large:
        first = max(gone, key=lambda record: (record.case.devices, record.peak_bytes or 0))
        more = f"; {count_of(len(gone), 'case')} do not fit in all" if len(gone) > 1 else ""
        return [f"First to run out of memory: {label(first.case)}: {first.text}{more}."]
    known = [record for record in forecast.records if record.peak_bytes and record.capacity_bytes]
    if not known:
        return []
    near = max(known, key=lambda record: record.peak_bytes / record.capacity_bytes)  # type: ignore[operator]
    taken, has = near.peak_bytes or 0, near.capacity_bytes or 1
    return [
        f"Everything fits; the most memory takes {label(near.case)}: {format_bytes(taken)} of {format_bytes(has)} ({format_percentage(taken / has)})."
    ]


def _formula(forecast: Forecast) -> list[str]:
    """Where compiled programs end and formula alone begins."""
    counts = {by: [p.devices for c in forecast.curves for p in c.points if p.formula is by] for by in (True, False)}
    if not counts[True]:
        return []
    most = max(counts[False], default=0)
    beyond = f"beyond, from {min(counts[True]):,} devices on, communication and waiting are formula alone"
    return [f"Up to {most:,} devices programs were compiled; {beyond}."]
