"""What a result is compared with: the reference of a case, its reduction, and how far rounding may move the
result.
"""

import dataclasses
import functools
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, Protocol

from scaling.core import extensions
from scaling.core import pattern as patterns
from scaling.core.case import SECOND, VIEWS, Case, Refusal, defaults
from scaling.core.pattern import Pattern
from scaling.core.process_cache import fingerprint
from scaling.core.reduction_reference import Rounding, count_entries
from scaling.core.reductions import REDUCTIONS, WHOLE, Reduction
from scaling.core.shape import DerivativeShape
from scaling.core.tolerances import ROUNDOFF, tolerance, unit_roundoff
from scaling.core.workload import Inputs, Reference, Workload

_MOST, _MOST_IN_FEW_BITS = 0.05, 0.2  # the largest tolerance with which a result proves anything
BUDGET_SECONDS = (
    10.0  # for the entries of a reference that is computed; beyond it a sample of them is compared
)
# How a problem is computed, not what: the reference is the same for every way.
_SETTLED = {*VIEWS["method"], *VIEWS["layout"], *VIEWS["memory"]} - {"formulation"}
PLAIN: dict[str, Any] = defaults(_SETTLED) | {"api": "jit", "precision": "highest"}


class ComputedReference(Protocol):
    """The reference of a function without a closed form.

    inside: the unit roundoff of the narrowest dtype in the function. wrong: why its own rule is wrong. unsure:
    why the reference proves nothing. seconds: an estimate for all entries of all points.
    """

    @property
    def inside(self) -> float: ...
    @property
    def wrong(self) -> str | None: ...
    @property
    def unsure(self) -> str | None: ...
    @property
    def seconds(self) -> float: ...
    @property
    def backward(self) -> bool: ...
    @property
    def evaluation(self) -> Any: ...
    @property
    def native(self) -> Any: ...


class Question(NamedTuple):
    """What a result is compared with.

    pattern: of the entries that the result has; None for one that is written out.
    known: the workload's own pattern, where it gives its derivative at these entries and no Jacobian has to
    be written out.
    computed: the reference of a function without a closed form.
    most: the largest tolerance that proves anything.
    identity: of the function and its reference, in a cache.
    """

    case: Case
    workload: Workload
    sizes: DerivativeShape
    pattern: Pattern | None = None
    known: Pattern | None = None
    rounding: Rounding = Rounding(1)
    computed: ComputedReference | None = None
    most: float = _MOST
    identity: Hashable = None

    @property
    def how(self) -> str | None:
        """The name of the reduction; of a value only its sum over points."""
        reduce = self.workload.reduce
        if self.case.ad_mode.is_value:
            return "points" if reduce == "points" or self.sizes.summed else None
        return reduce or ("outputs" if self.sizes.summed else None)

    @property
    def reduction(self) -> Reduction:
        """The reduction as a value."""
        return REDUCTIONS[self.how] if self.how else WHOLE

    @property
    def at_entries(self) -> bool:
        """Whether result and reference are both entries of a pattern."""
        return self.pattern is not None and self.known is not None

    @property
    def sampled(self) -> bool:
        """Whether all entries of the reference would take too long, and some can be compared alone."""
        seconds = self.computed.seconds if self.computed is not None else 0.0
        return seconds > BUDGET_SECONDS and self.reduction.sampling is not None

    @property
    def stepping(self) -> bool:
        """Whether the mode takes finite steps, which have an error of their own."""
        return self.case.ad_mode.finite_step


def closed_form(case: Case, workload: Workload) -> Callable[[Inputs], Reference] | None:
    """Return what gives a value in NumPy at the least cost, if anything does."""
    return (
        workload.nonzeros
        if workload.nonzeros is not None and case.target not in SECOND
        else workload.reference
    )


def make_question(
    case: Case, workload: Workload, sizes: DerivativeShape, platform: str, pattern: Pattern | None
) -> Question:
    """Return the question of a case: its patterns are validated, and the numbers that its result adds up are
    counted."""
    own = _own_pattern(case, workload, sizes)
    colored = case.seeds == "colored" and not case.ad_mode.is_value
    ours = own if colored else None
    if colored and pattern is not None:
        ours = patterns.validated_pattern(pattern.rows, pattern.cols, sizes.outputs, sizes.inputs)
    if colored and ours is None:
        raise Refusal(
            f"{case.workload} says no pattern, so that the entries of {case.mode} are at no known places"
        )
    question = Question(case, workload, sizes, ours)
    sums_entries = question.reduction is not WHOLE and not question.reduction.products
    of_entries = colored or workload.reference is None or sums_entries
    if workload.nonzeros is not None and of_entries and not case.ad_mode.is_value and not sizes.summed:
        question = question._replace(known=own)
    found = None
    if (
        question.known is None
        and not (case.ad_mode.is_value and closed_form(case, workload))
        and workload.reference is None
    ):
        mode = "value" if case.ad_mode.is_value else "jacfwd"
        plain = dataclasses.replace(case, **PLAIN | {"mode": mode, "reduce": None})
        found = _examined(plain, Keyed(_identity(workload), (workload, sizes)))
        reference = extensions.load("computed_reference").with_reference(workload, found)
        question = question._replace(workload=reference, computed=found)
    inside = found.inside if found else 0.0
    few_bits = unit_roundoff(case, platform, inside) > ROUNDOFF["float32"]
    terms, count = question.workload.terms, _count(question, own)
    rounding = Rounding(terms, count, tolerance(case, terms, platform, inside))
    most = _MOST_IN_FEW_BITS if few_bits else _MOST
    return question._replace(rounding=rounding, most=most, identity=_identity(workload))


def _identity(workload: Workload) -> Hashable:
    """Return what tells workloads apart whose cases are the same."""
    functions = (workload.function, workload.reference, workload.nonzeros, workload.wrt)
    draws = [
        (name, draw.shape, draw.make) for name, draw in (*workload.points.items(), *workload.shared.items())
    ]
    return fingerprint((*functions, draws))


@dataclasses.dataclass(frozen=True)
class Keyed:
    """A value with a key that stands for it in a cache."""

    key: Hashable
    value: Any = dataclasses.field(compare=False)


@functools.lru_cache(maxsize=8)
def _examined(problem: Case, keyed: Keyed) -> ComputedReference:
    """Return the numeric reference of a problem, examined once."""
    found: ComputedReference = extensions.load("computed_reference").examine(problem, *keyed.value)
    return found


def _own_pattern(case: Case, workload: Workload, sizes: DerivativeShape) -> Pattern | None:
    """Return the pattern that a workload knows by hand."""
    if workload.pattern is None or case.ad_mode.is_value or case.target in SECOND:
        return None
    return patterns.validated_pattern(*workload.pattern(), sizes.outputs, sizes.inputs)


def _count(question: Question, own: Pattern | None) -> int:
    """Return how many entries, or values, one number of the result adds up."""
    case, sizes = question.case, question.sizes
    if case.ad_mode.is_value:
        return 1 if question.how is None else case.points * max(question.workload.terms, sizes.values)
    if question.pattern is not None:
        return 1
    return question.reduction.entries(count_entries(sizes.outputs, sizes.inputs, case.points, own))
