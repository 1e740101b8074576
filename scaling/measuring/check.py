"""The check: is a result right, at every point? Asked before any time is kept.

The reference is NumPy float64 at the inputs as the dtype rounded them, block of points by block of points, and knows nothing of
the mode under test. A workload without one is checked by finite differences (differences.py). The error of a point is the
largest deviation over the size of what is added up there, so that a sum that cancels is judged by its terms.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from scaling.case import SECOND, Case, Refusal
from scaling.measuring import differences, inputs
from scaling.measuring.derivative import Shape, shape
from scaling.workload import Reference, Workload, build

# Unit roundoff of a product in float32 where an accelerator shortens its factors.
PRODUCT_ROUNDOFF = {
    ("gpu", "default"): 2.0**-11,  # TF32
    ("gpu", "high"): 2.0**-11,
    ("tpu", "default"): 2.0**-8,  # bfloat16
    ("tpu", "high"): 2.0**-14,  # three of them
}
_ROUNDINGS = 16  # in each term
_BLOCK_NUMBERS = 2**16  # of a block: its arrays stay in the cache, and their memory is not given back each time
_KEPT_BYTES = 2**26


class Verdict(NamedTuple):
    """error: the largest over all points. tolerance: the largest of what was allowed. reason: None if every point passed."""

    error: float | None
    tolerance: float
    reason: str | None = None
    text: str | None = None


def tolerance(case: Case, terms: int, platform: str) -> float:
    """What rounding may do to an answer that adds up `terms` numbers: some roundings a term, and a random walk over the sum."""
    roundoff = differences.ROUNDOFF[case.dtype]
    if case.dtype == "float32":
        roundoff = max(roundoff, PRODUCT_ROUNDOFF.get((platform, case.precision), 0.0))
    return _ROUNDINGS * roundoff * float(np.sqrt(terms))


def verdict(case: Case, workload: Workload, sizes: Shape, got: np.ndarray, platform: str) -> Verdict:
    """Compare a result, (points, outputs, inputs) as `derivative.collect` gives it, with the reference, every point."""
    terms = _terms(workload, sizes)
    allowed = tolerance(case, terms, platform)
    if not np.all(np.isfinite(got)):
        bad = int(np.argmax(~np.isfinite(got).reshape(len(got), -1).all(axis=1)))
        return Verdict(None, allowed, "not_finite", f"the result is not finite at point {bad}")
    if case.mode == "value" and sizes.summed:
        return _verdict_of_sum(case, workload, got, allowed)
    compare = _compare if workload.reference else differences.compare
    worst, worst_allowed, failed = 0.0, allowed, None
    for start, stop in _ranges(case, workload, sizes):
        error, extra = compare(case, workload, sizes, got[start:stop], start, stop, terms)
        over = ~(error <= allowed + extra)
        if failed is None and over.any():
            failed = start + int(np.argmax(over))
        worst = max(worst, float(np.max(error)))
        worst_allowed = max(worst_allowed, allowed + float(np.max(extra, where=error > 0, initial=0.0)))
    if not worst_allowed < 0.5 and case.mode == "finite_difference":
        return Verdict(worst, worst_allowed, "no_digits", "a finite difference with this step and dtype has no correct digit")
    if not allowed < 0.5 and workload.reference:
        return Verdict(worst, worst_allowed, "no_digits", f"in {case.dtype} a sum of {terms} terms has no digit that is sure")
    if not worst_allowed < 0.5:
        return Verdict(worst, worst_allowed, "wrong_answer", "no digit can be checked by finite differences; give a reference")
    if failed is not None:
        return Verdict(worst, worst_allowed, "wrong_answer", f"point {failed} is wrong; the largest error is {worst:.3g}")
    return Verdict(worst, worst_allowed)


def _terms(workload: Workload, sizes: Shape) -> int:
    """How many numbers one number of the answer adds up; 16 times as many as it shows in a function that nobody took apart."""
    return workload.terms if workload.reference else 16 * max(workload.terms, sizes.inputs, sizes.outputs)


def _ranges(case: Case, workload: Workload, sizes: Shape) -> Iterator[tuple[int, int]]:
    """Blocks of points whose full derivative, before any sum, stays small."""
    draws = [*workload.points.values(), *workload.shared.values()]
    numbers = sizes.outputs * max(sizes.inputs, 1) + sum(int(np.prod(draw.shape)) for draw in draws)
    step = max(1, _BLOCK_NUMBERS * (1 if workload.reference else 16) // numbers)  # a call of JAX wants more to do
    return ((start, min(start + step, case.points)) for start in range(0, case.points, step))


def _compare(
    case: Case, workload: Workload, sizes: Shape, got: np.ndarray, start: int, stop: int, terms: int
) -> tuple[np.ndarray, np.ndarray]:
    """The error of each point against the reference, and what a finite step is allowed on top: two (points,)."""
    want, size = _wanted(case, workload, sizes, start, stop)
    error = differences.over(np.abs(got.astype(np.float64) - want).max(axis=(1, 2)), size)
    if case.mode != "finite_difference":
        return error, np.zeros(len(got))
    bound = differences.step_bound(case, workload, sizes, start, stop, terms).max(axis=1)
    return error, differences.over(bound, size)


def _wanted(case: Case, workload: Workload, sizes: Shape, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """What the reference says, (points, outputs, inputs), and the size of what each point adds up, (points,)."""
    reduced = 1 if workload.reduce and case.mode != "value" else sizes.outputs
    if 8 * case.points * reduced * max(sizes.inputs, 1) > _KEPT_BYTES:
        return _block(case, workload, sizes, start, stop)
    # What is asked for is the same for every way of computing it.
    problem = dataclasses.replace(
        case, mode="value" if case.mode == "value" else "jacfwd", batch="vmap", split="points", api="jit", devices=1,
        precision="highest", jit=True, engine="jax", chunk=None, cache=None,
    )  # fmt: skip
    want, size = _whole(problem)
    return want[start:stop], size[start:stop]


@functools.lru_cache(maxsize=4)
def _whole(problem: Case) -> tuple[np.ndarray, np.ndarray]:
    workload = build(problem)
    sizes = shape(problem, workload)
    blocks = [_block(problem, workload, sizes, start, stop) for start, stop in _ranges(problem, workload, sizes)]
    return np.concatenate([want for want, _ in blocks]), np.concatenate([size for _, size in blocks])


def _block(case: Case, workload: Workload, sizes: Shape, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    assert workload.reference is not None
    reference = workload.reference(inputs.exact(case, workload, start, stop))
    _validate(case, sizes, reference, start, stop)
    if case.mode == "value":
        size = np.abs(reference.value).max(axis=1)
        return reference.value[:, :, None], _at_least(size, reference.value_terms)
    want = reference.derivative
    size = np.abs(want)
    if workload.reduce:
        want, size = want.sum(axis=1, keepdims=True), size.sum(axis=1, keepdims=True)
    terms = reference.derivative_terms
    if case.target == "hvp":
        x = differences.flat(workload, inputs.exact(case, workload, start, stop), stop - start)
        want, size = want @ x[:, :, None], size @ np.abs(x)[:, :, None]
        terms = None if terms is None else terms * np.abs(x).max(axis=1)
    return want, _at_least(size.max(axis=(1, 2)), terms)


def _validate(case: Case, sizes: Shape, reference: Reference, start: int, stop: int) -> None:
    """A reference that is not of the shape it should have, or not finite, can prove nothing."""
    width = sizes.outputs if case.target in SECOND else sizes.inputs
    due = {"value": (stop - start, sizes.values), "derivative": (stop - start, sizes.outputs, width)}
    for name in ("value",) if case.mode == "value" else ("value", "derivative"):
        found = getattr(reference, name)
        if np.shape(found) != due[name]:
            raise Refusal(f"the reference's {name} has the shape {np.shape(found)}, not {due[name]}")
        if not np.all(np.isfinite(found)):
            raise Refusal(f"the reference's {name} is not finite in points {start} to {stop - 1}")


def _at_least(size: np.ndarray, terms: np.ndarray | None) -> np.ndarray:
    return size if terms is None else np.maximum(size, terms)


def _verdict_of_sum(case: Case, workload: Workload, got: np.ndarray, allowed: float) -> Verdict:
    """One number, the sum of a value over all points, against the sum of the reference's."""
    total, size = 0.0, 0.0
    for start in range(0, case.points, 2**18):
        stop = min(start + 2**18, case.points)
        value = differences.values(case, workload, inputs.exact(case, workload, start, stop))
        total, size = total + float(value.sum()), size + float(np.abs(value).sum())
    allowed *= float(np.sqrt(case.points))
    error = abs(float(got.sum()) - total) / size if size else 0.0
    if error <= allowed:
        return Verdict(error, allowed)
    return Verdict(error, allowed, "wrong_answer", f"the sum is {float(got.sum())!r}, not {total!r}")
