"""The module that `python -m scaling.worker` runs; a stable name for workers/worker_main.py.

Its name is stable, because a launcher may start a worker of another revision of the package.
"""

import sys

from scaling.workers.worker_main import PROTOCOL, main

__all__ = ["PROTOCOL", "main"]

if __name__ == "__main__":
    sys.exit(main())
