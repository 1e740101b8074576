"""The environment: where a record was made, and with what.

Removes secrets and the paths of a user's machine from texts. Does not import JAX.
"""

import ctypes
import functools
import hashlib
import json
import os
import platform as machine
import re
import socket
import subprocess
import sys
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import scaling
from scaling.core.case import Refusal

_PACKAGE = Path(__file__).parents[1]
# Fields that follow from others, or differ with each case.
OF_THE_CASE = ("digest", "setting", "load", "cores", "shape", "job", "restarts")
_MATTER = (  # fields that the digest hashes
    "versions", "platform", "device_kind", "xla_flags", "glibc_tunables", "commit", "dirty", "source",
    "workload_digest", "bound", "driver", "processes", "engine", "hardware",
)  # fmt: skip

# In jaxlib 0.10 on CPU a fused reduction of some shapes gives wrong numbers, plain `jax.jacrev` of the
# residual workload on 200 points among them; this switches that fusion off, unless XLA_FLAGS has the flag.
_WRONG_FUSION = "--xla_cpu_experimental_ynn_fusion_type"
_PLATFORMS = {"cuda": "gpu", "rocm": "gpu"}  # names of backends for what is called gpu here

_AT_START = dict(os.environ)
_SHORTEST = 6  # characters of a secret: a shorter value, such as "true", would be found everywhere
_SECRET = re.compile(
    r"key|token|secret|passw|passphrase|credential|auth(?!or)|cookie|private|_(?:pwd|pass|pat|dsn)$",
    re.IGNORECASE,
)


def platform() -> str:
    """Return what JAX runs on here: cpu, gpu or tpu. Asks JAX only where a plugin is installed."""
    named = os.environ.get("JAX_PLATFORMS", "").split(",")[0].strip()
    if named:
        return _PLATFORMS.get(named, named)
    from importlib import metadata

    installed = (each.name or "" for each in metadata.distributions())
    plugin = any(re.match(r"jax-(cuda|rocm)|libtpu", name) for name in installed)
    return probe()["platform"] if plugin else "cpu"


@functools.cache
def probe() -> dict[str, Any]:
    """Return the backend that JAX starts in another process, its device kind and its number of devices."""
    ask = "import jax, json; d = jax.devices(); print(json.dumps([d[0].platform, d[0].device_kind, len(d)]))"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=False)
    try:
        name, kind, devices = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        why = f"JAX cannot start a backend: {last_line(done.stderr)}"
        raise Refusal(f"{why}; JAX_PLATFORMS=cpu runs on the CPU") from None
    return {"platform": _PLATFORMS.get(name, name), "device_kind": kind, "devices": devices}


def variables(where: str) -> dict[str, str]:
    """Return the environment variables that are set for a worker; the user's values take precedence."""
    from importlib import metadata

    xla, glibc = os.environ.get("XLA_FLAGS", ""), os.environ.get("GLIBC_TUNABLES", "")
    if where == "cpu":
        if metadata.version("jaxlib").startswith("0.10.") and _WRONG_FUSION not in xla:
            xla = f"{xla} {_WRONG_FUSION}=".strip()
        # A program takes temporaries from the system at every call and returns them: cheap in huge pages.
        glibc = glibc or "glibc.malloc.hugetlb=1"
    return {"XLA_FLAGS": xla, "GLIBC_TUNABLES": glibc}


