"""Peers: other libraries for automatic differentiation (`engine=NAME`) that run the same cases as JAX."""
