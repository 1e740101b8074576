"""Optional features: execution within a memory limit, sparse Jacobians, references, and program costs."""
