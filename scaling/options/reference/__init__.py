"""Compute references with JAX. A reference is the expected result of a case.

evaluations           compiles and evaluates a function and its derivatives on the CPU, in any dtype
computed_reference    computes the reference of a workload without a closed form, and verifies it
fixed_constants       evaluates a function in float64 with the constants of the dtype of the case
fd_check              confirms or refutes a derivative by finite differences of the function values
jaxpr_rounding        counts the summed terms in a jaxpr, and evaluates a jaxpr with random rounding errors
finite_step_bound     bounds the error of a result of `mode=finite_difference`
sampled_check         compares a sample of a result, if comparing all entries takes too long
rounding_check        decides whether rounding explains the errors that exceed the tolerance
"""
