"""The proposal: what an application for compute time needs of a study: figures, tables, methods and
provenance.

Written as Markdown and as LaTeX from the same blocks. Series that grow with the devices without constant work
per device are left out.
"""

from collections.abc import Iterable
from pathlib import Path

from scaling.analysis.answer import count_unmeasured
from scaling.analysis.curves import Curve, CurvePoint, family_name
from scaling.analysis.findings import Findings, describe_environment
from scaling.analysis.lint import ERROR, WARNING, lint_findings
from scaling.analysis.methods import describe_call, method_of
from scaling.analysis.scaling_fits import ScalingFit
from scaling.analysis.trends import LARGE_ERROR
from scaling.core.formatting import (
    count_of,
    format_duration,
    format_number,
    format_percentage,
    format_ratio,
    format_share,
    is_ratio_determined,
    is_share_determined,
)
from scaling.core.store import load, replace_file
from scaling.report import methods_text
from scaling.report.choice import derivative_curves
from scaling.report.document import (
    PREAMBLE,
    DocumentBlock,
    DocumentFigure,
    DocumentTable,
    Heading,
    ItemList,
    Paragraph,
    to_latex,
    to_markdown,
)
from scaling.report.figures import devices, files

FOLDER = "proposal"  # in the report folder
_COLUMNS = ("devices", "time", "speed-up", "ideal", "efficiency")
_NOT_WEAK = "Not weak scaling: "  # the beginning of a refusal by curves.py
_FIGURES = {
    "scaling-strong": "Speed-up and efficiency: the same problem on more devices. The baseline is one "
    "device, or the fewest that "
    "were measured, which the axis then names. Bars are 95 % intervals.",
    "scaling-weak": "Scaled speed-up and efficiency: as many points for each device. The baseline is one "
    "device, or the fewest "
    "that were measured, which the axis then names. Bars are 95 % intervals.",
}
_NO_CURVE = (
    "No curve of the scaling of a derivative came of this study: that takes the same program on several "
    "numbers of devices, for the same problem or at constant work for each."
)
_STANDALONE = f"""\
% The proposal as a document of its own: pdflatex proposal-alone.tex
\\documentclass{{article}}
\\usepackage[margin=2.5cm]{{geometry}}
{PREAMBLE}
\\begin{{document}}
\\input{{proposal}}
\\end{{document}}
"""


def write_proposal(folder: Path, findings: Findings) -> list[Path]:
    """Write the proposal of a results folder into its report, with the figures it shows; return the
    files.
    """
    target = folder / "report" / FOLDER
    target.mkdir(parents=True, exist_ok=True)
    figures = _write_figures(target, findings)
    blocks = _document_blocks(findings, figures, methods_text.describe_compute_time(load(folder).records))
    head = f"% Take this into a document with \\input{{proposal}}; it needs {PREAMBLE} in the preamble.\n"
    texts = {
        "proposal.md": to_markdown(blocks),
        "proposal.tex": head + to_latex(blocks),
        "proposal-alone.tex": _STANDALONE,
    }
    for name, text in texts.items():
        replace_file(target / name, text.encode())
    return [
        target / name
        for name in (
            *texts,
            *(name for each in figures for name in dict.fromkeys((each.shown, each.printed))),
        )
    ]


def _write_figures(target: Path, findings: Findings) -> list[DocumentFigure]:
    """Write the figures of the kinds of scaling that were measured; remove others."""
    kinds = {curve.kind for curves in derivative_curves(findings.curves) for curve in curves}
    several = findings.has_mixed_environments
    drawn = [
        figure
        for kind in ("strong", "weak")
        if kind in kinds
        if (figure := devices.draw_scaling(kind, findings.curves, findings.scaling_fits, several))
    ]
    files.remove_stale(target)
    files.write_figures(drawn, findings, target, ("png", "pdf"))
    return [DocumentFigure(_FIGURES[f.name], f"{f.name}.png", f"{f.name}.pdf") for f in drawn]


