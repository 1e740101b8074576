"""What the records say, as values: curves, ratios, laws, the fastest mode, and from them the answer in words. No JAX."""
