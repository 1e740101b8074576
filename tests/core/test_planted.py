"""Tests of the check with planted errors: errors are caught, correct derivatives pass (a sample of `scripts/bench planted`)."""

import sys

import pytest

from tests.support import devices  # noqa: F401
from tests.support.paths import TOP

TABLES = str(TOP / "scripts" / "benchmarks")
sys.path.insert(0, TABLES)
from planting import attempts, cases, plants, right, trial  # noqa: E402

pytestmark = pytest.mark.thin(50, "thorough")


def size_of(case):
    """Return the number of values at which a case is differentiated."""
    return case.points * case.sizes["n"]


SAMPLE = sorted([case for case in cases.HARD if size_of(case) <= 2**16][::12], key=size_of)
CORRECT = list(right.RIGHT)[::16]
WRONG_LATER = "wrong after the first call only"
WHOLE = [
    *attempts.whole_attempts()[::18],
    *[attempt for attempt in attempts.whole_attempts() if attempt.kind == WRONG_LATER][:1],
]


@pytest.fixture(autouse=True)
def add_tables_to_path(monkeypatch):
    """Let started processes import the functions."""
    monkeypatch.setenv("PYTHONPATH", TABLES)


@pytest.mark.parametrize(
    "case", SAMPLE, ids=lambda case: f"{case.variant} {case.sizes['n']} {case.dtype} {case.mode}"
)
def test_an_error_planted_in_a_result_is_detected(case):
    outcome, call = trial.run(trial.complete(case))
    assert outcome.status in ("ok", trial.NO_DIGITS), outcome
    if outcome.status == "ok":
        for kind, wrong in plants.choose_plants(call.words[0].case, call.result, 5, {}, SAMPLE.index(case)):
            assert trial.check_result(call, wrong).status != "ok", kind


@pytest.mark.parametrize("attempt", WHOLE, ids=lambda attempt: f"{attempt.kind} {attempt.case.sizes['n']}")
def test_an_error_planted_in_a_whole_case_is_detected(attempt):
    assert attempt.run().status != "ok"


@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_derivative_passes(name):
    for case in right.cases(name):
        outcome = trial.run_correct(case)[1]
        assert outcome.status == "ok" or (
            outcome.status == trial.NO_DIGITS and not right.RIGHT[name].digits
        ), outcome


def test_a_change_below_the_resolution_of_its_dtype_is_not_planted():
    _, call = trial.run(trial.complete(SAMPLE[0]))
    result = plants.Result(call.words[0].case, call.result, None)
    least = plants.LEAST[result.case.dtype]
    assert plants.change(result, result.scaled((), 1 + least / 2)) < least
