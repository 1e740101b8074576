"""Class `SparseJacobians`: sparse Jacobians at some points, and the sums over their rows and columns."""

from dataclasses import dataclass

import numpy as np

from scaling.core.shape import Pattern
from scaling.core.tolerances import Jacobians


@dataclass(frozen=True)
class SparseJacobians(Jacobians):
    """The sparse Jacobians at some points, all with the same sparsity pattern."""

    pattern: Pattern

    def by_input(self, values: np.ndarray) -> np.ndarray:
        return _sum_by_index(self.pattern.cols, self.pattern.inputs, values)

    def by_output(self, values: np.ndarray, x: np.ndarray | None = None) -> np.ndarray:
        weighted = values if x is None else values * x[:, self.pattern.cols]
        return _sum_by_index(self.pattern.rows, self.pattern.outputs, weighted)

    def largest_by_output(self) -> np.ndarray:
        largest = np.zeros((len(self.values), self.pattern.outputs))
        np.maximum.at(largest.T, self.pattern.rows, np.abs(self.values).T)
        return largest

    def entries_by_input(self) -> np.ndarray:
        return np.bincount(self.pattern.cols, minlength=self.pattern.inputs)


def _sum_by_index(index: np.ndarray, count: int, values: np.ndarray) -> np.ndarray:
    """Return the sums of `values[:, k]` over all k with the same `index[k]`, of shape (points, count)."""
    return np.stack([np.bincount(index, weights=entries, minlength=count) for entries in values])
