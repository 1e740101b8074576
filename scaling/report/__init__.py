"""Output of results as HTML page, figures, terminal tables, data exports and compute-time proposal."""
