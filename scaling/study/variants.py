"""Prepare the baseline `Variant` of `versus=`: check out a revision, install a JAX version, set XLA flags."""

import contextlib
import fcntl
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from scaling.core.case import Refusal
from scaling.core.environment import run_git
from scaling.core.formatting import last_line
from scaling.launcher.child_process import last_informative_line
from scaling.launcher.worker_group import Variant
from scaling.worker import PROTOCOL

_FORMS = ("self", "commit:REV", "jax:VERSION", "python:PATH", "xla:FLAGS")
_PACKAGE = Path(__file__).parents[1]


def name_variant(versus: str) -> Variant:
    """Return a `Variant` for the baseline of a comparison that has only a name, such as "jax-0.10.0".

    `versus` is the value of `versus=`, such as "jax:0.10.0". Raise `Refusal` if its form is not in `_FORMS`,
    or if its revision, version, interpreter or flags are invalid.
    """
    kind, _, value = versus.partition(":")
    if (kind, bool(value)) not in [(form.partition(":")[0], ":" in form) for form in _FORMS]:
        raise Refusal(f"unknown versus={versus!r}: choose from {', '.join(_FORMS)}")
    is_program = Path(value).is_file() and os.access(value, os.X_OK)
    rules = {  # kind -> (whether the value is valid, the problem otherwise)
        "jax": (re.fullmatch(r"[0-9][0-9A-Za-z.+]{0,30}", value),
                "is not a version: use one on PyPI, such as versus=jax:0.10.0"),
        "python": (is_program, "is no program: name a Python interpreter that has JAX"),
        # XLA would read this file, which records do not contain.
        "xla": (value.lstrip().startswith("-"), "names a file: write the flags that it contains"),
    }  # fmt: skip
    is_valid, problem = rules.get(kind, (True, ""))
    if not is_valid:
        raise Refusal(f"versus={versus} {problem}")
    if kind == "commit":
        value = _find_revision(value)[1][:10]
    elif kind in ("python", "xla"):
        hashed = str(Path(value).absolute()) if kind == "python" else value
        value = hashlib.sha256(hashed.encode()).hexdigest()[:8]
    return Variant("-".join(filter(None, [kind, value.replace("+", "-")])))


@contextlib.contextmanager
def open_variant(versus: str) -> Iterator[Variant]:
    """Prepare the baseline of a comparison, and yield it as a `Variant`. Delete temporary files at the end.

    `versus` is the value of `versus=`, such as "commit:main" or "jax:0.10.0". Raise `Refusal` if it is
    invalid, or if the baseline cannot be installed or run.
    """
    variant, (kind, _, value) = name_variant(versus), versus.partition(":")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if kind == "commit":
            variant = _check_out_revision(value, folder, variant.name)
        elif kind == "xla":
            flags = f"{os.environ.get('XLA_FLAGS', '')} {value}".strip()
            variant = Variant(variant.name, variables={"XLA_FLAGS": flags})
        elif kind != "self":
            (folder / "scaling").symlink_to(_PACKAGE)
            python = _install_jax(value) if kind == "jax" else Path(value).absolute()
            variant = Variant(variant.name, str(python), variables={"PYTHONPATH": _python_path(folder)})
        _check_variant(versus, variant)
        yield variant


def _find_revision(revision: str) -> tuple[Path, str]:
    """Return the top folder of the current git repository, and the commit hash of a revision."""
    repository = run_git("rev-parse", "--show-toplevel")
    sha = run_git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if repository and sha and Path.cwd().resolve().is_relative_to(top := Path(repository).resolve()):
        return top, sha
    problem = f"versus=commit:{revision} needs a git repository with this folder and this revision"
    raise Refusal(f"{problem}; `git log` lists the revisions")


def _check_out_revision(revision: str, folder: Path, name: str) -> Variant:
    """Check out a git revision into an empty folder, and return a `Variant` named `name` that runs it."""
    versus, (top, sha) = f"versus=commit:{revision}", _find_revision(revision)
    git_index = {"GIT_INDEX_FILE": str(folder / ".index")}  # leave the user's index unchanged
    git_commands = ["read-tree", sha], ["checkout-index", "--all", f"--prefix={folder}/"]
    if any(run_git("-C", str(top), *git_command, **git_index) is None for git_command in git_commands):
        raise Refusal(f"{versus} cannot be checked out; `git fsck` may say why")
    working_directory = folder / Path.cwd().resolve().relative_to(top)
    if not working_directory.is_dir():
        raise Refusal(f"{versus}: this folder is not in that revision; run from a folder that is")
    imported = [Path(entry).resolve() for entry in sys.path if entry]
    # Entries of sys.path inside the repository: a src folder or an editable install.
    inside = [folder / path.relative_to(top) for path in imported if path.is_relative_to(top)]
    variables = {"PYTHONPATH": _python_path(working_directory, folder, *inside)}
    if (folder / "scaling" / "worker.py").exists():
        variables["AD_SCALING_COMMIT"] = sha
    return Variant(name, folder=working_directory, variables=variables)


def _install_jax(version: str) -> Path:
    """Install a JAX version in a cached virtual environment, and return the path of its interpreter."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ad-scaling"
    folder = cache / f"jax-{version}-python{sys.version_info[0]}.{sys.version_info[1]}"
    python = folder / "bin" / "python"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run may install the same version
        if (folder / "made").exists():
            return python
        create_environment = [sys.executable, "-m", "venv", "--clear", str(folder)]
        for command in (create_environment, [str(python), "-m", "pip", "install", "-qq", f"jax=={version}"]):
            process = subprocess.run(command, capture_output=True, text=True, check=False)
            if process.returncode:
                raise Refusal(f"versus=jax:{version} cannot be installed: {last_line(process.stderr)}")
        (folder / "made").touch()
    return python


def _check_variant(versus: str, variant: Variant) -> None:
    """Raise `Refusal` if `variant` cannot import JAX, or uses another version of the worker protocol.

    `versus` is the value of `versus=`, such as "jax:0.10.0", which the error message quotes.
    """
    script = "import jax, numpy, scaling.worker as w; jax.devices(); print(getattr(w, 'PROTOCOL', 1))"
    variables = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | os.environ | dict(variant.variables)
    try:
        process = subprocess.run(
            [variant.python, "-c", script], capture_output=True, text=True, check=False, cwd=variant.folder,
            env=variables
        )  # fmt: skip
    except OSError as error:
        raise Refusal(f"versus={versus}: {error.strerror}: name a Python interpreter that has JAX") from None
    if process.returncode:
        reason = last_informative_line(process.stderr.splitlines()) or f"status {process.returncode}"
        raise Refusal(f"versus={versus} cannot run a worker: {reason}")
    if process.stdout.split()[-1:] != [str(PROTOCOL)]:
        problem = f"its worker uses another protocol (not {PROTOCOL})"
        raise Refusal(f"versus={versus}: {problem}; run its own study instead")


def _python_path(*folders: Path) -> str:
    return os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])
