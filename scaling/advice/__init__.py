"""Implement `scaling.advise`: find the fastest AD mode, chunk, block, coloring and device count."""
