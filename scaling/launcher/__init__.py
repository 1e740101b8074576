"""The process that runs a study: schedule cases, start and supervise worker processes, claim cores."""
