"""The check: is a result right, at every point? Asked before any time is kept.

The reference is in float64 at the inputs as the dtype rounded them, block of points by block of points, and knows nothing of the
mode under test: a closed form in NumPy, or for a function without one its derivative by forward mode (numeric.py). Every entry is
compared with its own, over the size of what is added up in its output (reduced.py), so that a small output cannot hide behind a
large one and a sum that cancels is judged by its terms. Where that would take too long, a sample is compared (sampled.py). A sum
over points is one result, of which every copy is checked.

What rounding explains at inputs that lie within a rounding of those asked for is no error: entries that fail are evaluated again
at nudged inputs in the dtype of the case, and may be off by what these differ by.

With coloured seeds a result is the entries of a detected pattern. What a pattern lacks counts as zero there, so that one that
lacks an entry is wrong.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from scaling.core import inputs
from scaling.core import pattern as patterns
from scaling.core.case import SECOND, Case, Refusal
from scaling.core.pattern import Pattern
from scaling.core.reduction_reference import Jacobians, Rounding, count_entries, reduce_jacobians
from scaling.core.reductions import REDUCTIONS, WHOLE, Reduction
from scaling.core.shape import DerivativeShape
from scaling.core.workload import Reference, Workload
from scaling.options.reference import fd_check, finite_differences, float64, numeric, sampled
from scaling.options.reference.finite_differences import over
from scaling.options.reference.numeric import Numeric
from scaling.options.reference.sampled import EntryComparison, SampledPart

# Unit roundoff of a product in float32 where an accelerator shortens its factors.
PRODUCT_ROUNDOFF = {
    ("gpu", "default"): 2.0**-11,  # TF32
    ("gpu", "high"): 2.0**-11,
    ("tpu", "default"): 2.0**-8,  # bfloat16
    ("tpu", "high"): 2.0**-14,  # three of them
}
_ROUNDINGS = 8  # in each term; what needs more is looked at again
_UNDERFLOWS = 2.0**10  # of the smallest normal number: what lies below may be lost in a product
_FAIR = 64  # roundings of a value that may show in its derivative
_MOST, _MOST_IN_FEW_BITS = 0.05, 0.2  # the largest tolerance with which a result proves anything
_BLOCK_NUMBERS = (
    2**16
)  # of a block: its arrays stay in the cache, and their memory is not given back each time
_KEPT_BYTES = 2**26
BUDGET_SECONDS = (
    10.0  # for the entries of a reference that is computed; beyond it a sample of them is compared
)
_NUDGES, _NUDGE_ROUNDINGS = (
    8,
    2,
)  # evaluations of what failed, and how many roundings the inputs of each are moved by
_POINTS_AGAIN, _COLUMNS_AGAIN = (
    8,
    32,
)  # of what failed in a block, evaluated again; the rest is judged by their noise
_NUMBERS_AGAIN = 2**24  # of all blocks
_INCOMPARABLE = 0.01  # the share of entries that may be left out because rounding decides them
# How a problem is computed, not what: the reference is the same for every way.
_PLAIN: dict[str, Any] = {
    "split": "points", "api": "jit", "devices": 1, "mesh": None, "overlap": False, "precision": "highest", "jit": True,
    "engine": "jax", "chunk": None, "block": None, "memory_limit": None, "storage": None, "remat": None, "forward": None,
    "cache": None,
}  # fmt: skip


class Verdict(NamedTuple):
    """What the check says of a result.

    error: the largest over all points. tolerance: the largest of what was allowed. reason: None if every point passed. checked:
    the share of all entries that were compared one by one, and of points all of whose entries were.
    """

    error: float | None
    tolerance: float
    reason: str | None = None
    text: str | None = None
    checked: dict[str, float] | None = None


def tolerance(case: Case, terms: int, platform: str, inside: float = 0.0) -> float:
    """Return what rounding may do to an answer that adds up `terms` numbers: some roundings a term, a random walk over the sum.

    inside: the unit roundoff of the narrowest dtype in the function.
    """
    return _ROUNDINGS * _roundoff(case, platform, inside) * float(np.sqrt(terms))


def _underflow(case: Case) -> float:
    """Return the size below which numbers of a dtype lose their digits: what is divided by is no smaller."""
    return _UNDERFLOWS * float(jax.numpy.finfo(case.dtype).tiny) / finite_differences.ROUNDOFF[case.dtype]


def _roundoff(case: Case, platform: str, inside: float) -> float:
    roundoff = finite_differences.ROUNDOFF[case.dtype]
    if case.dtype == "float32":
        roundoff = max(roundoff, PRODUCT_ROUNDOFF.get((platform, case.precision), 0.0))
    return max(roundoff, inside)


class _Question(NamedTuple):
    """What a result is compared with.

    pattern: of the entries that the result has; None for one that is written out. known: the workload's own pattern, where it
    says its derivative at these entries and nothing has to be written out to use that. numeric: of a reference that is computed.
    most: the largest tolerance that proves anything. identity: of the function and its reference, in a cache.
    """

    case: Case
    workload: Workload
    sizes: DerivativeShape
    pattern: Pattern | None = None
    known: Pattern | None = None
    rounding: Rounding = Rounding(1)
    numeric: Numeric | None = None
    most: float = _MOST
    identity: Hashable = None

    @property
    def how(self) -> str | None:
        """What is made of each Jacobian; of a value nothing but its sum over points."""
        reduce = self.workload.reduce
        if self.case.ad_mode.is_value:
            return "points" if reduce == "points" or self.sizes.summed else None
        return reduce or ("outputs" if self.sizes.summed else None)

    @property
    def reduction(self) -> Reduction:
        """The same as a value."""
        return REDUCTIONS[self.how] if self.how else WHOLE

    @property
    def at_entries(self) -> bool:
        """Whether result and reference are both entries of a pattern."""
        return self.pattern is not None and self.known is not None

    @property
    def sampled(self) -> bool:
        """Whether all entries of the reference would take too long; a norm has no part that could be compared alone."""
        return (
            self.numeric is not None
            and self.numeric.seconds > BUDGET_SECONDS
            and self.reduction.sampling is not None
        )

    @property
    def stepping(self) -> bool:
        """Whether the mode takes finite steps, which have an error of their own."""
        return self.case.ad_mode.finite_step


class _Block(NamedTuple):
    """A block of points, or all copies of a sum: what is compared, and what a finite step is allowed on top, (points,)."""

    start: int
    named: Any
    comparisons: list[EntryComparison]
    extra: np.ndarray
    words: str = ""


def verdict(
    case: Case,
    workload: Workload,
    sizes: DerivativeShape,
    got: np.ndarray,
    platform: str,
    *,
    pattern: Pattern | None = None,
) -> Verdict:
    """Compare a result, (points, outputs', inputs') as `collect` gives it, with the reference: every point, or every copy.

    pattern: where the entries of a coloured result lie; without one they are those of the workload's own pattern.
    """
    asked = _question(case, workload, sizes, platform, pattern)
    if (
        got.shape[1:] != (due := _due(asked))
        or (len(got) != case.points and not asked.reduction.sums_points)
        or not len(got)
    ):
        raise Refusal(
            f"the result has the shape {got.shape}, where {due} of each of {case.points} points is due"
        )
    inside = asked.numeric.inside if asked.numeric else 0.0
    allowed = tolerance(case, asked.rounding.total, platform, inside)
    each = "copy" if asked.reduction.sums_points else "point"
    if (bad := _not_finite(got)) is not None:
        return Verdict(None, allowed, "not_finite", f"the result is not finite at {each} {bad}")
    if reason := _hopeless(asked, allowed):
        return Verdict(None, allowed, *reason)
    compared = _Compared(asked, allowed)
    with _session(asked.numeric):
        for block in _blocks(asked, got):
            compared.add(block)
    compared.look_again(_roundoff(case, platform, inside))
    return compared.verdict(each, len(got))


@contextlib.contextmanager
def _session(found: Numeric | None) -> Iterator[None]:
    """Have JAX set up for a reference that is computed."""
    with float64.evaluating(found.evaluation.dtype) if found else contextlib.nullcontext():
        yield


def _hopeless(asked: _Question, allowed: float) -> tuple[str, str] | None:
    """Return why a result cannot be checked, whatever it is: (reason, words)."""
    if allowed > asked.most:
        words = f"a result that adds up {asked.rounding.total} terms in {asked.case.dtype} may be off by {allowed:.2g}"
        return "no_digits", f"{words}, more than the {asked.most:g} with which it proves anything"
    if asked.numeric is not None and asked.numeric.wrong:
        return "wrong_answer", asked.numeric.wrong
    if asked.numeric is not None and asked.numeric.unsure:
        return "no_digits", asked.numeric.unsure
    return None


class _Compared:
    """The errors of the blocks so far, and what failed, kept to be evaluated again."""

    def __init__(self, asked: _Question, allowed: float) -> None:
        self.asked, self.allowed = asked, allowed
        self.worst, self.worst_allowed, self.words = 0.0, allowed, ""
        self.first: int | None = None  # the first point that is wrong
        self.entries = self.left_out = 0
        self._again: list[tuple[_Block, EntryComparison]] = []
        self._later: list[tuple[_Block, np.ndarray]] = []

    def add(self, block: _Block) -> None:
        """Compare a block of points."""
        for whole in block.comparisons:
            comparison = dataclasses.replace(whole, size=np.maximum(whole.size, _underflow(self.asked.case)))
            error = over(np.abs(comparison.got - comparison.want), comparison.size)
            self.entries += error.size
            flat = error.reshape(len(error), -1).max(axis=1)
            wrong = ~(flat <= self.allowed + block.extra)
            if not wrong.any() or comparison.measure is None:
                self._count(block, flat, wrong)
            elif sum(each.want.size for _, each in self._again) < _NUMBERS_AGAIN:
                self._again.append((block, comparison))
            else:
                self._later.append((block, flat))

    def _count(self, block: _Block, error: np.ndarray, wrong: Any) -> None:
        """Note the errors of some points, (points,), and the first that is wrong."""
        if wrong.any() and (self.first is None or block.start + int(np.argmax(wrong)) < self.first):
            self.first, self.words = block.start + int(np.argmax(wrong)), block.words
        self.worst = max(self.worst, float(np.max(error, initial=0.0)))
        extra = float(np.max(np.broadcast_to(block.extra, error.shape), where=error > 0, initial=0.0))
        self.worst_allowed = max(self.worst_allowed, self.allowed + extra)

    def look_again(self, roundoff: float) -> None:
        """Evaluate what failed at nudged inputs in the dtype of the case: what these differ by is allowed on top.

        An entry that may then be off by more than `most` says nothing, and is left out.
        """
        asked = self.asked
        if not self._again:
            return
        native = (
            asked.numeric.native
            if asked.numeric
            else numeric.native(asked.case, asked.workload, self._again[0][0].named)
        )
        for block, comparison in self._again:
            if self.first is None:
                self._look_at(native, block, comparison, roundoff)
        for block, flat in self._later:
            self._count(block, flat, ~(flat <= self.worst_allowed))

    def _look_at(
        self, native: float64.Evaluation, block: _Block, whole: EntryComparison, roundoff: float
    ) -> None:
        """Evaluate some of what failed in a block again, and judge the rest by it."""
        asked, all_errors = self.asked, over(np.abs(whole.got - whole.want), whole.size)
        part = _worst_part(all_errors > self.allowed, all_errors, whole.by_column)
        named = block.named if asked.reduction.sums_points else _at_points(native, block.named, part)
        comparison = whole.at(part)
        error = np.abs(comparison.got - comparison.want)
        noise, natural = _noise(asked, native, named, comparison, part, roundoff)
        typical = np.sqrt(
            np.mean(np.broadcast_to(whole.size, whole.want.shape) ** 2, axis=0)
        )  # of an output that crosses zero here
        typical = typical if part.columns is None else typical[..., part.columns]
        noise = np.maximum(
            noise, np.minimum(self.allowed * typical, _rounded(roundoff, asked.workload.terms) * natural)
        )
        jitter = _jitter(asked, named, comparison, part)
        zero = (
            comparison.size <= 8 * jitter
        )  # the reference is nothing but its own rounding, and that grows with the roundoff
        finer = finite_differences.ROUNDOFF[asked.numeric.evaluation.dtype] if asked.numeric else roundoff
        of_point = np.maximum(
            noise.max(axis=tuple(range(1, noise.ndim)), keepdims=True), _ROUNDINGS * jitter * roundoff / finer
        )
        noise = np.where(zero, of_point, noise)
        drowned = (zero | (noise > asked.most * comparison.size)) & (
            noise <= _rounded(roundoff, asked.workload.terms) * natural
        )
        size = np.where(drowned, np.maximum(comparison.size, natural), comparison.size)
        fine, allowed = error <= self.allowed * comparison.size, self.allowed + over(noise, size)
        coarse = ~(allowed <= asked.most)
        wrong = ~fine & ~(error <= self.allowed * comparison.size + np.where(coarse, 4 * noise, noise))
        lost = ~fine & ~wrong & coarse
        at = np.zeros(len(all_errors), bool)
        at[part.points] = wrong.reshape(len(wrong), -1).any(axis=1)
        kept = np.zeros(len(all_errors))
        kept[part.points] = np.where(lost, 0.0, over(error, size)).reshape(len(error), -1).max(axis=1)
        self.worst_allowed = max(
            self.worst_allowed, float(np.where(fine | lost, self.allowed, allowed).max())
        )
        self._count(block, kept, at)
        self._judge_rest(
            block,
            all_errors,
            part,
            float(np.mean(lost[~fine])) if (~fine).any() else 0.0,
            bool(drowned.any()),
        )

    def _judge_rest(
        self, block: _Block, errors: np.ndarray, part: SampledPart, lost: float, drowned: bool
    ) -> None:
        """Judge the entries that failed and were not evaluated again. lost: the share of those that were and say nothing."""
        rest = errors.copy()
        if part.columns is None:
            rest[part.points] = 0.0
        else:
            rest[np.ix_(part.points, *map(np.arange, errors.shape[1:-1]), part.columns)] = 0.0
        failed = rest > self.worst_allowed
        many = int(failed.sum())
        self.left_out += int(
            lost * max(many, part.points.size if part.columns is None else part.columns.size)
        )
        if many and not lost and not drowned:
            self._count(
                block, rest.reshape(len(rest), -1).max(axis=1), failed.reshape(len(failed), -1).any(axis=1)
            )

    def verdict(self, each: str, count: int) -> Verdict:
        """Return what the errors come to."""
        asked = self.asked
        if asked.stepping and self.worst_allowed > asked.most:
            text = "a finite difference with this step and dtype has no correct digit"
            return Verdict(self.worst, self.worst_allowed, "no_digits", text)
        if self.first is not None:
            text = f"{each} {self.first} is wrong; the largest error is {self.worst:.3g}{self.words}"
            return Verdict(self.worst, self.worst_allowed, "wrong_answer", text)
        if self.left_out > _INCOMPARABLE * self.entries:
            text = f"rounding in {asked.case.dtype} decides {self.left_out} of {self.entries} entries of the result"
            return Verdict(self.worst, self.worst_allowed, "no_digits", text)
        return Verdict(
            self.worst,
            self.worst_allowed,
            checked=_checked(asked, 1 - self.left_out / max(1, self.entries), count),
        )


def _checked(asked: _Question, kept: float, count: int) -> dict[str, float]:
    """Return the share of entries that were compared one by one, and of points all of whose entries were."""
    if not asked.sampled:
        return {"entries": kept, "points": 1.0 if kept == 1 else 0.0}
    assert asked.numeric is not None
    if asked.reduction.sampling == "products" or asked.case.target == "hvp":
        return {"entries": kept, "points": 1.0}
    whole = _whole_points(asked) / asked.case.points if not asked.reduction.sums_points else 0.0
    outputs = asked.reduction.shape(asked.sizes.outputs, asked.sizes.inputs)[0]
    some = (
        sampled.compared_share(_sample(asked), outputs, asked.sizes.inputs)
        if asked.reduction.sampling != "columns"
        else _share_of_columns(asked)
    )
    return {"entries": kept * (some + (1 - some) * whole), "points": 1.0 if some == 1 else whole}


def _rounded(roundoff: float, terms: int) -> float:
    """Return what rounding may do to a number of this roundoff on the way to a derivative, relative to the number."""
    return _FAIR * roundoff * float(np.sqrt(terms))


def _worst_part(failed: np.ndarray, error: np.ndarray, by_column: bool) -> SampledPart:
    """Return the points, and the columns, of the largest errors among those that failed, and some of the others that did."""
    points = failed.reshape(len(failed), -1)
    picked = _some_of(points.any(axis=1), error.reshape(len(error), -1).max(axis=1), _POINTS_AGAIN)
    if not by_column:
        return SampledPart(picked)
    columns = failed[picked].reshape(-1, failed.shape[-1])
    return SampledPart(
        picked,
        _some_of(columns.any(axis=0), error[picked].reshape(columns.shape).max(axis=0), _COLUMNS_AGAIN),
    )


def _some_of(failed: Any, error: Any, most: int) -> np.ndarray:
    """Return at most so many numbers of what failed: the worst half, and of the others those that lie evenly."""
    numbers = np.flatnonzero(failed)
    order = numbers[np.argsort(-error[numbers], kind="stable")]
    rest = np.sort(order[most // 2 :])
    evenly = (
        rest[np.linspace(0, len(rest) - 1, min(len(rest), most - most // 2)).astype(int)]
        if len(rest)
        else rest
    )
    return np.unique(np.concatenate([order[: most // 2], evenly]))


def _at_points(of: float64.Evaluation, named: Any, part: SampledPart) -> dict[str, np.ndarray]:
    """Return the inputs of some points."""
    return {name: array[part.points] if name in of.own else array for name, array in named.items()}


def _noise(
    asked: _Question,
    native: float64.Evaluation,
    named: Any,
    comparison: EntryComparison,
    part: SampledPart,
    roundoff: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return what rounding explains of what is compared, and the size that values and inputs give it: two (points, ...).

    It explains the range at nudged inputs in the dtype of the case, and no less than is typical of the other entries; and
    what forward mode in that dtype is off by, as far as the rounding of a value over its input may be (1 - tanh^2 where tanh is
    near 1). Nothing where the function cannot be evaluated.
    """
    assert comparison.measure is not None
    try:
        with float64.evaluating(native.dtype):
            found = _nudged(native, named, comparison, part, roundoff)
            here, value = comparison.measure(native, named, part), np.abs(float64.values(native, named))
    except Exception:
        return np.zeros((1,) * comparison.want.ndim), np.zeros((1,) * comparison.want.ndim)
    natural = _natural(asked, native, named, value, comparison.want)
    noise = found.max(axis=0) - found.min(axis=0)
    noise = np.maximum(
        noise, comparison.size * np.median(over(noise, np.broadcast_to(comparison.size, noise.shape)))
    )
    off = np.abs(here - comparison.want)
    off = np.where(off <= _rounded(roundoff, asked.workload.terms) * natural, 2 * off, 0.0)
    noise = np.maximum(noise, off.max(axis=-1, keepdims=True))
    return noise, natural


