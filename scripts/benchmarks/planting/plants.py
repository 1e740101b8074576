"""Planted errors in results: functions that change a correct array of Jacobians into a wrong one.

Arrays have the shape (points, outputs, inputs). A plant is such a function. It returns a changed copy, or
None if it does not apply. Changes below the resolution of the dtype are not planted.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from scaling.core.case import Case
from scaling.core.modes import TANGENT

# Smallest change that is planted, relative to the largest entry of its row.
LEAST = {"float64": 1e-8, "float32": 5e-4, "bfloat16": 0.15}
SMALL_ROW = 1e-9  # lower bound of the scale of a row, relative to the largest entry of the point
_CLEAR = 0.1  # minimum size of a changed entry, relative to the largest of its row; 0.7 in bfloat16


@dataclass(frozen=True)
class Result:
    """A correct array of Jacobians, its case, and the random generator that selects entries.

    Attributes:
        right: The array, of shape (points, outputs, inputs).
    """

    case: Case
    right: np.ndarray
    generator: np.random.Generator

    @property
    def is_coarse(self) -> bool:
        """Return whether the result has few significant digits, so that only large errors are planted."""
        return self.case.dtype == "bfloat16" or (
            self.case.ad_mode.finite_step and self.case.dtype == "float32"
        )

    @property
    def exact(self) -> np.ndarray:
        """Return the result in float64."""
        return self.right.astype(np.float64)

    def with_values(self, changed: np.ndarray) -> np.ndarray:
        """Return an array of changed values in the dtype of the result."""
        return changed.astype(self.right.dtype)

    def scaled(self, where: tuple, factor: float) -> np.ndarray:
        """Return a copy of the result with the entries at the index `where` multiplied by a factor."""
        changed = self.exact
        changed[where] *= factor
        return self.with_values(changed)

    def entry(self) -> tuple[int, int, int]:
        """Return the index of a random entry that is not small compared with its row."""
        size = np.abs(self.exact)
        largest = size.max(axis=2, keepdims=True)
        places = np.argwhere((size >= (0.7 if self.is_coarse else _CLEAR) * largest) & (size > 0))
        return tuple(places[self.generator.integers(len(places))]) if len(places) else (0, 0, 0)

    def point(self) -> int:
        """Return a random index of a point."""
        return int(self.generator.integers(len(self.right)))


Plant = Callable[[Result], np.ndarray | None]
ALL = slice(None)


def _everything(fine: float, coarse: float | None) -> Plant:
    """Return a plant that changes all entries by a fraction, `coarse` for results with few digits."""

    def plant(of: Result) -> np.ndarray | None:
        fraction = coarse if of.is_coarse else fine
        return None if fraction is None else of.scaled((), 1 + fraction)

    return plant


def _entry_zero_everywhere(of: Result) -> np.ndarray | None:
    return of.scaled((ALL, *of.entry()[1:]), 0.0) if of.right[0].size > 1 else None


def _entry_zero_once(of: Result) -> np.ndarray:
    return of.scaled(of.entry(), 0.0)


def _entry_off(of: Result) -> np.ndarray:
    return of.scaled(of.entry(), 1.6 if of.is_coarse else 1.03)


def _row_zero(of: Result) -> np.ndarray | None:
    if of.right.shape[1] < 2:
        return None
    return of.scaled((ALL, int(of.generator.integers(of.right.shape[1]))), 0.0)


def _smallest_row(factor: float) -> Plant:
    def plant(of: Result) -> np.ndarray | None:
        if of.right.shape[1] < 2 or (factor and of.is_coarse):
            return None
        row = int(np.argmin(np.abs(of.exact).max(axis=(0, 2))))
        return of.scaled((ALL, row), factor)

    return plant


def _row_off(of: Result) -> np.ndarray | None:
    if of.right.shape[1] < 2:
        return None
    return of.scaled((ALL, int(of.generator.integers(of.right.shape[1]))), 1.5 if of.is_coarse else 1.02)


def _column_zero(of: Result) -> np.ndarray | None:
    if of.right.shape[2] < 2:
        return None
    return of.scaled((ALL, ALL, of.entry()[2]), 0.0)


def _rows_swapped(of: Result) -> np.ndarray | None:
    if of.right.shape[1] < 2:
        return None
    a, b = of.generator.choice(of.right.shape[1], 2, replace=False)
    changed = of.right.copy()
    changed[:, [a, b]] = changed[:, [b, a]]
    return changed


def _columns_swapped(of: Result) -> np.ndarray | None:
    if of.right.shape[2] < 2:
        return None
    a, b = of.generator.choice(of.right.shape[2], 2, replace=False)
    changed = of.right.copy()
    changed[:, :, [a, b]] = changed[:, :, [b, a]]
    return changed


def _transposed(of: Result) -> np.ndarray | None:
    square = of.right.shape[1] == of.right.shape[2] > 1 and of.case.reduce != "gram"
    return of.right.transpose(0, 2, 1).copy() if square and of.case.target not in ("hessian", "hvp") else None


def _shards(of: Result) -> list[tuple] | None:
    """Return the index of the slice that each device computes, or None if devices share all entries."""
    case, (points, outputs, inputs) = of.case, of.right.shape
    if case.devices < 2:
        return None
    if case.split in ("points", "data"):
        each = -(-points // case.devices)
        return (
            [(slice(d * each, (d + 1) * each),) for d in range(case.devices)]
            if points >= case.devices
            else None
        )
    forward = case.ad_mode.seed == TANGENT
    count = inputs if forward else outputs
    is_combined = case.reduce or case.seeds == "colored" or case.ad_mode.parts or case.target == "hvp"
    if is_combined or count < case.devices:
        return None
    each = -(-count // case.mesh_shape[1])
    cuts = [slice(d * each, (d + 1) * each) for d in range(case.mesh_shape[1])]
    rows = -(-points // case.mesh_shape[0])
    lines = [slice(a * rows, (a + 1) * rows) for a in range(case.mesh_shape[0])]
    return [(line, ALL, cut) if forward else (line, cut) for line in lines for cut in cuts]


def _shard_scaled(factor: float, coarse: float) -> Plant:
    """Return a plant that scales the slice of the second device, by `coarse` for results with few digits."""

    def plant(of: Result) -> np.ndarray | None:
        shards = _shards(of)
        return of.scaled(shards[1], coarse if of.is_coarse else factor) if shards else None

    return plant


def _shard_repeated(of: Result) -> np.ndarray | None:
    shards = _shards(of)
    if not shards or of.right[shards[0]].shape != of.right[shards[1]].shape:
        return None
    changed = of.right.copy()
    changed[shards[1]] = changed[shards[0]]
    return changed


def _point_off(of: Result) -> np.ndarray | None:
    return of.scaled((of.point(),), 1.5 if of.is_coarse else 1.01) if len(of.right) > 1 else None


def _points_swapped(of: Result) -> np.ndarray | None:
    if len(of.right) < 2:
        return None
    a, b = of.generator.choice(len(of.right), 2, replace=False)
    changed = of.right.copy()
    changed[[a, b]] = changed[[b, a]]
    return changed


def _first_point_everywhere(of: Result) -> np.ndarray | None:
    return np.repeat(of.right[:1], len(of.right), axis=0) if len(of.right) > 1 else None


def _point_before(of: Result) -> np.ndarray | None:
    return np.roll(of.right, 1, axis=0) if len(of.right) > 1 else None


def _row_of_wrong_sign(of: Result) -> np.ndarray:
    changed = of.exact
    changed[of.point(), int(of.generator.integers(of.right.shape[1]))] *= -1
    return of.with_values(changed)


def _one_number(value: float) -> Plant:
    def plant(of: Result) -> np.ndarray:
        changed = of.exact
        changed[of.entry()] = value
        return of.with_values(changed)

    return plant


def _rounded(of: Result) -> np.ndarray | None:
    """Return the result rounded to the next shorter dtype."""
    shorter = {"float64": jnp.float32, "float32": jnp.bfloat16}.get(of.case.dtype)
    return (
        None
        if shorter is None or of.case.ad_mode.finite_step
        else of.right.astype(shorter).astype(of.right.dtype)
    )


PLANTS: Mapping[str, Plant] = {
    "every entry 1 % off": _everything(0.01, None),
    "every entry 0.1 % off": _everything(0.001, None),
    "every entry 20 % off": _everything(0.2, 0.2),
    "every entry 40 % off": _everything(-0.4, -0.4),
    "wrong sign": _everything(-2.0, -2.0),
    "an entry zero at every point": _entry_zero_everywhere,
    "an entry zero at one point": _entry_zero_once,
    "an entry off": _entry_off,
    "a row zero": _row_zero,
    "the smallest row zero": _smallest_row(0.0),
    "the smallest row 2 % off": _smallest_row(1.02),
    "a row off": _row_off,
    "a row of the wrong sign": _row_of_wrong_sign,
    "a column zero": _column_zero,
    "two rows swapped": _rows_swapped,
    "two columns swapped": _columns_swapped,
    "transposed": _transposed,
    "a shard zero": _shard_scaled(0.0, 0.0),
    "a shard off": _shard_scaled(1.01, 1.5),
    "a shard twice": _shard_repeated,
    "a point off": _point_off,
    "two points swapped": _points_swapped,
    "the first point everywhere": _first_point_everywhere,
    "the point before": _point_before,
    "not a number": _one_number(np.nan),
    "infinite": _one_number(np.inf),
    "in a shorter dtype": _rounded,
}


def change(of: Result, wrong: np.ndarray) -> float:
    """Return the largest difference of an entry, relative to the largest correct entry of its row."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        row = np.abs(of.exact).max(axis=2, keepdims=True)
        row = np.maximum(row, SMALL_ROW * row.max(axis=1, keepdims=True))
        off = np.abs(wrong.astype(np.float64) - of.exact)
        return float(np.nan_to_num(np.where(off == 0, 0.0, off / row), nan=np.inf).max())


def plant_error(of: Result, name: str) -> np.ndarray | None:
    """Return a copy of a result with an error, or None if the error does not apply or is too small."""
    wrong = PLANTS[name](of)
    return wrong if wrong is not None and change(of, wrong) >= LEAST[of.case.dtype] else None


def choose_plants(
    case: Case, right: np.ndarray, count: int, seen: dict[str, int], seed: int
) -> list[tuple[str, np.ndarray]]:
    """Return up to `count` pairs of the name of an error and a wrong result.

    Args:
        case: the case that the result belongs to.
        right: the correct result, (points, outputs, inputs).
        seen: a dict from the name of an error to how often it was planted. Rare errors are preferred, and
            the dict is updated.
        seed: the seed of the random choices.
    """
    generator = np.random.default_rng(seed)
    names = list(PLANTS)
    generator.shuffle(names)
    planted: list[tuple[str, np.ndarray]] = []
    for name in sorted(names, key=lambda name: seen.get(name, 0)):
        of = Result(dataclasses.replace(case), right, generator)
        if len(planted) < count and (wrong := plant_error(of, name)) is not None:
            seen[name] = seen.get(name, 0) + 1
            planted.append((name, wrong))
    return planted
