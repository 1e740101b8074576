"""Class `Coloring`: the colors of the columns and rows of a sparse Jacobian, also as record fields."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling.core.shape import Pattern


@dataclass(frozen=True)
class Coloring:
    """A coloring of the columns and rows of a sparsity pattern.

    One seed (tangent or cotangent) computes the sum of all columns (or rows) of one color.
    """

    pattern: Pattern
    # The color of each column, or -1: an int32 array of shape (inputs,). None if no column has a color.
    columns: np.ndarray | None
    rows: np.ndarray | None  # the same for the rows, an array of shape (outputs,)
    column_count: int  # the number of colors of columns
    row_count: int  # the number of colors of rows
    by_row: np.ndarray  # shape (nonzeros,): whether each nonzero is read from a compressed row, not a column
    detect_seconds: float = 0.0  # the time to detect the pattern, without imports
    color_seconds: float = 0.0  # the time to color the pattern, without imports


def coloring_fields(coloring: Coloring) -> dict[str, Any]:
    """Return the fields of a `Record` that describe a coloring."""
    return {
        "detect_seconds": coloring.detect_seconds,
        "color_seconds": coloring.color_seconds,
        "colors": {"columns": coloring.column_count, "rows": coloring.row_count},
        "nonzeros": int(coloring.pattern.rows.size),
    }
