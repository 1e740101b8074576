"""From records to curves, fits and comparisons. Imports no JAX."""
