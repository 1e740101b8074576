"""Run the cases of a study in other differentiation systems (peers), to compare them with JAX."""
