"""Gather the parts of a derivative that devices hold into one array on the host: (points, outputs, inputs).

A result's arrays lead with the two axes of the mesh, (devices over points, devices over seeds, ...). What
stands in it only so that an axis shares out is dropped; what devices have as sums over their own seeds is
added up, in float64.
"""

import math
from typing import Any

import jax
import numpy as np

from scaling.core.case import Case, Refusal
from scaling.core.pattern import GatherIndices
from scaling.core.shape import DerivativeShape, LinearMapPart, ceil_div, result_shape
from scaling.core.workload import Workload


def gather_result(
    case: Case, workload: Workload, sizes: DerivativeShape, entries: GatherIndices | None, result: Any
) -> np.ndarray:
    """Return the whole result, in the shape of `shape.result_shape`."""
    found = gather_pieces(case, workload, sizes, entries, result)
    whole = found[0] if len(found) == 1 else np.concatenate(found, axis=2)
    return whole.reshape(result_shape(case, workload, sizes))


def gather_pieces(
    case: Case, workload: Workload, sizes: DerivativeShape, entries: GatherIndices | None, result: Any
) -> list[np.ndarray]:
    """Return the result as arrays that follow each other along the inputs; none is copied unless it has to
    be.
    """
    shape = result_shape(case, workload, sizes)
    if not case.ad_mode.has_seeds:
        (part,) = (np.asarray(part) for part in jax.tree.leaves(result))
        return [_whole(case, workload, part, shape)]
    if workload.reduction.sums_points:
        return [_of_sum(case, workload, *each) for each in zip(sizes.parts, result, strict=True)]
    if entries is not None:
        return [_uncompressed(case, shape, entries, [np.asarray(part) for part in result])]
    parts = [
        _part(case, workload, sizes, part, slices) for part, slices in zip(sizes.parts, result, strict=True)
    ]
    if len(parts) == 1:
        return list(parts[0].values())
    if not workload.reduction.linear_in_inputs:  # one number of each output, or of each point
        return [np.sum([value for part in parts for value in part.values()], axis=0)]
    by_name = {name: a for part in parts for name, a in part.items()}
    return [by_name[name] for name in workload.names]


