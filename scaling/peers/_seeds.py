"""Seeds one after another: the Jacobians of a whole batch for a peer that has JVPs or VJPs and no vmap.

Points do not mix. The same seed for every point therefore gives that column, or row, of every point's Jacobian in one pass over
the batch. Knows NumPy arrays and linear maps of a batch, not where they come from.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling.core.case import SECOND, Case
from scaling.core.memory import available_bytes
from scaling.core.modes import TANGENT
from scaling.peers import formulas


@dataclass(frozen=True)
class Batch:
    """All points of a case at once.

    function: the outputs, (points, ...) or one number, from `x`. x: the inputs to differentiate by: (points, ...), or without
    the points where they share it and their derivatives stay apart.
    """

    case: Case
    workload: Any
    sizes: Any
    function: Callable[..., Any]
    x: tuple[np.ndarray, ...]

    @property
    def together(self) -> int:
        """How many rows are added up to one."""
        return self.sizes.outputs if self.workload.reduce else 1

    def sharing(self, place: int) -> int:
        """How many leading entries of an input have their seeds together: the points, where each has its own."""
        own = (
            self.workload.names[place] in self.workload.points or self.case.target in SECOND
        )  # a Hessian is by copies
        return self.case.points if own and not self.sizes.summed else 1

    def columns(self, push: Callable[[int, np.ndarray], np.ndarray], size: float = 1.0) -> list[np.ndarray]:
        """push: (which input, seed) -> column, (points, outputs). For every input its columns, columns leading."""
        parts = []
        for place, array in enumerate(self.x):
            rows = self.sharing(place)
            slices = (self._sum(push(place, seed)) for seed in seeds(array, rows, size))
            parts.append(_stack(array.size // rows, slices))
        return parts

    def rows(self, pull: Callable[[np.ndarray], tuple], like: np.ndarray) -> list[np.ndarray]:
        """pull: cotangent as `like`, the outputs -> rows, one array an input. For every input its rows, rows leading."""
        together = self.together
        rows = 1 if self.case.batch == "whole" else self.case.points
        parts: list[np.ndarray] = []
        for k, seed in enumerate(seeds(like, rows)):
            row = pull(seed)
            parts = parts or [np.empty((like.size // rows // together, *a.shape), a.dtype) for a in row]
            for part, a in zip(parts, row, strict=True):
                if k % together:
                    part[k // together] += a
                else:
                    part[k // together] = a
        return parts

    def collect(self, parts: Iterable[Any]) -> np.ndarray:
        """The parts of `columns` or `rows` as (points, outputs, inputs)."""
        points, outputs = (
            self.case.points,
            1 if self.sizes.summed or self.workload.reduce else self.sizes.outputs,
        )
        if self.case.ad_mode.seed == TANGENT:
            parts = [np.moveaxis(part, 0, -1) for part in parts]
        elif self.case.batch == "vmap":
            parts = [np.moveaxis(part, 0, 1) for part in parts]
        return np.concatenate([part.reshape(points, outputs, -1) for part in parts], axis=2)

    def _sum(self, column: np.ndarray) -> np.ndarray:
        return column.sum(axis=-1) if self.workload.reduce else column


def batch(
    case: Case, workload: Any, sizes: Any, arrays: dict[str, np.ndarray], library: Any, log_gamma: Any
) -> Batch:
    """The batch of a case of formulas.py in a library like NumPy."""
    formula = formulas.function(case, library, log_gamma if case.ad_mode.is_value else None)
    assert formula is not None
    named = {
        name: array.astype(case.dtype) for name, array in arrays.items()
    }  # an integer times float32 would be float64
    for name in copied(case, workload):
        named[name] = np.broadcast_to(named[name], (case.points, *named[name].shape))

    def function(*x: Any) -> Any:
        y = formula(**named | dict(zip(workload.names, x, strict=True)))
        return library.sum(y) if sizes.summed else y

    return Batch(case, workload, sizes, function, tuple(named[name] for name in workload.names))


def copied(case: Case, workload: Any) -> set[str]:
    """Shared inputs of which every point needs its own copy, because a VJP would add up the rows of all points."""
    back = (case.ad_mode.order == 2 or case.ad_mode.uses_reverse) and case.batch == "vmap"
    return set(workload.names) & set(workload.shared) if back else set()


def seeds(like: np.ndarray, rows: int, size: float = 1.0) -> Iterator[np.ndarray]:
    """Every seed of an array whose `rows` leading entries have theirs together: one array, valid until the next is asked for."""
    seed = np.zeros(like.shape, like.dtype)
    flat = seed.reshape(rows, -1)
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
    """Why a peer with these modes does not offer a case, where it is given the functions of formulas.py."""
    if case.workload not in formulas.KNOWN:
        return f"{case.engine} is given the functions {', '.join(formulas.KNOWN)}; it cannot take one that is written in JAX"
    if case.dtype == "bfloat16":
        return f"{case.engine} has no bfloat16"
    return refused(case, workload, sizes, modes)


def refused(case: Case, workload: Any, sizes: Any, modes: Iterable[str]) -> str | None:
    """What stands in the way of any workload: a mode that is not there, seeds in chunks, a result that does not fit."""
    if case.mode not in modes:
        return f"{case.engine} offers {', '.join(modes)}"
    if case.target in SECOND and case.ad_mode.order != 2:
        return f"{case.engine} offers no {case.mode} of target={case.target}"
    if case.chunk is not None:
        return f"{case.engine} takes one seed after another; leave chunk out"
    # Twice the result, which is collected into a second array; some arrays as large as what lies between inputs and outputs.
    result = sizes.inputs * (1 if sizes.summed or workload.reduce else sizes.outputs)
    between = max(sizes.inputs, sizes.outputs * (case.sizes["d"] if case.variant == "squared" else 1))
    needs = case.points * (2 * result + 8 * between) * (8 if case.dtype == "float64" else 4)
    has = available_bytes()
    return (
        None if has is None or needs <= has else f"needs about {needs / 1e9:.3g} GB, has {has / 1e9:.3g} GB"
    )
