"""Collect the predicted times and curves of a plan (`Forecast`), and write sentences about them."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling.analysis.cases import group_by, size_name
from scaling.analysis.curves import Curve, CurvePoint, build_curve, series_of_kind, stated_kinds
from scaling.analysis.estimate import Estimate, format_percentage
from scaling.analysis.setting_comparison import OUT_OF_MEMORY_REASONS
from scaling.analysis.timings import Timing, format_time
from scaling.core.case import label, problem
from scaling.core.formatting import count_of, format_bytes, format_duration, format_interval, format_number
from scaling.core.record import Record, is_number
from scaling.results.store import latest

_INTERVAL_PERCENTILES = (2.5, 97.5)
_HALF_EFFICIENCY = 0.5  # parallel efficiency below which more devices are not worthwhile
_DEADLINE_FACTOR = 2.0  # default deadline, as a multiple of the least predicted time
# Properties of an environment that are equal for all cases of one plan.
_PLAN_FACTS = ("hardware", "versions", "source", "xla_flags")


@dataclass(frozen=True)
class Forecast:
    """All planned cases and predicted scaling curves for one type of hardware."""

    hardware: str
    title: str
    price: float | None  # price of one device for one hour
    records: tuple[Record, ...]
    curves: tuple[Curve, ...]  # predicted curves; each timing contains the record of the plan


def forecasts(plans: Iterable[Record], files: Mapping[str, Any]) -> list[Forecast]:
    """Return a Forecast for each type of hardware, from the records of planned cases.

    `files` maps each hardware name to the unchecked content of its plan file (plan-*.json).
    """
    results = []
    for name, records in group_by(latest(plans), lambda r: str(r.environment["hardware"]["name"])).items():
        content, newest = _mapping(files.get(name)), _newest_plan(records)
        facts, curves = _mapping(content.get("hardware")), _predicted_curves(newest, stated_kinds(content))
        price = facts.get("price") if is_number(facts.get("price")) else None
        results.append(Forecast(name, str(facts.get("title") or name), price, tuple(newest), tuple(curves)))
    return results


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def keep_cases(forecast: Forecast, keys: Collection[str]) -> Forecast:
    """Return a copy of a forecast that contains only the cases with the given keys."""
    curves = []
    for curve in forecast.curves:
        if points := tuple(point for point in curve.points if point.timing.case.key in keys):
            curves.append(dataclasses.replace(curve, points=points))
    records = tuple(record for record in forecast.records if record.key in keys)
    return dataclasses.replace(forecast, records=records, curves=tuple(curves))


def _newest_plan(records: Sequence[Record]) -> list[Record]:
    """Return the records of the newest plan, grouped by environment, the newest environment first.

    A plan contains several environments if its workloads are in several files. For each workload, select the
    newest environment with the same hardware, versions, source and XLA flags as the newest record.
    """
    facts = {record.setting: [record.environment.get(name) for name in _PLAN_FACTS] for record in records}
    newest = sorted(records, key=lambda record: record.started_at or "", reverse=True)
    chosen: dict[str, str] = {}  # workload -> environment
    for record in newest:
        if facts[record.setting] == facts[newest[0].setting]:
            chosen.setdefault(record.case.workload, record.setting)
    settings = [record.setting for record in newest]
    selected = (record for record in records if chosen.get(record.case.workload) == record.setting)
    return sorted(selected, key=lambda record: settings.index(record.setting))


def _predicted_curves(records: Sequence[Record], kinds: Sequence[str]) -> list[Curve]:
    """Return the predicted scaling curves of the given kinds ("strong", "weak") for the records of a plan.

    A curve with one device count is omitted if its kind is not the first one, or if its case is also on a
    longer curve.
    """
    timings = [
        Timing(record.case, record.setting, True, (record,), times["seconds"], (times["low"], times["high"]))
        for record in records
        if (times := record.predicted) is not None
    ]
    series = [(kind, line) for kind in kinds for line in series_of_kind(timings, kind)]
    longer = {timing.case for _, line in series if len(line) > 1 for timing in line}
    return [
        build_curve(kind, line, _predicted_ratio, {})
        for kind, line in series
        if len(line) > 1 or (kind == kinds[0] and line[0].case not in longer)
    ]


def _predicted_ratio(top: Timing, bottom: Timing) -> Estimate:
    """Return the ratio of two predicted times, `top` divided by `bottom`, with its 95 % interval.

    The i-th Monte Carlo samples of both times assume the same machine parameters.
    """
    value = top.median / bottom.median
    above, below = ((timing.record.predicted or {}).get("draws") or [] for timing in (top, bottom))
    if not above or len(above) != len(below):
        return Estimate(value, None, None)
    low, high = np.percentile(np.divide(above, below), _INTERVAL_PERCENTILES)
    return Estimate(value, float(low), float(high))


def describe_plan(forecast: Forecast) -> str:
    """Return text on the planned cases: their number, device counts, hardware and software versions."""
    count = Counter(record.status for record in forecast.records)
    others = (f"{count[status]} {status}" for status in ("skipped", "failed") if count[status])
    counts = ", ".join([count_of(count["planned"], "case"), *others])
    devices = sorted({record.case.devices for record in forecast.records})
    span = f"{devices[0]:,} to {devices[-1]:,} devices" if devices[1:] else count_of(devices[0], "device")
    environment = forecast.records[0].environment
    jax = (environment.get("versions") or {}).get("jax", "of an unknown version")
    tools = environment["hardware"] | {"JAX": jax}
    versions = ", ".join(f"{tool} {tools[tool]}" for tool in tools if tool not in ("name", "digest", "jax"))
    text = f"{counts} on {span} of {environment.get('device_kind')}, compiled with {versions}"
    return f"{text}; times are predicted and not measured."


def plan_answers(forecast: Forecast, deadline: float | None = None) -> list[str]:
    """Return sentences on the fastest method, efficiency, cheapest device count and memory of a plan.

    `deadline` is the longest allowed time of a call in seconds, by default twice the shortest predicted time.
    """
    modes = (curve for curve in forecast.curves if not curve.case.ad_mode.closed_form)
    groups = group_by(modes, lambda curve: (curve.kind, problem(curve.program[1]))).values()
    sentences = [line for curves in groups for line in _describe_problem(curves, forecast, deadline)]
    return [*sentences, *_describe_memory(forecast)]


def _describe_problem(curves: Sequence[Curve], forecast: Forecast, deadline: float | None) -> list[str]:
    timings = [timing for curve in curves for timing in curve.timings]
    last = min(timings, key=lambda timing: (-timing.case.devices, timing.median))
    best = next(curve for curve in curves if last in curve.timings)
    size = size_name(best.program[1])
    name = f"{best.family} {size.replace('points=', 'points/device=') if best.kind == 'weak' else size}"
    fastest = f"{_describe_fastest(timings, last, best.kind)}; {_describe_half_efficiency(best)}"
    return [f"{name}: {fastest}.", f"{name}: {_describe_cheapest(timings, forecast.price, deadline)}."]


def _describe_cheapest(timings: Sequence[Timing], price: float | None, deadline: float | None) -> str:
    limit = deadline or _DEADLINE_FACTOR * min(timing.median for timing in timings)
    # A deadline of the user applies to the upper limit of the predicted interval.
    in_time = [t for t in timings if (t.interval[1] if deadline and t.interval else t.median) <= limit]
    limit_text = format_duration(limit)
    if not in_time:
        return f"nothing planned is within the deadline of {limit_text} by the end of its interval"
    cheapest = min(in_time, key=lambda timing: timing.median * timing.case.devices)
    hours, low, high = cheapest.estimate.scaled(cheapest.case.devices / 3600 * 1e6)
    cost = f"{format_number(hours)}{format_interval(low, high)} device-hours for a million calls"
    cost += f", {format_number(hours * price)} at the price given" if price else ""
    within = f"a deadline of {limit_text}" if deadline else f"twice the least time ({limit_text})"
    return f"within {within} the cheapest is {cheapest.method.name} on {cheapest.devices_text}: {cost}"


def _describe_fastest(timings: Sequence[Timing], last: Timing, kind: str) -> str:
    if kind == "weak":
        return f"{_describe_time(last)}, the fastest planned method"
    first = min(timings, key=lambda timing: timing.median)
    text = f"{_describe_time(first)}, the fastest planned method"
    if ties := [t for t in timings if t.case.devices < first.case.devices and _is_tied(first, t)]:
        fewest = min(ties, key=lambda timing: (timing.case.devices, timing.median))
        text += f", not distinguished from {_describe_time(fewest)}"
    if first.case.devices < last.case.devices:
        text += f"; {_describe_time(last)}, the fastest on as many devices"
    return text


def _describe_time(timing: Timing) -> str:
    return f"{timing.method.name} {format_time(timing)} on {timing.devices_text}"


def _is_tied(timing: Timing, other: Timing) -> bool:
    _, low, high = _predicted_ratio(timing, other)
    if low is not None and high is not None:
        return low <= 1 <= high
    pairs = ((timing.interval, other.median), (other.interval, timing.median))
    return all(interval and interval[0] <= seconds <= interval[1] for interval, seconds in pairs)


def format_efficiency(point: CurvePoint) -> str:
    """Return a predicted efficiency with its interval as text, such as '87 %, 80 % to 92 %'."""
    value, low, high = point.efficiency
    ends = "" if low is None or high is None else f", {format_percentage(low)} to {format_percentage(high)}"
    return format_percentage(value) + ends


def _describe_half_efficiency(curve: Curve) -> str:
    if len(curve.points) == 1:
        return "planned on no other number of devices"
    against = f"of {curve.timings[0].devices_text}"
    for above, below in itertools.pairwise(curve.points):
        if below.efficiency.value < _HALF_EFFICIENCY:
            between = f"between {above.devices:,} and {below.devices:,} devices"
            return f"its efficiency falls under 50 % {against} {between} ({format_efficiency(below)} there)"
    return f"its efficiency is {format_efficiency(curve.points[-1])} {against} there, and nowhere under 50 %"


def _describe_memory(forecast: Forecast) -> list[str]:
    if too_large := [record for record in forecast.records if record.reason in OUT_OF_MEMORY_REASONS]:
        first = max(too_large, key=lambda record: (record.case.devices, record.peak_bytes or 0))
        more = f"; {count_of(len(too_large), 'case')} do not fit in all" if len(too_large) > 1 else ""
        return [f"First to run out of memory: {label(first.case)}: {first.text}{more}."]
    usages = [(r.peak_bytes or 0, r.capacity_bytes, r.case) for r in forecast.records if r.capacity_bytes]
    used, capacity, fullest = max(usages, key=lambda row: row[0] / row[1], default=(0, 0, None))
    if not fullest or not used:
        return []
    share = f"{format_bytes(used)} of {format_bytes(capacity)} ({format_percentage(used / capacity)})"
    has_failures = any(record.status == "failed" for record in forecast.records)
    fitting = "Every case that did not fail" if has_failures else "Everything"
    return [f"{fitting} fits; the most memory takes {label(fullest)}: {share}."]
