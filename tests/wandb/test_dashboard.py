"""Laws of the dashboard: what is shown without a click, made once, text that stays text, and a line where it cannot be."""

import json

import pytest

from scaling.core import store
from scaling.wandb.publish import publish
from scaling.wandb.settings import TrackingSettings
from tests.support import made_up, wandb_study
from tests.support.wandb_server import ENTITY, Server, serving
from tests.support.wandb_study import record, results

pytestmark = pytest.mark.wandb

SETTINGS = TrackingSettings(entity=ENTITY, timeout=10)


@pytest.fixture
def server(monkeypatch, tmp_path):
    with serving(monkeypatch, tmp_path) as running:
        yield running


def views(server: Server) -> dict[str, dict]:
    """The specification of the workspace and of the report, by their kind."""
    assert sorted(view["type"] for view in server.views.values()) == ["project-view", "runs"]
    return {view["type"]: json.loads(view["spec"]) for view in server.views.values()}


def sections(server: Server) -> dict[str, list[dict]]:
    """The panels of the open sections of the workspace, by title."""
    found = views(server)["project-view"]["section"]["panelBankConfig"]["sections"]
    return {section["name"]: section["panels"] for section in found if section["isOpen"]}


def strings(value) -> list[str]:
    """Every text in a specification."""
    if isinstance(value, dict):
        return [text for each in value.values() for text in strings(each)]
    return [text for each in value for text in strings(each)] if isinstance(value, list) else [str(value)]


def test_time_speedup_with_one_ideal_line_size_fastest_modes_and_failures_are_shown_without_a_click(
    server, tmp_path
):
    folder = results(tmp_path / "made")
    store.Writer(folder).append(record("jacfwd", 2, sizes={"m": 96}))
    assert publish(folder, SETTINGS).succeeded
    shown = sections(server)
    (strong,) = (panels for title, panels in shown.items() if title.startswith("Strong scaling"))
    time, speedup = (panel["config"] for panel in strong)
    stem = "rbf_grad_map_m_48_points_32_shard_map_points_split"
    ends = ("", "_low", "_high")
    assert time["metrics"] == [f"time/{stem}{end}" for end in ends] and time["yLogScale"]
    assert speedup["metrics"] == [*(f"speedup/{stem}{end}" for end in ends), "ideal/from_1"]
    assert time["xAxis"] == speedup["xAxis"] == "devices"
    assert speedup["yAxisTitle"] == "speed-up over 1 device"
    (size,) = (panel["config"] for panel in shown["Time against size"])
    assert size["xAxis"] == "size" and size["xAxisTitle"] == "m"
    assert {
        "The fastest mode of each problem",
        "Failed and skipped cases",
        "The figures of the report",
    } <= set(shown)
    assert set(shown) <= set(strings(views(server)["runs"]))
    assert any("rbf grad_map: " in text for text in strings(views(server)["runs"]))


def test_the_ends_of_intervals_are_dotted_lines_of_the_runs_that_are_there(server, tmp_path):
    publish(results(tmp_path / "made"), SETTINGS)
    panels = sections(server)["Strong scaling: the same work on more devices"]
    dotted = {name for panel in panels for name in panel["config"]["overrideMarks"]}
    ends = {
        f"{run.name}:{name}" for run in server.runs.values() for row in run.rows for name in row
        if name.endswith(("_low", "_high"))
    }  # fmt: skip
    assert dotted == ends and len(ends) == 2 * 2 * 2


def test_plots_that_are_left_out_are_counted(server, tmp_path):
    publish(made_up.write(tmp_path / "made", list(made_up.study(1500))), SETTINGS)
    (title,) = (title for title in sections(server) if title.startswith("Strong"))
    assert len(sections(server)[title]) == 12 and "(12 of " in title


def test_publishing_again_brings_the_same_two_up_to_date_and_makes_no_others(server, tmp_path):
    folder = results(tmp_path / "made")
    publish(folder, SETTINGS)
    first = {name: view["spec"] for name, view in server.views.items()}
    store.Writer(folder).append(wandb_study.record("jacrev", 4, replicate=1, seconds=[0.002] * 8))
    publish(folder, SETTINGS)
    assert set(server.views) == set(first)
    assert all(view["spec"] != first[name] for name, view in server.views.items())
    publish(results(tmp_path / "another", "another"), SETTINGS)
    assert len(server.views) == 4  # another study has its own


def test_a_name_and_a_message_with_markup_are_text(server, tmp_path):
    folder = results(tmp_path / "made", study="it's <b>bold</b> [x](http://y) -- a/b \U0001f600")
    for devices in (1, 2):
        store.Writer(folder).append(wandb_study.record("jacfwd", devices, target="<i>**name**</i>"))
    assert publish(folder, SETTINGS).succeeded
    assert "Markdown Panel" not in strings(views(server)["project-view"])
    (name,) = {view["displayName"] for view in server.views.values()}
    assert not set(name) & set("<>[]/")


def test_a_dashboard_that_the_server_does_not_take_costs_no_run(server, tmp_path):
    server.trouble = lambda operation: 400 if operation in ("UpsertView2", "upsertView") else None
    outcome = publish(results(tmp_path / "made"), SETTINGS)
    assert set(outcome.states.values()) == {"published"} and not outcome.succeeded
    assert "the dashboard could not be saved" in outcome.lines[-1]


def test_without_the_package_there_is_one_line_that_says_how_to_have_it(server, tmp_path, monkeypatch):
    package = tmp_path / "fake" / "wandb_workspaces"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ModuleNotFoundError('gone', name='wandb_workspaces')")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    outcome = publish(results(tmp_path / "made"), SETTINGS)
    assert set(outcome.states.values()) == {"published"} and outcome.succeeded and server.views == {}
    assert (
        outcome.lines[-1] == "W&B: no dashboard: it needs a package more: pip install 'ad-scaling[dashboard]'"
    )
