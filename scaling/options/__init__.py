"""Options of a case: sparsity, pmap, blocks, host memory, references, and counts of operations and bytes."""
