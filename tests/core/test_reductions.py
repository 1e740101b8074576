"""Tests of the reductions of a Jacobian: their values, their rounding bounds and the number of summed entries, in NumPy only."""

import numpy as np
import pytest

from scaling.core import derivative as patterns
from scaling.core import reference
from scaling.core.derivative import Pattern
from scaling.core.reductions import REDUCTIONS as REDUCTION_VALUES
from scaling.core.reductions import Jacobians, Rounding
from scaling.core.reference import added_entries
from scaling.options.sparse_jacobians import SparseJacobians

pytestmark = pytest.mark.thin(2, "thorough")

POINTS, OUTPUTS, INPUTS = 3, 4, 7
REDUCTIONS = ("outputs", "inputs", "vector", "norm", "gram", "points")
ROUNDOFF = 2.0**-24


def reduce(reduction, *arguments, **keywords):
    return reference.reduce_jacobians(REDUCTION_VALUES[reduction or "whole"], *arguments, **keywords)


def summed_entries(reduction, *arguments):
    """Return the number of entries that are summed into one element of a result."""
    return added_entries(REDUCTION_VALUES[reduction or "whole"], *arguments)


def reduce_by_definition(reduction, J, x):
    """Reduce the Jacobians by the definition, entry by entry."""
    outputs, inputs = J.shape[1:]
    entries = [(o, a) for o in range(outputs) for a in range(inputs)]
    if reduction in ("outputs", "points"):
        return np.array([[[sum(j[o, a] for o in range(outputs)) for a in range(inputs)]] for j in J])
    if reduction in ("inputs", "vector"):
        weight = np.ones_like(x) if reduction == "inputs" else x
        return np.array(
            [
                [[sum(j[o, a] * w[a] for a in range(inputs))] for o in range(outputs)]
                for j, w in zip(J, weight, strict=True)
            ]
        )
    if reduction == "norm":
        return np.array([[[sum(j[o, a] ** 2 for o, a in entries)]] for j in J])
    pairs = [
        [[sum(j[o, a] * j[o, b] for o in range(outputs)) for b in range(inputs)] for a in range(inputs)]
        for j in J
    ]
    return np.array(pairs)


