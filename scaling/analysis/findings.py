"""Class Findings: the records of a results folder, and all curves, fits and comparisons derived from them."""

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling.analysis import curves as analysis
from scaling.analysis.baselines import Baseline, EfficiencyBreakdown, efficiency_breakdowns, find_baselines
from scaling.analysis.cases import stem
from scaling.analysis.crossover import FastestMethod, FastestModeMap, fastest_methods, fastest_mode_maps
from scaling.analysis.curves import Curve, CurvePoint
from scaling.analysis.forecast import Forecast, PlanScores, forecasts, plan_scores
from scaling.analysis.growth import SizeExponent, SizeSweep, size_exponents, size_sweeps
from scaling.analysis.scaling_fits import ScalingFit, fit_laws
from scaling.analysis.setting_comparison import (
    OUT_OF_MEMORY_REASONS,
    Gain,
    ParetoFront,
    SettingComparison,
    coloring_gains,
    compare_settings,
    pareto_fronts,
)
from scaling.analysis.timings import Timing, nodes_of, pool_processes
from scaling.core.case import Case, from_dict, label
from scaling.core.record import Record
from scaling.results.store import Loaded, latest, load, read_json, replicates_of, states

EFFICIENCY = 0.5  # default of `Findings.efficiency`


@dataclass(frozen=True)
class Findings:
    """The newest record of each case of a results folder, and all results derived from these records."""

    name: str
    records: list[Record]
    damaged: list[str]  # lines that cannot be read, as "file:line: reason"
    missing: list[str]  # labels of the cases of the study that have no record, one per replicate
    timings: list[Timing]
    curves: list[Curve]
    fastest: list[FastestMethod]
    size_sweeps: list[SizeSweep]
    fastest_mode_maps: list[FastestModeMap]
    baselines: list[Baseline]
    weak_refusals: list[str]
    scaling_fits: list[tuple[Curve, tuple[ScalingFit, ...]]]  # only curves with enough device counts
    # Only curves with a breakdown on at least one device count.
    efficiency_breakdowns: list[tuple[Curve, tuple[EfficiencyBreakdown, ...]]]
    size_exponents: list[SizeExponent]
    pareto_fronts: list[ParetoFront]
    mesh_comparisons: list[SettingComparison]
    forward_comparisons: list[SettingComparison]  # of the forward-mode inputs of mode=mixed
    overlaps: list[SettingComparison]  # of programs with and without overlapped communication
    coloring_gains: list[Gain]
    forecasts: list[Forecast]  # one per planned hardware
    plan_scores: list[PlanScores]  # only cases that were both planned and measured
    efficiency: float = EFFICIENCY  # smallest acceptable parallel efficiency

    def points_of(self, timing: Timing) -> dict[str, CurvePoint]:
        """Return a dict from "strong" or "weak" to the CurvePoint of a timing on the curve of that kind.

        The dict is empty if the timing is on no curve, or if its devices shared CPU cores.
        """
        places = self.places_by_case.get((timing.environment, timing.case), {}) if timing.honest else {}
        return {kind: point for kind, (_, point) in places.items()}

    def place_of(self, timing: Timing) -> tuple[Curve, CurvePoint] | None:
        """Return the strong scaling curve that contains a timing, and its point there, or None."""
        places = self.places_by_case.get((timing.environment, timing.case), {}) if timing.honest else {}
        return places.get("strong")

    @functools.cached_property
    def places_by_case(self) -> dict[tuple[str, Case], dict[str, tuple[Curve, CurvePoint]]]:
        """Return a dict from (environment, case) to a dict from "strong" or "weak" to its curve and point."""
        places: dict[tuple[str, Case], dict[str, tuple[Curve, CurvePoint]]] = {}
        for curve in self.curves:
            for point, timing in zip(curve.points, curve.timings, strict=True):
                places.setdefault((curve.environment, timing.case), {})[curve.kind] = curve, point
        return places

    def too_large_on(self, timing: Timing, kind: str) -> int | None:
        """Return the smallest device count on which a scaling curve exceeds the memory, or None if none does.

        Args:
            timing: a timing of the curve.
            kind: "strong" or "weak".
        """
        same = timing.environment, stem(timing.case, kind)
        too_large = (record for record in self.records if record.reason in OUT_OF_MEMORY_REASONS)
        counts = (r.case.devices for r in too_large if (r.setting, stem(r.case, kind)) == same)
        return min(counts, default=None)

    @functools.cached_property
    def has_several_nodes(self) -> bool:
        """Return whether any case ran on more than one node."""
        return any((nodes_of(timing.records[0]) or 1) > 1 for timing in self.timings)

    @functools.cached_property
    def environments(self) -> list[str]:
        """Return the digests of the environments, ordered by the start of their first case."""
        return list(dict.fromkeys(r.setting for r in sorted(self.records, key=lambda r: r.started_at or "")))

    @functools.cached_property
    def has_mixed_environments(self) -> bool:
        """Return whether any workload was measured in more than one environment."""
        pairs = {(r.case.workload, r.setting) for r in self.records}
        return len(pairs) > len({workload for workload, _ in pairs})


