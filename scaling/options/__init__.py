"""Optional features of a case: memory limits, data parallelism, sparsity, references, and program costs."""
