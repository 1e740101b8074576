"""Predicted times and scaling curves of a plan (class Forecast), and sentences that summarize them."""

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling.analysis.cases import group_by, least_by, size_name, stem
from scaling.analysis.curves import Program, stated_kinds
from scaling.analysis.estimate import format_percentage
from scaling.core.case import label, problem
from scaling.core.formatting import count_of, format_bytes, format_duration, format_interval, format_number
from scaling.core.record import Record
from scaling.core.store import latest

_INTERVAL_PERCENTILES = (2.5, 97.5)
_HALF_EFFICIENCY = 0.5  # parallel efficiency below which more devices are not worthwhile
_TIME_FACTOR = 2.0  # default deadline, as a multiple of the least predicted time
# Properties of an environment that are equal for all cases of one plan.
_PLAN_FACTS = ("hardware", "versions", "source", "xla_flags")


@dataclass(frozen=True)
class PredictedPoint:
    """The time and efficiency predicted for one device count of a scaling curve, with 95 % intervals."""

    record: Record
    efficiency: float  # relative to the smallest planned device count
    efficiency_interval: tuple[float, float] | None  # None if it is unknown

    @property
    def devices(self) -> int:
        """Return the device count."""
        return self.record.case.devices

    @property
    def seconds(self) -> float:
        """Return the median predicted time of a call."""
        return _predicted_seconds(self.record)

    @property
    def interval(self) -> tuple[float, float]:
        """Return the 95 % interval of the predicted time, in seconds."""
        predicted = self.record.predicted or {}
        return predicted["low"], predicted["high"]

    @property
    def by_formula(self) -> bool:
        """Return whether the time is extrapolated, without a program compiled for it."""
        return (self.record.predicted or {})["by"] == "formula"


@dataclass(frozen=True)
class PredictedCurve(Program):
    """A scaling curve predicted by a plan: times against the number of devices."""

    points: tuple[PredictedPoint, ...]


@dataclass(frozen=True)
class Forecast:
    """All planned cases and predicted scaling curves for one type of hardware."""

    hardware: str
    title: str
    price: float | None  # price of one device for one hour
    records: tuple[Record, ...]
    curves: tuple[PredictedCurve, ...]


def forecasts(plans: Iterable[Record], files: Mapping[str, Any]) -> list[Forecast]:
    """Return a Forecast for each type of hardware, from the records of planned cases.

    `files` maps each hardware name to the content of its plan file (plan-*.json), which is not validated.
    """
    results = []
    for name, records in group_by(latest(plans), lambda r: str(r.environment["hardware"]["name"])).items():
        content, newest = _mapping(files.get(name)), _newest_plan(records)
        facts, curves = _mapping(content.get("hardware")), _predicted_curves(newest, stated_kinds(content))
        price = facts.get("price") if isinstance(facts.get("price"), int | float) else None
        results.append(Forecast(name, str(facts.get("title") or name), price, tuple(newest), tuple(curves)))
    return results


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def keep_cases(forecast: Forecast, keys: Collection[str]) -> Forecast:
    """Return a copy of a forecast that contains only the cases with the given keys."""
    curves = [
        dataclasses.replace(curve, points=tuple(p for p in curve.points if p.record.key in keys))
        for curve in forecast.curves
    ]
    records = tuple(record for record in forecast.records if record.key in keys)
    return dataclasses.replace(forecast, records=records, curves=tuple(c for c in curves if c.points))


def _newest_plan(records: Sequence[Record]) -> list[Record]:
    """Return the records of the planned cases that belong to the newest plan.

    Workloads that are defined in separate files have separate environments. An environment belongs to the
    newest plan if it has the same hardware, versions, source and XLA flags as the newest record. For each
    workload, the newest such environment is selected.
    """
    facts = {record.setting: [record.environment.get(name) for name in _PLAN_FACTS] for record in records}
    newest = sorted(records, key=lambda record: record.started_at or "", reverse=True)
    chosen: dict[str, str] = {}  # workload -> environment
    for record in newest:
        if facts[record.setting] == facts[newest[0].setting]:
            chosen.setdefault(record.case.workload, record.setting)
    order = {setting: place for place, setting in enumerate(dict.fromkeys(r.setting for r in newest))}
    kept = (record for record in records if chosen.get(record.case.workload) == record.setting)
    return sorted(kept, key=lambda record: order[record.setting])


