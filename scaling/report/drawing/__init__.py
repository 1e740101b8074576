"""Figures, one a module."""
