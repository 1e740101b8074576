"""Compute expected results (references) with JAX, verify them, and compare results with them.

evaluations           evaluates a function and its derivatives on the CPU in a given dtype
computed_reference    computes and verifies the reference of a workload without a closed form
fd_check              compares a derivative with finite differences of the function
jaxpr_rounding        analyzes rounding errors: counts summed terms, and evaluates with random rounding errors
finite_step_bound     bounds the error of results of `mode=finite_difference`
sampled_check         compares a sample of a result, if all entries would take too long
rounding_check        decides whether rounding explains the errors that exceed the tolerance
"""
