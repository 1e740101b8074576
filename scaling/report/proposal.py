"""The proposal: what an application for compute time needs of a study: figures, tables, methods and provenance.

Written as Markdown and as LaTeX, each from the same blocks. Chooses what is told of a study; does not know how it is escaped
(document.py), nor how the sentences on methods are made (methods.py). Points that grow with the devices without constant work for
each are no series here, whatever they were meant as.
"""

import shutil
from collections.abc import Iterable
from pathlib import Path

from scaling.analysis.answer import unmeasured
from scaling.analysis.curves import Curve, CurvePoint, family_name
from scaling.analysis.findings import Findings, marks
from scaling.analysis.lint import ERROR, WARNING, lint_findings
from scaling.analysis.methods import describe_call, method_of
from scaling.analysis.scaling_fits import ScalingFit
from scaling.analysis.trends import FAR
from scaling.core.files import replace_file
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
from scaling.core.store import load
from scaling.report import methods_text
from scaling.report.choice import largest
from scaling.report.document import (
    PREAMBLE,
    Block,
    DocumentFigure,
    DocumentTable,
    Heading,
    ItemList,
    Paragraph,
    to_latex,
    to_markdown,
)

FOLDER = "proposal"  # within the report
_COLUMNS = ("devices", "time", "speed-up", "ideal", "efficiency")
_NOT_WEAK = "Not weak scaling: "  # how a refusal of curves.py begins
_FIGURES = {
    "scaling-strong": "Speed-up and efficiency: the same problem on more devices. The baseline is one device, or the fewest that "
    "were measured, which the axis then names. Bars are 95 % intervals.",
    "scaling-weak": "Scaled speed-up and efficiency: as many points for each device. The baseline is one device, or the fewest "
    "that were measured, which the axis then names. Bars are 95 % intervals.",
}
_NOTHING = (
    "No curve of the scaling of a derivative came of this study: that takes the same program on several numbers of devices, "
    "for the same problem or at constant work for each."
)
_SHOWN, _PRINTED = ("png", "svg"), ("pdf", "png")  # endings, the best first
_ALONE = f"""\
% The proposal as a document of its own: pdflatex proposal-alone.tex
\\documentclass{{article}}
\\usepackage[margin=2.5cm]{{geometry}}
{PREAMBLE}
\\begin{{document}}
\\input{{proposal}}
\\end{{document}}
"""


def write(folder: Path, found: Findings) -> list[Path]:
    """Write the proposal of a results folder beside its report, with the report's figures that it shows; what was written."""
    target = folder / "report" / FOLDER
    target.mkdir(parents=True, exist_ok=True)
    figures = _figures(folder / "report", target, found)
    blocks = _blocks(found, figures, methods_text.used(load(folder).records))
    head = f"% Take this into a document with \\input{{proposal}}; it needs {PREAMBLE} in the preamble.\n"
    texts = {"proposal.md": to_markdown(blocks), "proposal.tex": head + to_latex(blocks), "proposal-alone.tex": _ALONE}
    for name, text in texts.items():
        replace_file(target / name, text.encode())
    return [target / name for name in (*texts, *(name for each in figures for name in dict.fromkeys((each.shown, each.printed))))]


def _figures(report: Path, target: Path, found: Findings) -> list[DocumentFigure]:
    """Copy the figures of the kinds of scaling that there are; one that is no longer due goes away."""
    kinds, made = {curve.kind for curves in largest(found.curves) for curve in curves}, []
    for name, caption in _FIGURES.items():
        for ending in {*_SHOWN, *_PRINTED}:
            (target / f"{name}.{ending}").unlink(missing_ok=True)
        files = {ending: report / f"{name}.{ending}" for ending in {*_SHOWN, *_PRINTED}}
        shown, printed = (next((files[e].name for e in endings if files[e].exists()), None) for endings in (_SHOWN, _PRINTED))
        if name.removeprefix("scaling-") in kinds and shown and printed:
            for file in {shown, printed}:
                shutil.copyfile(report / file, target / file)
            made.append(DocumentFigure(caption, shown, printed))
    return made


