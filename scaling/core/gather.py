"""Assemble the arrays that the devices of a mesh return into one dense result on the host.

The arrays have the two axes of the device mesh as leading axes: (point devices, seed devices, ...).
Padding is removed. If the seeds of a sum are distributed over devices, the partial sums of the devices are
added here, in float64.
"""

import math
from typing import Any

import jax
import numpy as np

from scaling.core.case import Case, Refusal
from scaling.core.shape import DerivativeShape, LinearMapPart, ceil_div, result_shape
from scaling.core.workload import Workload


def gather_pieces(case: Case, workload: Workload, sizes: DerivativeShape, result: Any) -> list[np.ndarray]:
    """Return a result as a list of host arrays, whose concatenation along the last axis is the whole result.

    `result` is the pytree of arrays that the devices return. For an AD mode with seeds it is a tuple with one
    entry per linear map (forward mode, reverse mode or both).
    """
    if not case.ad_mode.has_seeds:
        (array,) = jax.tree.leaves(result)
        shape = result_shape(case, workload, sizes)
        return [_gather_unseeded(case, workload, np.asarray(array), shape)]
    parts = [
        (part, [np.asarray(x) for x in jax.tree.leaves(arrays)])
        for part, arrays in zip(sizes.parts, result, strict=True)
    ]
    if workload.reduction.sums_points:
        gathered = [_gather_point_sums(case, workload, part, arrays) for part, arrays in parts]
    else:
        gathered = [_gather_part(case, workload, sizes, part, arrays) for part, arrays in parts]
    if len(gathered) == 1:
        return gathered[0]
    if not workload.reduction.linear_in_inputs:  # each part contributes to the same elements
        return [np.sum([array for arrays in gathered for array in arrays], axis=0)]
    names = [name for part in sizes.parts for name in part.names]
    arrays = [array for arrays in gathered for array in arrays]
    by_name = dict(zip(names, arrays, strict=True))
    return [by_name[name] for name in workload.names]


def _gather_unseeded(
    case: Case, workload: Workload, x: np.ndarray, shape: tuple[int, int, int]
) -> np.ndarray:
    """Return the result of an AD mode without seeds, (point devices, 1, points, ...), in the given shape."""
    if workload.reduction.sums_points:
        x = _sum_over_point_devices(case, x).reshape(-1, math.prod(shape[1:]))
    elif case.ad_mode.is_value and shape == (1, 1, 1):
        x = x.reshape(-1)[:1]
    else:
        x = x.reshape(x.shape[0] * x.shape[2], -1)[: shape[0]]
    if x.size != math.prod(shape):
        raise Refusal(f"{case.mode} of {case.workload} returns {x.shape}, where {shape} is expected")
    return x.reshape(shape)


def _sum_over_point_devices(case: Case, x: np.ndarray) -> np.ndarray:
    """Return the sum of x, (point devices, seed devices, ...), over the point devices: (1, ...).

    With split=data, an all-reduce has already computed the sum, and the copies of all devices are returned.
    """
    x = x[:, 0]
    return x if case.split == "data" else x.astype(np.float64).sum(axis=0, keepdims=True)


def _gather_point_sums(
    case: Case, workload: Workload, part: LinearMapPart, arrays: list[np.ndarray]
) -> list[np.ndarray]:
    """Return the derivatives of a sum over the points, one array (copies, 1, inputs) per input.

    With split=data there is one copy per device, otherwise one. The inputs are those that the linear map
    `part` differentiates.
    """
    if part.computes_columns:
        (x,) = arrays  # (point devices, seed devices, seeds)
        x = x.reshape(x.shape[0], 1, -1)[:, :, : part.seeds]
        return _split_inputs(workload, part, _sum_over_point_devices(case, x)[:, None])
    sums = [_sum_over_point_devices(case, x) for x in arrays]
    return [x.reshape(len(x), 1, -1) for x in sums]


def _gather_part(
    case: Case, workload: Workload, sizes: DerivativeShape, part: LinearMapPart, arrays: list[np.ndarray]
) -> list[np.ndarray]:
    """Return the result of one linear map as arrays (points, ...), to be concatenated along the last axis.

    If the map differentiates only some inputs, and the reduction is `linear_in_inputs`, there is one array
    for each of these inputs, in the order of `part.names`.
    """
    reduction = workload.reduction
    if part.along_point or is_summed_on_host(workload, part):
        return _gather_sums(case, workload, part, arrays)
    if sizes.summed:
        return _gather_gradient(case, workload, part, arrays)
    if not part.computes_columns and case.batch == "whole":
        return [_join_batch_rows(case, sizes, part, x) for x in arrays]
    if not part.computes_columns or reduction.columns.products:
        return [_join_rows(case, part, x) for x in arrays]
    columns = _join_columns(case, part, arrays[0])
    if reduction.linear_in_inputs and part.names != workload.names:
        return _split_inputs(workload, part, columns)
    return [columns]


