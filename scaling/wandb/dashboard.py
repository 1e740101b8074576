"""Create or update the W&B report of a study (`save`), which shows its answer and its line plots.

upload.py imports this module. Text from records is never interpreted as Markdown.
"""

import re
from collections.abc import Mapping
from typing import Any

import wandb
import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws

from scaling.wandb.job import Plot, PublishJob, ideal_metric

_MAX_LINES = 100  # largest number of lines in a panel
_MAX_PLOTS = 12  # largest number of plots in a section
_SECTION_TITLES = {  # kind of plot -> title of its section
    "strong": "Strong scaling: the same work on more devices",
    "weak": "Weak scaling: as many points for each device; counted work per device constant within 1 %",
    "size": "Time against size",
}


def save(job: PublishJob, current_ids: Mapping[str, str]) -> str:
    """Save the W&B report of a study, and return its URL.

    `current_ids` maps each `TrackedRun.series` to the ID of its W&B run on the server.
    """
    location: dict[str, Any] = {"entity": str(job.settings.entity), "project": job.settings.project}
    study_run = job.runs[-1]
    # The filter uses a digest because wandb-workspaces 0.4 does not escape quotes in filters.
    is_from_study = ws.Config("study_digest") == study_run.series
    run_filter = ws.And(is_from_study, ws.Tags().notin(["superseded"]))
    runset = wr.Runset(**location, name="current runs", filters=run_filter)
    blocks: list[Any] = [wr.H1("The answer"), wr.UnorderedList(items=list(job.sentences))]
    for name, panels in _make_sections(job, current_ids).items():
        blocks += [wr.H1(name), wr.PanelGrid(runsets=[runset], panels=panels)]
    # W&B uses the title in a URL, and rejects symbols and more than 128 characters.
    title = re.sub(r"-{2,}", "-", re.sub(r"[^\w .,()-]", "", f"How {study_run.name} scales"))[:128]
    text = f"Written by `scaling publish`, which writes it anew each time (study {study_run.series})."
    report = wr.Report(**location, title=title, width="fluid", description=text, blocks=blocks)
    earlier_reports = wandb.Api().reports("/".join(location.values()))
    report.id = next((earlier.id for earlier in earlier_reports if earlier.description == text), "")
    report.save()
    return str(report.url)


def _make_sections(job: PublishJob, current_ids: Mapping[str, str]) -> dict[str, list[Any]]:
    """Return {section title: W&B line plots}. Sections without plots are omitted."""
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
