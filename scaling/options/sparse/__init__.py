"""Coloured seeds: detect a sparsity pattern, colour it, and gather the nonzeros."""
