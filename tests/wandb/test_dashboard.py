"""Tests of the W&B dashboard: its panels, updates, escaped text, and messages if it cannot be made."""

import json

import pytest

from scaling.core.record import Writer
from scaling.wandb.job import TrackingSettings
from scaling.wandb.publish import publish
from tests.support import wandb_study
from tests.support.wandb_server import ENTITY, Server
from tests.support.wandb_study import record, write_results

pytestmark = pytest.mark.wandb

SETTINGS = TrackingSettings(entity=ENTITY, timeout=10)


def views(server: Server) -> dict[str, dict]:
    """Return the specifications of the workspace and of the report, by kind."""
    assert sorted(view["type"] for view in server.views.values()) == ["project-view", "runs"]
    return {view["type"]: json.loads(view["spec"]) for view in server.views.values()}


def sections(server: Server) -> dict[str, list[dict]]:
    """Return the panels of the open sections of the workspace, by title."""
    all_sections = views(server)["project-view"]["section"]["panelBankConfig"]["sections"]
    return {section["name"]: section["panels"] for section in all_sections if section["isOpen"]}


def strings(value) -> list[str]:
    """Return all texts in a specification."""
    if isinstance(value, dict):
        return [text for item in value.values() for text in strings(item)]
    return [text for item in value for text in strings(item)] if isinstance(value, list) else [str(value)]


def test_open_sections_show_time_speedup_and_size_with_dotted_ends_of_intervals(server, tmp_path):
    folder = write_results(tmp_path / "made")
    Writer(folder).append(record("jacfwd", 2, sizes={"m": 96}))
    assert publish(folder, SETTINGS).succeeded
    panels_by_title = sections(server)
    (strong,) = (panels for title, panels in panels_by_title.items() if title.startswith("Strong scaling"))
    time, speedup = (panel["config"] for panel in strong)
    stem = "rbf_grad_map_m_48_points_32_shard_map_points_split"
    ends = ("", "_low", "_high")
    assert time["metrics"] == [f"time/{stem}{end}" for end in ends] and time["yLogScale"]
    assert speedup["metrics"] == [*(f"speedup/{stem}{end}" for end in ends), "ideal/from_1"]
    assert time["xAxis"] == speedup["xAxis"] == "devices"
    assert speedup["yAxisTitle"] == "speed-up relative to 1 device"
    (size,) = (panel["config"] for panel in panels_by_title["Time against size"])
    assert size["xAxis"] == "size" and size["xAxisTitle"] == "m"
    assert set(panels_by_title) <= set(strings(views(server)["runs"]))
    answers = strings(views(server)["runs"])
    for answer in ("rbf grad_map m=48 points=32: jacfwd", "1 case failed: 1 wrong_answer"):
        assert any(text.startswith(answer) for text in answers)
    configs = [time, speedup, size]
    drawn = {name for config in configs for name in config["metrics"]}
    ends_of_runs = {
        f"{run.name}:{name}" for run in server.runs.values() for row in run.rows for name in row
        if name in drawn and name.endswith(("_low", "_high"))
    }  # fmt: skip
    assert {name for config in configs for name in config["overrideMarks"]} == ends_of_runs
    assert len(ends_of_runs) >= 2 * 2 * 2 + 2


def test_omitted_plots_are_counted(server, tmp_path):
    folder = write_results(tmp_path / "made")
    for m in range(1, 7):  # two plots each, in addition to two
        for devices in (1, 2):
            Writer(folder).append(record("jacfwd", devices, sizes={"m": m}))
    publish(folder, SETTINGS)
    (title,) = (title for title in sections(server) if title.startswith("Strong"))
    assert len(sections(server)[title]) == 12 and "(12 of 14 " in title


def test_second_publish_updates_the_same_workspace_and_report(server, tmp_path):
    folder = write_results(tmp_path / "made")
    publish(folder, SETTINGS)
    first_specs = {name: view["spec"] for name, view in server.views.items()}
    Writer(folder).append(wandb_study.record("jacrev", 4, replicate=1, seconds=[0.002] * 8))
    publish(folder, SETTINGS)
    assert set(server.views) == set(first_specs)
    assert all(view["spec"] != first_specs[name] for name, view in server.views.items())
    publish(write_results(tmp_path / "another", "another"), SETTINGS)
    assert len(server.views) == 4  # another study has its own


def test_markup_in_names_and_messages_is_text(server, tmp_path):
    folder = write_results(tmp_path / "made", study="it's <b>bold</b> [x](http://y) -- a/b \U0001f600")
    for devices in (1, 2):
        Writer(folder).append(wandb_study.record("jacfwd", devices, target="<i>**name**</i>"))
    assert publish(folder, SETTINGS).succeeded
    assert "Markdown Panel" not in strings(views(server)["project-view"])
    (name,) = {view["displayName"] for view in server.views.values()}
    assert not set(name) & set("<>[]/")


def test_rejected_dashboard_does_not_affect_the_runs(server, tmp_path):
    server.fault = lambda operation: 400 if operation in ("UpsertView2", "upsertView") else None
    outcome = publish(write_results(tmp_path / "made"), SETTINGS)
    assert set(outcome.states) == {"published"} and not outcome.succeeded
    assert "the dashboard could not be saved" in outcome.lines[-1]


def test_missing_dashboard_package_gives_one_line_with_the_install_command(server, tmp_path, monkeypatch):
    package = tmp_path / "fake" / "wandb_workspaces"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ModuleNotFoundError('gone', name='wandb_workspaces')")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    outcome = publish(write_results(tmp_path / "made"), SETTINGS)
    assert set(outcome.states) == {"published"} and outcome.succeeded and server.views == {}
    assert (
        outcome.lines[-1]
        == "W&B: no dashboard: it needs wandb-workspaces: pip install 'ad-scaling[dashboard]'"
    )
