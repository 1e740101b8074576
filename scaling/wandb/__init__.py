"""Publish a study to Weights & Biases (W&B): one run per workload and method, and one for the study."""
