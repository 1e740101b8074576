"""Figures: every figure that a results folder has data for, in the order of the page."""

from scaling.analysis.efficiency_breakdown import count_refused
from scaling.analysis.findings import Findings
from scaling.analysis.roofline import rooflines
from scaling.report.drawing import (
    compiling,
    crossover,
    efficiency,
    front,
    memory,
    mesh,
    plans,
    roofline,
    scaling,
    scores,
    sizes,
)
from scaling.report.drawing.sheet import Drawing
from scaling.report.labels import file_stems

ENDINGS = ("svg", "png", "pdf")
NAMES = (  # of all possible figures
    "scaling-strong", "scaling-weak", "mesh", "crossover", "size", "losses", "roofline", "memory", "front",
    "compile",
)  # fmt: skip
FOR_HARDWARE = ("plan-", "score-")  # prefixes of further names, which end with the hardware


def draw_figures(findings: Findings) -> list[Drawing]:
    """Return every figure that the findings have data for."""
    several = findings.has_mixed_environments
    timings = [timing for timing in findings.timings if timing.case.kind == "case"]
    planned, describe_score = (
        file_stems(each.hardware for each in findings.forecasts),
        file_stems(each.hardware for each in findings.plan_scores),
    )
    drawings = [
        *(plans.draw(each, planned[each.hardware], findings.curves) for each in findings.forecasts),
        *(scores.draw(each, describe_score[each.hardware]) for each in findings.plan_scores),
        scaling.draw("strong", findings.curves, findings.scaling_fits, several),
        scaling.draw("weak", findings.curves, findings.scaling_fits, several),
        mesh.draw(findings.mesh_comparisons, several),
        crossover.draw(findings.fastest_mode_maps, several),
        sizes.draw(findings.size_sweeps, findings.size_exponents, several),
        efficiency.draw(findings.efficiency_breakdowns, several, sum(map(count_refused, findings.curves))),
        roofline.draw(rooflines(findings.timings), several),
        memory.draw(timings, several),
        front.draw(findings.pareto_fronts, several),
        compiling.draw(timings, several),
    ]
    return [drawing for drawing in drawings if drawing]
