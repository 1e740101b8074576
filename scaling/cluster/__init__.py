"""Run studies on a cluster: submit tasks to Slurm, find their states and journals, and record lost cases."""
