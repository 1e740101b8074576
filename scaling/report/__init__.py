"""Output of the results: HTML page, figures, terminal tables, exports and the compute-time proposal."""
