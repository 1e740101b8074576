"""Studies as jobs of a cluster."""