def draw_jacobians(generator, kind="full"):
    """Return random Jacobians of one kind, with columns of different magnitude, and random inputs."""
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
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_reduction_equals_its_definition(reduction, kind):
    J, x = draw_jacobians(np.random.default_rng(1), kind)
    want, size = reduce(reduction, Jacobians(J), Rounding(1), x=x)
    np.testing.assert_allclose(want, reduce_by_definition(reduction, J, x), rtol=1e-12, atol=1e-9)
    assert np.broadcast_shapes(want.shape, size.shape) == want.shape and (size >= 0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reduction", (None, *REDUCTIONS))
def test_rounding_of_entries_changes_a_reduction_by_at_most_its_bound(reduction, kind):
    generator = np.random.default_rng(2)
    for entry in (1e-5, 1e-2, 0.3):
        rounding = Rounding(terms=10**6, added=1, entry=entry)  # no rounding of sums
        for _ in range(40):
            J, x = draw_jacobians(generator, kind)
            floor = generator.choice([0.0, 50.0], POINTS)
            magnitude = np.maximum(np.abs(J), floor[:, None, None])
            axes = 2 if reduction is None else (1, 2)
            s = (
                magnitude
                if reduction in ("outputs", "inputs", "vector", "points")
                else magnitude.max(axis=axes, keepdims=True)
            )
            random_error = entry * s * generator.choice([-1.0, 1.0], J.shape) * generator.choice([0.5, 1.0])
            aligned_error = entry * s * np.where(J < 0, -1.0, 1.0)  # the worst case
            want, size = reduce(reduction, Jacobians(J, floor=floor), rounding, x)
            for perturbed in (J + random_error, J + aligned_error):
                got, _ = reduce(reduction, Jacobians(perturbed, floor=floor), rounding, x)
                assert (np.abs(got - want) <= entry * size * (1 + 1e-6)).all()


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_running_sum_in_float32_stays_within_the_tolerance(reduction):
    generator = np.random.default_rng(3)
    # All entries are positive, which is the worst case of a running sum.
    outputs, inputs = 300, 5 if reduction == "gram" else 700
    J = np.abs(generator.standard_normal((2, outputs, inputs))).astype(np.float32)
    x = np.abs(generator.standard_normal((2, inputs))).astype(np.float32)
    running = lambda terms: np.cumsum(terms, axis=-1, dtype=np.float32)[..., -1]  # noqa: E731
    got = {
        "outputs": lambda: running(J.transpose(0, 2, 1))[:, None, :],
        "points": lambda: running(J.transpose(0, 2, 1))[:, None, :],
        "inputs": lambda: running(J)[:, :, None],
        "vector": lambda: running(J * x[:, None, :])[:, :, None],
        "norm": lambda: running((J * J).reshape(2, -1))[:, None, None],
        "gram": lambda: running(np.einsum("poa,pob->pabo", J, J)),
    }[reduction]()
    rounding = Rounding(1, summed_entries(reduction, outputs, inputs, 1), 16 * ROUNDOFF)
    want, size = reduce(reduction, Jacobians(J.astype(np.float64)), rounding, x=x.astype(np.float64))
    assert (np.abs(got - want) <= 16 * ROUNDOFF * np.sqrt(rounding.longest_sum) * size).all()


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_an_error_of_a_thousandth_in_the_largest_entry_exceeds_the_tolerance(reduction):
    generator = np.random.default_rng(4)
    for _ in range(20):
        J, x = draw_jacobians(generator)
        x = np.sign(x) * np.maximum(np.abs(x), 0.5)
        rounding = Rounding(1, summed_entries(reduction, OUTPUTS, INPUTS, 1), 16 * ROUNDOFF)
        want, size = reduce(reduction, Jacobians(J), rounding, x=x)
        wrong = J.copy()
        flat = wrong.reshape(POINTS, -1)
        flat[np.arange(POINTS), np.abs(flat).argmax(axis=1)] *= 1.001
        error = np.abs(reduce(reduction, Jacobians(wrong), rounding, x=x)[0] - want) / size
        assert (error.max(axis=(1, 2)) > 16 * ROUNDOFF * np.sqrt(rounding.longest_sum)).all()


@pytest.mark.parametrize("reduction", ("outputs", "inputs", "vector", "norm", "points"))
def test_sparse_entries_are_reduced_like_the_dense_jacobian(reduction):
    generator = np.random.default_rng(5)
    rows, cols = np.nonzero(generator.random((OUTPUTS, INPUTS)) < 0.4)
    pattern = Pattern(rows.astype(np.int32), cols.astype(np.int32), OUTPUTS, INPUTS)
    entries, x = generator.standard_normal((POINTS, len(rows))), generator.standard_normal((POINTS, INPUTS))
    rounding = Rounding(3, 5)  # entry=0: no second-order terms, to which dense zeros contribute
    sparse = reduce(reduction, SparseJacobians(entries, pattern), rounding, x=x)
    dense = reduce(reduction, Jacobians(patterns.to_dense(pattern, entries)), rounding, x=x)
    for from_sparse, from_dense in zip(sparse, dense, strict=True):
        np.testing.assert_allclose(from_sparse, from_dense, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reduction", (None, "inputs", "norm", "gram"))
def test_the_step_bound_covers_the_change_of_every_reduction(reduction):
    generator = np.random.default_rng(6)
    for _ in range(40):
        J, x = draw_jacobians(generator, generator.choice(KINDS))
        bound = 10.0 ** generator.uniform(-4, 1, (POINTS, INPUTS))
        step_bound = REDUCTION_VALUES[reduction or "whole"].step_bound(Jacobians(J), bound)
        for sign in (np.where(J < 0, -1.0, 1.0), generator.choice([-1.0, 1.0], J.shape)):
            perturbed = reduce(reduction, Jacobians(J + sign * bound[:, None, :]), Rounding(1), x=x)[0]
            exact = reduce(reduction, Jacobians(J), Rounding(1), x=x)[0]
            error = np.abs(perturbed - exact).max(axis=(1, 2))
            assert (error <= step_bound * (1 + 1e-9) + 1e-12).all()


def test_known_zeros_do_not_count_as_summed_entries():
    pattern = Pattern(np.array([0, 0, 1, 3]), np.array([0, 2, 2, 2]), 4, 5)  # three in a column, two in a row
    counts = {None: 1, "outputs": 4, "inputs": 5, "vector": 5, "norm": 20, "gram": 4, "points": 24}
    sparse_counts = {None: 1, "outputs": 3, "inputs": 2, "vector": 2, "norm": 4, "gram": 3, "points": 18}
    assert {name: summed_entries(name, 4, 5, 6) for name in counts} == counts
    assert {name: summed_entries(name, 4, 5, 6, pattern) for name in sparse_counts} == sparse_counts
