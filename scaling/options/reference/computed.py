"""The reference of a function without a closed form, where all of it would take too long: a sample of it is
compared.

What the core asks for when a workload has no reference: `examine` and `with_reference` (numeric.py), and the
samples here.
"""

import contextlib
import dataclasses
from collections.abc import Iterator

import numpy as np

from scaling.core import inputs
from scaling.core import question as questions
from scaling.core.check import step_bound
from scaling.core.comparison import Block, EntryComparison
from scaling.core.question import Question
from scaling.core.reduction_reference import Jacobians
from scaling.core.tolerances import relative_error
from scaling.options.reference import float64, numeric, sampled
from scaling.options.reference.numeric import Numeric, examine, with_reference

__all__ = ["examine", "with_reference"]


@contextlib.contextmanager
def session(found: Numeric) -> Iterator[None]:
    """Have JAX set up for a reference that is computed."""
    with float64.evaluating(found.evaluation.dtype):
        yield


def sampled_block(question: Question, got: np.ndarray, start: int, stop: int) -> Block:
    """Compare a sample of the entries of a block of points."""
    case, workload, found = question.case, question.workload, question.computed
    assert found is not None
    named, generator = (
        inputs.exact_inputs(case, workload, start, stop),
        np.random.default_rng([case.data_seed, start]),
    )
    of, got, extra = found.evaluation, got.astype(np.float64), np.zeros(stop - start)
    if case.target == "hvp" or question.reduction.sampling == "products":
        along_x = case.target == "hvp" or question.reduction.along_point
        direction = {name: named[name] if along_x else np.ones_like(named[name]) for name in of.names}
        comparisons = [sampled.products(of, named, got[:, :, 0], direction, generator)]
    elif question.reduction.sampling == "columns":
        comparisons = list(sampled.grams(of, named, got, _sample(question), generator))
    else:
        of = float64.summed(of) if question.reduction.sums_outputs else of
        J = Jacobians(got if question.pattern is None else got[:, 0], question.pattern)
        comparisons = list(sampled.jacobians(of, named, J, _sample(question), generator))
        if question.reduction.sums_outputs:
            comparisons = [_of_summed(each) for each in comparisons]
    if not question.stepping:
        return Block(start, named, comparisons, extra)
    bound = step_bound(question, start, stop)
    sizes = [each.size.reshape(len(got), -1).max(axis=1) for each in comparisons]
    return Block(
        start,
        named,
        [dataclasses.replace(each, measure=None) for each in comparisons],
        relative_error(bound, np.min(sizes, axis=0)),
    )


def _of_summed(comparison: EntryComparison) -> EntryComparison:
    """Have a comparison evaluate the sum over outputs."""
    measure = comparison.measure
    assert measure is not None
    return dataclasses.replace(
        comparison, measure=lambda of, named, part: measure(float64.summed(of), named, part)
    )


def _sample(question: Question) -> sampled.Sample:
    """Return the columns and rows that are compared at every point of a case."""
    assert question.computed is not None
    outputs = 1 if question.reduction.sums_outputs else question.sizes.outputs
    return sampled.sample(
        question.computed.backward,
        outputs,
        question.sizes.inputs,
        np.random.default_rng(question.case.data_seed),
    )


def _share_of_columns(question: Question) -> float:
    return len(_sample(question).columns) / question.sizes.inputs


def _whole_points(question: Question) -> int:
    """Return how many points are compared whole, within half of the budget; none where one takes more than
    all of it."""
    assert question.computed is not None
    return int(
        min(
            question.case.points,
            questions.BUDGET_SECONDS / 2 / (question.computed.seconds / question.case.points),
        )
    )


def whole_points(question: Question) -> tuple[int, ...]:
    """Return the points that are compared whole."""
    if question.reduction.sampling == "products" or question.case.target == "hvp" or question.stepping:
        return ()
    generator = np.random.default_rng([question.case.data_seed, 1])
    return tuple(
        int(point) for point in numeric.picked(_whole_points(question), question.case.points, generator)
    )


def sum_over_outputs(question: Question, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the derivative of the sum over outputs of each point, and its size: two (points, inputs)."""
    found, named = question.computed, inputs.exact_inputs(question.case, question.workload, start, stop)
    assert found is not None
    of = float64.summed(found.evaluation)
    make = float64.rows if found.backward else float64.columns
    value = make(of, named, np.arange(1 if found.backward else question.sizes.inputs))[:, 0]
    return value, np.abs(value)


def compared_shares(question: Question, kept: float) -> dict[str, float]:
    """Return the share of entries that a sample compares, and of points that are compared whole. kept: of the
    entries."""
    if question.reduction.sampling == "products" or question.case.target == "hvp":
        return {"entries": kept, "points": 1.0}
    whole = 0.0 if question.reduction.sums_points else _whole_points(question) / question.case.points
    outputs, _ = question.reduction.shape(question.sizes.outputs, question.sizes.inputs)
    by_columns = question.reduction.sampling == "columns"
    shares = sampled.compared_share(_sample(question), outputs, question.sizes.inputs)
    some = _share_of_columns(question) if by_columns else shares
    return {"entries": kept * (some + (1 - some) * whole), "points": 1.0 if some == 1 else whole}
