"""The processes that run cases: in which order cases run, how a worker is started, and what happens when it dies."""
