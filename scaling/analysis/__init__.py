"""Statistics of the records: scaling curves, fits, comparisons, forecasts and lint. Imports no JAX."""
