"""Collect the predictions of plans (`Forecast`), describe them in sentences, and score them (`PlanScore`)."""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from scaling.analysis.cases import OUT_OF_MEMORY_REASONS, size_name
from scaling.analysis.curves import Curve, build_curve, select_series, stated_kinds
from scaling.analysis.estimate import Estimate, format_percentage, format_ratio
from scaling.analysis.timings import Timing, format_time, least_time, near_floor, time_ratio
from scaling.core.case import label, problem
from scaling.core.formatting import (
    format_bytes,
    format_count,
    format_number,
)
from scaling.core.grouping import group_by
from scaling.core.record import Record
from scaling.results.store import keep_newest_environments, latest, sort_by_start

_HALF_EFFICIENCY = 0.5  # parallel efficiency below which more devices are not worthwhile
_ORDER_FACTOR = 2.0  # the order of two times is scored only if their measured ratio exceeds this


@dataclass(frozen=True)
class Forecast:
    """The planned cases and the predicted scaling curves for one type of hardware."""

    hardware: str  # short name, such as 'a100'
    title: str  # full name, such as 'NVIDIA A100'
    records: tuple[Record, ...]
    curves: tuple[Curve, ...]  # predicted curves; each timing contains the record of the plan


def forecasts(plans: Iterable[Record], files: Mapping[str, Any]) -> list[Forecast]:
    """Return the predictions for each type of hardware, from the newest plan of each workload.

    `files` maps each hardware name to the content of its plan file, which may be invalid.
    """
    results = []
    by_hardware = group_by(latest(plans), lambda record: str(record.environment["hardware"]["name"]))
    for name, records in by_hardware.items():
        plan_file, newest = _mapping(files.get(name)), keep_newest_environments(records)
        # All records of a plan have the same environment. The records of the newest plan come first.
        newest_start = {record.setting: record.started_at or "" for record in sort_by_start(newest)}
        newest.sort(key=lambda record: newest_start[record.setting], reverse=True)
        title = str(_mapping(plan_file.get("hardware")).get("title") or name)
        curves = tuple(_predicted_curves(newest, stated_kinds(plan_file)))
        results.append(Forecast(name, title, tuple(newest), curves))
    return results


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def keep_cases(forecast: Forecast, keys: Collection[str]) -> Forecast:
    """Return a forecast that contains only the cases with the given keys."""
    records = tuple(record for record in forecast.records if record.key in keys)
    kinds = list(dict.fromkeys(curve.kind for curve in forecast.curves))
    return replace(forecast, records=records, curves=tuple(_predicted_curves(records, kinds)))


def _predicted_curves(records: Sequence[Record], kinds: Sequence[str]) -> list[Curve]:
    timings = []
    for record in records:
        if (times := record.predicted) is not None:
            estimate = Estimate(times["seconds"], times["low"], times["high"])
            timings.append(Timing(record.case, record.setting, True, (record,), estimate))
    series = select_series(timings, kinds)
    return [build_curve(kind, curve_timings, {}) for kind, curve_timings in series]


def describe_plan(forecast: Forecast) -> str:
    """Return a sentence that states the number of planned cases, the hardware and the software versions."""
    count = Counter(record.status for record in forecast.records)
    unplanned = (f"{count[status]} {status}" for status in ("skipped", "failed") if count[status])
    counts = ", ".join([format_count(count["planned"], "case"), *unplanned])
    devices = sorted({record.case.devices for record in forecast.records})
    span = f"{devices[0]:,} to {devices[-1]:,} devices" if devices[1:] else format_count(devices[0], "device")
    environments = [record.environment for record in forecast.records]
    kinds = " or ".join(dict.fromkeys(str(environment.get("device_kind")) for environment in environments))
    versions = " or ".join(dict.fromkeys(map(_describe_versions, environments)))
    return f"{counts} on {span} of {kinds}, compiled with {versions}; times are predicted and not measured."


def _describe_versions(environment: Mapping[str, Any]) -> str:
    jax = (environment.get("versions") or {}).get("jax", "of an unknown version")
    versions = environment["hardware"] | {"JAX": jax}
    return ", ".join(f"{tool} {versions[tool]}" for tool in versions if tool not in ("name", "digest", "jax"))


def plan_answers(forecast: Forecast) -> list[str]:
    """Return sentences that state the predicted fastest method of each problem and the memory usage."""
    modes = (curve for curve in forecast.curves if not curve.case.ad_mode.closed_form)
    groups = group_by(modes, lambda curve: (curve.kind, problem(curve.program[1]))).values()
    return [*map(_describe_problem, groups), *_describe_memory(forecast)]


def _describe_problem(curves: Sequence[Curve]) -> str:
    timings = [timing for curve in curves for timing in curve.timings]
    fastest_on_most = min(timings, key=lambda timing: (-timing.case.devices, timing.median))
    curve = next(curve for curve in curves if fastest_on_most in curve.timings)
    size = size_name(curve.program[1])
    name = f"{curve.family} {size.replace('points=', 'points/device=') if curve.kind == 'weak' else size}"
    fastest = f"{_describe_fastest(timings, fastest_on_most, curve.kind)}; {_describe_half_efficiency(curve)}"
    return f"{name}: {fastest}."