def _gather_gradient(
    case: Case, workload: Workload, part: LinearMapPart, arrays: list[np.ndarray]
) -> list[np.ndarray]:
    """Return the gradient of a scalar function of the batch, one array (points, 1, inputs) per input."""
    if part.computes_columns:  # the seeds are ordered by input, then by point
        arrays = _split_inputs(workload, part, arrays[0].reshape(-1)[: part.seeds], case.points)
    else:  # the first device has the only seed
        arrays = [x[:, 0] for x in arrays]
    return [x.reshape(case.points, 1, -1) for x in arrays]


def _join_batch_rows(case: Case, sizes: DerivativeShape, part: LinearMapPart, x: np.ndarray) -> np.ndarray:
    """Return the rows of all devices as one array (points, outputs, inputs).

    Here the function returns the outputs of a whole batch, and the seeds number the outputs of all points.
    """
    seed_devices = case.axes[1]
    seeds = ceil_div(part.seeds, seed_devices)
    x = x.reshape(seed_devices * seeds, -1)[: part.seeds]  # (points x outputs, inputs)
    return x.reshape(case.points, sizes.outputs, -1)


def _join_rows(case: Case, part: LinearMapPart, x: np.ndarray) -> np.ndarray:
    """Return the reduced rows of all devices as one array (points, seeds, elements of a reduced row)."""
    point_devices, seed_devices = case.axes
    seeds = ceil_div(part.seeds, seed_devices)
    x = x.reshape(point_devices, seed_devices, x.shape[2], seeds, -1)
    x = np.moveaxis(x, 1, 2)  # (point devices, points, seed devices, seeds, inputs)
    x = _join_points(case, x)  # (points, seed devices, seeds, inputs)
    return x.reshape(case.points, seed_devices * seeds, -1)[:, : part.seeds]


def _join_columns(case: Case, part: LinearMapPart, x: np.ndarray) -> np.ndarray:
    """Return the reduced columns of all devices as one array (points, elements of a column, seeds)."""
    point_devices, seed_devices = case.axes
    seeds = ceil_div(part.seeds, seed_devices)
    x = x.reshape(point_devices, seed_devices, x.shape[2], -1, seeds)
    x = np.moveaxis(x, 1, 3)  # (point devices, points, outputs, seed devices, seeds)
    x = _join_points(case, x)  # (points, outputs, seed devices, seeds)
    return x.reshape(case.points, -1, seed_devices * seeds)[:, :, : part.seeds]


def _gather_sums(
    case: Case, workload: Workload, part: LinearMapPart, arrays: list[np.ndarray]
) -> list[np.ndarray]:
    """Return the sums of what the devices computed for separate seeds, as a list of arrays.

    If the result is linear and reverse mode computes it, there is one array (points, 1, inputs) per input.
    Otherwise there is one array (points, elements, 1).
    """
    if part.along_point or case.axes[1] == 1:
        arrays = [x[:, 0] for x in arrays]
    else:
        arrays = [x.astype(np.float64).sum(axis=1) for x in arrays]
    arrays = [_join_points(case, x) for x in arrays]
    if part.along_point or part.computes_columns or not workload.reduction.linear_in_inputs:
        return [arrays[0].reshape(case.points, -1, 1)]
    return [x.reshape(case.points, 1, -1) for x in arrays]


def is_summed_on_host(workload: Workload, part: LinearMapPart) -> bool:
    """Return whether a result is a sum over seeds, so that the host adds the partial sums of the devices."""
    step = workload.reduction.columns if part.computes_columns else workload.reduction.rows
    return not part.along_point and step.sums_seeds


def _join_points(case: Case, x: np.ndarray) -> np.ndarray:
    """Merge the first two axes, (point devices, points per device), and remove the padding."""
    return x.reshape(-1, *x.shape[2:])[: case.points]


def _split_inputs(
    workload: Workload, part: LinearMapPart, columns: np.ndarray, points: int = 1
) -> list[np.ndarray]:
    """Split an array of columns along its last axis into one array per input.

    Each element of an input has `points` consecutive columns.
    """
    ends = np.cumsum([points * math.prod(workload.inputs[name].shape) for name in part.names])
    return np.split(columns, ends[:-1], axis=-1)
