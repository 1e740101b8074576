"""Write results as an HTML page, figures, terminal tables, data files and a compute-time proposal."""
