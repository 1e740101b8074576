"""Distributed scaling study of automatic differentiation.

Measures what a Jacobian costs, and what one more device gains.
"""

__version__ = "0.1.0"
