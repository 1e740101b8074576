"""Tests of the contract: every method of computing a derivative gives the reference at every point.

The product of problems, modes, batches, splits, apis and device counts is covered pairwise, by the rows of pairs.json.
"""

import dataclasses
import itertools
import random

import jax
import pytest

from scaling.core import check, inputs, layout, modes, workload
from scaling.core.case import Case
from scaling.core.derivative import describe_derivative
from scaling.core.modes import HESSIAN
from scaling.core.record import SKIPPED
from scaling.study import case_rules
from tests.support import pairs
from tests.support.devices import run_once
from tests.support.problems import AXES, PROBLEMS, can_run, case_of, has_second_derivatives

ROWS, IMPOSSIBLE = pairs.read_rows()
EAGER = [row for row in ROWS if not row[-1]]  # not compiled, the slowest
BY_DEFAULT = ROWS[:56] + EAGER[:4]  # sorted by the number of pairs that they add


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=() if row in BY_DEFAULT else pytest.mark.thorough) for row in ROWS],
    ids=lambda row: "-".join(str(value) for value in row),
)
def test_every_method_gives_the_reference_and_communicates_only_for_split_data(row):
    record = run_once(case_of(row))
    if record.status == "skipped":
        few_bits = record.case.dtype == "bfloat16"  # a long sum or a sum that cancels has no correct digit
        assert record.reason == "no_digits" and (few_bits or record.case.mode == "finite_difference")
        return
    assert record.status == "ok", record.text
    assert record.error <= record.tolerance
    if record.case.dtype == "float64" and record.case.mode != "finite_difference":
        assert record.error < 1e-10
    assert not record.collectives or any(record.collectives.values()) == (
        record.case.split == "data" and record.case.devices > 1
    )


def test_the_rows_contain_every_pair_of_values_that_can_run():
    contained = set().union(*map(pairs.pairs_of, ROWS))
    assert contained | IMPOSSIBLE == pairs.all_pairs(AXES) and not contained & IMPOSSIBLE


def test_the_default_rows_contain_every_value_of_every_axis():
    for i, values in enumerate(AXES.values()):
        assert {row[i] for row in BY_DEFAULT} == set(values)


@pytest.mark.thorough
def test_no_row_with_an_impossible_pair_can_run():
    candidates = [row for row in itertools.product(*AXES.values()) if IMPOSSIBLE & pairs.pairs_of(row)]
    assert not [row for row in random.Random(7).sample(candidates, 1000) if can_run(row)]


@pytest.mark.thorough
def test_the_reasons_to_skip_a_case_are_from_the_closed_list():
    reasons = set()
    for row in random.Random(5).sample(list(itertools.product(*AXES.values())), 1000):
        case = case_of(row)
        built = workload.build(case)
        if reason := case_rules.why_inapplicable(describe_derivative(case, built)):
            reasons.add(reason[0])
    assert reasons == {"not_defined", "not_offered", "indivisible"} <= set(SKIPPED)


def modes_in_turn():
    """Return each problem with a mode, such that every mode occurs."""
    first, second = itertools.cycle(("jacfwd", "jacrev", "linearize")), itertools.cycle(HESSIAN)
    return [(name, next(second if has_second_derivatives(name) else first)) for name in PROBLEMS]


@pytest.mark.thin(4, "thorough")
@pytest.mark.parametrize(("name", "mode"), modes_in_turn())
def test_a_linear_map_that_is_a_thousandth_off_is_a_wrong_answer(name, mode, monkeypatch):
    right = modes.MODES[mode].linear_map

    def wrong(f, x):
        linear_map = right(f, x)
        return lambda v: jax.tree.map(lambda a: a * 1.001, linear_map(v))

    monkeypatch.setitem(
        modes.MODES, mode, dataclasses.replace(modes.MODES[mode], linear_map=wrong, quadratic_sum=None)
    )
    record = run_once(case_rules.complete(Case(**PROBLEMS[name] | {"mode": mode, "dtype": "float32"})))
    assert (record.status, record.reason) == ("failed", "wrong_answer")
    assert not record.seconds


@pytest.mark.thin(10, "thorough")
@pytest.mark.covering(1)
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("reference", ["closed form", "computed"])
def test_a_single_wrong_point_is_detected_at_any_position(name, reference):
    mode = "fwd_over_rev" if has_second_derivatives(name) else "jacfwd"
    case = case_rules.complete(Case(**PROBLEMS[name] | {"api": "jit", "dtype": "float64", "mode": mode}))
    built = workload.build(case)
    derivative = describe_derivative(case, built)
    program = layout.lay_out(derivative, jax.devices()[:1])
    got = program.collect(program.function(*layout.place_inputs(program))).copy()
    if reference == "computed":
        derivative = dataclasses.replace(derivative, workload=dataclasses.replace(built, reference=None))
    assert check.verdict(derivative, got, "cpu").reason is None
    for point in {0, case.points // 2, case.points - 1}:
        wrong = got.copy()
        largest = abs(wrong[point]).argmax()
        wrong[point].flat[largest] += 1e-4 * (abs(wrong[point].flat[largest]) or 1)
        assert check.verdict(derivative, wrong, "cpu").reason == "wrong_answer", point


@pytest.mark.thin(5, "thorough")
@pytest.mark.parametrize("split", ["points", "seeds"])
@pytest.mark.parametrize("api", ["shard_map", "pmap"])
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("rbf with 8 support points", "jacrev"),
        ("linear by W", "jacfwd"),
        ("residual by both", "linearize"),
        ("residual Hessian", "rev_over_fwd"),
    ],
)
def test_chunks_of_seeds_with_a_remainder_give_the_reference(name, mode, api, split):
    fields = PROBLEMS[name] | {"mode": mode, "api": api, "split": split, "devices": 2, "dtype": "float64"}
    record = run_once(case_rules.complete(Case(**fields | {"chunk": 3})))
    assert record.status == "ok", record.text
    assert record.error < 1e-10


@pytest.mark.thin(4, "thorough")
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_inputs_of_a_point_do_not_depend_on_the_range_of_points(name):
    case = case_rules.complete(Case(**PROBLEMS[name] | {"mode": "value"}))
    built = workload.build(case)
    whole = inputs.exact_inputs(case, built, 0, case.points)
    for start, stop in ((0, case.points // 2), (case.points // 2, case.points)):
        inputs_of_range = inputs.exact_inputs(case, built, start, stop)
        for input_name in built.points:
            assert (inputs_of_range[input_name] == whole[input_name][start:stop]).all()
