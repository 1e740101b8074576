"""Expected results (references) computed by JAX: evaluation, verification, and bounds on rounding errors."""