def _whole(case: Case, workload: Workload, part: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
    """Return the result of a mode without seeds, which is divided over points only."""
    if workload.reduction.sums_points:
        part = _over_points(case, part).reshape(-1, math.prod(shape[1:]))
    elif case.ad_mode.is_value and shape == (1, 1, 1):
        part = part.reshape(-1)[:1]
    else:
        part = part.reshape(part.shape[0] * part.shape[2], -1)[: shape[0]]
    if part.size != math.prod(shape):
        raise Refusal(f"{case.mode} of {case.workload} returns {part.shape}, where {shape} is due")
    return part.reshape(shape)


def _over_points(case: Case, part: np.ndarray) -> np.ndarray:
    """Return one copy for each device where all-reduce added up the points, otherwise their sum."""
    first = part[:, 0]
    return first if case.split == "data" else first.astype(np.float64).sum(axis=0, keepdims=True)


def _of_sum(case: Case, workload: Workload, part: LinearMapPart, slices: Any) -> np.ndarray:
    """Return the derivative of a sum over points: (copies, 1, inputs)."""
    arrays = [np.asarray(a) for a in jax.tree.leaves(slices)]
    if part.columns:  # its seeds may be cut as well
        (a,) = arrays
        a = a.reshape(*a.shape[:2], -1)
        joined = a.reshape(a.shape[0], 1, -1)[:, :, : part.seeds]
        return _over_points(case, joined)[:, None]
    flat = [_over_points(case, a).reshape(len(a) if case.split == "data" else 1, 1, -1) for a in arrays]
    return np.concatenate(flat, axis=2)


def _uncompressed(
    case: Case, shape: tuple[int, int, int], entries: GatherIndices, parts: list[np.ndarray]
) -> np.ndarray:
    """Return the entries of the pattern, in its order, from what each device read."""
    points = lambda a: np.asarray(a.reshape(a.shape[0] * a.shape[1], -1)[: shape[0]])  # noqa: E731
    if len(parts) == 1 and len(entries.places[0]) == 1:
        return np.asarray(points(parts[0][:, 0]).reshape(shape))
    found = np.zeros((shape[0], shape[2]), parts[0].dtype)
    for part, places in zip(parts, entries.places, strict=True):
        for device, numbers in enumerate(places):
            found[:, numbers] = points(part[:, device])[:, : len(numbers)]
    return found.reshape(shape)


def _part(
    case: Case, workload: Workload, sizes: DerivativeShape, part: LinearMapPart, slices: Any
) -> dict[str, np.ndarray]:
    """Return the slices of one linear map: (points, outputs, inputs) for each input; sums are under the first
    input's name.
    """
    arrays = [np.asarray(a) for a in jax.tree.leaves(slices)]
    a, b = case.axes
    here, reduction, name = ceil_div(part.seeds, b), workload.reduction, part.names[0]
    if part.along or is_summed_on_host(workload, part):
        arrays = [x[:, 0] if part.along or b == 1 else x.astype(np.float64).sum(axis=1) for x in arrays]
        if part.along or part.columns or not reduction.linear_in_inputs:
            return {name: _points(case, arrays[0]).reshape(case.points, -1, 1)}
        return {
            name: _points(case, x).reshape(case.points, 1, -1)
            for name, x in zip(part.names, arrays, strict=True)
        }
    if sizes.summed:
        return _of_summed(case, workload, part, arrays)
    if case.batch == "whole" and not part.columns:  # seeds run over the points as well
        joined = [
            x.reshape(b * here, -1)[: part.seeds].reshape(case.points, sizes.outputs, -1) for x in arrays
        ]
    elif part.columns and not reduction.columns.products:
        (x,) = arrays
        x = np.moveaxis(x.reshape(a, b, x.shape[2], -1, here), 1, 3)  # (a, points, outputs, b, seeds)
        joined = [_points(case, x).reshape(case.points, -1, b * here)[:, :, : part.seeds]]
    else:
        joined = [
            np.moveaxis(x.reshape(a, b, x.shape[2], here, -1), 1, 2) for x in arrays
        ]  # (a, points, b, seeds, inputs)
        joined = [_points(case, x).reshape(case.points, b * here, -1)[:, : part.seeds] for x in joined]
    if part.columns and reduction.linear_in_inputs and part.names != workload.names:
        joined = _by_input(workload, part, joined[0])
    return dict(zip(part.names, joined, strict=False))


def is_summed_on_host(workload: Workload, part: LinearMapPart) -> bool:
    """Return whether the slices of a part that several devices hold are added up on the host."""
    step = workload.reduction.columns if part.columns else workload.reduction.rows
    return not part.along and step.added


def _points(case: Case, array: np.ndarray) -> np.ndarray:
    """Join the points of all devices without padding: (devices over points, points, ...) -> (points, ...)."""
    return array.reshape(-1, *array.shape[2:])[: case.points]


def _by_input(
    workload: Workload, part: LinearMapPart, columns: np.ndarray, points: int = 1
) -> list[np.ndarray]:
    """Split columns that run over the inputs of a part, and over all points of each, into one array for each
    input.
    """
    draws = {**workload.points, **workload.shared}
    ends = np.cumsum([points * math.prod(draws[name].shape) for name in part.names])
    return np.split(columns, ends[:-1], axis=-1)


def _of_summed(
    case: Case, workload: Workload, part: LinearMapPart, arrays: list[np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the gradient of one number by per-point inputs, whose tangents run over all points, input by
    input.
    """
    if part.columns:
        by_name = _by_input(workload, part, arrays[0].reshape(-1)[: part.seeds], case.points)
    else:  # of one seed, which the first device has
        by_name = [x[:, 0] for x in arrays]
    return {name: x.reshape(case.points, 1, -1) for name, x in zip(part.names, by_name, strict=True)}
