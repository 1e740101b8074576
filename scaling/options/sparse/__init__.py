"""Sparse Jacobians (`seeds=colored`): detect the sparsity pattern, color it, and extract the nonzeros."""
