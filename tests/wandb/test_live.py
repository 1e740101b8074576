"""Tests of publishing during a study: what is published when, its cost, and its end after an error."""

import json
import time

import numpy as np
import pytest

from scaling.core import store
from scaling.core.case import Case, to_dict
from scaling.wandb import publish as publishing
from scaling.wandb.publish import LivePublisher, Outcome, publish
from scaling.wandb.settings import TrackingSettings
from tests.support import made_up
from tests.support.wandb_server import ENTITY, run_server
from tests.support.wandb_study import write_results

pytestmark = pytest.mark.wandb


@pytest.fixture
def server(monkeypatch, tmp_path):
    with run_server(monkeypatch, tmp_path) as running:
        yield running


@pytest.fixture
def folder(tmp_path):
    """Return a study with one finished and one unfinished workload."""
    study = write_results(tmp_path / "made")
    cases = [*(record.case for record in store.load(study).records), Case("linear", points=6)]
    cells = [{"key": case.key, "case": to_dict(case)} for case in cases]
    store.write_json(study / "study.json", {"study": "made-up", "scaling": ["strong"], "cases": cells})
    return study


def test_finished_workloads_are_published_early_and_the_last_publish_adds_the_rest(server, folder):
    lines: list[str] = []
    settings = TrackingSettings(entity=ENTITY, every=1e-9, dashboard=False)
    LivePublisher(folder, settings, 1, lines.append)()
    assert lines == [] and len(server.runs_of_type("method")) == 3 and server.runs_of_type("study") == []
    before = {name: json.dumps(run.node()) for name, run in server.runs.items()}
    assert sorted(publish(folder, settings).states.values()) == ["published", *["unchanged"] * 3]
    assert {name: json.dumps(server.runs[name].node()) for name in before} == before


def test_unfinished_workloads_are_not_published(server, folder):
    settings = TrackingSettings(entity=ENTITY, every=1e-9)
    LivePublisher(folder, settings, 2, print)()  # every case still lacks its second replicate
    assert server.runs == {} and not (folder / "wandb").exists()


def test_machine_peaks_alone_make_no_run_and_a_damaged_study_gives_one_line(server, folder):
    lines: list[str] = []
    (peak, *_) = made_up.machine(np.random.default_rng(0), 1)
    store.Writer(folder).append(peak)
    study = {"study": "made-up", "cases": [{"key": peak.key, "case": to_dict(peak.case)}]}
    store.write_json(folder / "study.json", study)
    publisher = LivePublisher(folder, TrackingSettings(entity=ENTITY, every=1e-9), 1, lines.append)
    publisher()
    assert server.runs == {} and lines == []
    store.write_json(folder / "study.json", {"study": "made-up", "cases": [{}]})
    publisher.next_time = 0.0
    publisher()
    assert len(lines) == 1 and "left alone" in lines[0]


@pytest.fixture
def clock(monkeypatch):
    """Return a dict with a clock that a test sets, the number of publishes, their duration, and the reasons of their failure."""
    state = {"time": 0.0, "published": 0, "takes": 0.0, "reasons": []}

    def publish(*_):
        state["published"] += 1
        state["time"] += state["takes"]
        return Outcome("online", reasons=state["reasons"])

    monkeypatch.setattr(publishing.time, "monotonic", lambda: state["time"])
    monkeypatch.setattr(publishing, "publish", publish)
    monkeypatch.setattr(publishing, "finished_workloads", lambda *_: frozenset([state["time"]]))
    return state


def test_publishing_is_periodic_and_takes_at_most_a_twentieth_of_the_time(clock, tmp_path):
    publisher = LivePublisher(tmp_path, TrackingSettings(every=60), 1, print)
    for now, count in ((59, 0), (60, 1), (61, 1), (119, 1), (120, 2)):
        clock["time"] = float(now)
        publisher()
        assert clock["published"] == count
    clock |= {"time": 200.0, "takes": 10.0}
    publisher()  # takes ten seconds: the next is due when these are a twentieth of the elapsed time
    for now, count in ((409.0, 3), (411.0, 4)):
        clock["time"] = now
        publisher()
        assert clock["published"] == count


def test_publishing_stops_after_an_error_with_one_message(clock, tmp_path):
    lines: list[str] = []
    publisher = LivePublisher(tmp_path, TrackingSettings(every=60), 1, lines.append)
    clock |= {"reasons": ["no answer"], "time": 60.0}
    publisher()
    clock["time"] = 1e9
    publisher()
    assert clock["published"] == 1 and lines == ["W&B: no answer; it is left alone until the study has ended"]


def test_hanging_wandb_costs_at_most_the_timeout_and_leaves_no_offline_copy(
    server, folder, tmp_path, monkeypatch
):
    package = tmp_path / "fake" / "wandb"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import time\ntime.sleep(1000)")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    lines: list[str] = []
    began = time.monotonic()
    LivePublisher(folder, TrackingSettings(entity=ENTITY, every=1e-9, timeout=1), 1, lines.append)()
    assert time.monotonic() - began < 30  # the final publish would wait longer
    assert lines == ["W&B: it took more than 1 s; it is left alone until the study has ended"]
    assert list((folder / "wandb").glob("*run-*")) == []
