"""Figures of the report in the order of the page."""

from scaling.analysis.findings import Findings
from scaling.report.figures import over_devices, over_sizes
from scaling.report.figures.marks import Figure
from scaling.report.text import file_stems

NAMES = ("devices", "plan-*", "scaling-strong", "scaling-weak", "crossover", "size")


def make_figures(findings: Findings) -> list[Figure]:
    """Return the figures of a report in the order of the page. Figures without data are omitted."""
    stems = file_stems(each.hardware for each in findings.forecasts)
    figures = [
        over_devices.draw_times(findings),
        *(over_devices.draw_plan(f, stems[f.hardware], findings.curves) for f in findings.forecasts),
        over_devices.draw_scaling("strong", findings),
        over_devices.draw_scaling("weak", findings),
        over_sizes.draw_crossover(findings),
        over_sizes.draw_sizes(findings),
    ]
    return [figure for figure in figures if figure]
