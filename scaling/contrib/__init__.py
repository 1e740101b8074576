"""Exports for other tools."""
