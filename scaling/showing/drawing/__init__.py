"""Drawing: each figure in a file of its own, in matplotlib, which is known nowhere else. Knows values; no disk, no HTML."""