def _predicted_curves(records: Sequence[Record], kinds: Sequence[str]) -> list[PredictedCurve]:
    """Return the predicted curves of the given kinds of scaling, "strong" and "weak".

    A curve with a single device count is omitted if its case is also on another curve.
    """
    curves = [curve for kind in kinds for curve in _curves_of_kind(records, kind)]
    longer = {point.record.key for curve in curves if len(curve.points) > 1 for point in curve.points}
    return [
        curve
        for curve in curves
        if len(curve.points) > 1 or (curve.kind == kinds[0] and curve.points[0].record.key not in longer)
    ]


def _curves_of_kind(records: Iterable[Record], kind: str) -> list[PredictedCurve]:
    planned = (record for record in records if record.predicted is not None)
    whole = (r for r in planned if kind == "strong" or r.case.points % r.case.devices == 0)
    return [_build_curve(same, kind) for same in group_by(whole, lambda r: stem(r.case, kind)).values()]


def _build_curve(records: Iterable[Record], kind: str) -> PredictedCurve:
    best = least_by(records, lambda record: record.case.devices, _predicted_seconds)
    ordered = sorted(best.values(), key=lambda record: record.case.devices)
    base, points = ordered[0], []
    for record in ordered:
        scale = 1.0 if kind == "weak" else base.case.devices / record.case.devices
        efficiency = _predicted_seconds(base) / _predicted_seconds(record) * scale
        points.append(PredictedPoint(record, efficiency, _efficiency_interval(base, record, scale)))
    case = dataclasses.replace(base.case, mesh=None)
    return PredictedCurve(case, base.setting, base.honest, kind, tuple(points))


def _predicted_seconds(record: Record) -> float:
    return record.predicted["seconds"]  # type: ignore[index]


def _efficiency_interval(base: Record, record: Record, scale: float) -> tuple[float, float] | None:
    """Return the 95 % interval of a predicted efficiency, `scale` * (time of `base`) / (time of `record`).

    The i-th Monte Carlo samples of both times assume the same machine parameters. Return None if the records
    contain no samples, or unequal numbers of samples.
    """
    base_draws, draws = ((planned.predicted or {}).get("draws") or [] for planned in (base, record))
    if not base_draws or len(base_draws) != len(draws):
        return None
    low, high = np.percentile(np.divide(base_draws, draws) * scale, _INTERVAL_PERCENTILES)
    return float(low), float(high)


def describe_plan(forecast: Forecast) -> str:
    """Return a sentence on the planned cases: their number, device counts, hardware and software versions."""
    count = Counter(record.status for record in forecast.records)
    others = (f"{count[each]} {each}" for each in ("skipped", "failed") if count[each])
    became = ", ".join([count_of(count["planned"], "case"), *others])
    devices = sorted({record.case.devices for record in forecast.records})
    span = f"{devices[0]:,} to {devices[-1]:,} devices" if devices[1:] else count_of(devices[0], "device")
    environment = forecast.records[0].environment
    jax = (environment.get("versions") or {}).get("jax", "of an unknown version")
    tools = environment["hardware"] | {"JAX": jax}
    versions = ", ".join(f"{tool} {tools[tool]}" for tool in tools if tool not in ("name", "digest", "jax"))
    return (
        f"{became} on {span} of {environment.get('device_kind')}, compiled with {versions}; "
        "times are predicted and not measured."
    )


_Row = tuple[PredictedCurve, PredictedPoint]


def plan_answers(forecast: Forecast, deadline: float | None = None) -> list[str]:
    """Return sentences on the fastest method, efficiency, cheapest device count and memory of a plan.

    `deadline` is the longest allowed time of a call in seconds, by default twice the least predicted time.
    """
    modes = (curve for curve in forecast.curves if not curve.case.ad_mode.closed_form)
    groups = group_by(modes, lambda curve: (curve.kind, problem(curve.program[1]))).values()
    sentences = [line for curves in groups for line in _describe_problem(curves, forecast, deadline)]
    return [*sentences, *_describe_memory(forecast), *_describe_formula(forecast)]


def _describe_problem(
    curves: Sequence[PredictedCurve], forecast: Forecast, deadline: float | None
) -> list[str]:
    rows = [(curve, point) for curve in curves for point in curve.points]
    last = min(rows, key=lambda row: (-row[1].devices, row[1].seconds))
    best, size = last[0], size_name(last[0].program[1])
    size = size.replace("points=", "points/device=") if best.kind == "weak" else size
    what = f"{best.family} {size}"
    fastest = f"{_describe_fastest(rows, last)}; {_describe_half_efficiency(best)}"
    return [f"{what}: {fastest}.", f"{what}: {_describe_cheapest(rows, forecast.price, deadline)}."]


