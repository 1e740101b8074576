"""Write a compute-time proposal in Markdown: AD mode, speed-up, node-hours, extrapolation and methods.

The proposal recommends one AD mode for the largest problem of each function. A weak scaling curve is omitted
if the work per device is not constant.
"""

from collections.abc import Sequence
from pathlib import Path

from scaling.analysis.curves import Curve, derivative_curves, format_relative
from scaling.analysis.estimate import format_percentage, format_ratio
from scaling.analysis.findings import Findings
from scaling.analysis.lint import ERROR, WARNING, lint_findings, verdict
from scaling.analysis.summary import count_unmeasured
from scaling.analysis.summary_details import describe_fit
from scaling.analysis.timings import format_time
from scaling.core.formatting import count_of, format_duration, format_number
from scaling.report import methods_text
from scaling.report.figures import files, over_devices
from scaling.report.figures.marks import Figure
from scaling.report.markdown import MarkdownSection, to_markdown
from scaling.report.page_tables import environment_table
from scaling.report.text import Table
from scaling.results.store import replace_file

FOLDER = "proposal"  # subfolder of the report
CALLS = 10**6  # number of calls of the derivative for which time is requested
_NOT_WEAK = "Not weak scaling: "  # prefix of the sentences in `Findings.weak_refusals`
_NO_CURVE = (
    "No curve of the scaling of a derivative came of this study: that takes the same program on several "
    "numbers of devices, for the same problem or at constant work for each."
)


def write_proposal(folder: Path, findings: Findings) -> Path:
    """Write the text and the figures of a compute-time proposal for a study, and return the path of the text.

    The files are written to report/proposal in the results folder.
    """
    target = folder / "report" / FOLDER
    target.mkdir(parents=True, exist_ok=True)
    curves = [curves[0] for curves in derivative_curves(findings.curves)]
    kinds = dict.fromkeys(curve.kind for curve in curves)
    figures = [figure for kind in kinds if (figure := over_devices.draw_scaling(kind, findings, curves))]
    files.remove_stale(target)
    files.write_figures(figures, findings, target, ["png"])
    text = to_markdown(f"Scaling of {findings.name}", _make_sections(findings, curves, figures))
    replace_file(target / "proposal.md", text.encode())
    return target / "proposal.md"


def _make_sections(
    findings: Findings, curves: Sequence[Curve], figures: Sequence[Figure]
) -> list[MarkdownSection]:
    described = [_describe_curve(findings, curve) for curve in curves] or [_NO_CURVE]
    hours = [_describe_requested_hours(curve) for curve in curves if curve.kind == "strong"]
    predicted = [sentence for curve in curves for sentence in _describe_predictions(findings, curve)]
    provenance = [
        f"Command to repeat the study: scaling run study={findings.name}, with the overrides of the original "
        "command, which the records do not contain; for the proposal: scaling report DIR --proposal.",
        f"Result of scaling lint: {verdict(lint_findings(findings))}.",
    ]
    tables = [_curve_table(findings, curve) for curve in curves]
    sections = [
        MarkdownSection("Results", described, tables=tables, figures=figures),
        MarkdownSection("Requested compute time", items=hours),
        MarkdownSection("Extrapolation", items=predicted),
        MarkdownSection("Methods", methods_text.describe_methods(findings)),
        MarkdownSection("Limitations", items=_list_limitations(findings)),
        MarkdownSection("Provenance", provenance, tables=[environment_table(findings)]),
    ]
    return [section for section in sections if section.paragraphs or section.items]


def _describe_program(curve: Curve) -> str:
    return f"{curve.size}, with {curve.program_name}"


