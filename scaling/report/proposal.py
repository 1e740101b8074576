"""Write a compute-time proposal in Markdown: fastest AD modes, node-hours, predictions, limitations.

The template is proposal.md.jinja. The proposal recommends one AD mode for the largest problem of each
function. A weak scaling curve is omitted if the work per device is not constant.
"""

import math
from pathlib import Path
from typing import Any

from scaling.analysis.answers import describe_unmeasured
from scaling.analysis.cases import method_of, with_fields
from scaling.analysis.curves import fastest_curves, format_relative, format_serial_part
from scaling.analysis.estimate import format_percentage, format_ratio
from scaling.analysis.findings import Findings
from scaling.analysis.lint import format_verdict, lint_findings
from scaling.analysis.ranking import recommend_devices
from scaling.analysis.timings import count_nodes, format_time
from scaling.core.formatting import format_count, format_interval, format_number, list_first
from scaling.core.grouping import group_by
from scaling.report.figures import charts, files
from scaling.report.tables import environment_table
from scaling.report.text import render_markdown
from scaling.results import store

CALLS = 10**6  # number of calls of the derivative for which time is requested
_TEMPLATE_FUNCTIONS = (  # functions that the template calls
    format_count, format_interval, format_number, format_percentage, format_ratio, format_relative,
    format_serial_part, format_time, list_first, count_nodes, recommend_devices,
)  # fmt: skip


def write_proposal(folder: Path, findings: Findings) -> Path:
    """Write a compute-time proposal and its figures to report/proposal. Return the path of proposal.md."""
    curves = fastest_curves(findings.curves, findings.fastest)
    kinds = dict.fromkeys(curve.kind for curve in curves)
    figures = [figure for kind in kinds if (figure := charts.draw_scaling(kind, findings, curves))]
    contents = files.encode_figures(figures, findings, "png")
    scores = {score.hardware: score for score in findings.plan_scores}
    planned_curves = [(forecast, planned) for forecast in findings.forecasts for planned in forecast.curves]
    by_program = group_by(planned_curves, lambda pair: pair[1].program)
    predictions = [  # each curve at its largest planned device count; the score is None without measurements
        (curve, forecast, planned.points[-1].timing, scores.get(forecast.hardware))
        for curve in curves
        for forecast, planned in by_program.get(curve.program, [])
    ]
    long_curves, lint = [curve for curve in findings.curves if len(curve.points) > 1], lint_findings(findings)
    remarks = [f"{remark.severity.capitalize()}: {remark.rule} ({remark.count})." for remark in lint]
    not_weak = [f"Not weak scaling: {refusal}." for refusal in findings.weak_refusals]
    text = render_markdown(
        "proposal.md.jinja", **{function.__name__: function for function in _TEMPLATE_FUNCTIONS},
        findings=findings, curves=curves, figures=figures, calls=CALLS,
        predictions=predictions, measured=_describe_measurements(findings),
        other_baselines=sorted({curve.baseline_devices for curve in long_curves} - {1}),
        has_weak_curve=any(curve.kind == "weak" for curve in long_curves),
        planned_machines=[f.title for f in findings.forecasts if any(r.predicted for r in f.records)],
        limitations=[*not_weak, *describe_unmeasured(findings), *remarks],
        verdict=format_verdict(lint),
        environments=environment_table(findings), commands=_list_commands(findings),
    )  # fmt: skip
    contents["proposal.md"] = text.encode()
    return store.write_files(folder / "report" / "proposal", contents)[-1]


def _describe_measurements(findings: Findings) -> dict[str, Any] | None:
    """Return a dict of facts for the section "Methods" of the proposal, or None if no case was measured."""
    records = [r for r in findings.records if r.status == "ok" and r.case.kind == "case"]
    if not records:
        return None
    programs = group_by(records, lambda r: (r.setting, with_fields(r.case, mesh=None))).values()
    return {
        "cases": len({record.key for record in records}),
        "workloads": list(dict.fromkeys(record.case.workload for record in records)),
        "devices": sorted({record.case.devices for record in records}),
        "precisions": list(dict.fromkeys(f"{r.case.dtype} at {r.case.precision} precision" for r in records)),
        "methods": list(dict.fromkeys(method_of(r.case).base.name for r in records)),
        "bound": any(r.environment.get("bound") for r in records if r.environment.get("platform") == "cpu"),
        "meshes": any(len({record.case.mesh for record in program}) > 1 for program in programs),
        "checked": all(record.error is not None for record in records),
        "samples": sum(len(record.seconds) for record in records),
        # percent, rounded down
        "compared": math.floor(1e4 * min((r.checked or {}).get("entries", 1.0) for r in records)) / 100,
    }


def _list_commands(findings: Findings) -> list[str]:
    """Return the `scaling run` and `scaling plan` commands that produced the results of a folder."""
    names = str(findings.study.content.get("study") or "").split(store.NAME_SEPARATOR)
    return [f"scaling run study={name}" for name in names if name] + [
        f"scaling plan study={plan['study']} hardware={hardware}"
        for hardware, plan in findings.plan_files.items()
        if isinstance(plan, dict) and plan.get("study")
    ]
