"""Probes: is a result what finite differences say? For a function that nobody has differentiated by hand.

A Jacobian, or its entries at a pattern, is multiplied with random directions; what is summed or multiplied already is compared
along the direction that it was multiplied with; a norm and a Gram matrix with those of the whole Jacobian by differences, because
between random directions an entry of J^T J counts by the square of its share. Of several steps, that which says most at a point
counts. Every answer is two arrays: the error of each point, and what the differences' own rounding, and the step of
mode=finite_difference, allow on top of the table.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from scaling.case import SECOND, Case
from scaling.measuring import differences, inputs
from scaling.measuring.differences import Exact, flat, over
from scaling.measuring.reduced import Jacobians, Rounding, by_output, reduced, stepped
from scaling.measuring.shape import Shape
from scaling.measuring.sparsity import Pattern
from scaling.workload import Workload

_PROBES = 2  # random directions a point; each sees every entry of the Jacobian
_STEPS = (1e-3, 1e-4, 1e-6)  # a kink spoils the long ones, rounding the short: a right derivative agrees with one of them
_STEP = 1e-4  # where one step must do
_NUDGE = 1e-4

Answer = tuple[np.ndarray, np.ndarray]
Ranges = Sequence[tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class Asked:
    """A block of points of a case, and how far a finite step may be off there: as differences.step_bound says."""

    case: Case
    workload: Workload
    sizes: Shape
    named: Exact
    bound: np.ndarray
    generator: np.random.Generator

    @property
    def value(self) -> np.ndarray:
        """The size of the numbers that are differenced: (points,)."""
        return np.abs(differences.values(self.case, self.workload, self.named)).sum(axis=1)

    def along(self, direction: Exact, step: float) -> np.ndarray:
        """The derivative of what is asked for along a direction: (points, outputs)."""
        return differences.joined(self.workload, self.sizes, self.apart(direction, step))

    def apart(self, direction: Exact, step: float) -> np.ndarray:
        """The same before any sum over outputs: (points, outputs)."""
        return differences.along(self.case, self.workload, self.named, direction, step)

    def size(self, outputs: np.ndarray) -> np.ndarray:
        """The size of derivatives of the outputs, those that are added up together: (points,)."""
        return np.nan_to_num(differences.together(self.workload, self.sizes, outputs))


def compare(
    case: Case, workload: Workload, sizes: Shape, got: np.ndarray, start: int, stop: int, rounding: Rounding,
    pattern: Pattern | None = None,
) -> Answer:  # fmt: skip
    """A result at points `start` to `stop`: (points, outputs', inputs'), or (points, 1, entries) of a pattern."""
    named = inputs.exact(case, workload, start, stop)
    generator = np.random.default_rng([case.data_seed, start])
    if case.mode == "value":
        return _values(case, workload, named, got, generator)
    stepping = case.mode == "finite_difference"
    bound = differences.step_bound(case, workload, sizes, start, stop, rounding.terms) if stepping else np.zeros((1, 1))
    of = Asked(case, workload, sizes, named, bound, generator)
    got = got.astype(np.float64)
    if workload.reduce in ("inputs", "vector"):
        return _known(of, got[:, :, 0])
    if workload.reduce in ("norm", "gram"):
        return _by_columns(of, got, rounding)
    # A Hessian is the difference of gradients, whose rounding it inherits however small it is itself.
    floor = np.abs(differences.values(case, workload, named)).max(axis=1) / np.sqrt(rounding.terms)
    floor = floor if case.target in SECOND else np.zeros(len(got))
    J = Jacobians(got if pattern is None else got[:, 0], pattern)
    results = [_product(of, J, floor) for _ in range(_PROBES)]
    if case.target in SECOND:  # differences of a gradient that is itself wrong would prove nothing
        gradient = differences.evaluate(workload, differences.gradient(workload), named)[:, None, :]
        first = dataclasses.replace(of, case=dataclasses.replace(case, target=None))
        results += [_product(first, Jacobians(gradient), 0 * floor) for _ in range(_PROBES)]
    return _worst(results)


def _values(case: Case, workload: Workload, named: Exact, got: np.ndarray, generator: np.random.Generator) -> Answer:
    want = differences.values(case, workload, named)
    nudge = _nudged(workload, named, generator)
    size = np.abs(want).max(axis=1) + np.abs(differences.values(case, workload, nudge) - want).max(axis=1) / _NUDGE
    size = np.maximum(size, np.sqrt(np.mean(want**2)))
    return over(np.abs(got[:, :, 0] - want).max(axis=1), size), np.full(len(got), 1e-12)


def _worst(results: list[Answer]) -> Answer:
    """Of each point the answer that leaves least room."""
    errors, extras = np.array([error for error, _ in results]), np.array([extra for _, extra in results])
    worst = np.argmax(np.where(np.isfinite(errors), errors, np.inf) - np.where(np.isfinite(extras), extras, 0.0), axis=0)[None]
    return np.take_along_axis(errors, worst, 0)[0], np.take_along_axis(extras, worst, 0)[0]


def _best(at: Callable[[float], Answer], size: np.ndarray, bound: np.ndarray) -> Answer:
    """Compare at the step that suits each point, or entry, best. at: step -> how far off, and how much may be noise."""
    best, extra, least = np.full(size.shape, np.inf), np.zeros(size.shape), np.full(size.shape, np.inf)
    for step in _STEPS:
        off, noise = at(step)
        off = np.nan_to_num(off, nan=np.inf)
        # The step that says most: little deviation and little noise. Not relative, for the size may be nothing.
        better = ~(least <= off + noise)
        least = np.where(better, off + noise, least)
        best, extra = np.where(better, over(off, size), best), np.where(better, 1e-8 + over(noise + bound, size), extra)
    return best, extra


def _product(of: Asked, J: Jacobians, floor: np.ndarray) -> Answer:
    """A Jacobian times a random direction. floor: the least size of a point."""
    points = len(J.values)
    if of.case.target == "hvp":  # a Hessian times the point itself is a derivative along it
        direction, rows = of.named, np.ones((points, 1))
    else:
        direction = differences.direction(of.workload, of.named, of.generator)
        rows = flat(of.workload, direction, points)
    product = by_output(J, J.values, rows)
    size = np.maximum(floor, _size(of, direction, by_output(J, np.abs(J.values), np.abs(rows)).max(axis=1)))
    value, bound = of.value, (np.abs(rows) * of.bound).sum(axis=1)
    if J.pattern is not None:  # an output moves with the inputs of its own row
        bound = by_output(J, np.ones_like(J.values), np.abs(rows) * of.bound).max(axis=1)
    off = lambda step: np.abs(product - of.along(direction, step)).max(axis=1)  # noqa: E731
    return _best(lambda step: (off(step), differences.noise(value, step)), size, bound)


def _known(of: Asked, got: np.ndarray) -> Answer:
    """A Jacobian that is multiplied already, with ones or with the point itself: (points, outputs)."""
    if of.workload.reduce == "vector":
        direction, reach = dict(of.named), 1.0
    else:
        direction = {name: np.ones_like(of.named[name]) for name in of.workload.names}
        reach = _reach(of, direction)
    direction = {name: reach * direction[name] for name in of.workload.names}
    size = _size(of, direction, np.zeros(len(got)))
    for _ in range(3):  # the size of what is added up, though it may cancel: whatever the signs, it does not often
        signed = {name: x * of.generator.choice([-1.0, 1.0], x.shape) for name, x in direction.items()}
        size = np.maximum(size, of.size(of.apart(signed, _STEP)))
    value, bound = of.value, reach * stepped(of.workload.reduce, Jacobians(got), of.bound)
    off = lambda step: np.abs(reach * got - of.along(direction, step)).max(axis=1)  # noqa: E731
    return _best(lambda step: (off(step), differences.noise(value, step)), size, bound)


def _reach(of: Asked, direction: Exact) -> float:
    """How far a direction goes in units of what is typical, or of the smallest number where that would leave the domain."""
    sizes = differences.own_sizes(of.workload, of.named)
    typical = min(float(np.sqrt(np.mean(own**2))) for own in sizes.values())
    far = [of.along({name: typical * x for name, x in direction.items()}, step) for step in _STEPS]
    return typical if np.all(np.isfinite(far)) else min(float(own.min()) for own in sizes.values())


def _by_columns(of: Asked, got: np.ndarray, rounding: Rounding) -> Answer:
    """A norm or a Gram matrix, of all columns by differences: some twenty evaluations of the function for each input."""
    how, each = of.workload.reduce, (slice(None), None, None)  # a point's number beside its entries
    columns = lambda named, step: differences.columns(of.case, of.workload, of.sizes, named, step)  # noqa: E731
    here = np.nan_to_num(columns(of.named, _STEP))
    there = np.nan_to_num(columns(_nudged(of.workload, of.named, of.generator), _STEP))
    floor = np.minimum(np.abs(there - here).max(axis=(1, 2)) / _NUDGE, 1e4 * np.abs(here).max(axis=(1, 2)))
    size = np.broadcast_to(reduced(how, Jacobians(here), rounding, floor)[1], got.shape)
    h = flat(of.workload, differences.own_sizes(of.workload, of.named), len(got))
    value = of.value[:, None]

    def at(step: float) -> Answer:
        J = Jacobians(columns(of.named, step))
        spoilt = stepped(how, J, differences.noise(value, step * h))
        return np.abs(got - reduced(how, J, rounding)[0]), np.nan_to_num(spoilt)[each]

    errors, extras = _best(at, size, stepped(how, Jacobians(here), of.bound)[each])
    return _worst(list(zip(errors.reshape(len(got), -1).T, extras.reshape(len(got), -1).T, strict=True)))


def _nudged(workload: Workload, named: Exact, generator: np.random.Generator) -> Exact:
    """Every real input a ten-thousandth up or down."""
    real = [name for name in named if not differences.draw_of(workload, name).integer]
    return {**named, **{name: named[name] * (1 + _NUDGE * generator.choice([-1.0, 1.0], named[name].shape)) for name in real}}


def _size(of: Asked, direction: Exact, terms: np.ndarray) -> np.ndarray:
    """The size of a directional derivative: its terms, or what it moves by, relatively, when every input does: (points,)."""
    here = of.apart(direction, _STEP)
    size = np.maximum(of.size(here), terms)
    moved = np.zeros_like(size)
    for _ in range(3):
        nudged = dataclasses.replace(of, named=_nudged(of.workload, of.named, of.generator))
        moved = np.maximum(moved, of.size(nudged.apart(direction, _STEP) - here) / _NUDGE)
    return np.maximum(size, np.minimum(moved, 1e4 * size))


def total(case: Case, workload: Workload, sizes: Shape, got: np.ndarray, ranges: Ranges, bound: np.ndarray) -> Answer:
    """Copies of the derivative of the sum over all points and outputs by inputs that these share: (copies, inputs).

    ranges: the blocks of points. bound: (inputs,), of a finite step. The answer is of each copy.
    """
    first = inputs.exact(case, workload, 0, 1)
    generator = np.random.default_rng(case.data_seed)
    along_these = [differences.direction(workload, first, generator) for _ in range(_PROBES)]
    return _worst([_total(case, workload, sizes, got.astype(np.float64), ranges, bound, each) for each in along_these])


def _total(
    case: Case, workload: Workload, sizes: Shape, got: np.ndarray, ranges: Ranges, bound: np.ndarray, direction: Exact
) -> Answer:
    """Along one direction, block by block."""
    sums, noise, terms, moved = dict.fromkeys(_STEPS, 0.0), dict.fromkeys(_STEPS, 0.0), 0.0, 0.0
    for start, stop in ranges:
        generator = np.random.default_rng([case.data_seed, start])
        of = Asked(case, workload, sizes, inputs.exact(case, workload, start, stop), bound, generator)
        value = float(of.value.sum())
        for step in _STEPS:
            here = of.along(direction, step)
            sums[step] += float(here.sum())
            noise[step] += float(differences.noise(value, step))
            if step == _STEP:
                terms += float(np.nan_to_num(np.abs(here)).sum())
                nudged = dataclasses.replace(of, named=_nudged(workload, of.named, generator))
                moved += float(np.nan_to_num(np.abs(nudged.along(direction, step) - here)).sum()) / _NUDGE
    row = np.concatenate([direction[name].reshape(-1) for name in workload.names])
    size = np.maximum(terms, (np.abs(got) * np.abs(row)).sum(axis=1))
    size = np.maximum(size, np.minimum(moved, 1e4 * size))
    at = lambda step: (np.abs(got @ row - sums[step]), np.full(len(got), noise[step]))  # noqa: E731
    return _best(at, size, np.abs(row) @ bound)
