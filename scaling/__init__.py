"""ad-scaling: a scaling study of automatic differentiation in JAX.

It measures the cost of a Jacobian and how the cost changes with the number of devices.
"""

__version__ = "0.1.0"
