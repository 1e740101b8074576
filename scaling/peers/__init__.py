"""Define peers: AD libraries other than JAX, such as PyTorch and CasADi, that run the same cases."""
