"""Optional features of a case: memory-limited execution, sparse seeds, computed references, and cost analysis."""
