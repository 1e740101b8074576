"""Worker processes: scheduling of cases, start of workers, supervision, and recovery from failures."""
