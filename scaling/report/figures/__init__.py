"""Figures: every figure that a results folder has data for, in the order of the page."""

from scaling.analysis.baselines import rooflines
from scaling.analysis.efficiency_breakdown import count_refused
from scaling.analysis.findings import Findings
from scaling.report.figures import costs, devices, memory, plans, sizes
from scaling.report.figures.marks import Figure
from scaling.report.labels import file_stems

NAMES = (  # of all possible figures
    "devices", "scaling-strong", "scaling-weak", "mesh", "crossover", "size", "losses", "roofline", "memory",
    "front", "compile",
)  # fmt: skip
FOR_HARDWARE = ("plan-", "score-")  # prefixes of further names, which end with the hardware


def make_figures(findings: Findings) -> list[Figure]:
    """Return every figure that the findings have data for."""
    several, curves = findings.has_mixed_environments, findings.curves
    timings = [timing for timing in findings.timings if timing.case.kind == "case"]
    plan_stems = file_stems(each.hardware for each in findings.forecasts)
    score_stems = file_stems(each.hardware for each in findings.plan_scores)
    figures = [
        *(plans.draw_plan(each, plan_stems[each.hardware], curves) for each in findings.forecasts),
        *(plans.draw_scores(each, score_stems[each.hardware]) for each in findings.plan_scores),
        devices.draw_times(curves, several),
        devices.draw_scaling("strong", curves, findings.scaling_fits, several),
        devices.draw_scaling("weak", curves, findings.scaling_fits, several),
        devices.draw_meshes(findings.mesh_comparisons, several),
        sizes.draw_crossover(findings.fastest_mode_maps, several),
        sizes.draw_sizes(findings.size_sweeps, findings.size_exponents, several),
        costs.draw_losses(findings.efficiency_breakdowns, several, sum(map(count_refused, curves))),
        costs.draw_rooflines(rooflines(findings.timings), several),
        memory.draw_memory(timings, several),
        memory.draw_fronts(findings.pareto_fronts, several),
        costs.draw_compiling(timings, several),
    ]
    return [figure for figure in figures if figure]
