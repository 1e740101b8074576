"""Tests of publishing the studies of conf/study: all runs arrive unchanged, and a second publish adds nothing."""

import functools

import pytest

from scaling.wandb.job import TrackingSettings
from scaling.wandb.publish import publish
from tests.support import made_up, wandb_cases
from tests.support.wandb_cases import STUDIES, cases_of, config_shape, records_of, select_curves
from tests.support.wandb_server import ENTITY
from tests.support.wandb_study import is_published, runs_of, write_results

pytestmark = pytest.mark.wandb

SETTINGS = TrackingSettings(entity=ENTITY, timeout=20, dashboard=False)


@pytest.fixture(scope="module")
def cases_of_studies(tmp_path_factory):
    """Return a function from the name of a study to its cases, with a user function for the study that requires one."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "mine.py").write_text(wandb_cases.USER_WORKLOAD)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield functools.cache(cases_of)


def published_cases(cases_of_studies, name):
    """Return one curve of a study for each shape of config that no earlier study has."""
    earlier = STUDIES[: STUDIES.index(name)]
    known = {config_shape(case) for other in earlier for case in cases_of_studies(other)}
    return select_curves(cases_of_studies(name), known)


def test_the_cases_of_every_study_are_published_and_a_second_publish_adds_nothing(
    server, tmp_path, cases_of_studies
):
    cases = dict.fromkeys(case for name in STUDIES for case in published_cases(cases_of_studies, name))
    folder = made_up.write(tmp_path / "all", records_of([*cases]), "all")
    runs = runs_of(folder)
    assert len(runs) > 1
    outcome = publish(folder, SETTINGS)
    assert outcome.succeeded and set(outcome.states) == {"published"}, outcome.lines
    assert is_published(server, folder)
    again = publish(folder, SETTINGS)
    assert again.succeeded and set(again.states) == {"unchanged"}, again.lines
    assert len(server.runs) == len(runs) and is_published(server, folder)


def test_a_study_with_an_unusual_name_is_published_once(server, tmp_path):
    study = 'it\'s {a} "study" ü \U0001f600 a/b.c=d' + "x" * 200 + "\udcff"
    folder = write_results(tmp_path / "made", study=study)
    assert publish(folder, SETTINGS).succeeded
    again = publish(folder, SETTINGS)
    assert set(again.states) == {"unchanged"} and is_published(server, folder)


def test_published_subset_has_every_shape_of_config(cases_of_studies):
    published, known = set(), set()
    for name in STUDIES:
        cases = cases_of_studies(name)
        published |= {config_shape(case) for case in select_curves(cases, known)}
        known |= {config_shape(case) for case in cases}
    assert published == known and any(not sizes for _, sizes in known)
