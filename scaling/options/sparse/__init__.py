"""Sparse Jacobians with `seeds=colored`: pattern detection, graph coloring, and reading of the nonzeros."""
