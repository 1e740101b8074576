"""The check: is a result right, at every point? Asked before any time is kept.

The reference is NumPy float64 at the inputs as the dtype rounded them, block of points by block of points, and knows nothing of
the mode under test. A workload without one is checked by finite differences (probes.py). The error of a point is the largest
deviation over the size of what is added up there (reduced.py), so that a sum that cancels is judged by its terms. A sum over
points is one result, of which every copy is checked.

With coloured seeds a result is the entries of a detected pattern. What a pattern lacks counts as zero there, so that one that
lacks an entry is wrong.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from scaling.case import SECOND, Case, Refusal
from scaling.measuring import differences, inputs, places, probes
from scaling.measuring.differences import over
from scaling.measuring.reduced import Jacobians, Rounding, added, column, reduced, row, stepped
from scaling.measuring.shape import Shape, shape
from scaling.measuring.sparsity import Pattern
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
# How a problem is computed, not what: the reference is the same for every way.
_PLAIN: dict[str, Any] = {
    "split": "points", "api": "jit", "devices": 1, "mesh": None, "overlap": False, "precision": "highest", "jit": True,
    "engine": "jax", "chunk": None, "block": None, "memory_limit": None, "storage": None, "remat": None, "forward": None,
    "cache": None,
}  # fmt: skip

Answer = tuple[np.ndarray, np.ndarray]  # of each point: the error, and what is allowed on top of the table


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


class _Question(NamedTuple):
    """What a result is compared with.

    pattern: of the entries that the result has; None for one that is written out. known: the workload's own pattern, where it
    says its derivative at these entries and nothing has to be written out to use that.
    """

    case: Case
    workload: Workload
    sizes: Shape
    pattern: Pattern | None = None
    known: Pattern | None = None
    rounding: Rounding = Rounding(1)

    @property
    def how(self) -> str | None:
        """What is made of each Jacobian; of a value nothing but its sum over points."""
        reduce = self.workload.reduce
        if self.case.mode == "value":
            return "points" if reduce == "points" or self.sizes.summed else None
        return reduce or ("outputs" if self.sizes.summed else None)

    @property
    def closed(self) -> bool:
        """Whether there is a reference in NumPy."""
        value = self.case.mode == "value" and differences.closed(self.case, self.workload) is not None
        return value or self.known is not None or self.workload.reference is not None

    @property
    def at_entries(self) -> bool:
        """Whether result and reference are both entries of a pattern."""
        return self.pattern is not None and self.known is not None


def verdict(
    case: Case, workload: Workload, sizes: Shape, got: np.ndarray, platform: str, *, pattern: Pattern | None = None
) -> Verdict:
    """Compare a result, (points, outputs', inputs') as `collect` gives it, with the reference: every point, or every copy.

    pattern: where the entries of a coloured result lie; without one they are those of the workload's own pattern.
    """
    asked = _question(case, workload, sizes, platform, pattern)
    if got.shape[1:] != (due := _due(asked)) or (len(got) != case.points and asked.how != "points") or not len(got):
        raise Refusal(f"the result has the shape {got.shape}, where {due} of each of {case.points} points is due")
    allowed = tolerance(case, asked.rounding.total, platform)
    each = "copy" if asked.how == "points" else "point"
    if (bad := _not_finite(got)) is not None:
        return Verdict(None, allowed, "not_finite", f"the result is not finite at {each} {bad}")
    worst, worst_allowed, failed, seen, lacking = 0.0, allowed, None, 0, ""
    for error, extra, words in _answers(asked, got):
        wrong = ~(error <= allowed + extra)
        if failed is None and wrong.any():
            failed, lacking = seen + int(np.argmax(wrong)), words
        seen += len(error)
        worst = max(worst, float(np.max(error)))
        worst_allowed = max(worst_allowed, allowed + float(np.max(extra, where=error > 0, initial=0.0)))
    if reason := _no_digits(asked, allowed, worst_allowed, platform):
        return Verdict(worst, worst_allowed, *reason)
    if failed is not None:
        text = f"{each} {failed} is wrong; the largest error is {worst:.3g}{lacking}"
        return Verdict(worst, worst_allowed, "wrong_answer", text)
    return Verdict(worst, worst_allowed)


def _due(asked: _Question) -> tuple[int, int]:
    """The shape of what a result has for each point, or of each copy of a sum over points: nothing is broadcast."""
    sizes, how = asked.sizes, asked.how
    if asked.case.mode == "value":
        return (1, 1) if how == "points" else (sizes.values, 1)
    if asked.pattern is not None:
        return 1, len(asked.pattern.rows)
    outputs, k = 1 if sizes.summed else sizes.outputs, sizes.inputs
    after = {"inputs": (outputs, 1), "vector": (outputs, 1), "norm": (1, 1), "gram": (k, k), None: (outputs, k)}
    return after.get(how, (1, k))


def _not_finite(got: np.ndarray) -> int | None:
    """The first point, or copy, where a result is not finite. A block at a time: a result may fill half the memory."""
    step = max(1, _BLOCK_NUMBERS // max(1, got[0].size))
    for start in range(0, len(got), step):
        fine = np.isfinite(got[start : start + step])
        if not fine.all():
            return start + int(np.argmax(~fine.reshape(len(fine), -1).all(axis=1)))
    return None


def _no_digits(asked: _Question, allowed: float, worst_allowed: float, platform: str) -> tuple[str, str] | None:
    """Why a result proves nothing although it may be near enough: (reason, words)."""
    case, rounding = asked.case, asked.rounding
    if worst_allowed < 0.5:
        return None
    if case.mode == "finite_difference":
        return "no_digits", "a finite difference with this step and dtype has no correct digit"
    if not allowed < 0.5 and (asked.closed or not tolerance(case, rounding.added, platform) < 0.5):
        return "no_digits", f"in {case.dtype} a sum of {rounding.total} terms has no digit that is sure"
    return "wrong_answer", "no digit can be checked by finite differences; give a reference"


def _question(case: Case, workload: Workload, sizes: Shape, platform: str, pattern: Pattern | None) -> _Question:
    """What is asked of a result; the patterns are checked, and how many numbers it adds up is counted."""
    own = _own_pattern(case, workload, sizes)
    colored = case.seeds == "colored" and case.mode != "value"
    ours = None
    if colored:
        ours = own if pattern is None else places.checked(pattern.rows, pattern.cols, sizes.outputs, sizes.inputs)
        if ours is None:
            raise Refusal(f"{case.workload} says no pattern, so that the entries of {case.mode} are at no known places")
    asked = _Question(case, workload, sizes, ours)
    of_entries = colored or workload.reference is None or asked.how not in (None, "gram")
    if workload.nonzeros is not None and of_entries and case.mode != "value" and not sizes.summed:
        asked = asked._replace(known=own)
    terms, count = _terms(asked, own or ours), _count(asked, own)
    return asked._replace(rounding=Rounding(terms, count, tolerance(case, terms, platform)))


def _own_pattern(case: Case, workload: Workload, sizes: Shape) -> Pattern | None:
    """The pattern that a workload knows by hand."""
    if workload.pattern is None or case.mode == "value" or case.target in SECOND:
        return None
    return places.checked(*workload.pattern(), sizes.outputs, sizes.inputs)


def _terms(asked: _Question, pattern: Pattern | None) -> int:
    """How many numbers one entry adds up; 16 times as many as it shows in a function that nobody took apart."""
    if asked.closed:
        return asked.workload.terms
    shown = (asked.sizes.inputs, asked.sizes.outputs) if pattern is None else (row(pattern), column(pattern))
    return 16 * max(asked.workload.terms, *shown)


def _count(asked: _Question, own: Pattern | None) -> int:
    """How many entries, or values, one number of the result adds up."""
    case, sizes = asked.case, asked.sizes
    if case.mode == "value":
        return 1 if asked.how is None else case.points * max(asked.workload.terms, sizes.values)
    return 1 if asked.pattern is not None else added(asked.how, sizes.outputs, sizes.inputs, case.points, own)


def _ranges(asked: _Question) -> Iterator[tuple[int, int]]:
    """Blocks of points whose full derivative, before any sum, stays small."""
    case, workload, sizes = asked.case, asked.workload, asked.sizes
    draws = [*workload.points.values(), *workload.shared.values()]
    cells = sizes.outputs * max(sizes.inputs, 1)
    if asked.known is not None or (asked.pattern is not None and not asked.closed):
        cells = sizes.outputs + sizes.inputs + len((asked.known or asked.pattern).rows)  # type: ignore[union-attr]
    elif asked.how == "gram":
        cells = max(cells, sizes.inputs**2)
    numbers = cells + sum(int(np.prod(draw.shape)) for draw in draws)
    step = max(1, _BLOCK_NUMBERS * (1 if asked.closed else 16) // numbers)  # a call of JAX wants more to do
    return ((start, min(start + step, case.points)) for start in range(0, case.points, step))


def _answers(asked: _Question, got: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, str]]:
    """Block by block, or of all copies at once: errors, what is allowed on top of the table, and what else there is to say."""
    case, workload, sizes = asked.case, asked.workload, asked.sizes
    if asked.how == "points":
        yield *(_sum_of_values if case.mode == "value" else _sum_of_derivatives)(asked, got), ""
        return
    common = places.common(asked.pattern, asked.known) if asked.pattern is not None and asked.known is not None else None
    for start, stop in _ranges(asked):
        part = got[start:stop]
        if not asked.closed:
            yield *probes.compare(case, workload, sizes, part, start, stop, asked.rounding, asked.pattern), ""
        elif common is not None:
            yield _compare_entries(asked, common, part, start, stop)
        else:
            if asked.pattern is not None:
                part = places.written_out(asked.pattern, part[:, 0].astype(np.float64))
            yield *_compare(asked, part, start, stop), ""


def _compare(asked: _Question, got: np.ndarray, start: int, stop: int) -> Answer:
    """The error of each point against the reference, and what a finite step is allowed on top: two (points,)."""
    want, size = _wanted(asked, start, stop)
    off = np.abs(got.astype(np.float64) - want)
    if asked.case.mode != "finite_difference":
        return over(off, size).max(axis=(1, 2)), np.zeros(len(got))
    size = size.max(axis=(1, 2))  # so that the bound of one entry is not compared with the error of another
    return over(off.max(axis=(1, 2)), size), over(_step(asked, start, stop), size)


def _compare_entries(asked: _Question, common: places.Common, got: np.ndarray, start: int, stop: int) -> tuple:
    """The same for entries at places of their own; and how many that are not zero the pattern lacks, in words."""
    want, size = (array[:, 0] for array in _wanted(asked, start, stop))
    here = want if common.at is None or common.has is None else np.where(common.has, want[:, common.at], 0.0)
    off, words = np.abs(got[:, 0].astype(np.float64) - here).max(axis=1), ""
    if common.lacking is not None and common.lacking.size:
        lacking = np.abs(want[:, common.lacking])
        off = np.maximum(off, lacking.max(axis=1))
        if count := int(np.count_nonzero(lacking.max(axis=0) > 0)):
            words = f"; of the entries that are not zero the pattern lacks {count}"
    extra = np.zeros(len(got)) if asked.case.mode != "finite_difference" else _step(asked, start, stop)
    return over(off, size[:, 0]), over(extra, size[:, 0]), words


def _step(asked: _Question, start: int, stop: int) -> np.ndarray:
    """How far the mode's finite step may move the result: (points,)."""
    case, workload, sizes = asked.case, asked.workload, asked.sizes
    bound = differences.step_bound(case, workload, sizes, start, stop, asked.rounding.terms)
    if asked.how not in ("norm", "gram"):
        return stepped(asked.how, Jacobians(np.zeros((stop - start, 1, 1))), bound)
    return stepped(asked.how, _jacobians(asked, start, stop)[0], bound)


