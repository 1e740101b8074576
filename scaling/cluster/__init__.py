"""Run studies on a cluster: submit tasks to Slurm, find the states of the tasks, and record lost cases."""
