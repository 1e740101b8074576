"""Run one case (a function, a differentiation method and devices): compile, check, time and record it.

run_case.py lists the calls, and docs/design.md the modules and their place in a study.
"""
