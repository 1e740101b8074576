"""Expected results (references) computed by JAX, their verification, and estimates of rounding errors."""
