"""Implement `scaling.advise`, which finds the fastest AD mode, chunk, block, coloring and device count."""
