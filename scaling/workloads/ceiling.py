"""ceiling: what the machine can do at most, and what asking costs at least, measured the way everything else is.

One point is k numbers; for `matmul` it is a matrix of k by k.

    copy            each number with its sign changed, so that nothing can be left out: many more than fit into the caches
    matmul          each point times a matrix that all share
    transcendental  for each number x, the sum of exp(-x j / terms) over j = 1 ... terms
    all_reduce      the sum over all points, on every device
    call            `copy` of hardly any numbers: a floor
    collective      `all_reduce` of hardly any numbers: a floor

Source of the idea: S. Williams, A. Waterman, D. Patterson, "Roofline", Communications of the ACM 52(4), 2009.
"""

import jax
import jax.numpy as jnp
import numpy as np

from scaling.case import FLOORS, Case
from scaling.workload import Draw, Inputs, Reference, Workload, uniform

TARGETS = VALUE = ("copy", "matmul", "transcendental", "all_reduce", *FLOORS)
SIZES = {"k": 1, "terms": 1}


def _exponentials(x, terms):
    """Independent of each other, so that a core works on several at once: a chain of them would time how long one has to wait."""
    return sum(jnp.exp(-j / terms * x) for j in range(1, terms + 1))


def _sum_over_points(x):
    """Over the axis that spmd.py lays over the devices; with one point a device an all-reduce and nothing else."""
    from scaling.measuring.spmd import POINTS

    return jnp.broadcast_to(jax.lax.psum(x.sum(axis=0), POINTS), x.shape)


def _value(value: np.ndarray) -> Reference:
    return Reference(value.reshape(len(value), -1), np.empty(0))  # nobody takes its derivative


def _exponentials_in_numpy(inputs: Inputs, terms: int) -> Reference:
    return _value(np.exp(np.multiply.outer(inputs["x"], -np.arange(1, terms + 1) / terms)).sum(axis=-1))


def workload(case: Case) -> Workload:
    """The ceiling, or the floor, that a case's target names."""
    k, terms, x = case.sizes["k"], case.sizes["terms"], {"x": uniform(case.sizes["k"])}
    if case.target == "matmul":
        # All terms are positive: where factors or the result are rounded more coarsely than the sum, that does not add up.
        added = 1 if case.dtype == "bfloat16" else 16 if case.precision != "highest" else k
        product = lambda inputs: _value(inputs["x"] @ inputs["w"])  # noqa: E731
        return Workload(lambda x, w: x @ w, {"x": uniform(k, k)}, {"w": uniform(k, k)}, reference=product, terms=added)
    if case.target == "transcendental":
        return Workload(lambda x: _exponentials(x, terms), x, reference=lambda i: _exponentials_in_numpy(i, terms), terms=terms)
    if case.target in ("all_reduce", "collective"):
        # All points are the same row, so that the reference, which is given some of them, knows the sum over all.
        same = Draw((k,), lambda _, rows: np.tile(np.linspace(0.5, 1.0, k), (len(rows), 1)))
        total, whole = lambda x: x * case.points, {"value": _sum_over_points}
        return Workload(total, {"x": same}, whole_modes=whole, reference=lambda i: _value(total(i["x"])), terms=case.points)
    return Workload(lambda x: -x, x, reference=lambda inputs: _value(-inputs["x"]))
