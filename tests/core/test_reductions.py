"""What is made of a Jacobian, and how far rounding may move it: laws of the reductions and of their sizes, in NumPy alone."""

import numpy as np
import pytest

from scaling.core import pattern as patterns
from scaling.core import tolerances
from scaling.core.pattern import Pattern
from scaling.core.reductions import REDUCTIONS as VALUES
from scaling.core.tolerances import Jacobians, Rounding, count_entries

pytestmark = pytest.mark.thin(2, "contract")

POINTS, OUTPUTS, INPUTS = 3, 4, 7
REDUCTIONS = ("outputs", "inputs", "vector", "norm", "gram", "points")
ROUNDOFF = 2.0**-24


def reduce_jacobians(how, *given, **named):
    """Reduce Jacobians by the reduction of this name."""
    return tolerances.reduce_jacobians(VALUES[how or "whole"], *given, **named)


def add_points(how, *given):
    """Return how many entries one number of a result adds up."""
    return VALUES[how or "whole"].entries(count_entries(*given))


def by_hand(how, J, x):
    """The same by the definition, entry by entry."""
    outputs, inputs = J.shape[1:]
    entries = [(o, a) for o in range(outputs) for a in range(inputs)]
    if how in ("outputs", "points"):
        return np.array([[[sum(j[o, a] for o in range(outputs)) for a in range(inputs)]] for j in J])
    if how in ("inputs", "vector"):
        weight = np.ones_like(x) if how == "inputs" else x
        return np.array(
            [
                [[sum(j[o, a] * w[a] for a in range(inputs))] for o in range(outputs)]
                for j, w in zip(J, weight, strict=True)
            ]
        )
    if how == "norm":
        return np.array([[[sum(j[o, a] ** 2 for o, a in entries)]] for j in J])
    pairs = [
        [[sum(j[o, a] * j[o, b] for o in range(outputs)) for b in range(inputs)] for a in range(inputs)]
        for j in J
    ]
    return np.array(pairs)


def jacobians(generator, kind="full"):
    """Random ones: of all sizes, with zeros, with a column of zeros, or whose sums cancel; and the points' own inputs."""
    J = generator.standard_normal((POINTS, OUTPUTS, INPUTS)) * 10.0 ** generator.uniform(
        -3, 3, (POINTS, 1, INPUTS)
    )
    if kind == "sparse":
        J *= generator.random(J.shape) < 0.3
    if kind == "a column of zeros":
        J[:, :, 2] = 0
    if kind == "cancelling":
        J[:, 1], J[:, :, 1] = -J[:, 0], -J[:, :, 0]
    return J, generator.standard_normal((POINTS, INPUTS))