def describe(
    where: str,
    device_kind: str | None,
    started_with: Mapping[str, str],
    workload_digest: str | None,
    bound_to: Sequence[int] | None,
    engine: Mapping[str, str | None] | None = None,
    processes: int | str | None = None,
    more: Mapping[str, Any] | None = None,
    hardware: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the environment of a record. `digest` hashes what makes two measurements incomparable.

    engine: the versions of what a peer runs on; `setting`, the digest without them, is the same for JAX.
    processes: as asked for. more: further fields. hardware: what a plan was made for, and the compilers.
    """
    sha, dirty = commit()
    matters: dict[str, Any] = {
        "versions": _versions(),
        "platform": where,
        "device_kind": processor() if where == "cpu" and not hardware else device_kind,
        "xla_flags": scrub(started_with.get("XLA_FLAGS", "")),
        "glibc_tunables": started_with.get("GLIBC_TUNABLES", ""),
        "commit": sha,
        "dirty": dirty,
        "source": source(),
        "workload_digest": workload_digest,
        "bound": bound_to is not None,
        "driver": _driver() if where == "gpu" and not hardware else None,
    }
    matters |= {"hardware": dict(hardware)} if hardware else {}
    matters |= {"processes": processes} if processes not in (None, 1) else {}
    setting = _digest(matters)
    matters |= {"engine": dict(engine)} if engine else {}
    found: dict[str, Any] = {"hosts": [socket.gethostname()], "cores": list(bound_to) if bound_to else None}
    found |= {
        "load": round(os.getloadavg()[0], 2),
        "governor": governor(bound_to),
        "kernel": machine.release(),
    }
    return matters | {"digest": _digest(matters), "setting": setting} | found | dict(more or {})


def alike(planned: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Return whether a record was made in the environment that was planned, as far as that was known."""
    known = set(_MATTER) - set(planned.get("untold", ()))
    return all(planned.get(name) == found.get(name) for name in known)


@functools.cache
def _versions() -> dict[str, str]:
    from importlib import metadata

    installed = {name: metadata.version(name) for name in ("jax", "jaxlib", "numpy")}
    return installed | {"python": machine.python_version(), "ad_scaling": scaling.__version__}


def _digest(matters: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(matters, sort_keys=True).encode()).hexdigest()[:12]


@functools.cache
def source(package: Path = _PACKAGE) -> str:
    """Return a hash of the source of the package, which differs for a modified checkout."""
    whole = hashlib.sha256()
    for path in sorted(p for p in package.rglob("*") if p.suffix in (".py", ".jl", ".toml")):
        whole.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return whole.hexdigest()[:12]


@functools.cache
def commit() -> tuple[str | None, bool | None]:
    """Return the last commit of this package and whether files differ from it; None outside a checkout."""
    here = ("-C", str(_PACKAGE))
    if value := os.environ.get("AD_SCALING_COMMIT"):  # of a copy of a checkout; see study/variants.py
        return value.removesuffix("+dirty"), value.endswith("+dirty")
    if git(*here, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None, None
    changes = git(*here, "status", "--porcelain", "--", ".")
    return git(*here, "log", "-1", "--format=%H", "--", "."), bool(changes)


def git(*words: str, **variables: str) -> str | None:
    """Return the output of git, or None where it fails or is not installed."""
    try:
        done = subprocess.run(
            ["git", *words], capture_output=True, text=True, check=False, env=os.environ | variables
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def node_name() -> str:
    """Return the name of this node: Slurm's, the launcher's, which may split a host, or the host's."""
    return os.environ.get("SLURMD_NODENAME") or os.environ.get("AD_SCALING_NODE") or os.uname().nodename


def processor() -> str:
    """Return the model name of the processor."""
    model = re.search(r"^model name\s*:\s*(.+)$", contents("/proc/cpuinfo") or "", re.MULTILINE)
    return model.group(1).strip() if model else machine.machine()


def governor(bound_to: Sequence[int] | None) -> str | None:
    """Return the frequency governor of these cores, or of all that the process may use; None if unknown."""
    mine = bound_to or sorted(os.sched_getaffinity(0))
    value = {contents(f"/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor") for core in mine}
    return "+".join(sorted(name for name in value if name)) or None


def nvml(name: str, *arguments: Any) -> bool:
    """Call a function of NVIDIA's management library; return whether it succeeded."""
    function = getattr(_nvml(), name, None)
    return function is not None and function(*arguments) == 0


@functools.cache
def _nvml() -> Any:
    """Return the initialised library; None where there is none."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        return library if library.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None


def _driver() -> str | None:
    """Return the version of NVIDIA's driver."""
    version = ctypes.create_string_buffer(80)  # the size that NVML asks for
    return version.value.decode() if nvml("nvmlSystemGetDriverVersion", version, 80) else None


def contents(path: str) -> str | None:
    """Return the text of a file, stripped; None where it cannot be read."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def last_line(text: str, otherwise: str = "no output") -> str:
    """Return the last line of the output of a process, without paths and secrets."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return scrub(lines[-1]) if lines else otherwise


def scrub(text: str) -> str:
    """Return a text without absolute paths, of which the last part stays, and without secrets."""
    text = hide_secrets(text.replace("file://", ""))
    return re.sub(
        r"(?:(?<=-[A-Za-z])|(?<![\w./])(?<!:/))/(?:[^\s/:'\"<>|,;()]+/)+([^\s/:'\"<>|,;()]*)", r"\1", text
    )


def hide_secrets(text: str) -> str:
    """Return a text without the passwords of URLs, and without the value of any secret in the environment.

    A variable is a secret by its name, such as GITHUB_TOKEN. Those that this process started with count too,
    because a user's module may delete them and raise an exception that quotes one.
    """
    for value, name in _secrets():
        text = text.replace(value, f"<{name}>")
    return re.sub(r"//[^/@\s]+@", "//", text)


def _secrets() -> list[tuple[str, str]]:
    """Return (value, name) of every secret, as it may be written in a text; the longest first."""
    found: dict[str, str] = {}
    for name, value in [*_AT_START.items(), *os.environ.items()]:
        if not _SECRET.search(name) or value.strip().isdecimal():
            continue
        quoted = (repr(value)[1:-1], json.dumps(value)[1:-1], urllib.parse.quote_plus(value))
        for written in (value, " ".join(value.split()), *quoted, *value.splitlines()):
            if len(written.strip()) >= _SHORTEST:
                found[written.strip()] = name
    return sorted(found.items(), key=lambda item: -len(item[0]))
