"""Schedule cases, run them in supervised worker processes on cores or nodes, and recover from failures."""
