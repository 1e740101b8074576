"""Running a study on a cluster: what is asked of it, what was submitted, what runs there, and what became of it. No JAX."""