def _wanted(asked: _Question, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """What the reference says, (points, outputs', inputs') or (points, 1, entries), and the size of what that adds up."""
    case, sizes = asked.case, asked.sizes
    cells = {"outputs": sizes.inputs, "inputs": sizes.outputs, "vector": sizes.outputs, "norm": 1, "gram": 2 * sizes.inputs**2}
    numbers = cells.get(asked.how or "", sizes.outputs * max(sizes.inputs, 1))
    numbers = len(asked.known.rows) if asked.at_entries and asked.known is not None else numbers
    if 8 * case.points * numbers > _KEPT_BYTES:
        return _block(asked, start, stop)
    what = {
        "mode": "value" if case.mode == "value" else "jacfwd",
        "batch": "whole" if sizes.summed and sizes.outputs > 1 else "vmap",  # where that sums outputs
        "seeds": "colored" if asked.at_entries else "identity",
    }
    want, size = _whole(dataclasses.replace(case, **_PLAIN | what), asked.rounding)
    return want[start:stop], size[start:stop]


@functools.lru_cache(maxsize=4)
def _whole(problem: Case, rounding: Rounding) -> tuple[np.ndarray, np.ndarray]:
    workload = build(problem)
    asked = _question(problem, workload, shape(problem, workload), "cpu", None)._replace(rounding=rounding)
    blocks = [_block(asked, start, stop) for start, stop in _ranges(asked)]
    return np.concatenate([want for want, _ in blocks]), np.concatenate([size for _, size in blocks])


def _block(asked: _Question, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    case, workload = asked.case, asked.workload
    if case.mode == "value":
        value, terms = _value(asked, start, stop)
        return value[:, :, None], _at_least(np.abs(value).max(axis=1), terms)[:, None, None]
    J, floor = _jacobians(asked, start, stop)
    if asked.at_entries:
        return J.values[:, None], _at_least(np.abs(J.values).max(axis=1), floor)[:, None, None]
    if case.target == "hvp" or asked.how == "vector":
        x = differences.flat(workload, inputs.exact(case, workload, start, stop), stop - start)
        if asked.how == "vector":
            return reduced("vector", J, asked.rounding, floor, x)
        size = (np.abs(J.values) @ np.abs(x)[:, :, None]).max(axis=(1, 2))
        terms = None if floor is None else floor * np.abs(x).max(axis=1)
        return J.values @ x[:, :, None], _at_least(size, terms)[:, None, None]
    return reduced(asked.how, J, asked.rounding, floor)


def _value(asked: _Question, start: int, stop: int) -> tuple[np.ndarray, np.ndarray | None]:
    """The values of a block of points, (points, outputs), and the size of their terms, (points,), where that is known."""
    case, workload = asked.case, asked.workload
    named = inputs.exact(case, workload, start, stop)
    if (reference := differences.closed(case, workload)) is None:
        return differences.values(case, workload, named), None
    said = reference(named)
    _validate(asked, said, None, start, stop)
    return said.value, said.value_terms


def _jacobians(asked: _Question, start: int, stop: int) -> tuple[Jacobians, np.ndarray | None]:
    """What the reference says of a block of points, and the least size of an entry: (points,). Summed where the batch is."""
    case, workload, sizes = asked.case, asked.workload, asked.sizes
    named = inputs.exact(case, workload, start, stop)
    if asked.known is not None:
        assert workload.nonzeros is not None
        said = workload.nonzeros(named)
        _validate(asked, said, (1, len(asked.known.rows)), start, stop)
        entries = Jacobians(said.derivative[:, 0], asked.known)
        if asked.at_entries or asked.how not in (None, "gram"):
            return entries, said.derivative_terms
        return Jacobians(places.written_out(asked.known, entries.values)), said.derivative_terms
    assert workload.reference is not None
    said = workload.reference(named)
    _validate(asked, said, (sizes.outputs, sizes.outputs if case.target in SECOND else sizes.inputs), start, stop)
    J, floor = said.derivative, said.derivative_terms
    if sizes.summed and workload.reduce is not None:  # what is reduced is what the sum over outputs leaves
        size = np.abs(J) if floor is None else np.maximum(np.abs(J), floor[:, None, None])
        J, floor = J.sum(axis=1, keepdims=True), size.sum(axis=1).max(axis=1)
    return Jacobians(J), floor


def _validate(asked: _Question, said: Reference, each: tuple[int, int] | None, start: int, stop: int) -> None:
    """A reference that is not of the shape it should have, or not finite, can prove nothing. each: due of a derivative."""
    due: dict[str, tuple[int, ...]] = {"value": (stop - start, asked.sizes.values)}
    if each is not None:
        due["derivative"] = (stop - start, *each)
    for name, shape_due in due.items():
        found = getattr(said, name)
        if np.shape(found) != shape_due:
            raise Refusal(f"the reference's {name} has the shape {np.shape(found)}, not {shape_due}")
        if not np.all(np.isfinite(found)):
            raise Refusal(f"the reference's {name} is not finite in points {start} to {stop - 1}")


def _at_least(size: np.ndarray, terms: np.ndarray | None) -> np.ndarray:
    return size if terms is None else np.maximum(size, terms)


def _sum_of_values(asked: _Question, got: np.ndarray) -> Answer:
    """One number, the sum of a value over all points and outputs, against the sum of the reference's: every copy."""
    total, size = 0.0, 0.0
    for start in range(0, asked.case.points, step := max(1, 2**18 // asked.sizes.values)):
        value, terms = _value(asked, start, min(start + step, asked.case.points))
        magnitude = np.abs(value) if terms is None else np.maximum(np.abs(value), terms[:, None])
        total, size = total + float(value.sum()), size + float(magnitude.sum())
    off = np.abs(got.reshape(-1).astype(np.float64) - total)
    return over(off, np.array(size)), np.zeros(len(off))


def _sum_of_derivatives(asked: _Question, got: np.ndarray) -> Answer:
    """The derivative of the sum over all points and outputs, by inputs that they share: every copy, (copies, 1, inputs)."""
    case, workload, sizes = asked.case, asked.workload, asked.sizes
    bound = np.zeros(sizes.inputs)
    if case.mode == "finite_difference":
        for start, stop in _ranges(asked):
            bound = bound + differences.step_bound(case, workload, sizes, start, stop, asked.rounding.total).sum(axis=0)
    if not asked.closed:
        return probes.total(case, workload, sizes, got[:, 0], list(_ranges(asked)), bound)
    want, size = np.zeros(sizes.inputs), np.zeros(sizes.inputs)
    for start, stop in _ranges(asked):
        J, floor = _jacobians(asked, start, stop)
        value, magnitude = reduced("points", J, asked.rounding, floor)
        want, size = want + value[:, 0].sum(axis=0), size + magnitude[:, 0].sum(axis=0)
    off = np.abs(got[:, 0].astype(np.float64) - want).max(axis=1)
    extra = np.full(len(got), bound.max())
    return over(off, size.max()), over(extra, size.max())
