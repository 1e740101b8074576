"""Optional features: execution in blocks, sparse seeds, computed references, and program costs."""
