"""Implement the options of a benchmark case (pmap, sparsity, references, ...), imported only when needed."""
