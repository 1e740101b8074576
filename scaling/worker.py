"""Entry point `python -m scaling.worker` of a worker process: re-exports `main` of workers/worker_main.py.

This module must keep its name, because a launcher may start a worker of another revision of the package.
"""

import sys

from scaling.workers.worker_main import PROTOCOL, main

__all__ = ["PROTOCOL", "main"]

if __name__ == "__main__":
    sys.exit(main())
