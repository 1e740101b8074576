"""One seed after another: the Jacobians of a whole batch for a peer that has JVPs or VJPs and no vmap.

Points do not mix. The same seed for every point therefore gives one column, or row, of every point's
Jacobian in one pass over the batch. Knows NumPy arrays and linear maps of a batch, not where they come
from.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling.core.case import SECOND, Case
from scaling.core.memory import available_bytes
from scaling.core.modes import TANGENT
from scaling.peers import formulas
from scaling.peers.interface import first_reason


@dataclass(frozen=True)
class Batch:
    """All points of a case at once.

    function: the outputs, (points, ...) or one number, from `x`. x: the inputs to differentiate by:
    (points, ...), or without the points if they share the input and their derivatives stay apart.
    """

    case: Case
    workload: Any
    sizes: Any
    function: Callable[..., Any]
    x: tuple[np.ndarray, ...]

    @property
    def rows_per_sum(self) -> int:
        """Return how many rows are added up to one."""
        return self.sizes.outputs if self.workload.reduce else 1

    def common_seeds(self, index: int) -> int:
        """Return how many leading entries of an input have the same seed: the points, if each has its own
        input.
        """
        own = (
            self.workload.names[index] in self.workload.points or self.case.target in SECOND
        )  # a Hessian copies
        return self.case.points if own and not self.sizes.summed else 1

    def columns(self, push: Callable[[int, np.ndarray], np.ndarray], size: float = 1.0) -> list[np.ndarray]:
        """Return the columns by each input, columns leading. push: (index of input, seed) -> column,
        (points, outputs).
        """
        parts = []
        for index, array in enumerate(self.x):
            slices = (push(index, seed) for seed in seeds(array, self.common_seeds(index), size))
            summed = (slice_.sum(axis=-1) if self.workload.reduce else slice_ for slice_ in slices)
            parts.append(_stack(array.size // self.common_seeds(index), summed))
        return parts

    def rows(self, pull: Callable[[np.ndarray], tuple], like: np.ndarray) -> list[np.ndarray]:
        """Return the rows by each input, rows leading. pull: cotangent, shaped `like` the outputs -> rows
        by each input.
        """
        common = 1 if self.case.batch == "whole" else self.case.points
        parts: list[np.ndarray] = []
        for k, seed in enumerate(seeds(like, common)):
            row, (index, rest) = pull(seed), divmod(k, self.rows_per_sum)
            parts = parts or [
                np.empty((like.size // common // self.rows_per_sum, *a.shape), a.dtype) for a in row
            ]
            for part, a in zip(parts, row, strict=True):
                if rest:
                    part[index] += a
                else:
                    part[index] = a
        return parts

    def collect(self, parts: Iterable[Any]) -> np.ndarray:
        """Return the parts of `columns` or `rows` as (points, outputs, inputs)."""
        outputs = 1 if self.sizes.summed or self.workload.reduce else self.sizes.outputs
        if self.case.ad_mode.seed == TANGENT:
            parts = [np.moveaxis(part, 0, -1) for part in parts]
        elif self.case.batch == "vmap":
            parts = [np.moveaxis(part, 0, 1) for part in parts]
        return np.concatenate([part.reshape(self.case.points, outputs, -1) for part in parts], axis=2)


def batch(
    case: Case, workload: Any, sizes: Any, arrays: dict[str, np.ndarray], library: Any, log_gamma: Any
) -> Batch:
    """Return the batch of a case of formulas.py in a library like NumPy."""
    formula = formulas.function(case, library, log_gamma if case.ad_mode.is_value else None)
    named = {
        name: array.astype(case.dtype) for name, array in arrays.items()
    }  # integer * float32 is a float64
    for name in copied(case, workload):
        named[name] = np.broadcast_to(named[name], (case.points, *named[name].shape))

    def function(*x: Any) -> Any:
        y = formula(**named | dict(zip(workload.names, x, strict=True)))
        return library.sum(y) if sizes.summed else y

    return Batch(case, workload, sizes, function, tuple(named[name] for name in workload.names))


def copied(case: Case, workload: Any) -> set[str]:
    """Return the shared inputs of which every point needs a copy, since a VJP would add up the rows of
    all points.
    """
    back = (case.ad_mode.order == 2 or case.ad_mode.uses_reverse) and case.batch == "vmap"
    return set(workload.names) & set(workload.shared) if back else set()


def seeds(like: np.ndarray, common: int, size: float = 1.0) -> Iterator[np.ndarray]:
    """Yield every seed of an array whose `common` leading entries have the same: one array, valid until
    the next.
    """
    seed = np.zeros(like.shape, like.dtype)
    flat = seed.reshape(common, -1)
    for column in range(flat.shape[1]):
        flat[:, column] = size
        yield seed
        flat[:, column] = 0


def _stack(count: int, slices: Iterator[np.ndarray]) -> np.ndarray:
    out = np.empty(0)
    for k, slice_ in enumerate(slices):
        if k == 0:
            out = np.empty((count, *slice_.shape), slice_.dtype)
        out[k] = slice_
    return out


def unfit(case: Case, workload: Any, sizes: Any, modes: Iterable[str]) -> str | None:
    """Return why a peer with these modes and the functions of formulas.py does not offer a case."""
    known = ", ".join(formulas.KNOWN)
    text = f"{case.engine} is given the functions {known}; it cannot take one that is written in JAX"
    return first_reason(
        (case.workload not in formulas.KNOWN, text),
        (case.dtype == "bfloat16", f"{case.engine} has no bfloat16"),
    ) or refused(case, workload, sizes, modes)  # fmt: skip


def refused(case: Case, workload: Any, sizes: Any, modes: Iterable[str]) -> str | None:
    """Return why a peer with these modes does not offer a case, whatever the workload."""
    # Twice the result, which is collected into a second array; some arrays as large as the largest
    # intermediate.
    result = sizes.inputs * (1 if sizes.summed or workload.reduce else sizes.outputs)
    between = max(sizes.inputs, sizes.outputs * (case.sizes["d"] if case.variant == "squared" else 1))
    needs = case.points * (2 * result + 8 * between) * (8 if case.dtype == "float64" else 4)
    has = available_bytes() or math.inf
    return first_reason(
        (case.mode not in modes, f"{case.engine} offers {', '.join(modes)}"),
        (case.target in SECOND and case.ad_mode.order != 2,
         f"{case.engine} offers no {case.mode} of target={case.target}"),
        (case.chunk is not None, f"{case.engine} takes one seed after another; leave chunk out"),
        (needs > has, f"needs about {needs / 1e9:.3g} GB, has {has / 1e9:.3g} GB"),
    )  # fmt: skip
