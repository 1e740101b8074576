"""Run cases with HIPS autograd on a single core, and compute the columns or rows of Jacobians one at a time.

`make_jvp` computes columns of the Jacobian, and `make_vjp` computes rows. Each JVP is computed with respect
to one input, because autograd would also propagate the zero tangents of the other inputs. A VJP is computed
with respect to all inputs, because the inputs share most of the backward pass. The NumPy calls of the
function are traced again for each derivative.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from scaling.core.case import Case
from scaling.core.modes import TANGENT
from scaling.peers import formulas
from scaling.peers.formulas import Batch
from scaling.peers.interface import Prepared

PACKAGES = ("autograd", "numpy", "scipy")
MODES = ("value", "jacfwd", "jacrev", "grad_of_sum")


def reason_to_skip(case: Case, workload: Any, sizes: Any) -> str | None:
    """Return why HIPS autograd cannot run a case, such as "autograd has no bfloat16", or None if it can."""
    return formulas.reason_to_skip(
        case, MODES,
        (case.dtype == "bfloat16", "autograd has no bfloat16"),
        (case.chunk is not None, "autograd computes one seed at a time; omit chunk"),
    )  # fmt: skip


def prepare(case: Case, workload: Any, sizes: Any, arrays: dict[str, np.ndarray], threads: int) -> Prepared:
    """Return the functions that compute the value or derivative of a case with HIPS autograd."""
    import autograd.numpy
    from autograd.scipy.special import gammaln

    # Integers are cast as well, because NumPy promotes int32 * float32 to float64.
    inputs = {name: array.astype(case.dtype) for name, array in arrays.items()}
    batch = formulas.make_batch(case, workload, sizes, inputs, autograd.numpy, gammaln)
    if case.ad_mode.is_value:
        return Prepared(lambda: batch.function(*batch.x), np.asarray)
    differentiate = _columns if case.ad_mode.seed == TANGENT else _rows
    return Prepared(lambda: differentiate(batch), batch.collect, passes=sizes.passes)


def _columns(batch: Batch) -> list[np.ndarray]:
    """Return the columns of the Jacobian as a list with one array for each input.

    An array has the shape (columns, *shape of the outputs). If the workload has reduce="outputs", each column
    is summed over the last axis, the outputs of a point.
    """
    from autograd import make_jvp

    columns_by_input = []
    for index, array in enumerate(batch.x):
        jvp = make_jvp(batch.function, index)(*batch.x)
        columns = (jvp(seed)[1] for seed in _unit_seeds(array, batch.points_per_tangent(index)))
        if batch.workload.reduce:
            columns = (column.sum(axis=-1) for column in columns)
        columns_by_input.append(np.stack(list(columns)))
    return columns_by_input


def _rows(batch: Batch) -> list[np.ndarray]:
    """Return the rows of the Jacobian as a list with one array for each input.

    An array has the shape (rows, *shape of the input). If the workload has reduce="outputs", the rows are
    summed over the outputs of a point.
    """
    from autograd import make_vjp

    vjp, y = make_vjp(lambda x: batch.function(*x))(batch.x)
    if batch.case.ad_mode.single_seed:
        return [row[None] for row in vjp(np.ones_like(y))]
    rows_per_sum = batch.sizes.outputs if batch.workload.reduce else 1
    sums: list[list[np.ndarray]] = []
    for row_number, seed in enumerate(_unit_seeds(y, batch.points_per_cotangent)):
        if row_number % rows_per_sum == 0:
            sums.append(list(vjp(seed)))
        else:
            sums[-1] = [total + row for total, row in zip(sums[-1], vjp(seed), strict=True)]
    return [np.stack(rows) for rows in zip(*sums, strict=True)]


def _unit_seeds(like: np.ndarray, points: int) -> Iterator[np.ndarray]:
    """Yield one seed (tangent or cotangent) for each element of a point.

    A seed has the shape and dtype of `like`, which contains `points` points of equal size. The seed is 1 at
    the same element of every point, and 0 elsewhere. The next seed overwrites the array.
    """
    seed = np.zeros(like.shape, like.dtype)
    seed_by_point = seed.reshape(points, -1)
    for element in range(seed_by_point.shape[1]):
        seed_by_point[:, element] = 1
        yield seed
        seed_by_point[:, element] = 0