def _describe_cheapest(rows: Sequence[_Row], price: float | None, deadline: float | None) -> str:
    limit = deadline or _TIME_FACTOR * min(point.seconds for _, point in rows)
    # A given deadline applies to the upper limit of the predicted interval.
    in_time = [row for row in rows if (row[1].interval[1] if deadline else row[1].seconds) <= limit]
    if not in_time:
        return (
            f"nothing planned is within the deadline of {format_duration(limit)} by the end of its interval"
        )
    cheapest, point = min(in_time, key=lambda row: row[1].seconds * row[1].devices)
    hours, low, high = (seconds * point.devices / 3600 * 1e6 for seconds in (point.seconds, *point.interval))
    cost = f"{format_number(hours)}{format_interval(low, high)} device-hours for a million calls"
    cost += f", {format_number(hours * price)} at the price given" if price else ""
    within = "a deadline of {}" if deadline else "twice the least time ({})"
    name = f"{cheapest.method.name} on {count_of(point.devices, 'device')}"
    return f"within {within.format(format_duration(limit))} the cheapest is {name}: {cost}"


def _describe_fastest(rows: Sequence[_Row], last: _Row) -> str:
    if last[0].kind == "weak":
        return f"{_describe_point(*last)}, the fastest planned method"
    first = min(rows, key=lambda row: row[1].seconds)
    text = f"{_describe_point(*first)}, the fastest planned method"
    if ties := [row for row in rows if row[1].devices < first[1].devices and _is_tied(first[1], row[1])]:
        fewest = min(ties, key=lambda row: (row[1].devices, row[1].seconds))
        text += f", not distinguished from {_describe_point(*fewest)}"
    if first[1].devices < last[1].devices:
        text += f"; {_describe_point(*last)}, the fastest on as many devices"
    return text


def _describe_point(curve: PredictedCurve, point: PredictedPoint) -> str:
    time, where = format_duration(point.seconds, *point.interval), count_of(point.devices, "device")
    return f"{curve.method.name} {time} on {where}"


def _is_tied(one: PredictedPoint, other: PredictedPoint) -> bool:
    """Return whether the 95 % interval of the ratio of two predicted times includes 1.

    If it is unknown, return whether each time lies in the interval of the other.
    """
    if interval := _efficiency_interval(one.record, other.record, 1.0):
        return interval[0] <= 1 <= interval[1]
    (low, high), (least, most) = one.interval, other.interval
    return low <= other.seconds <= high and least <= one.seconds <= most


def format_efficiency(point: PredictedPoint) -> str:
    """Return a predicted efficiency with its interval as text, such as '87 %, 80 % to 92 %'."""
    ends = " to ".join(map(format_percentage, point.efficiency_interval or ()))
    return f"{format_percentage(point.efficiency)}{', ' if ends else ''}{ends}"


def _describe_half_efficiency(curve: PredictedCurve) -> str:
    if len(curve.points) == 1:
        return "planned on no other number of devices"
    against = f"of {count_of(curve.points[0].devices, 'device')}"
    below = next((point for point in curve.points if point.efficiency < _HALF_EFFICIENCY), None)
    if below is None:
        return (
            f"its efficiency is {format_efficiency(curve.points[-1])} {against} there, and nowhere under 50 %"
        )
    above = max(point.devices for point in curve.points if point.devices < below.devices)
    between = f"between {above:,} and {below.devices:,} devices ({format_efficiency(below)} there)"
    return f"its efficiency falls under 50 % {against} {between}"


def _describe_memory(forecast: Forecast) -> list[str]:
    if too_large := [record for record in forecast.records if record.reason == "too_large"]:
        first = max(too_large, key=lambda record: (record.case.devices, record.peak_bytes or 0))
        more = f"; {count_of(len(too_large), 'case')} do not fit in all" if len(too_large) > 1 else ""
        return [f"First to run out of memory: {label(first.case)}: {first.text}{more}."]
    known = [
        (r.peak_bytes, r.capacity_bytes, r.case)
        for r in forecast.records
        if r.peak_bytes and r.capacity_bytes
    ]
    if not known:
        return []
    used, capacity, fullest = max(known, key=lambda row: row[0] / row[1])
    share = f"{format_bytes(used)} of {format_bytes(capacity)} ({format_percentage(used / capacity)})"
    return [f"Everything fits; the most memory takes {label(fullest)}: {share}."]


def _describe_formula(forecast: Forecast) -> list[str]:
    points = [point for curve in forecast.curves for point in curve.points]
    compiled, formula = ([p.devices for p in points if p.by_formula is by] for by in (False, True))
    if not formula:
        return []
    beyond = f"beyond, from {min(formula):,} devices on, communication and waiting are formula alone"
    return [f"Up to {max(compiled, default=0):,} devices programs were compiled; {beyond}."]
