"""The contract: every way to compute a derivative gives the reference's answer at every point, and sends what it must.

Plain, the product of problems, modes, batches, splits, apis and device counts is covered pairwise; `--full` runs all of it.
"""

import dataclasses
import itertools
import random

import jax
import pytest

from scaling.core import applicability, check, inputs, layout, modes, run_case, shape, workload
from scaling.core.case import Case
from scaling.core.modes import HESSIAN
from scaling.core.record import SKIPPED, Record
from tests.support.devices import HERE, ONCE
from tests.support.problems import AXES, PROBLEMS, case_of, runs, twice


def pairwise() -> list[tuple]:
    """Rows that run and hold, together, every pair of values that any row that runs holds."""
    rows = [row for row in itertools.product(*AXES.values()) if row[-1] or row[4] == "jit"]
    random.Random(7).shuffle(rows)
    wanted, chosen = set(), []
    for row in rows:
        pairs = {(i, row[i], j, row[j]) for i, j in itertools.combinations(range(len(row)), 2)}
        if not pairs <= wanted and runs(row):
            chosen.append(row)
            wanted |= pairs
    return chosen


def pytest_generate_tests(metafunc):
    if "row" in metafunc.fixturenames:
        full = metafunc.config.getoption("--full")
        rows = [row for row in itertools.product(*AXES.values()) if runs(row)] if full else pairwise()
        cases = {case_of(row).key: row for row in rows}  # rows that a workload completes to the same case run once
        metafunc.parametrize("row", cases.values(), ids=lambda row: "-".join(str(value) for value in row))


def run(case: Case) -> Record:
    return run_case.run_case(Record(case, "failed", HERE), jax.devices()[: case.devices], "cpu", ONCE)


def test_every_way_gives_the_reference_at_every_point_and_sends_what_it_must(row):
    record = run(case_of(row))
    if record.status == "skipped":
        few_bits = record.case.dtype == "bfloat16"  # where sums of many terms, or of such that cancel, have no digit
        assert record.reason == "no_digits" and (few_bits or record.case.mode == "finite_difference")
        return
    assert record.status == "ok", record.text
    assert record.error <= record.tolerance
    if record.case.dtype == "float64" and record.case.mode != "finite_difference":
        assert record.error < 1e-10
    assert not record.collectives or any(record.collectives.values()) == (record.case.split == "data" and record.case.devices > 1)


def test_why_a_case_cannot_run_comes_from_the_closed_list():
    reasons = set()
    for row in random.Random(5).sample(list(itertools.product(*AXES.values())), 3000):
        case = case_of(row)
        built = workload.build(case)
        if why := applicability.why_inapplicable(case, built, shape.derivative_shape(case, built)):
            reasons.add(why[0])
    assert reasons == {"not_defined", "not_offered", "indivisible"} <= set(SKIPPED)


@pytest.mark.parametrize(
    ("name", "mode"),
    [(name, mode) for name in PROBLEMS for mode in (HESSIAN if twice(name) else ("jacfwd", "jacrev", "linearize"))],
)
def test_a_slice_that_is_a_thousandth_off_is_a_wrong_answer(name, mode, monkeypatch):
    right = modes.MODES[mode].linear_map

    def wrong(f, x):
        linear_map = right(f, x)
        return lambda v: jax.tree.map(lambda a: a * 1.001, linear_map(v))

    monkeypatch.setitem(modes.MODES, mode, dataclasses.replace(modes.MODES[mode], linear_map=wrong))
    record = run(workload.complete(Case(**PROBLEMS[name] | {"mode": mode, "dtype": "float32"})))
    assert (record.status, record.reason) == ("failed", "wrong_answer")
    assert not record.seconds


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("reference", ["closed form", "computed"])
def test_one_wrong_point_is_found_wherever_it_is(name, reference):
    mode = "fwd_over_rev" if twice(name) else "jacfwd"
    case = workload.complete(Case(**PROBLEMS[name] | {"api": "jit", "dtype": "float64", "mode": mode}))
    built = workload.build(case)
    program = layout.lay_out(case, built, jax.devices()[:1])
    got = program.collect(program.function(*inputs.place_inputs(case, built, program))).copy()
    if reference == "computed":
        built = dataclasses.replace(built, reference=None)
    assert check.verdict(case, built, program.sizes, got, "cpu").reason is None
    for point in {0, case.points // 2, case.points - 1}:
        wrong = got.copy()
        at = abs(wrong[point]).argmax()
        wrong[point].flat[at] += 1e-4 * (abs(wrong[point].flat[at]) or 1)
        assert check.verdict(case, built, program.sizes, wrong, "cpu").reason == "wrong_answer", point


@pytest.mark.parametrize("split", ["points", "seeds"])
@pytest.mark.parametrize("api", ["shard_map", "pmap"])
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("rbf of fewer", "jacrev"),
        ("linear by W", "jacfwd"),
        ("residual by both", "linearize"),
        ("residual's Hessian", "rev_over_fwd"),
    ],
)
def test_seeds_taken_in_chunks_with_a_remainder_give_the_same_numbers(name, mode, api, split):
    fields = PROBLEMS[name] | {"mode": mode, "api": api, "split": split, "devices": 2, "dtype": "float64"}
    record = run(workload.complete(Case(**fields | {"chunk": 3})))
    assert record.status == "ok", record.text
    assert record.error < 1e-10


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_point_has_the_same_numbers_however_the_points_are_cut(name):
    case = workload.complete(Case(**PROBLEMS[name] | {"mode": "value"}))
    built = workload.build(case)
    whole = inputs.exact_inputs(case, built, 0, case.points)
    for start, stop in ((0, case.points // 2), (case.points // 2, case.points)):
        part = inputs.exact_inputs(case, built, start, stop)
        for input_name in built.points:
            assert (part[input_name] == whole[input_name][start:stop]).all()
