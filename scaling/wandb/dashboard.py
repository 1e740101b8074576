"""The dashboard as code: a workspace and a report of a study, made once and brought up to date after that.

Knows wandb-workspaces and what is to be said; runs in the process of client.py. Whatever comes from records is text: plain blocks
hold it as it is, and what goes through Markdown is escaped.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

_MOST_RUNS = 100  # lines of a panel
_TITLE = 128  # characters that W&B allows
_MEANING = {
    "strong": "Strong scaling: the same work on more devices.",
    "weak": "Weak scaling: as many points for each device; the counted work per device is constant within 1 %.",
}
_COLUMNS = (
    "size",
    "way",
    "split",
    "api",
    "kind",
    "baseline_devices",
    "host",
)  # of the config, beside a run's name
Fields = Mapping[str, Any]


def save(entity: str, project: str, told: Fields) -> dict[str, str]:
    """Save both to the server and read them back; their addresses. RuntimeError where they do not come back as they went.

    told: `study`, its `digest` and its `sentences`, the `kinds` of its curves, the names of its `figures`.
    """
    return {
        "workspace": _save_workspace(entity, project, told),
        "report": _save_report(entity, project, told),
    }


def markdown(text: str) -> str:
    """Text that Markdown shows as it is, in one line."""
    return re.sub(r"([\\`*_{}\[\]()#+.!|<>~&$:^=-])", r"\\\1", " ".join(text.split()))


def view_name(study: str) -> str:
    """What the workspace of a study is called in its address: the same from every machine, so that none is made twice."""
    return hashlib.sha256(f"ad-scaling {study}".encode()).hexdigest()[:11]


def title_of(study: str) -> str:
    """What both are called. W&B puts it into an address, and takes no symbols: what is not plain is left out."""
    return re.sub(r"-{2,}", "-", re.sub(r"[^\w .,()-]", "", f"How {study} scales"))[:_TITLE]


def _panels(kind: str) -> list[Any]:
    """Speed-up beside the ideal, efficiency beside the ideal, and time, over devices."""
    import wandb_workspaces.reports.v2 as wr

    stem = "weak/" if kind == "weak" else ""
    word = "Scaled speed-up" if kind == "weak" else "Speed-up"
    lines = [
        (f"{word} relative to baseline_devices, and the ideal", ["speedup", "ideal"], word.lower(), False),
        (
            "Efficiency relative to baseline_devices, and the ideal",
            ["efficiency", "ideal_efficiency"],
            "efficiency",
            False,
        ),
        ("Time over devices", ["seconds"], "seconds", True),
    ]
    return [
        wr.LinePlot(
            title=title, x="devices", y=[stem + name for name in names], title_x="devices", title_y=axis, log_y=log,
            max_runs_to_show=_MOST_RUNS, smoothing_type="none", layout=wr.Layout(x=8 * place, y=0, w=8, h=9),
        )
        for place, (title, names, axis, log) in enumerate(lines)
    ]  # fmt: skip


def _study_panels(told: Fields) -> list[Any]:
    """The tables of the study's own run, and its figures where there are any."""
    import wandb_workspaces.reports.v2 as wr

    made: list[Any] = [
        wr.WeavePanelSummaryTable(table_name=name, layout=wr.Layout(x=12 * place, y=0, w=12, h=10))
        for place, name in enumerate(("fastest", "records"))
    ]
    keys = [f"figures/{name}" for name in told["figures"]]
    wide = wr.Layout(x=0, y=10, w=24, h=12)
    return made + (
        [wr.MediaBrowser(title="Figures", media_keys=keys, num_columns=2, layout=wide)] if keys else []
    )


