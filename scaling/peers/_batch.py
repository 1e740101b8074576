"""Class `Batch`: the function, inputs and unit seeds of a case for a peer that computes all points at once.

The points (batch elements) are independent of each other. Therefore a seed (a tangent or cotangent vector)
that is repeated for all points yields one column or one row of the Jacobian of every point in a single pass.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling.core.case import Case
from scaling.core.modes import TANGENT
from scaling.peers import formulas
from scaling.peers.interface import Check, Prepared, first_reason, memory_check


@dataclass(frozen=True)
class Batch:
    """The batched function of a case and the inputs to differentiate with respect to."""

    case: Case
    workload: Any
    sizes: Any  # the `DerivativeShape` of the case
    # The function from the arrays in `x` to an array of shape (points, ...), or to its sum if `sizes.summed`.
    function: Callable[..., Any]
    x: tuple[Any, ...]  # arrays with an axis of points, except for shared inputs that are not copied

    @property
    def rows_per_sum(self) -> int:
        """Return the number of consecutive rows of the Jacobian that are summed, or 1 without a reduction."""
        return self.sizes.outputs if self.workload.reduce else 1

    @property
    def points_per_cotangent(self) -> int:
        """Return the number of points for which one cotangent is repeated: all, or 1 if batch=whole."""
        return 1 if self.case.batch == "whole" else self.case.points

    def points_per_tangent(self, index: int) -> int:
        """Return the number of points for which one tangent of the input `x[index]` is repeated."""
        is_per_point = self.workload.names[index] in self.workload.points
        return self.case.points if is_per_point and not self.sizes.summed else 1

    def columns(self, push: Callable[[int, np.ndarray], np.ndarray], size: float = 1.0) -> list[np.ndarray]:
        """Return the columns of the Jacobian, of shape (columns, points, outputs), for each input.

        `push(index, tangent)` returns the tangent of the outputs for a tangent of `x[index]`, whose nonzero
        elements equal `size`. If the workload reduces the Jacobian, the last axis is summed.
        """
        parts = []
        for index, array in enumerate(self.x):
            seeds = unit_seeds(array, self.points_per_tangent(index), size)
            columns = (push(index, seed) for seed in seeds)
            if self.workload.reduce:
                columns = (column.sum(axis=-1) for column in columns)
            parts.append(np.stack(list(columns)))
        return parts

    def rows(self, pull: Callable[[np.ndarray], tuple], like: np.ndarray) -> list[np.ndarray]:
        """Return the rows of the Jacobian, of shape (rows, *shape of the input), for each input.

        `pull` maps a cotangent of the outputs to a tuple with the cotangent of each input. `like` has the
        shape and dtype of the outputs.
        """
        sums: list[list[np.ndarray]] = []
        for k, seed in enumerate(unit_seeds(like, self.points_per_cotangent)):
            if k % self.rows_per_sum == 0:
                sums.append(list(pull(seed)))
            else:
                sums[-1] = [total + row for total, row in zip(sums[-1], pull(seed), strict=True)]
        return [np.stack(rows) for rows in zip(*sums, strict=True)]

    def collect(self, parts: Iterable[Any]) -> np.ndarray:
        """Return Jacobians of shape (points, outputs, inputs) from the result of `columns` or `rows`."""
        outputs = 1 if self.sizes.summed or self.workload.reduce else self.sizes.outputs
        if self.case.ad_mode.seed == TANGENT:
            parts = [np.moveaxis(part, 0, -1) for part in parts]
        elif self.case.batch == "vmap":
            parts = [np.moveaxis(part, 0, 1) for part in parts]
        return np.concatenate([part.reshape(self.case.points, outputs, -1) for part in parts], axis=2)


def make_batch(
    case: Case, workload: Any, sizes: Any, inputs: Mapping[str, Any], library: Any, log_gamma: Any
) -> Batch:
    """Return the `Batch` of a case, with a function from formulas.py.

    `inputs` are arrays of `library`, which has NumPy's API. `log_gamma` is the library's log-gamma function.
    """
    formula = formulas.function(case, library, log_gamma if case.ad_mode.is_value else None)
    copies = {
        name: library.broadcast_to(inputs[name], (case.points, *inputs[name].shape))
        for name in copied_inputs(case, workload)
    }
    arrays = {**inputs, **copies}

    def function(*x: Any) -> Any:
        y = formula(**{**arrays, **dict(zip(workload.names, x, strict=True))})
        return library.sum(y) if sizes.summed else y

    return Batch(case, workload, sizes, function, tuple(arrays[name] for name in workload.names))


def copied_inputs(case: Case, workload: Any) -> set[str]:
    """Return the names of the shared inputs that must be copied for each point.

    Without the copies, a VJP would sum the gradients with respect to these inputs over the points.
    """
    has_vjp = case.ad_mode.uses_reverse and case.batch == "vmap"
    return set(workload.names) & set(workload.shared) if has_vjp else set()


def prepare(
    case: Case, workload: Any, sizes: Any, arrays: Mapping[str, np.ndarray], library: Any, log_gamma: Any,
    differentiate: Callable[[Batch], list[np.ndarray]],
) -> Prepared:  # fmt: skip
    """Return a `Prepared` that computes the function value or, by `differentiate`, the derivative."""
    # Integers are cast as well, because NumPy promotes int32 * float32 to float64.
    inputs = {name: array.astype(case.dtype) for name, array in arrays.items()}
    batch = make_batch(case, workload, sizes, inputs, library, log_gamma)
    if case.ad_mode.is_value:
        return Prepared(lambda: batch.function(*batch.x), np.asarray)
    return Prepared(lambda: differentiate(batch), batch.collect, passes=sizes.passes)


def unit_seeds(like: np.ndarray, points: int, size: float = 1.0) -> Iterator[np.ndarray]:
    """Yield every unit tangent or cotangent of a point, multiplied by `size` and repeated for all points.

    A seed has the shape and dtype of `like`. The same array is yielded each time and overwritten in place.
    """
    seed = np.zeros(like.shape, like.dtype)
    flat = seed.reshape(points, -1)
    for column in range(flat.shape[1]):
        flat[:, column] = size
        yield seed
        flat[:, column] = 0


def reason_to_skip(case: Case, workload: Any, sizes: Any, modes: Iterable[str]) -> str | None:
    """Return the reason why a library with the AD modes `modes` cannot run a case, or None."""
    return first_reason(
        *formulas.checks(case, modes),
        (case.dtype == "bfloat16", f"{case.engine} has no bfloat16"),
        *checks(case, workload, sizes),
    )


def checks(case: Case, workload: Any, sizes: Any) -> list[Check]:
    """Return checks for `first_reason`: the conditions under which a peer cannot compute the whole batch.

    The peer cannot run the case if `chunk` is set, or if the free memory is less than estimated: twice the
    size of the result, which is copied, plus eight times the size of the largest intermediate array.
    """
    result = sizes.inputs * (1 if sizes.summed or workload.reduce else sizes.outputs)
    largest = max(sizes.inputs, sizes.outputs * (case.sizes.get("d", 1) if case.variant == "squared" else 1))
    needed = case.points * (2 * result + 8 * largest) * (8 if case.dtype == "float64" else 4)
    chunk = (case.chunk is not None, f"{case.engine} computes one seed at a time; omit chunk")
    return [chunk, memory_check(needed)]
