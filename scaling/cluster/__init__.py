"""Run studies in Slurm jobs: group cases into tasks (one per job), submit the tasks, find their states."""
