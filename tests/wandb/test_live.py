"""Laws of publishing while a study runs: what is finished, now and then, in no measurement's way, and no more after trouble."""

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
from tests.support.wandb_server import ENTITY, serving
from tests.support.wandb_study import results

pytestmark = pytest.mark.wandb


@pytest.fixture
def server(monkeypatch, tmp_path):
    with serving(monkeypatch, tmp_path) as running:
        yield running


@pytest.fixture
def folder(tmp_path):
    """A study that has measured the one workload and not yet the other."""
    made = results(tmp_path / "made")
    cases = [*(record.case for record in store.load(made).records), Case("linear", points=6)]
    cells = [{"key": case.key, "case": to_dict(case)} for case in cases]
    store.write_json(made / "study.json", {"study": "made-up", "scaling": ["strong"], "cases": cells})
    return made


def test_finished_workloads_are_there_before_the_study_ends_and_the_last_publish_adds_only_the_rest(
    server, folder
):
    lines: list[str] = []
    settings = TrackingSettings(entity=ENTITY, every=1e-9, dashboard=False)
    LivePublisher(folder, settings, 1, lines.append)()
    assert lines == [] and len(server.of("method")) == 3 and server.of("study") == []
    before = {name: json.dumps(run.node()) for name, run in server.runs.items()}
    assert sorted(publish(folder, settings).states.values()) == ["published", *["unchanged"] * 3]
    assert {name: json.dumps(server.runs[name].node()) for name in before} == before


def test_what_is_not_finished_is_not_sent(server, folder):
    settings = TrackingSettings(entity=ENTITY, every=1e-9)
    LivePublisher(folder, settings, 2, print)()  # a second replicate of everything is to come
    assert server.runs == {} and not (folder / "wandb").exists()


def test_peaks_of_the_machine_alone_are_no_run_and_a_damaged_study_is_a_line(server, folder):
    lines: list[str] = []
    (peak, *_) = made_up.machine(np.random.default_rng(0), 1)
    store.Writer(folder).append(peak)
    study = {"study": "made-up", "cases": [{"key": peak.key, "case": to_dict(peak.case)}]}
    store.write_json(folder / "study.json", study)
    look = LivePublisher(folder, TrackingSettings(entity=ENTITY, every=1e-9), 1, lines.append)
    look()
    assert server.runs == {} and lines == []
    store.write_json(folder / "study.json", {"study": "made-up", "cases": [{}]})
    look.next_time = 0.0
    look()
    assert len(lines) == 1 and "left alone" in lines[0]


@pytest.fixture
def clock(monkeypatch):
    """A time that a test sets, and how often something was published at it."""
    now = {"time": 0.0, "published": 0, "takes": 0.0, "reasons": []}

    def publish(*_):
        now["published"] += 1
        now["time"] += now["takes"]
        return Outcome("online", reasons=now["reasons"])

    monkeypatch.setattr(publishing.time, "monotonic", lambda: now["time"])
    monkeypatch.setattr(publishing, "publish", publish)
    monkeypatch.setattr(publishing, "finished_workloads", lambda *_: frozenset([now["time"]]))
    return now


def test_it_publishes_when_it_is_time_and_takes_a_small_share_of_the_time(clock, tmp_path):
    look = LivePublisher(tmp_path, TrackingSettings(every=60), 1, print)
    for now, count in ((59, 0), (60, 1), (61, 1), (119, 1), (120, 2)):
        clock["time"] = float(now)
        look()
        assert clock["published"] == count
    clock |= {"time": 200.0, "takes": 10.0}
    look()  # took ten seconds: the next is due when these are a twentieth of the time
    for now, count in ((409.0, 3), (411.0, 4)):
        clock["time"] = now
        look()
        assert clock["published"] == count


def test_after_trouble_it_says_so_once_and_lets_the_study_alone(clock, tmp_path):
    lines: list[str] = []
    look = LivePublisher(tmp_path, TrackingSettings(every=60), 1, lines.append)
    clock |= {"reasons": ["no answer"], "time": 60.0}
    look()
    clock["time"] = 1e9
    look()
    assert clock["published"] == 1 and lines == ["W&B: no answer; it is left alone until the study has ended"]


def test_a_wandb_that_hangs_costs_no_more_than_the_timeout_and_leaves_no_copy_behind(
    server, folder, tmp_path, monkeypatch
):
    package = tmp_path / "fake" / "wandb"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import time\ntime.sleep(1000)")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    lines: list[str] = []
    began = time.monotonic()
    LivePublisher(folder, TrackingSettings(entity=ENTITY, every=1e-9, timeout=1), 1, lines.append)()
    assert time.monotonic() - began < 30  # elsewhere it is waited for longer
    assert lines == ["W&B: it took more than 1 s; it is left alone until the study has ended"]
    assert list((folder / "wandb").glob("*run-*")) == []
