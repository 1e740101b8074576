"""Curves of a study as runs of Weights & Biases."""