def _describe_fastest(timings: Sequence[Timing], fastest_on_most: Timing, kind: str) -> str:
    fastest = fastest_on_most if kind == "weak" else min(timings, key=lambda timing: timing.median)
    text = f"{_describe_time(fastest)}, the fastest planned method"
    not_slower = [t for t in timings if t is not fastest and not time_ratio(t, fastest).above_one]
    on_as_many = least_time(t for t in not_slower if t.case.devices == fastest.case.devices)
    on_fewer = [t for t in not_slower if kind == "strong" and t.case.devices < fastest.case.devices]
    fewest = min(on_fewer, key=lambda timing: (timing.case.devices, timing.median), default=None)
    if names := [_describe_time(timing) for timing in (on_as_many, fewest) if timing]:
        text += f", not distinguished from {' or '.join(names)}"
    if fastest.case.devices < fastest_on_most.case.devices:
        text += f"; {_describe_time(fastest_on_most)}, the fastest on that number of devices"
    return text


def _describe_time(timing: Timing) -> str:
    return f"{timing.method.name} {format_time(timing)} on {timing.devices_text}"


def _describe_half_efficiency(curve: Curve) -> str:
    if len(curve.points) == 1:
        return "planned on no other number of devices"
    baseline, last = f"50 % of {curve.timings[0].devices_text}", curve.points[-1]
    for before, after in itertools.pairwise(curve.points):
        if after.efficiency.value < _HALF_EFFICIENCY:
            between = f"between {before.devices:,} and {after.devices:,} devices"
            efficiency = format_ratio(*after.efficiency, sign="")
            return f"its efficiency falls under {baseline} {between}, where it is {efficiency}"
    efficiency = f"{format_ratio(*last.efficiency, sign='')} on {last.timing.devices_text}"
    return f"its efficiency is nowhere under {baseline}, and {efficiency}"


def _describe_memory(forecast: Forecast) -> list[str]:
    if too_large := [record for record in forecast.records if record.reason in OUT_OF_MEMORY_REASONS]:
        largest = max(too_large, key=lambda record: (record.case.devices, record.peak_bytes or 0))
        more = f"; {format_count(len(too_large), 'case')} do not fit in all" if len(too_large) > 1 else ""
        devices = format_count(largest.case.devices, "device")
        return [f"Out of memory on up to {devices}: {label(largest.case)}: {largest.text}{more}."]
    usages = [(r.peak_bytes or 0, r.capacity_bytes, r.case) for r in forecast.records if r.capacity_bytes]
    used, capacity, fullest = max(usages, key=lambda usage: usage[0] / usage[1], default=(0, 0, None))
    if not fullest or not used:
        return []
    share = f"{format_bytes(used)} of {format_bytes(capacity)} ({format_percentage(used / capacity)})"
    return [f"Every compiled case fits; the most memory takes {label(fullest)}: {share}."]


class PlanScore(NamedTuple):
    """The accuracy of the predicted times on one type of hardware, compared with the measured times."""

    hardware: str
    ratios: list[float]  # predicted time / measured time of each case
    coverage: float  # the fraction of the measured times within their predicted 95 % interval
    ordered: int  # number of comparable pairs whose order was predicted correctly
    comparable: int  # pairs of methods for one problem whose times differ by more than _ORDER_FACTOR

    @property
    def error(self) -> float:
        """Return the median relative error of the predicted times, |predicted - measured| / measured."""
        return statistics.median(abs(ratio - 1) for ratio in self.ratios)


def plan_scores(plans: Iterable[Record], timings: Sequence[Timing]) -> list[PlanScore]:
    """Return a score of the predicted times for each type of hardware that also has measured times."""
    # Dispatch latency dominates times shorter than ten empty calls.
    reliable = [timing for timing in timings if timing.honest and near_floor(timing) is None]
    newest_last, scores = sort_by_start(record for record in plans if record.predicted), []
    by_hardware = group_by(newest_last, lambda record: record.environment["hardware"]["name"])
    for hardware, records in by_hardware.items():
        planned = {(plan.key, plan.environment.get("device_kind")): plan.predicted for plan in records}
        case_keys = ((timing.case.key, timing.record.environment.get("device_kind")) for timing in reliable)
        matches = zip(reliable, map(planned.get, case_keys), strict=True)
        if pairs := [(timing, predicted) for timing, predicted in matches if predicted]:
            scores.append(_score_hardware(hardware, pairs))
    return scores


def _score_hardware(hardware: str, pairs: Sequence[tuple[Timing, Mapping[str, Any]]]) -> PlanScore:
    ratios = [predicted["seconds"] / timing.median for timing, predicted in pairs]
    is_covered = [predicted["low"] <= timing.median <= predicted["high"] for timing, predicted in pairs]
    is_ordered = [
        predicted_slow["seconds"] > predicted_fast["seconds"]
        for group in group_by(pairs, lambda pair: pair[0].comparison_key).values()
        for (slow, predicted_slow), (fast, predicted_fast) in itertools.permutations(group, 2)
        if slow.median > _ORDER_FACTOR * fast.median
    ]
    return PlanScore(hardware, ratios, sum(is_covered) / len(is_covered), sum(is_ordered), len(is_ordered))


def describe_score(score: PlanScore) -> list[str]:
    """Return sentences that state the errors of predicted times, and how often their order was correct."""
    worst = max(score.ratios, key=lambda ratio: abs(math.log(ratio)))
    sentences = [
        f"Predicted against measured on {score.hardware}: the median prediction is "
        f"{format_ratio(statistics.median(score.ratios))} what was measured, over "
        f"{format_count(len(score.ratios), 'case')}; the median error is {format_percentage(score.error)}, "
        f"the worst ratio {format_ratio(worst)}, and {format_percentage(score.coverage)} of the measured "
        "times lie in their predicted 95 % interval."
    ]
    if score.comparable:
        sentences.append(
            f"Of {format_count(score.comparable, 'pair')} of methods for one problem whose measured times "
            f"differ by more than a factor of {format_number(_ORDER_FACTOR)}, {score.ordered} "
            f"({format_percentage(score.ordered / score.comparable)}) were predicted in the right order."
        )
    return sentences
