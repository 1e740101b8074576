"""Make the figures of a report, in the order of the HTML page."""

from scaling.analysis.findings import Findings
from scaling.report.figures import over_devices, over_sizes
from scaling.report.figures.marks import Figure
from scaling.report.text import file_stems

# The names of all figures, which are also their file stems. The hardware follows "plan-".
FIGURE_NAMES = ("devices", "plan-*", "scaling-strong", "scaling-weak", "crossover", "size")


def make_figures(findings: Findings) -> list[Figure]:
    """Return the figures of a report in the order of the HTML page. Figures without data are omitted."""
    stems = file_stems(forecast.hardware for forecast in findings.forecasts)
    plans = (over_devices.draw_plan(f, stems[f.hardware], findings.curves) for f in findings.forecasts)
    figures = [
        over_devices.draw_times(findings),
        *plans,
        over_devices.draw_scaling("strong", findings),
        over_devices.draw_scaling("weak", findings),
        over_sizes.draw_crossover(findings),
        over_sizes.draw_sizes(findings),
    ]
    return [figure for figure in figures if figure]
