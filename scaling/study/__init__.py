"""Expand a study configuration into cases, check them, and decide which of them can run."""
