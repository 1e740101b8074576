"""Sparse Jacobians: detection of the sparsity pattern, coloring, and reading of the nonzeros."""
