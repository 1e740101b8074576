"""Publish results to Weights & Biases (W&B): one W&B run per workload and AD method, and one summary run."""
