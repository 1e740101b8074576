"""Draw the figures of a report (charts.py), from their parts (marks.py), and write them (files.py)."""
