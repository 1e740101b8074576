"""Compile a study for other hardware and predict its run times, without running it."""
