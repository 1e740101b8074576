"""A study as runs of Weights & Biases: one for each workload and method, and one for the study itself."""
