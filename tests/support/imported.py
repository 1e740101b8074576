"""The modules that a fresh interpreter has imported."""

import subprocess
import sys

NOT_IN_THE_WORKER = ["hydra", "omegaconf", "wandb", "submitit", "vl_convert", "rich", "jinja2", "pandas"]


def modules_after(code: str, whole: bool = False, stdin: str = "") -> set[str]:
    """Return the modules that a fresh interpreter has after running `code`: top-level names only, unless `whole`."""
    program = f"{code}\nimport sys; print(*sys.modules, sep='\\n', file=sys.stderr)"
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, input=stdin
    )
    return {line if whole else line.split(".")[0] for line in process.stderr.splitlines()}