def _save_workspace(entity: str, project: str, told: Fields) -> str:
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces.workspaces import internal

    said = "\n".join(f"- {markdown(sentence)}" for sentence in told["sentences"])
    wide = wr.Layout(x=0, y=0, w=24, h=8)
    shown: list[tuple[str, list[Any], int]] = [
        ("The answer", [wr.MarkdownPanel(markdown=said, layout=wide)], 1)
    ]
    shown += [(_MEANING[kind], _panels(kind), 3) for kind in told["kinds"]]
    shown += [("Every record, the fastest modes, and the figures", _study_panels(told), 2)]
    sections = [
        ws.Section(
            name,
            panels,
            is_open=True,
            layout_settings=ws.SectionLayoutSettings(columns=columns, rows=-(-len(panels) // columns)),
        )
        for name, panels, columns in shown
    ]
    columns = ["run:displayName", *(f"config:{name}.value" for name in _COLUMNS)]
    made = ws.Workspace(
        entity=entity, project=project, name=title_of(told["study"]), sections=sections,
        settings=ws.WorkspaceSettings(x_axis="devices", max_runs=_MOST_RUNS),
        runset_settings=ws.RunsetSettings(filters=_current(told), pinned_columns=columns),
    )  # fmt: skip
    made._internal_name = internal._url_query_str_to_internal_name(view_name(told["study"]))
    url = str(made.url)
    try:
        made._internal_id = ws.Workspace.from_url(url)._internal_id
    except ValueError as error:
        if "not found" not in str(error):
            raise
    made.save()
    _compare("workspace", made, internal.View.from_name(entity, project, made._internal_name))
    return url


def _current(told: Fields, *more: Any) -> Any:
    """The runs of a study that no newer one stands for. By a digest: wandb-workspaces 0.4 does not escape a quote in a filter."""
    import wandb_workspaces.workspaces as ws

    return ws.And(ws.Config("study_digest") == told["digest"], ws.Tags().notin(["superseded"]), *more)


def _save_report(entity: str, project: str, told: Fields) -> str:
    import wandb
    import wandb_workspaces.reports.v2 as wr

    note = f"Written by `scaling publish`, which writes it anew each time (study {told['digest']})."
    made = wr.Report(
        entity=entity, project=project, title=title_of(told["study"]), width="fluid", description=note,
        blocks=_blocks(entity, project, told),
    )  # fmt: skip
    there = [each for each in wandb.Api().reports(f"{entity}/{project}") if each.description == note]
    made.id = there[0].id if there else ""
    made.save()
    _compare("report", made, wr.Report.from_url(made.url, as_model=True))
    return str(made.url)


def _blocks(entity: str, project: str, told: Fields) -> list[Any]:
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws

    def runs(name: str, kind: str) -> Any:
        return wr.Runset(
            entity=entity, project=project, name=name, filters=_current(told, ws.Config("kind") == kind)
        )

    blocks: list[Any] = [wr.H1("The answer"), wr.UnorderedList(items=list(told["sentences"]))]
    for kind in told["kinds"]:
        blocks += [
            wr.H1(_MEANING[kind]),
            wr.PanelGrid(runsets=[runs(f"{kind} curves", kind)], panels=_panels(kind)),
        ]
    grid = wr.PanelGrid(runsets=[runs("the study", "study")], panels=_study_panels(told))
    return [*blocks, wr.H1("Every record, the fastest modes, and the figures"), grid]


def _compare(what: str, sent: Any, there: Any) -> None:
    """Whether the server has it as it went; there: its model, since not all of a panel comes back as an object (0.4.13)."""
    one, other = (
        each.spec.model_dump(by_alias=True, exclude_none=True, mode="json")
        for each in (sent._to_model(), there)
    )
    if _told(one) != _told(other):
        raise RuntimeError(f"the {what} was saved and read back as something else")


def _told(value: Any) -> Any:
    """A specification without the identifiers that each making draws anew, and without what is empty."""
    if isinstance(value, Mapping):
        return {
            name: _told(each)
            for name, each in value.items()
            if name not in ("id", "__id__", "ref") and each != []
        }
    return [_told(each) for each in value] if isinstance(value, list) else value
