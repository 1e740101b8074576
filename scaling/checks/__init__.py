"""Compute references (expected results) with JAX and verify them; decide about errors over the tolerance.

evaluations           compiles and evaluates a function and its derivatives on the CPU, in any dtype
computed_reference    computes the reference of a workload without a closed form, in float64 if possible
verification          confirms or refutes a computed reference by finite differences of the function values
finite_differences    compares derivatives with finite differences, coarsely at many points, finely at few
sampled_check         compares samples of a result, if comparing all entries takes too long
rounding_check        evaluates wrong entries again, and decides whether rounding explains their errors
finite_step_bound     bounds the error of a result of `mode=finite_difference`
"""
