"""Expand the YAML configuration of a study into cases, and check before a run which cases can run."""
