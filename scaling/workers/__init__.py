"""Worker processes: schedule benchmark cases, start workers, supervise them, and recover from failures."""
