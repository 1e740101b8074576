"""Laws of publishing the studies of conf/study: all of them arrive as they were sent, and a second publish adds nothing."""

import functools

import pytest

from scaling.wandb.publish import publish
from scaling.wandb.settings import TrackingSettings
from tests.support import made_up, wandb_cases
from tests.support.wandb_cases import STUDIES, cases_of, records_of, shape_of, thinned
from tests.support.wandb_server import ENTITY, serving
from tests.support.wandb_study import brought, results, runs_of

pytestmark = pytest.mark.wandb

SETTINGS = TrackingSettings(entity=ENTITY, timeout=20, dashboard=False)


@pytest.fixture
def server(monkeypatch, tmp_path):
    with serving(monkeypatch, tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def cases_of_studies(tmp_path_factory):
    """The cases of every study; a user's own function for the study that has none."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "mine.py").write_text(wandb_cases.USER_WORKLOAD)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield functools.cache(cases_of)


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_is_published_and_a_second_publish_adds_nothing(server, tmp_path, cases_of_studies, name):
    """One curve for each shape of config that no earlier study has."""
    earlier = STUDIES[: STUDIES.index(name)]
    known = {shape_of(case) for other in earlier for case in cases_of_studies(other)}
    cases = thinned(cases_of_studies(name), known)
    folder = made_up.write(tmp_path / name, records_of(cases), name)
    runs = runs_of(folder)
    assert len(runs) > 1
    outcome = publish(folder, SETTINGS)
    assert outcome.succeeded and set(outcome.states.values()) == {"published"}, outcome.lines
    assert brought(server, folder)
    again = publish(folder, SETTINGS)
    assert again.succeeded and set(again.states.values()) == {"unchanged"}, again.lines
    assert len(server.runs) == len(runs) and brought(server, folder)


@pytest.mark.parametrize("study", ['it\'s {a} "study"', "ü \U0001f600", "a/b.c=d", "x" * 200, "\udcff"])
def test_a_study_of_any_name_is_published_once(server, tmp_path, study):
    folder = results(tmp_path / "made", study=study)
    assert publish(folder, SETTINGS).succeeded
    again = publish(folder, SETTINGS)
    assert set(again.states.values()) == {"unchanged"} and brought(server, folder)


def test_the_thinned_cases_hold_every_shape_of_config_of_every_study(cases_of_studies):
    kept, known = set(), set()
    for name in STUDIES:
        cases = cases_of_studies(name)
        kept |= {shape_of(case) for case in thinned(cases, known)}
        known |= {shape_of(case) for case in cases}
    assert kept == known and any(not sizes for _, sizes in known)
