"""The records as a projection onto W&B: what is sent, where it went, whether it arrived, and the dashboard. No JAX."""
