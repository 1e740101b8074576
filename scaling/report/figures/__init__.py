"""Figures of the report in the order of the page, and the file names of current and former figures."""

from scaling.analysis.findings import Findings
from scaling.report.figures import costs, over_devices, over_sizes
from scaling.report.figures.marks import Figure
from scaling.report.text import file_stems

NAMES = (
    "devices", "scaling-strong", "scaling-weak", "mesh", "crossover", "size", "losses", "roofline", "memory",
)  # fmt: skip
FOR_HARDWARE = ("plan-", "score-")  # prefixes of figure names that end with the hardware
FORMER_NAMES = ("front", "compile")  # figures of earlier versions, whose files are removed


def make_figures(findings: Findings) -> list[Figure]:
    """Return the figures of a report in the order of the page. Figures without data are omitted."""
    plan_stems = file_stems(each.hardware for each in findings.forecasts)
    score_stems = file_stems(each.hardware for each in findings.plan_scores)
    figures = [
        over_devices.draw_times(findings),
        *(
            over_devices.draw_plan(each, plan_stems[each.hardware], findings.curves)
            for each in findings.forecasts
        ),
        over_devices.draw_scaling("strong", findings),
        over_devices.draw_scaling("weak", findings),
        over_devices.draw_meshes(findings),
        over_sizes.draw_crossover(findings),
        over_sizes.draw_sizes(findings),
        costs.draw_losses(findings),
        costs.draw_rooflines(findings),
        costs.draw_memory(findings),
        *(costs.draw_scores(each, score_stems[each.hardware]) for each in findings.plan_scores),
    ]
    return [figure for figure in figures if figure]
