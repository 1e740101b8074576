"""What the records say: curves and ratios, and from them the answer, the report, W&B. No JAX."""
