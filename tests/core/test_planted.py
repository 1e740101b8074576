"""Planted errors are caught, and right derivatives accepted: a sample of `scripts/bench planted`, from the same tables."""

import sys

import pytest

from tests.support.devices import ONCE  # noqa: F401  # the devices of these tests
from tests.support.paths import TOP

TABLES = str(TOP / "scripts" / "benchmarks")
sys.path.insert(0, TABLES)
from planting import attempts, cases, plants, right, trial  # noqa: E402

pytestmark = pytest.mark.thin(50, "contract")


def size_of(case):
    """Return the number of values at which a case is differentiated."""
    return case.points * case.sizes["n"]


SAMPLE = sorted([case for case in cases.HARD if size_of(case) <= 2**16][::6], key=size_of)
RIGHT = list(right.RIGHT)[::16]
LATER = "wrong after the first call only"
WHOLE = [
    *attempts.whole_attempts()[::18],
    *[each for each in attempts.whole_attempts() if each.kind == LATER][:1],
]


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Let processes that are started find the functions too."""
    monkeypatch.setenv("PYTHONPATH", TABLES)


@pytest.mark.parametrize(
    "case", SAMPLE, ids=lambda case: f"{case.variant} {case.sizes['n']} {case.dtype} {case.mode}"
)
def test_an_error_planted_in_a_result_is_caught(case):
    outcome, asked = trial.run(trial.complete(case))
    assert outcome.status in ("ok", trial.NO_DIGITS), outcome
    if outcome.status == "ok":
        for kind, wrong in plants.choose_plants(asked.words[0], asked.result, 5, {}, SAMPLE.index(case)):
            assert trial.check_result(asked, wrong).status != "ok", kind


@pytest.mark.parametrize("whole", WHOLE, ids=lambda whole: f"{whole.kind} {whole.case.sizes['n']}")
def test_an_error_planted_in_an_attempt_is_caught(whole):
    assert whole.run().status != "ok"


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_derivative_is_not_refused(name):
    for case in right.cases(name):
        outcome = trial.run_correct(case)[1]
        assert outcome.status == "ok" or (
            outcome.status == trial.NO_DIGITS and not right.RIGHT[name].digits
        ), outcome


def test_a_plant_that_its_dtype_cannot_resolve_is_not_planted():
    _, asked = trial.run(trial.complete(SAMPLE[0]))
    of = plants.Result(asked.words[0], asked.result, None)
    assert plants.change(of, of.scaled((), 1 + plants.LEAST[of.case.dtype] / 2)) < plants.LEAST[of.case.dtype]