def _blocks(found: Findings, figures: Iterable[DocumentFigure], used: str) -> list[Block]:
    best = [curves[0] for curves in largest(found.curves)]
    laws = {id(curve): fitted for curve, fitted in found.laws}
    results: list[Block] = [
        *(Paragraph(_sentence(found, curve, laws.get(id(curve), ()))) for curve in best),
        *(_table(found, curve) for curve in best),
        *figures,
    ]
    limits: list[Block] = [Heading("Limitations"), ItemList(tuple(told))] if (told := _limits(found)) else []
    return [
        Heading(f"Scaling of {found.name}", 1),
        Heading("Results"),
        *(results or [Paragraph(_NOTHING)]),
        Heading("Methods"),
        *(Paragraph(text) for text in methods_text.paragraphs(found)),
        Heading("Compute time used"),
        Paragraph(used),
        *limits,
        Heading("Provenance"),
        ItemList(tuple(methods_text.provenance(found))),
    ]


def _how(curve: Curve) -> str:
    return f"{curve.size}, with {method_of(curve.case).name}, {describe_call(curve.case)}"


def _sentence(found: Findings, curve: Curve, fitted: Iterable[ScalingFit]) -> str:
    """The best curve of a family in words: how far it was measured, what came of it, and what a law makes of it."""
    last = curve.points[-1]
    word = "scaled speed-up" if curve.kind == "weak" else "speed-up"
    speedup, efficiency = _speedup(last), _efficiency(last)
    text = (
        f"{curve.kind.capitalize()} scaling of {family_name(curve.case)} ({_how(curve)}): the {word} on "
        f"{count_of(last.devices, 'device')} is {speedup}{curve.relative}, the efficiency {efficiency}"
    )
    if last.against_jit and is_ratio_determined(last.against_jit_low, last.against_jit_high):
        jit = format_ratio(last.against_jit, last.against_jit_low, last.against_jit_high)
        text += f"; {jit} the speed of the best plain program on one device"
    return f"{text}.{''.join(f' {_law(law)}' for law in fitted if law.best)}{marks(found, curve.environment)}"


def _law(law: ScalingFit) -> str:
    parts = " and ".join(
        f"a {name} part {'of ' if is_share_determined(estimate.low, estimate.high) else ''}{format_share(*estimate)}"
        for name, estimate in law.parts.items()
    )
    name = f"{law.name}'s law" if law.name[0].isupper() else f"The {law.name} law"
    where = f" on {format_number(law.peak)} devices" if law.peak else ""
    known = law.limit if law.determined else None
    end = f", so that the speed-up over one device would be {format_number(known)} at most{where}{law.doubt}" if known else ""
    off = f", though off by {format_percentage(law.spread)}" if law.spread > FAR else ""
    return f"{name} describes it best{off}, with {parts}{end}."


def _table(found: Findings, curve: Curve) -> DocumentTable:
    rows = [
        (str(p.devices), format_duration(p.seconds, p.low, p.high), _speedup(p), f"{p.ideal:g}x", _efficiency(p))
        for p in curve.points
    ]
    title = f"{curve.kind.capitalize()} scaling of {family_name(curve.case)}, {_how(curve)}; speed-up over {curve.baseline}"
    return DocumentTable(f"{title}; 95 % intervals in brackets.{marks(found, curve.environment)}", _COLUMNS, rows)


def _speedup(point: CurvePoint) -> str:
    known = point.is_baseline
    return format_ratio(point.speedup) if known else format_ratio(point.speedup, point.speedup_low, point.speedup_high)


def _efficiency(point: CurvePoint) -> str:
    known = point.is_baseline
    low, high = (None, None) if known else (point.efficiency_low, point.efficiency_high)
    return format_ratio(point.efficiency, low, high, sign="")


def _limits(found: Findings) -> list[str]:
    """What a reader must know before believing the rest."""
    told = [
        "Points that grow with the devices, but not at constant work for each, so that they stand in no table here: "
        + refusal.removeprefix(_NOT_WEAK)
        for refusal in found.refusals
    ]
    if found.mixed:
        told.append(f"{len(found.environments)} environments were measured; no curve and no comparison mixes them.")
    told += unmeasured(found)
    broken = [each for each in lint_findings(found) if each.severity in (ERROR, WARNING) and "weak" not in each.rule]
    return told + [f"{each.severity.capitalize()}: {each.rule} ({each.count})." for each in broken]
