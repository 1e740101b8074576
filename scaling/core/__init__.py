"""Run one case (a function, a differentiation method and devices): compile, check, time and record it.

run_case.py lists the calls in their order. docs/design.md describes the modules and their use in a study.
"""
