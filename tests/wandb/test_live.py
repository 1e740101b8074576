"""Laws of publishing while a study runs: what is finished, now and then, in no measurement's way, and no more after trouble."""

import json
import time

import pytest

from scaling.core import store
from scaling.core.case import Case, to_dict
from scaling.wandb import publish as publishing
from scaling.wandb.outcome import PublishedStudy
from scaling.wandb.publish import LivePublisher, publish
from scaling.wandb.settings import TrackingSettings
from tests.support import wandb_study
from tests.support.wandb_server import ENTITY, serving
from tests.support.wandb_study import results

pytestmark = pytest.mark.wandb


@pytest.fixture
def server(monkeypatch, tmp_path):
    with serving(monkeypatch, tmp_path) as running:
        yield running


@pytest.fixture
def folder(tmp_path):
    """A study that has measured the one problem and not yet the other."""
    made = results(tmp_path / "made")
    cases = [record.case for record in store.load(made).records]
    cases += [
        Case("rbf", target="grad_map", sizes={"m": 64}, points=32, devices=devices) for devices in (1, 2)
    ]
    cells = [{"key": case.key, "case": to_dict(case)} for case in cases]
    store.write_json(made / "study.json", {"study": "made-up", "scaling": ["strong"], "cases": cells})
    return made


def test_finished_curves_are_there_before_the_study_ends_and_the_last_publish_adds_only_the_rest(
    server, folder
):
    said: list[str] = []
    settings = TrackingSettings(entity=ENTITY, every=1e-9, dashboard=False)
    LivePublisher(folder, settings, 1, said.append)()
    assert said == [] and len(server.of("curve")) == 2 and server.of("study") == []
    before = {name: json.dumps(run.node()) for name, run in server.runs.items()}
    writer = store.Writer(folder)
    for devices in (1, 2):
        writer.append(wandb_study.record("jacfwd", devices, sizes={"m": 64}))
    last = publish(folder, settings)
    assert (last.sent, last.before, last.superseded) == (2, 2, 0) and len(server.of("curve")) == 3
    assert {name: json.dumps(server.runs[name].node()) for name in before} == before


def test_what_is_not_finished_is_not_sent(server, folder):
    LivePublisher(
        folder, TrackingSettings(entity=ENTITY, every=1e-9), 2, print
    )()  # a second replicate of everything is to come
    assert server.runs == {} and not (folder / "wandb").exists()


@pytest.fixture
def clock(monkeypatch):
    """A time that a test sets, and how often something was published at it."""
    now = {"time": 0.0, "published": 0, "takes": 0.0, "reason": None}

    def publish_finished(*_):
        now["published"] += 1
        now["time"] += now["takes"]
        return PublishedStudy("online", reason=now["reason"])

    monkeypatch.setattr(publishing.time, "monotonic", lambda: now["time"])
    monkeypatch.setattr(publishing, "publish_finished", publish_finished)
    return now


def test_it_publishes_when_it_is_time_and_takes_a_small_share_of_the_time(clock, tmp_path):
    look = LivePublisher(tmp_path, TrackingSettings(every=60), 1, print)
    for now, count in ((59, 0), (60, 1), (61, 1), (119, 1), (120, 2)):
        clock["time"] = float(now)
        look()
        assert clock["published"] == count
    clock |= {"time": 200.0, "takes": 10.0}
    look()  # took ten seconds: the next is due when these are a twentieth of the time
    clock["time"] = 409.0
    look()
    assert clock["published"] == 3
    clock["time"] = 411.0
    look()
    assert clock["published"] == 4


def test_after_trouble_it_says_so_once_and_lets_the_study_alone(clock, tmp_path):
    said: list[str] = []
    look = LivePublisher(tmp_path, TrackingSettings(every=60), 1, said.append)
    clock |= {"reason": "no answer", "time": 60.0}
    look()
    clock["time"] = 1e9
    look()
    assert clock["published"] == 1 and said == ["W&B: no answer; it is left alone until the study has ended"]


def test_a_wandb_that_hangs_costs_no_more_than_the_timeout_and_leaves_no_copy_behind(
    server, folder, tmp_path, monkeypatch
):
    package = tmp_path / "fake" / "wandb"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import time\ntime.sleep(1000)")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    said: list[str] = []
    began = time.monotonic()
    LivePublisher(folder, TrackingSettings(entity=ENTITY, every=1e-9, timeout=1), 1, said.append)()
    assert time.monotonic() - began < 30  # elsewhere it is waited for longer
    assert said == ["W&B: it took more than 1 s; it is left alone until the study has ended"]
    assert list((folder / "wandb").glob("*run-*")) == []
