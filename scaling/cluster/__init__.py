"""Studies on a cluster: submission to Slurm, job states, task journals, and lost cases."""
