"""Other systems of automatic differentiation (peers, `engine=NAME`), which run the same cases as JAX."""
