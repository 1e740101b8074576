"""Exports to the file formats of other tools."""
