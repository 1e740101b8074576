"""Make all figures of a report (`make_figures`) with over_devices.py and over_sizes.py."""

from scaling.analysis.findings import Findings
from scaling.report.figures import over_devices, over_sizes
from scaling.report.figures.marks import Figure


def make_figures(findings: Findings) -> list[Figure]:
    """Return the figures of a report in the order of the HTML page. Figures without data are omitted."""
    figures = [
        over_devices.draw_times(findings),
        *(over_devices.draw_plan(findings, forecast) for forecast in findings.forecasts),
        over_devices.draw_scaling("strong", findings),
        over_devices.draw_scaling("weak", findings),
        over_sizes.draw_crossover(findings),
        over_sizes.draw_sizes(findings),
    ]
    return [figure for figure in figures if figure]
