"""Schedule cases, run them in worker processes, and replace workers that die."""
