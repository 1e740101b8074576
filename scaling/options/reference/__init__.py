"""Compute expected results (references) with JAX, verify them, and bound their rounding errors."""
