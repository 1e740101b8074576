"""Output of results: HTML page, figures, terminal tables, data exports and a compute-time proposal."""
