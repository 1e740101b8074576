"""How tests start the command `scaling` and wait: its path, quick sampling options and a clean environment."""

import os
import sys
import time
from pathlib import Path

COMMAND = Path(sys.executable).parent / "scaling"
COMMAND_TIMEOUT = 600.0  # seconds, timeout of every command that tests start
RBF = ("run", "study=rbf")
QUICK = ("sampling.seconds=0.05", "sampling.least=7", "sampling.most=7", "sampling.warm_up=0.001")


def wait_until(condition, description, seconds=120.0):
    """Return the first true result of a function; raise AssertionError if there is none within these seconds."""
    limit = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < limit, f"{description}: not within {seconds:.0f} s"
        time.sleep(0.05)
    return result


def command_environment(extra=None):
    """Return our environment without settings of W&B, Hydra and XLA, for JAX on the CPU.

    Without JAX_PLATFORMS, a command starts JAX to find the platform once an accelerator plugin is installed.
    Rewritten modules leave no stale bytecode.
    """
    inherited = {
        k: v for k, v in os.environ.items() if not k.startswith(("WANDB_", "HYDRA_", "XLA_", "JAX_"))
    }
    ours = {"JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"}
    return inherited | ours | (extra or {})
