"""Peers: other libraries for automatic differentiation (`engine=NAME`), which run the same cases as JAX."""