def _document_blocks(
    findings: Findings, figures: Iterable[DocumentFigure], compute_time: str
) -> list[DocumentBlock]:
    curves = [curves[0] for curves in derivative_curves(findings.curves)]
    fits_by_curve = {id(curve): fitted for curve, fitted in findings.scaling_fits}
    results: list[DocumentBlock] = [
        *(Paragraph(_describe_curve(findings, curve, fits_by_curve.get(id(curve), ()))) for curve in curves),
        *(_curve_table(findings, curve) for curve in curves),
        *figures,
    ]
    limits: list[DocumentBlock] = (
        [Heading("Limitations"), ItemList(tuple(sentences))]
        if (sentences := _list_limitations(findings))
        else []
    )
    return [
        Heading(f"Scaling of {findings.name}", 1),
        Heading("Results"),
        *(results or [Paragraph(_NO_CURVE)]),
        Heading("Methods"),
        *(Paragraph(text) for text in methods_text.describe_methods(findings)),
        Heading("Compute time used"),
        Paragraph(compute_time),
        *limits,
        Heading("Provenance"),
        ItemList(tuple(methods_text.describe_provenance(findings))),
    ]


def _describe_program(curve: Curve) -> str:
    return f"{curve.size}, with {method_of(curve.case).name}, {describe_call(curve.case)}"


def _describe_curve(findings: Findings, curve: Curve, fitted: Iterable[ScalingFit]) -> str:
    """Return the best curve of a family in words: how far it was measured, its speed-up, and its law."""
    last = curve.points[-1]
    word = "scaled speed-up" if curve.kind == "weak" else "speed-up"
    speedup, efficiency = _format_speedup(last), _format_efficiency(last)
    text = (
        f"{curve.kind.capitalize()} scaling of {family_name(curve.case)} ({_describe_program(curve)}): the "
        f"{word} on {count_of(last.devices, 'device')} is {speedup}{curve.relative}, the efficiency "
        f"{efficiency}"
    )
    if last.against_jit and is_ratio_determined(last.against_jit_low, last.against_jit_high):
        jit = format_ratio(last.against_jit, last.against_jit_low, last.against_jit_high)
        text += f"; {jit} the speed of the best plain program on one device"
    law = "".join(f" {_describe_law(law)}" for law in fitted if law.best)
    return f"{text}.{law}{describe_environment(findings, curve.environment)}"


def _describe_law(law: ScalingFit) -> str:
    parts = " and ".join(
        (
            f"a {name} part "
            f"{'of ' if is_share_determined(estimate.low, estimate.high) else ''}{format_share(*estimate)}"
        )
        for name, estimate in law.parts.items()
    )
    name = f"{law.name}'s law" if law.name[0].isupper() else f"The {law.name} law"
    where = f" on {format_number(law.peak)} devices" if law.peak else ""
    known = law.limit if law.determined else None
    end = (
        f", so that the speed-up over one device would be {format_number(known)} at most{where}{law.doubt}"
        if known
        else ""
    )
    off = f", though off by {format_percentage(law.spread)}" if law.spread > LARGE_ERROR else ""
    return f"{name} describes it best{off}, with {parts}{end}."


def _curve_table(findings: Findings, curve: Curve) -> DocumentTable:
    rows = [
        (
            str(p.devices),
            format_duration(p.seconds, p.low, p.high),
            _format_speedup(p),
            f"{p.ideal:g}x",
            _format_efficiency(p),
        )
        for p in curve.points
    ]
    title = (
        f"{curve.kind.capitalize()} scaling of {family_name(curve.case)}, {_describe_program(curve)}; "
        f"speed-up over {curve.baseline}"
    )
    return DocumentTable(
        f"{title}; 95 % intervals in brackets.{describe_environment(findings, curve.environment)}",
        _COLUMNS,
        rows,
    )


def _format_speedup(point: CurvePoint) -> str:
    known = point.is_baseline
    return (
        format_ratio(point.speedup)
        if known
        else format_ratio(point.speedup, point.speedup_low, point.speedup_high)
    )


def _format_efficiency(point: CurvePoint) -> str:
    known = point.is_baseline
    low, high = (None, None) if known else (point.efficiency_low, point.efficiency_high)
    return format_ratio(point.efficiency, low, high, sign="")


def _list_limitations(findings: Findings) -> list[str]:
    """Return what a reader must know before trusting the rest."""
    sentences = [
        (
            "Points that grow with the devices, but not at constant work for each, "
            "so that they stand in no table here: "
        )
        + refusal.removeprefix(_NOT_WEAK)
        for refusal in findings.weak_refusals
    ]
    if findings.has_mixed_environments:
        sentences.append(
            f"{len(findings.environments)} environments were measured; no curve and no comparison mixes them."
        )
    sentences += count_unmeasured(findings)
    broken = [
        each
        for each in lint_findings(findings)
        if each.severity in (ERROR, WARNING) and "weak" not in each.rule
    ]
    return sentences + [f"{each.severity.capitalize()}: {each.rule} ({each.count})." for each in broken]
