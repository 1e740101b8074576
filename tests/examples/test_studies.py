"""Tests of the studies of examples/: every case of each can run."""

import pytest
import yaml

from scaling.study import grid, preflight_process
from tests.support.paths import TOP

STUDIES = sorted((TOP / "examples" / "conf" / "study").glob("*.yaml"))


@pytest.mark.thin(2, "thorough")
@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_the_preflight_accepts_every_case_of_a_study(path):
    answers = [
        preflight_process.check_cell(cell) for cell in grid.expand_study(yaml.safe_load(path.read_text()), {})
    ]
    assert answers
    assert [answer["unfit"] for answer in answers] == [None] * len(answers)
