"""The dashboard as code: a workspace and a report of a study, created once and updated after that.

Needs wandb-workspaces; runs in the process of client.py. Text from records stays text: plain blocks show it
as it is, and text in Markdown is escaped.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import wandb
import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws
from wandb_workspaces.workspaces import internal

from scaling.wandb.client_process import DashboardContent

_MAX_LINES = 100  # of a panel
_TITLE = 128  # characters that W&B allows
_MEANING = {
    "strong": "Strong scaling: the same work on more devices.",
    "weak": (
        "Weak scaling: as many points for each device; the counted work per device is constant within 1 %."
    ),
}
_STUDY_SECTION = "Every record, the fastest modes, and the figures"
_COLUMNS = (
    "size",
    "way",
    "split",
    "api",
    "kind",
    "baseline_devices",
    "host",
)  # of the config, after a run's name


def save(entity: str, project: str, content: DashboardContent) -> dict[str, str]:
    """Save both, read them back and return their addresses; RuntimeError if they come back changed."""
    workspace = _save_workspace(entity, project, content)
    return {"workspace": workspace, "report": _save_report(entity, project, content)}


def markdown(text: str) -> str:
    """Return the Markdown that shows a text as it is, in one line."""
    return re.sub(r"([\\`*_{}\[\]()#+.!|<>~&$:^=-])", r"\\\1", " ".join(text.split()))


def _title(study: str) -> str:
    """Return the title of both, without symbols: W&B puts it into an address and rejects these."""
    return re.sub(r"-{2,}", "-", re.sub(r"[^\w .,()-]", "", f"How {study} scales"))[:_TITLE]


def _curve_panels(kind: str) -> list[Any]:
    """Return plots over devices: speed-up and efficiency with their ideals, and time."""
    stem, word = ("weak/", "Scaled speed-up") if kind == "weak" else ("", "Speed-up")
    relative = "relative to baseline_devices, and the ideal"
    plots = [
        (f"{word} {relative}", ["speedup", "ideal"], word.lower()),
        (f"Efficiency {relative}", ["efficiency", "ideal_efficiency"], "efficiency"),
        ("Time over devices", ["seconds"], "seconds"),
    ]
    return [
        wr.LinePlot(
            title=title, x="devices", y=[stem + name for name in names], title_x="devices", title_y=axis,
            log_y=axis == "seconds", max_runs_to_show=_MAX_LINES, smoothing_type="none",
            layout=wr.Layout(x=8 * column, y=0, w=8, h=9),
        )
        for column, (title, names, axis) in enumerate(plots)
    ]  # fmt: skip


def _study_panels(content: DashboardContent) -> list[Any]:
    """Return the tables of the study's run, and its figures if it has any."""
    panels: list[Any] = [
        wr.WeavePanelSummaryTable(table_name=name, layout=wr.Layout(x=12 * column, y=0, w=12, h=10))
        for column, name in enumerate(("fastest", "records"))
    ]
    if content.figures:
        keys, wide = [f"figures/{name}" for name in content.figures], wr.Layout(x=0, y=10, w=24, h=12)
        panels.append(wr.MediaBrowser(title="Figures", media_keys=keys, num_columns=2, layout=wide))
    return panels


def _current_runs(content: DashboardContent, *conditions: Any) -> Any:
    """Return the filter for the study's runs that are not superseded.

    By a digest, since wandb-workspaces 0.4 does not escape a quote in a filter.
    """
    return ws.And(ws.Config("study_digest") == content.digest, ws.Tags().notin(["superseded"]), *conditions)


def _save_workspace(entity: str, project: str, content: DashboardContent) -> str:
    text = "\n".join(f"- {markdown(sentence)}" for sentence in content.sentences)
    answer = wr.MarkdownPanel(markdown=text, layout=wr.Layout(x=0, y=0, w=24, h=8))
    sections = [
        _section("The answer", [answer], 1),
        *(_section(_MEANING[kind], _curve_panels(kind), 3) for kind in content.kinds),
        _section(_STUDY_SECTION, _study_panels(content), 2),
    ]
    columns = ["run:displayName", *(f"config:{name}.value" for name in _COLUMNS)]
    workspace = ws.Workspace(
        entity=entity, project=project, name=_title(content.study), sections=sections,
        settings=ws.WorkspaceSettings(x_axis="devices", max_runs=_MAX_LINES),
        runset_settings=ws.RunsetSettings(filters=_current_runs(content), pinned_columns=columns),
    )  # fmt: skip
    view = hashlib.sha256(f"ad-scaling {content.study}".encode()).hexdigest()[
        :11
    ]  # the same from every machine
    workspace._internal_name = internal._url_query_str_to_internal_name(view)
    url = str(workspace.url)
    try:
        workspace._internal_id = ws.Workspace.from_url(url)._internal_id
    except ValueError as error:
        if "not found" not in str(error):
            raise
    workspace.save()
    _check_saved("workspace", workspace, internal.View.from_name(entity, project, workspace._internal_name))
    return url


def _section(title: str, panels: list[Any], columns: int) -> Any:
    layout = ws.SectionLayoutSettings(columns=columns, rows=-(-len(panels) // columns))
    return ws.Section(title, panels, is_open=True, layout_settings=layout)


def _save_report(entity: str, project: str, content: DashboardContent) -> str:
    def grid(title: str, name: str, kind: str, panels: list[Any]) -> list[Any]:
        filters = _current_runs(content, ws.Config("kind") == kind)
        runs = wr.Runset(entity=entity, project=project, name=name, filters=filters)
        return [wr.H1(title), wr.PanelGrid(runsets=[runs], panels=panels)]

    blocks: list[Any] = [wr.H1("The answer"), wr.UnorderedList(items=list(content.sentences))]
    for kind in content.kinds:
        blocks += grid(_MEANING[kind], f"{kind} curves", kind, _curve_panels(kind))
    blocks += grid(_STUDY_SECTION, "the study", "study", _study_panels(content))
    note = f"Written by `scaling publish`, which writes it anew each time (study {content.digest})."
    report = wr.Report(
        entity=entity, project=project, title=_title(content.study), width="fluid",
        description=note, blocks=blocks,
    )  # fmt: skip
    known = [each.id for each in wandb.Api().reports(f"{entity}/{project}") if each.description == note]
    report.id = known[0] if known else ""
    report.save()
    _check_saved("report", report, wr.Report.from_url(report.url, as_model=True))
    return str(report.url)


def _check_saved(what: str, saved: Any, model: Any) -> None:
    """Compare with the model on the server, since not every panel comes back as an object (0.4.13)."""
    specs = [
        each.spec.model_dump(by_alias=True, exclude_none=True, mode="json")
        for each in (saved._to_model(), model)
    ]
    if _without_ids(specs[0]) != _without_ids(specs[1]):
        raise RuntimeError(f"the {what} was saved and read back as something else")


def _without_ids(value: Any) -> Any:
    """Return a specification without the identifiers, which are drawn anew each time, and without empty
    lists.
    """
    if isinstance(value, Mapping):
        kept = {
            name: each for name, each in value.items() if name not in ("id", "__id__", "ref") and each != []
        }
        return {name: _without_ids(each) for name, each in kept.items()}
    return [_without_ids(each) for each in value] if isinstance(value, list) else value