def _natural(
    asked: _Question, of: float64.Evaluation, named: Any, value: np.ndarray, like: np.ndarray
) -> np.ndarray:
    """Return the size that value and inputs give a derivative, of a shape that broadcasts with `like`."""
    typical = np.sqrt(np.mean([np.mean(named[name] ** 2) for name in of.names])) or 1.0
    value = np.maximum(value, np.sqrt(np.mean(value**2, axis=0)))  # an output may cross zero at a point
    along_x = asked.case.ad_mode.is_value or asked.reduction.along_point or asked.case.target == "hvp"
    size = value if along_x else (value / typical) ** asked.reduction.degree
    if asked.reduction.sums_points:
        return np.full((1,) * max(1, like.ndim), size.sum())
    if like.shape[1] != size.shape[1]:
        size = size.max(axis=1, keepdims=True)
    return size.reshape(*size.shape, *[1] * (like.ndim - 2))


def _jitter(asked: _Question, named: Any, comparison: EntryComparison, part: SampledPart) -> np.ndarray:
    """Return how far the reference moves when its inputs move by a rounding of its own: the largest of each point."""
    if asked.numeric is None:
        return np.zeros(1)
    of = asked.numeric.evaluation
    with float64.evaluating(of.dtype):
        found = _nudged(
            of, named, comparison, part, max(finite_differences.ROUNDOFF[of.dtype], asked.numeric.inside)
        )
    return (
        np.abs(found - comparison.want)
        .max(axis=(0, *range(2, found.ndim)))
        .reshape(-1, *[1] * (found.ndim - 2))
    )


