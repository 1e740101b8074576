"""Read a results folder (`read`) as `Findings`: its records, timings, curves, rankings and missing cases."""

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling.analysis import curves, forecast, ranking, sweeps
from scaling.analysis.cases import OUT_OF_MEMORY_REASONS, Subject, curve_case, is_candidate, method_of
from scaling.analysis.curves import Curve, CurvePoint
from scaling.analysis.sweeps import FastestModeMap, SizeSweep
from scaling.analysis.timings import Timing, pool_processes
from scaling.core.case import Case, label, problem_fields
from scaling.core.grouping import group_by
from scaling.core.record import Record
from scaling.results import store

EFFICIENCY = 0.5  # default of `Findings.efficiency`


@dataclass(frozen=True, eq=False)
class Findings:
    """The records of a results folder, and the timings, curves and rankings derived from them."""

    name: str
    records: list[Record]
    damaged: list[str]  # lines that cannot be read, as "file:line: reason"
    timings: list[Timing]
    curves: list[Curve]
    fastest: list[ranking.Ranking]
    size_sweeps: list[SizeSweep]
    fastest_mode_maps: list[FastestModeMap]
    baselines: list[ranking.Baseline]
    weak_refusals: list[str]  # see `curves.scaling_curves`
    forecasts: list[forecast.Forecast]  # one per planned hardware
    plan_scores: list[forecast.PlanScore]  # one per planned hardware that was also measured
    efficiency: float  # smallest acceptable parallel efficiency
    study: store.Study
    plan_files: Mapping[str, Any]  # hardware -> content of its plan file, which may be invalid

    @functools.cached_property
    def curves_by_case(self) -> dict[tuple[str, bool, Case], dict[str, tuple[Curve, CurvePoint]]]:
        """Return a dict of the scaling curves that contain each measured case.

        A key consists of the environment, `Subject.honest` and the case. A value maps the kind of scaling,
        "strong" or "weak", to the curve and the point of the case on it.
        """
        pairs = [(curve, point) for curve in self.curves for point in curve.points]
        groups = group_by(pairs, lambda pair: (pair[0].environment, pair[0].honest, pair[1].timing.case))
        return {key: {pair[0].kind: pair for pair in group} for key, group in groups.items()}

    def too_large_on(self, curve: Curve) -> int | None:
        """Return the smallest device count on which the program of `curve` ran out of memory, or None."""
        return self._too_large_on.get((curve.environment, *curve.program))

    @functools.cached_property
    def _too_large_on(self) -> dict[tuple[str, str, Case], int]:
        too_large = (record for record in self.records if record.reason in OUT_OF_MEMORY_REASONS)
        return {
            (record.setting, kind, curve_case(record.case, kind)): record.case.devices
            # The smallest count comes last and replaces the others.
            for record in sorted(too_large, key=lambda record: -record.case.devices)
            for kind in curves.KINDS
            # Other cases are on no weak curve.
            if kind == "strong" or record.case.points % record.case.devices == 0
        }

    @functools.cached_property
    def newest_records(self) -> list[Record]:
        """Return the newest record of each replicate of each case, from any environment."""
        return list(store.newest_by_replicate(self.records).values())

    @functools.cached_property
    def missing(self) -> list[str]:
        """Return a label for each replicate of a case of the study that has no record."""
        recorded = {(record.key, record.replicate) for record in self.newest_records}
        return [
            label(case) + (f" replicate {number + 1}" if number else "")
            for key, (case, replicates) in self.study.cases.items()
            for number in range(replicates)
            if (key, number) not in recorded
        ]

    @functools.cached_property
    def case_timings(self) -> list[Timing]:
        """Return the timings of workloads, without the benchmarks of peak rates and latencies."""
        return [timing for timing in self.timings if timing.case.kind == "case"]

    @functools.cached_property
    def untimed_records(self) -> dict[tuple, list[Record]]:
        """Return the records of AD modes that have no time because they failed or ran out of memory.

        The keys of the dict consist of the environment, the problem and the number of devices.
        """
        timed = {(t.environment, problem_fields(t.case), t.case.devices, t.method) for t in self.case_timings}
        candidates = (record for record in self.newest_records if is_candidate(record.case))
        unmeasured = (r for r in candidates if r.status == "failed" or r.reason in OUT_OF_MEMORY_REASONS)
        groups = group_by(
            unmeasured, lambda record: (record.setting, problem_fields(record.case), record.case.devices)
        )
        return {
            key: [r for r in group if (*key, method_of(r.case)) not in timed] for key, group in groups.items()
        }

    @functools.cached_property
    def environments(self) -> list[str]:
        """Return the digests of all environments, in the order in which they were first used."""
        return list(dict.fromkeys(record.setting for record in store.sort_by_start(self.records)))

    @functools.cached_property
    def has_mixed_environments(self) -> bool:
        """Return whether any workload was measured in more than one environment."""
        pairs = {(record.case.workload, record.setting) for record in self.records}
        return len(pairs) > len({workload for workload, _ in pairs})

    def suffix(self, environment: str, honest: bool = True) -> str:
        """Return remarks to append to the name of a result, such as ' [environment 1a2b]', or ''.

        The environment is named if any workload was measured in several. If `honest` is false, the remarks
        contain 'unbound or oversubscribed'.
        """
        remarks = [f"environment {environment}"] if self.has_mixed_environments else []
        remarks += [] if honest else ["unbound or oversubscribed"]
        return f" [{', '.join(remarks)}]" if remarks else ""

    def problem_name(self, subject: Subject) -> str:
        """Return the name of a problem, such as 'mlp width=8 points=64 [unbound or oversubscribed]'."""
        return f"{subject.family} {subject.size}{self.suffix(subject.environment, subject.honest)}"


def read(
    folder: Path,
    only: Collection[str] | None = None,
    unrecorded: Sequence[Record] = (),
    loaded: store.Loaded | None = None,
    efficiency: float = EFFICIENCY,
) -> Findings:
    """Return the `Findings` of a results folder: its records, and all results that a report shows.

    `only` contains the digests of the environments to include, or is None for all. `unrecorded` contains
    records of cases that an ended job did not finish, which are in no file. `loaded` contains the records of
    the folder, or is None to load them. `efficiency` is the smallest acceptable parallel efficiency.
    """
    loaded = loaded or store.load(folder)
    current_records = store.current_records([*loaded.records, *unrecorded], folder)
    records = [record for record in current_records if only is None or record.setting in only]
    study = store.read_study(folder, records)
    timings = pool_processes(records)
    plan_paths = sorted(folder.glob("plan-*.json"))
    plan_files = {path.stem.removeprefix("plan-"): store.read_json(path) for path in plan_paths}
    studied = [timing for timing in timings if timing.case.kind == "case"]
    fastest = ranking.fastest_methods(studied)
    scaling_curves, weak_refusals = curves.scaling_curves(studied, curves.requested_kinds(study.content))
    return Findings(
        name=str(study.content.get("study") or folder.resolve().name),
        records=records,
        damaged=loaded.damaged,
        timings=timings,
        curves=scaling_curves,
        fastest=fastest,
        size_sweeps=sweeps.size_sweeps(studied),
        fastest_mode_maps=sweeps.fastest_mode_maps(fastest),
        baselines=ranking.find_baselines(timings),
        weak_refusals=weak_refusals,
        forecasts=forecast.forecasts(loaded.plans, plan_files),
        plan_scores=forecast.plan_scores(loaded.plans, timings),
        efficiency=efficiency,
        study=study,
        plan_files=plan_files,
    )
