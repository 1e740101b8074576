"""Vectorize the function of a workload over the points of a case (`Batch`), for the array library of a peer.

The workloads are `rbf`, `linear`, `residual` and `poisson`. The argument `np` is the array library, such as
numpy or torch. A seed (a tangent or cotangent) of the function of all points contains the same unit vector
for every point. Because the points are independent, a single pass with a seed yields one column or row of the
Jacobian of every point.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy

from scaling.core.case import Case
from scaling.core.modes import TANGENT
from scaling.core.workload import import_workload
from scaling.peers.interface import first_reason

_WORKLOADS = ("rbf", "linear", "residual", "poisson")


def reason_to_skip(case: Case, modes: Iterable[str], *checks: tuple[bool, str]) -> str | None:
    """Return why a peer (an AD library other than JAX) cannot run a case, or None if it can.

    `modes` are the AD modes of the peer. `checks` are pairs (condition, reason): if a condition is true, the
    peer cannot run the case.
    """
    wrong_workload = f"{case.engine} implements the functions {', '.join(_WORKLOADS)}, not those in JAX"
    return first_reason(
        (case.workload not in _WORKLOADS, wrong_workload),
        (case.mode not in modes, f"{case.engine} offers {', '.join(modes)}"),
        *checks,
    )


@dataclass(frozen=True)
class Batch:
    """The function of a case, vectorized over its points, with its inputs."""

    case: Case
    workload: Any
    sizes: Any  # the `Derivative` of the case
    # The function from the arrays in `x` to an array of shape (points, ...), or to its sum if `sizes.summed`.
    function: Callable[..., Any]
    x: tuple[Any, ...]  # arrays with a leading axis of points, except for shared inputs that are not copied

    @property
    def points_per_cotangent(self) -> int:
        """Return the number of points for which one VJP computes a row: all, or one with batch=whole.

        The cotangent of the VJP contains a unit vector for each of these points.
        """
        return 1 if self.case.batch == "whole" else self.case.points

    def points_per_tangent(self, index: int) -> int:
        """Return the number of points for which one JVP with respect to `x[index]` computes a column.

        The number is 1 if all points share this input, or if the function sums over the points. Otherwise, it
        is the number of all points. The tangent of the JVP contains a unit vector for each of these points.
        """
        is_per_point = self.workload.names[index] in self.workload.points
        return self.case.points if is_per_point and not self.sizes.summed else 1

    def collect(self, by_input: Iterable[Any]) -> numpy.ndarray:
        """Return the columns or rows of all inputs as one array of shape (points, outputs, inputs)."""
        outputs = 1 if self.sizes.summed or self.workload.reduce else self.sizes.outputs
        if self.case.ad_mode.seed == TANGENT:
            by_input = [numpy.moveaxis(columns, 0, -1) for columns in by_input]
        elif self.case.batch == "vmap":
            by_input = [numpy.moveaxis(rows, 0, 1) for rows in by_input]
        return numpy.concatenate([part.reshape(self.case.points, outputs, -1) for part in by_input], axis=2)


def make_batch(
    case: Case, workload: Any, sizes: Any, inputs: Mapping[str, Any], np: Any, log_gamma: Any
) -> Batch:
    """Return the function and the inputs of a case as a `Batch` for the array library `np`.

    `inputs` are the arrays of the case by name. `log_gamma` is the function log(Gamma(x)) of the library.
    """
    point_function = formula_of(case, np, log_gamma if case.ad_mode.is_value else None)
    arrays = dict(inputs)
    if case.ad_mode.uses_reverse and case.batch == "vmap":
        # Without copies, a VJP would sum the gradients with respect to the shared inputs over the points.
        for name in set(workload.names) & set(workload.shared):
            arrays[name] = np.broadcast_to(inputs[name], (case.points, *inputs[name].shape))

    def function(*x: Any) -> Any:
        y = point_function(**{**arrays, **dict(zip(workload.names, x, strict=True))})
        return np.sum(y) if sizes.summed else y

    return Batch(case, workload, sizes, function, tuple(arrays[name] for name in workload.names))


def formula_of(case: Case, np: Any, log_gamma: Callable | None = None) -> Callable[..., Any]:
    """Return the function of a workload for the array library `np`, such as numpy or torch.

    The returned function takes the inputs of the workload as keyword arguments. `log_gamma` is the function
    log(Gamma(x)) of the library. If `log_gamma` is None, the function of `poisson` omits the term log(c!).
    """
    if case.workload == "poisson":
        return partial(_poisson, np, log_gamma)
    return import_workload(case.workload).formula(case, np)  # type: ignore[no-any-return]


def _poisson(np, log_gamma, c, lam):
    """Return log(lam^c exp(-lam) / c!) for a count c and rate lam. If `log_gamma` is None, omit c!."""
    log_factorial = log_gamma(c + 1.0) if log_gamma else 0.0
    return c * np.log(lam) - lam - log_factorial
