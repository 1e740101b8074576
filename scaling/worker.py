"""`python -m scaling.worker` runs a worker. Launchers of other revisions start it by this name."""

import sys

from scaling.workers.worker import PROTOCOL, main

__all__ = ["PROTOCOL", "main"]

if __name__ == "__main__":
    sys.exit(main())
