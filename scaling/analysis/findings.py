"""Findings: a results folder, read: the last word on each case, and everything that follows from it, as one value.

Knows which analysis there is, and the folder; not what is said or drawn of it.
"""

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling.analysis import curves as analysis
from scaling.analysis.baselines import Baseline, baselines
from scaling.analysis.colorings import ColoringGain, coloring_gains
from scaling.analysis.crossover import FastestModeMap, fastest_mode_maps
from scaling.analysis.curves import Curve, CurvePoint, Fastest, Panel, Timing
from scaling.analysis.efficiency_breakdown import EfficiencyBreakdown, efficiency_breakdowns
from scaling.analysis.forecast import Forecast, forecasts
from scaling.analysis.growth import SizeExponent, size_exponents
from scaling.analysis.meshes import Meshes, meshes
from scaling.analysis.overlaps import Overlap, overlaps
from scaling.analysis.pareto import ParetoFront, pareto_fronts
from scaling.analysis.scaling_fits import ScalingFit, fits
from scaling.analysis.score import PlanScores, scores
from scaling.core.case import Case, from_dict, label
from scaling.core.record import Record
from scaling.core.store import Loaded, latest, load, read_json, replicates_of, states


@dataclass(frozen=True)
class Findings:
    """A results folder, read: the last word on each case, and what follows from it."""

    name: str
    records: list[Record]
    damaged: list[str]
    missing: list[str]  # cases of the study without a record, each replicate counted
    timings: list[Timing]
    curves: list[Curve]
    fastest: list[Fastest]
    panels: list[Panel]
    maps: list[FastestModeMap]
    standings: list[Baseline]
    refusals: list[str]
    laws: list[tuple[Curve, tuple[ScalingFit, ...]]]  # of the curves with device counts enough
    losses: list[tuple[Curve, tuple[EfficiencyBreakdown, ...]]]  # of the curves that have one device and more
    growths: list[SizeExponent]
    fronts: list[ParetoFront]
    meshes: list[Meshes]
    overlaps: list[Overlap]
    colorings: list[ColoringGain]
    forecasts: list[Forecast]  # of each hardware that was planned for
    scores: list[PlanScores]  # of what was both planned and measured

    def places(self, timing: Timing) -> dict[str, CurvePoint]:
        """The places of a timing on curves of scaling, by their kind; none where a device had no core of its own."""
        return self.placed.get((timing.environment, timing.case), {}) if timing.honest else {}

    @functools.cached_property
    def placed(self) -> dict[tuple[str, Case], dict[str, CurvePoint]]:
        """(environment, case) -> its places on curves of scaling, by their kind."""
        places: dict[tuple[str, Case], dict[str, CurvePoint]] = {}
        for curve in self.curves:
            for point, timing in zip(curve.points, curve.timings, strict=True):
                places.setdefault((curve.environment, timing.case), {})[curve.kind] = point
        return places

    @functools.cached_property
    def environments(self) -> list[str]:
        """The digests, that of the first case started first."""
        return list(dict.fromkeys(r.setting for r in sorted(self.records, key=lambda r: r.started_at or "")))

    @functools.cached_property
    def mixed(self) -> bool:
        """Whether a workload was measured in more than one environment; two workloads may each have one of their own."""
        return len({(r.case.workload, r.setting) for r in self.records}) > len({r.case.workload for r in self.records})


def read(
    folder: Path,
    only: Collection[str] | None = None,
    unrecorded: Sequence[Record] = (),
    loaded: Loaded | None = None,
) -> Findings:
    """Return what a results folder says, of every environment in it or of these settings only.

    unrecorded: records of cases that jobs have lost and that are not in the folder yet. loaded: the records of the
    folder, where they have been loaded before.
    """
    loaded, study = loaded or load(folder), read_json(folder / "study.json")
    study = study if isinstance(study, dict) else {}
    scaling = _several(study.get("scaling"), analysis.KINDS) or ["strong"]
    records = [r for r in latest([*loaded.records, *unrecorded]) if only is None or r.setting in only]
    timings, studied = analysis.pooled(records), [r for r in records if r.case.kind == "case"]
    run, fastest = states(records), analysis.fastest(studied)
    cases = study.get("cases")
    cells = [cell for cell in cases if isinstance(cell, dict)] if isinstance(cases, list) else []
    curves, panels = analysis.curves(studied, scaling), analysis.panels(studied)
    ceilings = [timing for timing in timings if timing.case.kind == "ceiling"]
    return Findings(
        name=str(study.get("study") or folder.resolve().name),
        records=records,
        damaged=loaded.damaged,
        missing=[
            _planned(cell) + (f" replicate {number}" if number else "")
            for cell in cells
            for number in range(replicates_of(cell))
            if (str(cell.get("key")), number) not in run
        ],
        timings=timings,
        curves=curves,
        fastest=fastest,
        panels=panels,
        maps=fastest_mode_maps(fastest, timings),
        standings=baselines(timings),
        refusals=analysis.weak_refusals(studied) if "weak" in scaling else [],
        laws=[(curve, fitted) for curve in curves if (fitted := fits(curve))],
        losses=[(curve, lost) for curve in curves if (lost := efficiency_breakdowns(curve, ceilings))],
        growths=size_exponents(panels),
        fronts=pareto_fronts(studied),
        meshes=meshes(timings),
        overlaps=overlaps(timings),
        colorings=coloring_gains(timings),
        forecasts=forecasts(loaded.plans, _planned_for(folder)),
        scores=scores(loaded.plans, timings),
    )


def _planned_for(folder: Path) -> dict[str, Mapping[str, Any]]:
    """What the files of plans say, by hardware."""
    files = ((path.stem.removeprefix("plan-"), read_json(path)) for path in sorted(folder.glob("plan-*.json")))
    return {name: told for name, told in files if isinstance(told, Mapping)}


def _several(told: Any, known: Sequence[str]) -> list[str]:
    """The words among those that are known, of a list of them or of one alone; a file may hold anything."""
    words = told if isinstance(told, list) else [told]
    return [word for word in known if word in words]


def _planned(cell: Mapping[str, Any]) -> str:
    try:
        return label(from_dict(cell["case"]))
    except (KeyError, TypeError, ValueError):
        return str(cell.get("key"))


def marks(found: Findings, environment: str, honest: bool = True) -> str:
    """What must stand beside a number: which environment, where there are several, and whether it was oversubscribed."""
    words = [f"environment {environment}"] if found.mixed else []
    words += [] if honest else ["oversubscribed"]
    return f" [{', '.join(words)}]" if words else ""