KINDS = ("full", "sparse", "a column of zeros", "cancelling")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", REDUCTIONS)
def test_a_reduction_is_what_its_name_says(how, kind):
    J, x = jacobians(np.random.default_rng(1), kind)
    want, size = reduce_jacobians(how, Jacobians(J), Rounding(1), x=x)
    np.testing.assert_allclose(want, by_hand(how, J, x), rtol=1e-12, atol=1e-9)
    assert np.broadcast_shapes(want.shape, size.shape) == want.shape and (size >= 0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", (None, *REDUCTIONS))
def test_entries_that_are_rounded_move_no_result_by_more_than_its_size_allows(how, kind):
    generator = np.random.default_rng(2)
    for entry in (1e-5, 1e-2, 0.3):
        rounding = Rounding(terms=10**6, added=1, entry=entry)  # as if adding up cost nothing
        for _ in range(40):
            J, x = jacobians(generator, kind)
            floor = generator.choice([0.0, 50.0], POINTS)
            least = np.maximum(np.abs(J), floor[:, None, None])
            axes = 2 if how is None else (1, 2)
            s = (
                least
                if how in ("outputs", "inputs", "vector", "points")
                else least.max(axis=axes, keepdims=True)
            )
            off = entry * s * generator.choice([-1.0, 1.0], J.shape) * generator.choice([0.5, 1.0])
            aligned = entry * s * np.where(J < 0, -1.0, 1.0)  # every rounding in the direction that hurts
            want, size = reduce_jacobians(how, Jacobians(J), rounding, floor, x)
            for moved in (J + off, J + aligned):
                got, _ = reduce_jacobians(how, Jacobians(moved), rounding, floor, x)
                assert (np.abs(got - want) <= entry * size * (1 + 1e-6)).all()


@pytest.mark.parametrize("how", REDUCTIONS)
def test_a_sum_in_float32_term_by_term_stays_within_the_table(how):
    generator = np.random.default_rng(3)
    outputs, inputs = 300, 5 if how == "gram" else 700
    J = np.abs(generator.standard_normal((2, outputs, inputs))).astype(
        np.float32
    )  # positive: the worst for a running sum
    x = np.abs(generator.standard_normal((2, inputs))).astype(np.float32)
    running = lambda terms: np.cumsum(terms, axis=-1, dtype=np.float32)[..., -1]  # noqa: E731
    got = {
        "outputs": lambda: running(J.transpose(0, 2, 1))[:, None, :],
        "points": lambda: running(J.transpose(0, 2, 1))[:, None, :],
        "inputs": lambda: running(J)[:, :, None],
        "vector": lambda: running(J * x[:, None, :])[:, :, None],
        "norm": lambda: running((J * J).reshape(2, -1))[:, None, None],
        "gram": lambda: running(np.einsum("poa,pob->pabo", J, J)),
    }[how]()
    rounding = Rounding(1, add_points(how, outputs, inputs, 1), 16 * ROUNDOFF)
    want, size = reduce_jacobians(how, Jacobians(J.astype(np.float64)), rounding, x=x.astype(np.float64))
    assert (np.abs(got - want) <= 16 * ROUNDOFF * np.sqrt(rounding.longest_sum) * size).all()


@pytest.mark.parametrize("how", REDUCTIONS)
def test_a_thousandth_at_the_largest_entry_is_more_than_float32_allows(how):
    generator = np.random.default_rng(4)
    for _ in range(20):
        J, x = jacobians(generator)
        x = np.sign(x) * np.maximum(np.abs(x), 0.5)
        rounding = Rounding(1, add_points(how, OUTPUTS, INPUTS, 1), 16 * ROUNDOFF)
        want, size = reduce_jacobians(how, Jacobians(J), rounding, x=x)
        wrong = J.copy()
        flat = wrong.reshape(POINTS, -1)
        flat[np.arange(POINTS), np.abs(flat).argmax(axis=1)] *= 1.001
        error = np.abs(reduce_jacobians(how, Jacobians(wrong), rounding, x=x)[0] - want) / size
        assert (error.max(axis=(1, 2)) > 16 * ROUNDOFF * np.sqrt(rounding.longest_sum)).all()


@pytest.mark.parametrize("how", ("outputs", "inputs", "vector", "norm", "points"))
def test_entries_of_a_pattern_are_reduced_like_the_jacobian_written_out(how):
    generator = np.random.default_rng(5)
    rows, cols = np.nonzero(generator.random((OUTPUTS, INPUTS)) < 0.4)
    pattern = Pattern(rows.astype(np.int32), cols.astype(np.int32), OUTPUTS, INPUTS)
    entries, x = generator.standard_normal((POINTS, len(rows))), generator.standard_normal((POINTS, INPUTS))
    rounding = Rounding(3, 5)  # a table that knows no second order, of which zeros have their part
    sparse = reduce_jacobians(how, Jacobians(entries, pattern), rounding, x=x)
    dense = reduce_jacobians(how, Jacobians(patterns.to_dense(pattern, entries)), rounding, x=x)
    for mine, theirs in zip(sparse, dense, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("how", (None, "inputs", "norm", "gram"))
def test_no_step_of_so_much_moves_a_result_further_than_is_said(how):
    generator = np.random.default_rng(6)
    for _ in range(40):
        J, x = jacobians(generator, generator.choice(KINDS))
        bound = 10.0 ** generator.uniform(-4, 1, (POINTS, INPUTS))
        said = VALUES[how or "whole"].step_bound(Jacobians(J), bound)
        for sign in (np.where(J < 0, -1.0, 1.0), generator.choice([-1.0, 1.0], J.shape)):
            moved = reduce_jacobians(how, Jacobians(J + sign * bound[:, None, :]), Rounding(1), x=x)[0]
            off = np.abs(moved - reduce_jacobians(how, Jacobians(J), Rounding(1), x=x)[0]).max(axis=(1, 2))
            assert (off <= said * (1 + 1e-9) + 1e-12).all()


def test_what_is_added_up_is_counted_without_the_zeros_that_are_known():
    pattern = Pattern(np.array([0, 0, 1, 3]), np.array([0, 2, 2, 2]), 4, 5)  # three in a column, two in a row
    counts = {None: 1, "outputs": 4, "inputs": 5, "vector": 5, "norm": 20, "gram": 4, "points": 24}
    fewer = {None: 1, "outputs": 3, "inputs": 2, "vector": 2, "norm": 4, "gram": 3, "points": 18}
    assert {how: add_points(how, 4, 5, 6) for how in counts} == counts
    assert {how: add_points(how, 4, 5, 6, pattern) for how in fewer} == fewer
