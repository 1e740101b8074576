"""Create or update the W&B workspace and the W&B report of a study (`save`), which show its line plots.

upload.py imports this module. Text from records is never interpreted as Markdown.
"""

import re
from collections.abc import Mapping
from typing import Any

import wandb
import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws
from wandb_workspaces.workspaces import internal

from scaling.wandb.job import Plot, PublishJob, ideal_metric

_MAX_LINES = 100  # largest number of lines in a panel
_MAX_PLOTS = 12  # largest number of plots in a section
_SECTION_TITLES = {  # kind of plot -> title of its section
    "strong": "Strong scaling: the same work on more devices",
    "weak": "Weak scaling: as many points for each device; counted work per device constant within 1 %",
    "size": "Time against size",
}


def save(job: PublishJob, current_ids: Mapping[str, str]) -> str:
    """Save the W&B workspace and the W&B report of a study. Return a line of text with both URLs.

    `current_ids` maps each `TrackedRun.series` to the ID of its W&B run on the server.
    """
    # The filter uses a digest because wandb-workspaces 0.4 does not escape quotes in filters.
    is_from_study = ws.Config("study_digest") == job.runs[-1].series
    run_filter = ws.And(is_from_study, ws.Tags().notin(["superseded"]))
    # W&B uses the title in a URL, and rejects symbols and more than 128 characters.
    title = re.sub(r"-{2,}", "-", re.sub(r"[^\w .,()-]", "", f"How {job.runs[-1].name} scales"))[:128]
    sections = _make_sections(job, current_ids)
    workspace_url = _save_workspace(job, title, sections, run_filter)
    report_url = _save_report(job, title, sections, run_filter)
    return f"dashboard {workspace_url}, report {report_url}"


def _save_workspace(job: PublishJob, title: str, sections: Mapping[str, list[Any]], run_filter: Any) -> str:
    columns = ["run:displayName", *(f"config:{name}.value" for name in ("method", "api", "split", "host"))]
    workspace = ws.Workspace(
        entity=str(job.settings.entity), project=job.settings.project, name=title, sections=[
            ws.Section(name, panels, is_open=True, layout_settings=ws.SectionLayoutSettings(
                columns=min(2, len(panels)), rows=-(-len(panels) // 2)
            )) for name, panels in sections.items()
        ],
        settings=ws.WorkspaceSettings(x_axis="devices", max_runs=_MAX_LINES),
        runset_settings=ws.RunsetSettings(filters=run_filter, pinned_columns=columns),
    )  # fmt: skip
    # The name depends only on the study, so that all machines update the same workspace.
    workspace._internal_name = internal._url_query_str_to_internal_name(job.runs[-1].series[:11])
    try:
        workspace._internal_id = ws.Workspace.from_url(str(workspace.url))._internal_id
    except ValueError as error:
        if "not found" not in str(error):
            raise
    workspace.save()
    return str(workspace.url)


def _save_report(job: PublishJob, title: str, sections: Mapping[str, list[Any]], run_filter: Any) -> str:
    location: dict[str, Any] = {"entity": str(job.settings.entity), "project": job.settings.project}
    runset = wr.Runset(**location, name="current runs", filters=run_filter)
    blocks: list[Any] = [wr.H1("The answer"), wr.UnorderedList(items=list(job.sentences))]
    for name, panels in sections.items():
        blocks += [wr.H1(name), wr.PanelGrid(runsets=[runset], panels=panels)]
    text = f"Written by `scaling publish`, which writes it anew each time (study {job.runs[-1].series})."
    report = wr.Report(**location, title=title, width="fluid", description=text, blocks=blocks)
    earlier_reports = wandb.Api().reports("/".join(location.values()))
    report.id = next((earlier.id for earlier in earlier_reports if earlier.description == text), "")
    report.save()
    return str(report.url)


def _make_sections(job: PublishJob, current_ids: Mapping[str, str]) -> dict[str, list[Any]]:
    """Return {section title: W&B line plots}, without sections that have no plots."""
    interval_bounds = sorted({  # "run ID:metric" of each line that is the bound of a confidence interval
        f"{current_ids.get(run.series)}:{name}"
        for run in job.runs for row in run.rows for name in row if name.endswith(("_low", "_high"))
    })  # fmt: skip
    sections: dict[str, list[Any]] = {}
    for kind, title in _SECTION_TITLES.items():
        plots = [plot for plot in job.plots if plot.kind == kind]
        shown_plots = ([plot for plot in plots if plot.x_count > 1] or plots)[:_MAX_PLOTS]
        if len(plots) > len(shown_plots):
            title += f" ({len(shown_plots)} of {len(plots)} plots; `scaling report` has all)"
        if shown_plots:
            shown_plots.sort(key=lambda plot: plot.title)
            sections[title] = [_make_line_plot(plot, interval_bounds) for plot in shown_plots]
            width = 24 // min(2, len(shown_plots))
            for number, panel in enumerate(sections[title]):
                panel.layout = wr.Layout(x=number % 2 * width, y=number // 2 * 9, w=width, h=9)
    return sections


def _make_line_plot(plot: Plot, interval_bounds: list[str]) -> Any:
    low, high = f"{plot.metric}_low", f"{plot.metric}_high"
    return wr.LinePlot(
        title=f"{'Speed-up' if plot.baselines else 'Time'}: {plot.title}", x=plot.x, title_x=plot.x_title,
        y=[plot.metric, low, high, *map(ideal_metric, plot.baselines)], title_y=plot.y_title,
        log_x=True, log_y=True, max_runs_to_show=_MAX_LINES, smoothing_type="none",
        line_marks={line: "dotted" for line in interval_bounds if line.partition(":")[2] in (low, high)},
    )  # fmt: skip
