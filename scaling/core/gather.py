"""Gather the parts of a derivative that devices hold into one array on the host: (points, outputs, inputs).

The arrays of a result lead with the two axes of the mesh: (devices over points, devices over seeds, ...).
What only pads an axis is dropped; sums over seeds of which each device has its part are added up, in float64.
"""

import math
from typing import Any

import jax
import numpy as np

from scaling.core.case import Case, Refusal
from scaling.core.shape import DerivativeShape, LinearMapPart, ceil_div, result_shape
from scaling.core.workload import Workload


def join_pieces(
    case: Case, workload: Workload, sizes: DerivativeShape, pieces: list[np.ndarray]
) -> np.ndarray:
    """Return the whole result, in the shape of `shape.result_shape`."""
    whole = pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=2)
    return whole.reshape(result_shape(case, workload, sizes))


def gather_pieces(case: Case, workload: Workload, sizes: DerivativeShape, result: Any) -> list[np.ndarray]:
    """Return the result as arrays that follow each other along the inputs, with as few copies as possible."""
    shape = result_shape(case, workload, sizes)
    if not case.ad_mode.has_seeds:
        (array,) = (np.asarray(leaf) for leaf in jax.tree.leaves(result))
        return [_without_seeds(case, workload, array, shape)]
    parts = [
        (part, jax.tree.map(np.asarray, jax.tree.leaves(x)))
        for part, x in zip(sizes.parts, result, strict=True)
    ]
    if workload.reduction.sums_points:
        return [_sum_over_points(case, part, arrays) for part, arrays in parts]
    found = [_gather_part(case, workload, sizes, part, arrays) for part, arrays in parts]
    if len(found) == 1:
        return list(found[0].values())
    if not workload.reduction.linear_in_inputs:  # one number of each output, or of each point
        return [np.sum([array for by_name in found for array in by_name.values()], axis=0)]
    by_name = {name: array for each in found for name, array in each.items()}
    return [by_name[name] for name in workload.names]


def _without_seeds(
    case: Case, workload: Workload, array: np.ndarray, shape: tuple[int, int, int]
) -> np.ndarray:
    """Return the result of a mode without seeds, which is divided over points only."""
    if workload.reduction.sums_points:
        array = _over_points(case, array).reshape(-1, math.prod(shape[1:]))
    elif case.ad_mode.is_value and shape == (1, 1, 1):
        array = array.reshape(-1)[:1]
    else:
        array = array.reshape(array.shape[0] * array.shape[2], -1)[: shape[0]]
    if array.size != math.prod(shape):
        raise Refusal(f"{case.mode} of {case.workload} returns {array.shape}, where {shape} is expected")
    return array.reshape(shape)


def _over_points(case: Case, array: np.ndarray) -> np.ndarray:
    """Return the copies of all devices where an all-reduce added up the points, otherwise their sum."""
    first = array[:, 0]
    return first if case.split == "data" else first.astype(np.float64).sum(axis=0, keepdims=True)


def _sum_over_points(case: Case, part: LinearMapPart, arrays: list[np.ndarray]) -> np.ndarray:
    """Return the derivative of a sum over points: (copies, 1, inputs)."""
    if part.columns:  # whose seeds may be divided as well
        (a,) = arrays
        joined = a.reshape(a.shape[0], 1, -1)[:, :, : part.seeds]
        return _over_points(case, joined)[:, None]
    flat = [_over_points(case, a).reshape(len(a) if case.split == "data" else 1, 1, -1) for a in arrays]
    return np.concatenate(flat, axis=2)


def _gather_part(
    case: Case, workload: Workload, sizes: DerivativeShape, part: LinearMapPart, arrays: list[np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the slices of one linear map by input: (points, outputs, inputs).

    What has no axis of inputs is under the name of the first.
    """
    if part.along or is_summed_on_host(workload, part):
        return _gather_sums(case, workload, part, arrays)
    if sizes.summed:  # the gradient of one number: its tangents run over all points, input by input
        if part.columns:
            columns = arrays[0].reshape(-1)[: part.seeds]
            arrays = _split_inputs(workload, part, columns, case.points)
        else:  # of one seed, which the first device has
            arrays = [x[:, 0] for x in arrays]
        return {name: x.reshape(case.points, 1, -1) for name, x in zip(part.names, arrays, strict=True)}
    a, b = case.axes
    here, reduction = ceil_div(part.seeds, b), workload.reduction
    if case.batch == "whole" and not part.columns:  # seeds run over the points as well
        rows = (x.reshape(b * here, -1)[: part.seeds] for x in arrays)
        joined = [x.reshape(case.points, sizes.outputs, -1) for x in rows]
    elif part.columns and not reduction.columns.products:
        (x,) = arrays
        x = np.moveaxis(x.reshape(a, b, x.shape[2], -1, here), 1, 3)  # (a, points, outputs, b, seeds)
        joined = [_drop_padding(case, x).reshape(case.points, -1, b * here)[:, :, : part.seeds]]
    else:
        moved = (np.moveaxis(x.reshape(a, b, x.shape[2], here, -1), 1, 2) for x in arrays)
        joined = [_drop_padding(case, x).reshape(case.points, b * here, -1)[:, : part.seeds] for x in moved]
    if part.columns and reduction.linear_in_inputs and part.names != workload.names:
        joined = _split_inputs(workload, part, joined[0])
    return dict(zip(part.names, joined, strict=False))


def _gather_sums(
    case: Case, workload: Workload, part: LinearMapPart, arrays: list[np.ndarray]
) -> dict[str, np.ndarray]:
    """Return sums over seeds, added up over the devices that have some of the seeds."""
    b = case.axes[1]
    arrays = [x[:, 0] if part.along or b == 1 else x.astype(np.float64).sum(axis=1) for x in arrays]
    arrays = [_drop_padding(case, x) for x in arrays]
    if part.along or part.columns or not workload.reduction.linear_in_inputs:
        return {part.names[0]: arrays[0].reshape(case.points, -1, 1)}
    return {name: x.reshape(case.points, 1, -1) for name, x in zip(part.names, arrays, strict=True)}


def is_summed_on_host(workload: Workload, part: LinearMapPart) -> bool:
    """Return whether the slices of a part that several devices hold are added up on the host."""
    step = workload.reduction.columns if part.columns else workload.reduction.rows
    return not part.along and step.added


def _drop_padding(case: Case, array: np.ndarray) -> np.ndarray:
    """Join the points of all devices: (devices over points, points, ...) -> (points, ...)."""
    return array.reshape(-1, *array.shape[2:])[: case.points]


def _split_inputs(
    workload: Workload, part: LinearMapPart, columns: np.ndarray, points: int = 1
) -> list[np.ndarray]:
    """Split columns that run over the inputs of a part, and over the points of each, by input."""
    ends = np.cumsum([points * math.prod(workload.inputs[name].shape) for name in part.names])
    return np.split(columns, ends[:-1], axis=-1)
