"""Publish results to Weights & Biases (W&B): a W&B run per workload and AD method, and one for the study."""
