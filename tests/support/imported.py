"""What a fresh interpreter has imported."""

import subprocess
import sys

NOT_IN_THE_WORKER = ["hydra", "omegaconf", "wandb", "submitit", "vl_convert", "rich", "jinja2", "pandas"]


def modules_after(code: str, whole: bool = False, stdin: str = "") -> set[str]:
    """Return the modules that are loaded after some code ran in a fresh interpreter: their top-level names, or (whole) all."""
    ask = f"{code}\nimport sys; print(*sys.modules, sep='\\n', file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", ask], capture_output=True, text=True, check=True, input=stdin
    )
    return {line if whole else line.split(".")[0] for line in done.stderr.splitlines()}