def _describe_curve(findings: Findings, curve: Curve) -> str:
    last = curve.points[-1]
    word = "scaled speed-up" if curve.kind == "weak" else "speed-up"
    text = (
        f"{curve.kind.capitalize()} scaling of {curve.family} ({_describe_program(curve)}), the "
        f"fastest of the measured modes on the most devices. Its baseline is the same program on "
        f"{curve.baseline}: the {word} on {last.timing.devices_text} is "
        f"{format_relative(last, last.speedup)}, the "
        f"efficiency {format_relative(last, last.efficiency, '')}"
    )
    if last.against_jit and last.against_jit.is_determined:
        text += f"; {format_ratio(*last.against_jit)} the speed of the best plain program on one device"
    for law in (law for fitted, law in findings.best_fits if fitted is curve):
        text += f". {describe_fit(law)}"
        text += f", speed-up at most {format_number(law.limit)}" if law.determined and law.limit else ""
    return f"{text}.{findings.suffix(curve.environment)}"


def _curve_table(findings: Findings, curve: Curve) -> Table:
    rows = [
        (
            str(p.devices), format_time(p.timing), format_relative(p, p.speedup),
            f"{p.ideal:g}x", format_relative(p, p.efficiency, ""),
        )
        for p in curve.points
    ]  # fmt: skip
    title = (
        f"{curve.kind.capitalize()} scaling of {curve.family}, {_describe_program(curve)}; "
        f"speed-up over {curve.baseline}; 95 % intervals in brackets."
    )
    columns = ("devices", "time", "speed-up", "ideal", "efficiency")
    return Table("", title + findings.suffix(curve.environment), "", columns, rows)


def _describe_requested_hours(curve: Curve) -> str:
    best = min(curve.points, key=lambda point: point.seconds)
    records = best.timing.records
    unit = "core" if records[0].environment.get("platform") == "cpu" else "device"
    nodes = max(len(record.environment.get("hosts") or [""]) for record in records)
    devices, calls = count_of(best.devices, unit), f"{CALLS:,} x"
    hours = CALLS * best.seconds / 3600
    return (
        f"{curve.family}, {_describe_program(curve)}: {CALLS:,} calls on {devices} take "
        f"{format_number(hours * best.devices)} {unit}-hours: {calls} "
        f"{format_time(best.timing)} x {devices} / 3600 s. On "
        f"{count_of(nodes, 'node')}, as measured, that is {format_number(hours * nodes)} node-hours: {calls} "
        f"{format_duration(best.seconds)} x {count_of(nodes, 'node')} / 3600 s. Scale both with your number "
        "of calls."
    )


def _describe_predictions(findings: Findings, curve: Curve) -> list[str]:
    """Return a sentence for each hardware for which the program of a curve was planned.

    The sentence contains the predicted time, and if it is known the median error of all predictions for the
    hardware.
    """
    sentences = []
    errors = {
        scores.hardware: f"its median error is {format_percentage(scores.total.error)} over "
        f"{count_of(len(scores.total.pairs), 'case')} that were also measured"
        for scores in findings.plan_scores
    }
    unknown = "none of its predictions was compared with a measurement, so that its error is not known"
    for forecast in findings.forecasts:
        for planned in forecast.curves:
            if planned.program == curve.program:
                last = planned.points[-1].timing
                sentences.append(
                    f"{curve.family}, {_describe_program(curve)}: on "
                    f"{last.devices_text} of {forecast.title} a call is predicted to take "
                    f"{format_time(last)}, not measured; "
                    f"{errors.get(forecast.hardware, unknown)}."
                )
    return sentences


def _list_limitations(findings: Findings) -> list[str]:
    environments = (
        f"{len(findings.environments)} environments were measured; no curve and no comparison mixes them."
    )
    return [
        *(
            "Points that grow with the devices, but not at constant work for each, so that they stand in no "
            f"table here: {refusal.removeprefix(_NOT_WEAK)}"
            for refusal in findings.weak_refusals
        ),
        *([environments] if findings.has_mixed_environments else []),
        *count_unmeasured(findings),
        *(
            f"{remark.severity.capitalize()}: {remark.rule} ({remark.count})."
            for remark in lint_findings(findings)
            if remark.severity in (ERROR, WARNING) and "weak" not in remark.rule
        ),
    ]
