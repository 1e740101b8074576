"""Advice for one function: which AD mode, chunk, block, coloring and devices differentiate it fastest."""
