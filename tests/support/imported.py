"""What a fresh interpreter has imported."""

import subprocess
import sys

NOT_IN_THE_WORKER = ["hydra", "omegaconf", "wandb", "submitit", "matplotlib", "rich", "jinja2"]


def modules_after(code: str) -> set[str]:
    """The top-level modules that are loaded after some code ran in a fresh interpreter."""
    ask = f"{code}\nimport sys; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    return {line.split(".")[0] for line in done.stdout.splitlines()}
