"""Implement the options of a case: sparsity, pmap, blocks, host memory, references, flop and byte counts."""