def _nudged(
    of: float64.Evaluation, named: Any, comparison: EntryComparison, part: SampledPart, roundoff: float
) -> np.ndarray:
    """Return what is compared at inputs that are moved by some roundings, again and again: (nudges, ...)."""
    assert comparison.measure is not None
    generator = np.random.default_rng(1)
    moved = [fd_check.nudged(of, named, _NUDGE_ROUNDINGS * roundoff, generator) for _ in range(_NUDGES)]
    return np.array([comparison.measure(of, each, part) for each in moved])


def _due(asked: _Question) -> tuple[int, int]:
    """The shape of what a result has for each point, or of each copy of a sum over points: nothing is broadcast."""
    sizes = asked.sizes
    if asked.case.ad_mode.is_value:
        return (1, 1) if asked.reduction.sums_points else (sizes.values, 1)
    if asked.pattern is not None:
        return 1, len(asked.pattern.rows)
    return asked.reduction.shape(1 if sizes.summed else sizes.outputs, sizes.inputs)


def _not_finite(got: np.ndarray) -> int | None:
    """The first point, or copy, where a result is not finite. A block at a time: a result may fill half the memory."""
    step = max(1, _BLOCK_NUMBERS // max(1, got[0].size))
    for start in range(0, len(got), step):
        fine = np.isfinite(got[start : start + step])
        if not fine.all():
            return start + int(np.argmax(~fine.reshape(len(fine), -1).all(axis=1)))
    return None


def _question(
    case: Case, workload: Workload, sizes: DerivativeShape, platform: str, pattern: Pattern | None
) -> _Question:
    """Return what is asked of a result; the patterns are checked, and how many numbers it adds up is counted."""
    own = _own_pattern(case, workload, sizes)
    colored = case.seeds == "colored" and not case.ad_mode.is_value
    ours = None
    if colored:
        ours = (
            own
            if pattern is None
            else patterns.validated_pattern(pattern.rows, pattern.cols, sizes.outputs, sizes.inputs)
        )
        if ours is None:
            raise Refusal(
                f"{case.workload} says no pattern, so that the entries of {case.mode} are at no known places"
            )
    asked = _Question(case, workload, sizes, ours)
    of_entries = (
        colored
        or workload.reference is None
        or (asked.reduction is not WHOLE and not asked.reduction.products)
    )
    if workload.nonzeros is not None and of_entries and not case.ad_mode.is_value and not sizes.summed:
        asked = asked._replace(known=own)
    found = None
    if (
        asked.known is None
        and not (case.ad_mode.is_value and finite_differences.closed(case, workload))
        and workload.reference is None
    ):
        plain = dataclasses.replace(case, **_PLAIN | _plain_mode(case))
        found = _examined(plain, _Keyed(_identity(workload), (workload, sizes)))
        asked = asked._replace(workload=numeric.with_reference(workload, found), numeric=found)
    inside = found.inside if found else 0.0
    few_bits = _roundoff(case, platform, inside) > finite_differences.ROUNDOFF["float32"]
    terms, count = asked.workload.terms, _count(asked, own)
    rounding = Rounding(terms, count, tolerance(case, terms, platform, inside))
    most = _MOST_IN_FEW_BITS if few_bits else _MOST
    return asked._replace(rounding=rounding, most=most, identity=_identity(workload))


def _identity(workload: Workload) -> Hashable:
    """Return what tells workloads apart whose cases are the same."""
    functions = (workload.function, workload.reference, workload.nonzeros, workload.wrt)
    draws = [
        (name, draw.shape, draw.make) for name, draw in (*workload.points.items(), *workload.shared.items())
    ]
    return numeric.fingerprint((*functions, draws))


def _plain_mode(case: Case) -> dict[str, Any]:
    return {
        "mode": "value" if case.ad_mode.is_value else "jacfwd",
        "batch": "vmap",
        "seeds": "identity",
        "reduce": None,
    }


@dataclasses.dataclass(frozen=True)
class _Keyed:
    """A value beside a key that stands for it in a cache."""

    key: Hashable
    value: Any = dataclasses.field(compare=False)


@functools.lru_cache(maxsize=8)
def _examined(problem: Case, keyed: _Keyed) -> Numeric:
    """Return the numeric reference of a problem, examined once."""
    return numeric.examine(problem, *keyed.value)


def _own_pattern(case: Case, workload: Workload, sizes: DerivativeShape) -> Pattern | None:
    """Return the pattern that a workload knows by hand."""
    if workload.pattern is None or case.ad_mode.is_value or case.target in SECOND:
        return None
    return patterns.validated_pattern(*workload.pattern(), sizes.outputs, sizes.inputs)


def _count(asked: _Question, own: Pattern | None) -> int:
    """Return how many entries, or values, one number of the result adds up."""
    case, sizes = asked.case, asked.sizes
    if case.ad_mode.is_value:
        return 1 if asked.how is None else case.points * max(asked.workload.terms, sizes.values)
    return (
        1
        if asked.pattern is not None
        else asked.reduction.entries(count_entries(sizes.outputs, sizes.inputs, case.points, own))
    )


def _ranges(asked: _Question) -> Iterator[tuple[int, int]]:
    """Yield blocks of points whose full derivative, before any sum, stays small."""
    case, workload, sizes = asked.case, asked.workload, asked.sizes
    draws = [*workload.points.values(), *workload.shared.values()]
    cells = sizes.outputs * max(sizes.inputs, 1)
    if asked.known is not None:
        cells = sizes.outputs + sizes.inputs + len(asked.known.rows)
    elif asked.sampled and asked.pattern is not None:
        cells = 16 * (sizes.outputs + sizes.inputs) + len(asked.pattern.rows)
    elif asked.reduction.products:
        cells = max(cells, sizes.inputs**2)
    numbers = cells + sum(int(np.prod(draw.shape)) for draw in draws)
    step = max(1, _BLOCK_NUMBERS * (16 if asked.numeric else 1) // numbers)  # a call of JAX wants more to do
    return ((start, min(start + step, case.points)) for start in range(0, case.points, step))


def _blocks(asked: _Question, got: np.ndarray) -> Iterator[_Block]:
    """Yield what is compared, block by block, or of all copies at once."""
    case = asked.case
    if asked.reduction.sums_points:
        yield (_sum_of_values if case.ad_mode.is_value else _sum_of_derivatives)(asked, got)
        return
    common = (
        patterns.common_entries(asked.pattern, asked.known)
        if asked.pattern is not None and asked.known is not None
        else None
    )
    whole = _whole_numbers(asked) if asked.sampled else ()
    for start, stop in _ranges(asked):
        part = got[start:stop]
        if asked.sampled:
            yield _sampled_block(asked, part, start, stop)
            for point in whole:
                if start <= point < stop:
                    yield _block_of(asked, part[point - start : point - start + 1], point, point + 1)
        elif common is not None:
            yield _block_of_entries(asked, common, part, start, stop)
        else:
            yield _block_of(asked, part, start, stop)


def _block_of(asked: _Question, got: np.ndarray, start: int, stop: int) -> _Block:
    """Compare all entries of a block of points."""
    named = inputs.exact_inputs(asked.case, asked.workload, start, stop)
    if asked.pattern is not None:
        got = patterns.to_dense(asked.pattern, got[:, 0].astype(np.float64))
    want, size = _wanted(asked, start, stop)
    got = got.astype(np.float64)
    if not asked.stepping:
        measure = functools.partial(_measured, asked) if asked.known is None else None
        by_column = (
            asked.reduction.linear_in_inputs
            and not asked.case.ad_mode.is_value
            and asked.case.target != "hvp"
        )
        return _Block(
            start, named, [EntryComparison(got, want, size, measure, by_column)], np.zeros(len(got))
        )
    size = size.reshape(len(size), -1).max(
        axis=1
    )  # so that the bound of one entry is not compared with the error of another
    comparison = EntryComparison(got, want, size[:, None, None])
    return _Block(start, named, [comparison], over(_step(asked, start, stop), size))


def _measured(asked: _Question, of: float64.Evaluation, named: Any, part: SampledPart) -> np.ndarray:
    """Return what the reference would say, evaluated otherwise: (points, outputs', inputs')."""
    if asked.case.ad_mode.is_value:
        return float64.values(of, named)[:, :, None]
    if part.columns is not None:
        return float64.columns(
            float64.summed(of) if asked.reduction.sums_outputs else of, named, part.columns
        )
    J = float64.jacobian(of, named)
    if asked.sizes.summed and asked.workload.reduce is not None:
        J = J.sum(axis=1, keepdims=True)
    return _from_jacobians(asked, Jacobians(J), None, named)[0]


def _block_of_entries(
    asked: _Question, common: patterns.CommonEntries, got: np.ndarray, start: int, stop: int
) -> _Block:
    """Compare the entries of a pattern with those that the workload knows, and what the pattern lacks with zero."""
    assert asked.known is not None
    want, size = (array[:, 0] for array in _wanted(asked, start, stop))
    size = np.broadcast_to(size, want.shape)
    named = inputs.exact_inputs(asked.case, asked.workload, start, stop)
    here, scale, words = want, size, ""
    if common.at is not None and common.has is not None:
        largest = size.max(axis=1, keepdims=True)
        here = np.where(common.has, want[:, common.at], 0.0)
        scale = np.where(common.has, size[:, common.at], largest)
    extra = np.zeros(len(got))
    if asked.stepping:
        scale = np.broadcast_to(size.max(axis=1, keepdims=True), here.shape)
        extra = over(_step(asked, start, stop), size.max(axis=1))
    comparisons = [EntryComparison(got[:, 0].astype(np.float64), here, scale)]
    if common.lacking is not None and common.lacking.size:
        lacking = want[:, common.lacking]
        comparisons.append(EntryComparison(np.zeros_like(lacking), lacking, size[:, common.lacking]))
        if count := int(np.count_nonzero(np.abs(lacking).max(axis=0) > 0)):
            words = f"; of the entries that are not zero the pattern lacks {count}"
    return _Block(start, named, comparisons, extra, words)


def _sampled_block(asked: _Question, got: np.ndarray, start: int, stop: int) -> _Block:
    """Compare a sample of the entries of a block of points."""
    case, workload, found = asked.case, asked.workload, asked.numeric
    assert found is not None
    named, generator = (
        inputs.exact_inputs(case, workload, start, stop),
        np.random.default_rng([case.data_seed, start]),
    )
    of, got, extra = found.evaluation, got.astype(np.float64), np.zeros(stop - start)
    if case.target == "hvp" or asked.reduction.sampling == "products":
        along_x = case.target == "hvp" or asked.reduction.along_point
        direction = {name: named[name] if along_x else np.ones_like(named[name]) for name in of.names}
        comparisons = [sampled.products(of, named, got[:, :, 0], direction, generator)]
    elif asked.reduction.sampling == "columns":
        comparisons = list(sampled.grams(of, named, got, _sample(asked), generator))
    else:
        of = float64.summed(of) if asked.reduction.sums_outputs else of
        J = Jacobians(got if asked.pattern is None else got[:, 0], asked.pattern)
        comparisons = list(sampled.jacobians(of, named, J, _sample(asked), generator))
        if asked.reduction.sums_outputs:
            comparisons = [_of_summed(each) for each in comparisons]
    if not asked.stepping:
        return _Block(start, named, comparisons, extra)
    bound = _step(asked, start, stop)
    sizes = [each.size.reshape(len(got), -1).max(axis=1) for each in comparisons]
    return _Block(
        start,
        named,
        [dataclasses.replace(each, measure=None) for each in comparisons],
        over(bound, np.min(sizes, axis=0)),
    )


def _of_summed(comparison: EntryComparison) -> EntryComparison:
    """Have a comparison evaluate the sum over outputs."""
    measure = comparison.measure
    assert measure is not None
    return dataclasses.replace(
        comparison, measure=lambda of, named, part: measure(float64.summed(of), named, part)
    )


def _sample(asked: _Question) -> sampled.Sample:
    """Return the columns and rows that are compared at every point of a case."""
    assert asked.numeric is not None
    outputs = 1 if asked.reduction.sums_outputs else asked.sizes.outputs
    return sampled.sample(
        asked.numeric, outputs, asked.sizes.inputs, np.random.default_rng(asked.case.data_seed)
    )


def _share_of_columns(asked: _Question) -> float:
    return len(_sample(asked).columns) / asked.sizes.inputs


def _whole_points(asked: _Question) -> int:
    """Return how many points are compared whole, within half of the budget; none where one takes more than all of it."""
    assert asked.numeric is not None
    return int(min(asked.case.points, BUDGET_SECONDS / 2 / (asked.numeric.seconds / asked.case.points)))


def _whole_numbers(asked: _Question) -> tuple[int, ...]:
    """Return the points that are compared whole."""
    if asked.reduction.sampling == "products" or asked.case.target == "hvp" or asked.stepping:
        return ()
    generator = np.random.default_rng([asked.case.data_seed, 1])
    return tuple(int(point) for point in numeric.picked(_whole_points(asked), asked.case.points, generator))


def _step(asked: _Question, start: int, stop: int) -> np.ndarray:
    """How far the mode's finite step may move the result: (points,)."""
    case, workload, sizes = asked.case, asked.workload, asked.sizes
    bound = finite_differences.step_bound(case, workload, sizes, start, stop, asked.rounding.terms)
    linear = asked.reduction.degree == 1  # then the bound does not depend on the Jacobian
    J = Jacobians(np.zeros((stop - start, 1, 1))) if linear else _jacobians(asked, start, stop)[0]
    return np.asarray(asked.reduction.step_bound(J, bound))


def _wanted(asked: _Question, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """What the reference says, (points, outputs', inputs') or (points, 1, entries), and the size of what that adds up."""
    case, sizes = asked.case, asked.sizes
    numbers = asked.reduction.degree * asked.reduction.numbers(sizes.outputs, max(sizes.inputs, 1))
    numbers = len(asked.known.rows) if asked.at_entries and asked.known is not None else numbers
    if 8 * case.points * numbers > _KEPT_BYTES:
        return _block(asked, start, stop)
    what = {
        "mode": "value" if case.ad_mode.is_value else "jacfwd",
        "batch": "whole" if sizes.summed and sizes.outputs > 1 else "vmap",  # where that sums outputs
        "seeds": "colored" if asked.at_entries else "identity",
    }
    want, size = _whole(
        dataclasses.replace(case, **_PLAIN | what), asked.rounding, _Keyed(asked.identity, asked)
    )
    return want[start:stop], size[start:stop]


@functools.lru_cache(maxsize=4)
def _whole(problem: Case, rounding: Rounding, keyed: _Keyed) -> tuple[np.ndarray, np.ndarray]:
    """Return all that the reference says of a problem, worked out once for every way of computing it."""
    asked = keyed.value
    blocks = [_block(asked, start, stop) for start, stop in _ranges(asked)]
    return np.concatenate([want for want, _ in blocks]), np.concatenate([size for _, size in blocks])


def _block(asked: _Question, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    case, workload = asked.case, asked.workload
    if case.ad_mode.is_value:
        value, terms = _value(asked, start, stop)
        size = np.abs(value) if asked.numeric else np.abs(value).max(axis=1, keepdims=True)
        return value[:, :, None], _at_least(size, None if terms is None else terms[:, None])[:, :, None]
    J, floor = _jacobians(asked, start, stop)
    if asked.at_entries:
        assert J.pattern is not None
        size = _at_least(_largest_of_rows(J), None if floor is None else floor[:, None])
        return J.values[:, None], size[:, None, J.pattern.rows]
    return _from_jacobians(asked, J, floor, inputs.exact_inputs(case, workload, start, stop))


def _largest_of_rows(J: Jacobians) -> np.ndarray:
    """Return the largest magnitude in each row of the entries of a pattern: (points, outputs)."""
    assert J.pattern is not None
    largest = np.zeros((len(J.values), J.pattern.outputs))
    np.maximum.at(largest.T, J.pattern.rows, np.abs(J.values).T)
    return largest


def _from_jacobians(
    asked: _Question, J: Jacobians, floor: np.ndarray | None, named: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return what is made of Jacobians, (points, outputs', inputs'), and its size. floor: (points,), the least of an entry."""
    if asked.case.target != "hvp" and not asked.reduction.along_point:
        return reduce_jacobians(asked.reduction, J, asked.rounding, floor)
    x = np.concatenate(
        [_rows_of(asked.workload, named, name, len(J.values)) for name in asked.workload.names], axis=1
    )
    if asked.reduction.along_point:
        return reduce_jacobians(asked.reduction, J, asked.rounding, floor, x)
    size = np.abs(J.values) @ np.abs(x)[:, :, None]
    terms = None if floor is None else (floor * np.abs(x).max(axis=1))[:, None, None]
    return J.values @ x[:, :, None], _at_least(size, terms)


def _rows_of(workload: Workload, named: Any, name: str, points: int) -> np.ndarray:
    """Return an input as a row for each point: (points, numbers)."""
    x = named[name]
    return (
        x.reshape(points, -1)
        if name in workload.points
        else np.broadcast_to(x.reshape(1, -1), (points, x.size))
    )


def _value(asked: _Question, start: int, stop: int) -> tuple[np.ndarray, np.ndarray | None]:
    """The values of a block of points, (points, outputs), and the size of their terms, (points,), where that is known."""
    case, workload = asked.case, asked.workload
    named = inputs.exact_inputs(case, workload, start, stop)
    closed = finite_differences.closed(case, workload)
    assert closed is not None
    said = closed(named)
    _validate(asked, said, None, start, stop)
    return said.value, said.value_terms


def _jacobians(asked: _Question, start: int, stop: int) -> tuple[Jacobians, np.ndarray | None]:
    """What the reference says of a block of points, and the least size of an entry: (points,). Summed where the batch is."""
    case, workload, sizes = asked.case, asked.workload, asked.sizes
    named = inputs.exact_inputs(case, workload, start, stop)
    if asked.known is not None:
        assert workload.nonzeros is not None
        said = workload.nonzeros(named)
        _validate(asked, said, (1, len(asked.known.rows)), start, stop)
        entries = Jacobians(said.derivative[:, 0], asked.known)
        if asked.at_entries or (asked.reduction is not WHOLE and not asked.reduction.products):
            return entries, said.derivative_terms
        return Jacobians(patterns.to_dense(asked.known, entries.values)), said.derivative_terms
    assert workload.reference is not None
    said = workload.reference(named)
    _validate(
        asked, said, (sizes.outputs, sizes.outputs if case.target in SECOND else sizes.inputs), start, stop
    )
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


def _sum_of_values(asked: _Question, got: np.ndarray) -> _Block:
    """Compare one number, the sum of a value over all points and outputs: every copy."""
    total, size = 0.0, 0.0
    for start in range(0, asked.case.points, step := max(1, 2**18 // asked.sizes.values)):
        value, terms = _value(asked, start, min(start + step, asked.case.points))
        magnitude = np.abs(value) if terms is None else np.maximum(np.abs(value), terms[:, None])
        total, size = total + float(value.sum()), size + float(magnitude.sum())
    comparison = EntryComparison(got.reshape(-1).astype(np.float64), np.array(total), np.array(size))
    return _Block(0, None, [comparison], np.zeros(len(got)))


def _sum_of_derivatives(asked: _Question, got: np.ndarray) -> _Block:
    """Compare the derivative of the sum over all points and outputs, by inputs that they share: (copies, 1, inputs)."""
    sizes = asked.sizes
    bound = np.zeros(sizes.inputs)
    if asked.stepping:
        for start, stop in _ranges(asked):
            steps = finite_differences.step_bound(
                asked.case, asked.workload, sizes, start, stop, asked.rounding.total
            )
            bound = bound + steps.sum(axis=0)
    want, size = np.zeros(sizes.inputs), np.zeros(sizes.inputs)
    for start, stop in _ranges(asked):
        value, magnitude = _summed_over_outputs(asked, start, stop)
        want, size = want + value.sum(axis=0), size + magnitude.sum(axis=0)
    got = got[:, 0].astype(np.float64)
    extra = over(np.full(len(got), bound.max()), size.max())
    named, measure = None, None
    if asked.known is None and not asked.stepping:
        named = inputs.exact_inputs(asked.case, asked.workload, 0, min(_SUMMED_AGAIN, asked.case.points))
        measure = functools.partial(_measured_sum, asked)
    return _Block(
        0,
        named,
        [EntryComparison(got, np.broadcast_to(want, got.shape), np.full(got.shape, size.max()), measure)],
        extra,
    )


_SUMMED_AGAIN = 64  # points of a sum that are evaluated again


def _measured_sum(asked: _Question, of: float64.Evaluation, named: Any, part: SampledPart) -> np.ndarray:
    """Return the sum over some points, so that its noise is that of the sum over all of them: (1, inputs)."""
    each = float64.columns(float64.summed(of), named, np.arange(asked.sizes.inputs))[:, 0]
    return each.sum(axis=0, keepdims=True) * np.sqrt(asked.case.points / len(each))


def _summed_over_outputs(asked: _Question, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the derivative of the sum over outputs of each point, and its size: two (points, inputs)."""
    if not asked.sampled:
        J, floor = _jacobians(asked, start, stop)
        value, magnitude = reduce_jacobians(REDUCTIONS["points"], J, asked.rounding, floor)
        return value[:, 0], magnitude[:, 0]
    assert asked.numeric is not None
    named, of = (
        inputs.exact_inputs(asked.case, asked.workload, start, stop),
        float64.summed(asked.numeric.evaluation),
    )
    make = float64.rows if asked.numeric.backward else float64.columns
    value = make(of, named, np.arange(1 if asked.numeric.backward else asked.sizes.inputs))[:, 0]
    return value, np.abs(value)
