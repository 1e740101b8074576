"""Laws of the dashboard: saved and read back, made once, text that stays text, and a line where it cannot be."""

import json

import pytest

from scaling.core import store
from scaling.wandb.publish import publish
from scaling.wandb.settings import TrackingSettings
from tests.support import wandb_study
from tests.support.wandb_server import ENTITY, Server, serving
from tests.support.wandb_study import results

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


def panels(spec: dict) -> list[dict]:
    return [
        panel for section in spec["section"]["panelBankConfig"]["sections"] for panel in section["panels"]
    ]


def strings(value) -> list[str]:
    """Every text in a specification."""
    if isinstance(value, dict):
        return [text for each in value.values() for text in strings(each)]
    return [text for each in value for text in strings(each)] if isinstance(value, list) else [str(value)]


def test_a_person_finds_a_finished_workspace_and_a_report(server, tmp_path):
    said = publish(results(tmp_path / "made"), SETTINGS)
    assert said.well and f"dashboard {server.url}/{ENTITY}/ad-scaling?nw=" in said.lines[1]
    spec = views(server)
    shown = panels(spec["project-view"])
    drawn = [panel["config"] for panel in shown if panel["viewType"] == "Run History Line Plot"]
    assert [(each["xAxis"], each["metrics"]) for each in drawn] == [
        ("devices", ["speedup", "ideal"]), ("devices", ["efficiency", "ideal_efficiency"]), ("devices", ["seconds"]),
    ]  # fmt: skip
    kinds = {panel["viewType"] for panel in shown}
    assert {"Markdown Panel", "Media Browser"} <= kinds and len(kinds) == 4  # and the two tables
    told = strings(spec["runs"])
    assert any("scaling of rbf grad_map on 4 devices" in text for text in told)
    assert {"figures/speedup", "superseded", "study_digest"} <= set(told) | set(strings(spec["project-view"]))


def test_publishing_again_brings_the_same_two_up_to_date_and_makes_no_others(server, tmp_path):
    folder = results(tmp_path / "made")
    publish(folder, SETTINGS)
    first = {name: view["spec"] for name, view in server.views.items()}
    store.Writer(folder).append(wandb_study.record("jacrev", 4, replicate=1, seconds=[0.002] * 8))
    publish(folder, SETTINGS)
    assert set(server.views) == set(first) and all(
        view["spec"] != first[name] for name, view in server.views.items()
    )


def test_two_studies_of_one_project_have_a_dashboard_each(server, tmp_path):
    for study in ("one", "two"):
        publish(results(tmp_path / study, study), SETTINGS)
    assert len(server.views) == 4


def test_a_name_and_a_message_with_markup_are_text(server, tmp_path):
    folder = results(tmp_path / "made", study="it's <b>bold</b> [x](http://y) -- a/b \U0001f600")
    for devices in (1, 2):
        store.Writer(folder).append(wandb_study.record("jacfwd", devices, target="<i>**name**</i>"))
    assert publish(folder, SETTINGS).well
    markdown = next(
        panel for panel in panels(views(server)["project-view"]) if panel["viewType"] == "Markdown Panel"
    )
    value = markdown["config"]["value"]
    assert (
        "\\<i\\>\\*\\*name" in value
        and "<" not in value.replace("\\<", "")
        and "*" not in value.replace("\\*", "")
    )
    (name,) = {view["displayName"] for view in server.views.values()}
    assert not set(name) & set("<>[]/")


def test_every_sign_of_markdown_is_escaped():
    from scaling.wandb import dashboard  # imports wandb_workspaces

    assert dashboard.markdown("a **b** <i> [x](y)\n# `c`") == r"a \*\*b\*\* \<i\> \[x\]\(y\) \# \`c\`"


def test_a_refused_weak_series_is_nowhere_called_weak_but_where_it_is_refused(server, tmp_path):
    from scaling.wandb import dashboard  # imports wandb_workspaces

    publish(wandb_study.weak(tmp_path / "refused", (1, 2, 4), more=1e5), SETTINGS)
    for spec in views(server).values():
        for text in (text for text in strings(spec) if "weak" in text.lower()):
            assert "Not weak scaling" in text
    publish(wandb_study.weak(tmp_path / "grown", (1, 2, 4)), SETTINGS)
    assert any(
        dashboard._MEANING["weak"] in strings(json.loads(view["spec"])) for view in server.views.values()
    )


def test_a_dashboard_that_the_server_does_not_take_costs_no_run(server, tmp_path):
    server.trouble = lambda operation: 400 if operation in ("UpsertView2", "upsertView") else None
    said = publish(results(tmp_path / "made"), SETTINGS)
    assert said.sent == 3 and "the dashboard could not be saved (" in said.lines[-1] and not said.well


def test_without_the_package_there_is_one_line_that_says_how_to_have_it(server, tmp_path, monkeypatch):
    package = tmp_path / "fake" / "wandb_workspaces"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ModuleNotFoundError('gone', name='wandb_workspaces')")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    said = publish(results(tmp_path / "made"), SETTINGS)
    assert said.sent == 3 and said.well and server.views == {}
    assert said.lines[-1] == "W&B: no dashboard: it needs a package more: pip install 'ad-scaling[dashboard]'"