def read(
    folder: Path,
    only: Collection[str] | None = None,
    unrecorded: Sequence[Record] = (),
    loaded: Loaded | None = None,
    efficiency: float = EFFICIENCY,
) -> Findings:
    """Return the newest records of a results folder, and all curves, fits and comparisons derived from them.

    Args:
        only: the digests of the environments to include. By default all are included.
        unrecorded: records of cases whose jobs were lost. They are not in the folder yet.
        loaded: the records of the folder, if they have already been loaded.
        efficiency: the smallest acceptable parallel efficiency.
    """
    loaded, study = loaded or load(folder), read_json(folder / "study.json")
    study = study if isinstance(study, dict) else {}
    kinds, cases = analysis.stated_kinds(study), study.get("cases")
    cells = [cell for cell in cases if isinstance(cell, dict)] if isinstance(cases, list) else []
    records = [r for r in latest([*loaded.records, *unrecorded]) if only is None or r.setting in only]
    timings, run = pool_processes(records), states(records)
    plan_files = {p.stem.removeprefix("plan-"): read_json(p) for p in sorted(folder.glob("plan-*.json"))}
    studied = [timing for timing in timings if timing.case.kind == "case"]
    fastest, sweeps = fastest_methods(studied), size_sweeps(studied)
    curves = analysis.scaling_curves(studied, kinds)
    peaks = [timing for timing in timings if timing.case.kind == "ceiling"]
    return Findings(
        name=str(study.get("study") or folder.resolve().name),
        records=records,
        damaged=loaded.damaged,
        missing=[
            _label_of_cell(cell) + (f" replicate {number}" if number else "")
            for cell in cells
            for number in range(replicates_of(cell))
            if (str(cell.get("key")), number) not in run
        ],
        timings=timings,
        curves=curves,
        fastest=fastest,
        size_sweeps=sweeps,
        fastest_mode_maps=fastest_mode_maps(fastest, timings),
        baselines=find_baselines(timings),
        weak_refusals=analysis.weak_refusals(studied) if "weak" in kinds else [],
        scaling_fits=[(curve, fits) for curve in curves if (fits := fit_laws(curve))],
        efficiency_breakdowns=[(c, parts) for c in curves if (parts := efficiency_breakdowns(c, peaks))],
        size_exponents=size_exponents(sweeps),
        pareto_fronts=pareto_fronts(studied, records),
        mesh_comparisons=compare_settings(timings, "mesh"),
        forward_comparisons=compare_settings(timings, "forward"),
        overlaps=compare_settings(timings, "overlap"),
        coloring_gains=coloring_gains(timings),
        forecasts=forecasts(loaded.plans, plan_files),
        plan_scores=plan_scores(loaded.plans, timings),
        efficiency=efficiency,
    )


def _label_of_cell(cell: Mapping[str, Any]) -> str:
    try:
        return label(from_dict(cell["case"]))
    except (KeyError, TypeError, ValueError):
        return str(cell.get("key"))


def describe_environment(findings: Findings, environment: str, honest: bool = True) -> str:
    """Return a suffix such as ' [environment 1a2b, oversubscribed]' for the text of a result.

    The environment is included if any workload was measured in several environments, and "oversubscribed" if
    `honest` is false. Otherwise the suffix is ''.
    """
    words = [f"environment {environment}"] if findings.has_mixed_environments else []
    words += [] if honest else ["oversubscribed"]
    return f" [{', '.join(words)}]" if words else ""
