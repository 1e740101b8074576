"""Planted errors for the correctness check: functions, errors in their derivatives, and trials of both."""
