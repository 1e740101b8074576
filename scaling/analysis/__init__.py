"""Statistics of benchmark records: scaling curves, fits, comparisons, forecasts, lint. Imports no JAX."""
