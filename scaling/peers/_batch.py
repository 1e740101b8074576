"""Compute the Jacobians of a batch one seed at a time, for AD libraries that have JVPs or VJPs but no vmap.

A seed is a tangent or cotangent vector. The points (batch elements) are independent of each other. Therefore
a seed that is repeated for all points yields, in a single pass over the batch, one column or one row of the
Jacobian of every point.
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
    """The batched function of a case and its inputs.

    Attributes:
        case, workload: the case and its workload.
        sizes: the shape of the derivative.
        function: a function from the arrays in `x` to an array of shape (points, ...), or to the sum of its
            elements if `sizes.summed` is true.
        x: the inputs to differentiate with respect to. Each has a leading axis of points, except for shared
            inputs that `copied_inputs` does not return.
    """

    case: Case
    workload: Any
    sizes: Any
    function: Callable[..., Any]
    x: tuple[np.ndarray, ...]

    @property
    def rows_per_sum(self) -> int:
        """Return the number of consecutive rows of the Jacobian that are summed, 1 without a reduction."""
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
        """Return the columns of the Jacobian: one array of shape (columns, points, outputs) for each input.

        If the workload reduces the Jacobian, the last axis is summed.

        Args:
            push: a function from (index, tangent of `x[index]`) to the tangent of the outputs.
            size: the value of the nonzero elements of each tangent.
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
        """Return the rows of the Jacobian: one array of shape (rows, *shape of the input) for each input.

        Args:
            pull: a function from a cotangent of the outputs to a tuple with the cotangent of each input.
            like: an array with the shape and dtype of the outputs.
        """
        sums: list[list[np.ndarray]] = []
        for k, seed in enumerate(unit_seeds(like, self.points_per_cotangent)):
            if k % self.rows_per_sum == 0:
                sums.append(list(pull(seed)))
            else:
                sums[-1] = [total + row for total, row in zip(sums[-1], pull(seed), strict=True)]
        return [np.stack(rows) for rows in zip(*sums, strict=True)]

    def collect(self, parts: Iterable[Any]) -> np.ndarray:
        """Return the Jacobians as one array of shape (points, outputs, inputs).

        `parts` are the arrays that `columns` or `rows` returns.
        """
        outputs = 1 if self.sizes.summed or self.workload.reduce else self.sizes.outputs
        if self.case.ad_mode.seed == TANGENT:
            parts = [np.moveaxis(part, 0, -1) for part in parts]
        elif self.case.batch == "vmap":
            parts = [np.moveaxis(part, 0, 1) for part in parts]
        return np.concatenate([part.reshape(self.case.points, outputs, -1) for part in parts], axis=2)


def make_batch(
    case: Case, workload: Any, sizes: Any, arrays: dict[str, np.ndarray], library: Any, log_gamma: Any
) -> Batch:
    """Return the batched function of a case, from formulas.py, and its inputs as a `Batch`.

    Args:
        arrays: a dict from the name of an input to its values.
        library: an array library with NumPy's API, such as `autograd.numpy`.
        log_gamma: the logarithm of the gamma function in this library.
    """
    formula = formulas.function(case, library, log_gamma if case.ad_mode.is_value else None)
    # Integers are cast as well, because NumPy promotes int32 * float32 to float64.
    inputs = {name: array.astype(case.dtype) for name, array in arrays.items()}
    for name in copied_inputs(case, workload):
        inputs[name] = np.broadcast_to(inputs[name], (case.points, *inputs[name].shape))

    def function(*x: Any) -> Any:
        y = formula(**inputs | dict(zip(workload.names, x, strict=True)))
        return library.sum(y) if sizes.summed else y

    return Batch(case, workload, sizes, function, tuple(inputs[name] for name in workload.names))


def copied_inputs(case: Case, workload: Any) -> set[str]:
    """Return the names of the shared inputs that must be copied for each point.

    Without the copies, a VJP would sum the gradients with respect to these inputs over the points.
    """
    has_vjp = case.ad_mode.uses_reverse and case.batch == "vmap"
    return set(workload.names) & set(workload.shared) if has_vjp else set()


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


def why_not_offered(case: Case, workload: Any, sizes: Any, modes: Iterable[str]) -> str | None:
    """Return the reason why an AD library that uses formulas.py cannot run a case, or None if it can.

    `modes` contains the names of the AD modes that the library offers.
    """
    return first_reason(
        formulas.check_workload(case),
        (case.dtype == "bfloat16", f"{case.engine} has no bfloat16"),
    ) or why_unsupported(case, workload, sizes, modes)


def why_unsupported(case: Case, workload: Any, sizes: Any, modes: Iterable[str]) -> str | None:
    """Return the reason why an AD library cannot run a case, or None if it can.

    `modes` contains the names of the AD modes that the library offers. The mode, the chunk and the memory are
    checked. The memory is estimated as twice the size of the result, because the result is copied, plus eight
    times the size of the largest intermediate array.
    """
    result = sizes.inputs * (1 if sizes.summed or workload.reduce else sizes.outputs)
    largest = max(sizes.inputs, sizes.outputs * (case.sizes.get("d", 1) if case.variant == "squared" else 1))
    needed = case.points * (2 * result + 8 * largest) * (8 if case.dtype == "float64" else 4)
    available = available_bytes() or math.inf
    return first_reason(
        (case.target in SECOND, f"{case.engine} offers no {case.target}"),
        (case.mode not in modes, f"{case.engine} offers {', '.join(modes)}"),
        (case.chunk is not None, f"{case.engine} computes one seed at a time; omit chunk"),
        (needed > available, f"needs about {needed / 1e9:.3g} GB, has {available / 1e9:.3g} GB"),
    )
