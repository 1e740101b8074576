"""The command `scaling` as tests start it."""

import os
import sys
from pathlib import Path

COMMAND = Path(sys.executable).parent / "scaling"
SLOWEST = 600.0  # seconds that a command of these tests may take at the very most
QUICK = ("sampling.seconds=0.05", "sampling.least=7", "sampling.most=7", "sampling.warm_up=0.001")


def command_environment(extra=None):
    """The environment of a command: ours, without what would steer it, and no stale bytecode of a rewritten module."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("WANDB_", "HYDRA_", "XLA_", "JAX_"))}
    return kept | {"PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"} | (extra or {})
