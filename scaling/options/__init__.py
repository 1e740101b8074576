"""Implement options of a case, each imported when needed: pytrees, pmap, blocks, sparsity, references."""
