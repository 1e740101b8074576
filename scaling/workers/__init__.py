"""Processes that run cases: the order of cases, how workers start, and how their failures are handled."""
