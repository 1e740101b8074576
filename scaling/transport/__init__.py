"""How a worker process is reached on another node."""
