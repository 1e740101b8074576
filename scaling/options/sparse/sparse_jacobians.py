"""Class `SparseJacobians`: the nonzeros of the Jacobians at the points of a batch, with row and column sums.

The class replaces the dense `Jacobians` of core/tolerances.py.
"""

from dataclasses import dataclass

import numpy as np

from scaling.core.shape import Pattern
from scaling.core.tolerances import Jacobians


@dataclass(frozen=True)
class SparseJacobians(Jacobians):
    """The Jacobians at the points of a batch, which have the same sparsity pattern.

    `values` has the shape (points, nonzeros). `pattern` contains the row and the column of each nonzero.
    """

    pattern: Pattern

    def by_input(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of each column of the Jacobians as an array of shape (points, inputs).

        `values` contains the nonzeros, or quantities in their place, in the shape (points, nonzeros).
        """
        return _sum_by_index(self.pattern.cols, self.pattern.inputs, values)

    def by_output(self, values: np.ndarray, x: np.ndarray | None = None) -> np.ndarray:
        """Return the sum of each row of the Jacobians as an array of shape (points, outputs).

        Args:
            values: the nonzeros, or quantities in their place, of shape (points, nonzeros).
            x: the weight of each column, of shape (points, inputs); None for an unweighted sum.
        """
        weighted = values if x is None else values * x[:, self.pattern.cols]
        return _sum_by_index(self.pattern.rows, self.pattern.outputs, weighted)

    def largest_by_output(self) -> np.ndarray:
        """Return the largest magnitude in each row of the Jacobians, of shape (points, outputs)."""
        largest = np.zeros((len(self.values), self.pattern.outputs))
        np.maximum.at(largest.T, self.pattern.rows, np.abs(self.values).T)
        return largest

    def entries_by_input(self) -> np.ndarray:
        """Return the number of entries in each column of the pattern as an array of shape (inputs,)."""
        return np.bincount(self.pattern.cols, minlength=self.pattern.inputs)


def _sum_by_index(index: np.ndarray, count: int, values: np.ndarray) -> np.ndarray:
    """Return the sums of `values[point, k]` over all k with the same `index[k]`, of shape (points, count)."""
    return np.stack([np.bincount(index, weights=entries, minlength=count) for entries in values])
