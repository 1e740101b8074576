"""A distributed scaling study of automatic differentiation: what does a Jacobian cost, and what does one more device buy?"""

__version__ = "0.1.0"
