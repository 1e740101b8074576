"""Advice on the fastest AD mode, chunk, block, coloring and device count to differentiate one function."""
