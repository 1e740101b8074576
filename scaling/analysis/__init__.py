"""Analyze benchmark records, without JAX: scaling curves, fits, comparisons, predictions and checks."""
