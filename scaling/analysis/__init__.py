"""Analyze benchmark records (curves, fits, comparisons, predictions, checks) without importing JAX."""
