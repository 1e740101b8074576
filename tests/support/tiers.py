"""The tiers of the tests: what each requires of the machine, and which tiers must not be skipped.

`python -m tests.support.tiers` prints the tiers that cannot run here, each with its reason.
"""

import functools
import importlib.util
import itertools
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import TOP

TIERS = ("process", "slurm", "peer", "plan", "browser", "wandb", "thorough", "quiet")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PEERS = ("autograd", "casadi", "torch")
PLANNERS = {"libtpu": "libtpu", "jax-cuda12-plugin": "jax_cuda12_plugin"}  # distribution -> module


@functools.cache
def missing(tier: str) -> str | None:
    """Return why a tier cannot run on this machine; None if it can."""
    if tier == "slurm":
        status = subprocess.run(
            [TOP / "slurm" / "cluster", "status"], capture_output=True, text=True, check=False
        )
        return None if status.returncode == 0 else "no Slurm answers: slurm/cluster up --install"
    if tier == "browser":
        return None if any(map(shutil.which, BROWSERS)) else "no Chromium: apt-get install chromium"
    modules, script = {"peer": (PEERS, "peers"), "plan": (PLANNERS.values(), "plan")}.get(tier, ((), ""))
    absent = [name for name in modules if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(absent)}; scripts/{script} installs them" if absent else None


def may_match(path: Path, expression: str) -> bool:
    """Return whether a test of a module may match an expression of tiers, given the tiers that the text of the module names.

    Collecting all modules takes 10 to 20 s, because those of the engines import the engines and trace their cases.
    """
    code = compile(expression or "True", "-m", "eval")
    if set(code.co_names) - {*TIERS, "default"}:
        return True
    named = {tier for tier in TIERS if re.search(rf"""(mark\.|["']){tier}\b""", path.read_text())}
    sets = itertools.product(
        *([False, True] if name in {*named, "default"} else [False] for name in code.co_names)
    )
    return any(eval(code, dict(zip(code.co_names, values, strict=True))) for values in sets)


def is_required(tier: str) -> bool:
    """Return whether a test of this tier fails, instead of being skipped, where it cannot run."""
    return tier in os.environ.get("AD_SCALING_REQUIRE", "").split()


def skip_or_fail(tier: str, reason: str) -> None:
    """Skip the running test, or fail it if its tier is required."""
    (pytest.fail if is_required(tier) else pytest.skip)(reason)


if __name__ == "__main__":
    for name in TIERS:
        if reason := missing(name):
            print(f"{name}: {reason}")
