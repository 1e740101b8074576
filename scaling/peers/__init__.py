"""Peers: other differentiation systems that run the cases of a study for comparison with JAX."""
