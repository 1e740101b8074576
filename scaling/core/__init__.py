"""Run one case (a function, a differentiation method and devices): compile, check and time it."""
