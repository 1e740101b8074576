"""Define `Forecast` (planned cases, predicted curves), and the errors of predicted times (`PlanScore`)."""

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from scaling.analysis.curves import Curve, build_curve, requested_kinds, select_series
from scaling.analysis.estimate import Estimate
from scaling.analysis.timings import Timing, significant_floor
from scaling.core.grouping import group_by
from scaling.core.record import Record
from scaling.results.store import keep_newest_environments, latest_records, sort_by_start


@dataclass(frozen=True)
class Forecast:
    """The planned cases and the predicted scaling curves for one type of hardware."""

    hardware: str  # short name, such as 'a100'
    title: str  # full name, such as 'NVIDIA A100'
    records: tuple[Record, ...]
    curves: tuple[Curve, ...]  # predicted curves; each timing contains the record of the plan


def forecasts(plans: Iterable[Record], plan_files: Mapping[str, Any]) -> list[Forecast]:
    """Return a `Forecast` for each type of hardware, from the newest plan of each workload.

    `plans` are the records of `scaling plan`. `plan_files` maps each hardware name to the content of its plan
    file, which may be invalid.
    """
    results = []
    by_hardware = group_by(latest_records(plans), lambda record: str(record.environment["hardware"]["name"]))
    for name, records in by_hardware.items():
        plan_file, newest = _mapping(plan_files.get(name)), keep_newest_environments(records)
        # All records of a plan have the same environment. The records of the newest plan come first.
        newest_start = {record.setting: record.started_at or "" for record in sort_by_start(newest)}
        newest.sort(key=lambda record: newest_start[record.setting], reverse=True)
        title = str(_mapping(plan_file.get("hardware")).get("title") or name)
        curves = tuple(_predicted_curves(newest, requested_kinds(plan_file)))
        results.append(Forecast(name, title, tuple(newest), curves))
    return results


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def keep_cases(forecast: Forecast, keys: Collection[str]) -> Forecast:
    """Return a copy of a forecast with only the cases whose keys are in `keys`."""
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


class PlanScore(NamedTuple):
    """The accuracy of the predicted times on one type of hardware, compared with the measured times."""

    hardware: str
    ratios: list[float]  # predicted time / measured time of each case
    coverage: float  # the fraction of the measured times within their predicted 95 % interval

    @property
    def error(self) -> float:
        """Return the median relative error of the predicted times, |predicted - measured| / measured."""
        return statistics.median(abs(ratio - 1) for ratio in self.ratios)


def plan_scores(plans: Iterable[Record], timings: Sequence[Timing]) -> list[PlanScore]:
    """Return a `PlanScore` for each type of hardware that has both predicted and measured times."""
    # Dispatch latency dominates times shorter than ten empty calls.
    reliable = [timing for timing in timings if timing.honest and significant_floor(timing) is None]
    newest_last, scores = sort_by_start(record for record in plans if record.predicted), []
    by_hardware = group_by(newest_last, lambda record: record.environment["hardware"]["name"])
    for hardware, records in by_hardware.items():
        planned = {(plan.key, plan.environment.get("device_kind")): plan.predicted for plan in records}
        case_keys = ((timing.case.key, timing.record.environment.get("device_kind")) for timing in reliable)
        matches = zip(reliable, map(planned.get, case_keys), strict=True)
        if pairs := [(timing.median, predicted) for timing, predicted in matches if predicted]:
            ratios = [predicted["seconds"] / seconds for seconds, predicted in pairs]
            covered = [predicted["low"] <= seconds <= predicted["high"] for seconds, predicted in pairs]
            scores.append(PlanScore(hardware, ratios, sum(covered) / len(covered)))
    return scores
