"""Describe the environment of a run: versions, git commit, CPU, free memory, cgroups; hide secrets."""

import functools
import hashlib
import os
import platform as machine
import re
import resource
import socket
import subprocess
import urllib.parse
from collections.abc import Mapping, Sequence
from json import dumps  # bound here, because a user's module may replace them
from pathlib import Path
from typing import Any

import scaling
from scaling.core import load_option

_PACKAGE = Path(__file__).parents[1]
# The fields that the digest hashes: records that differ in one of them are not comparable.
DIGEST_FIELDS = (
    "versions", "platform", "device_kind", "xla_flags", "glibc_tunables", "jax_settings", "commit", "dirty",
    "source", "workload_digest", "bound", "driver", "processes", "engine", "hardware",
)  # fmt: skip
# Environment variables that change the compiled programs or how they run. Workers do not change them.
PROGRAM_VARIABLES = (
    "JAX_CPU_ENABLE_ASYNC_DISPATCH", "JAX_DEBUG_INFS", "JAX_DEBUG_NANS", "JAX_DEFAULT_MATMUL_PRECISION",
    "JAX_DISABLE_JIT", "JAX_DISABLE_MOST_OPTIMIZATIONS", "JAX_ENABLE_PGLE",
    "JAX_EXEC_TIME_OPTIMIZATION_EFFORT", "JAX_OPTIMIZATION_LEVEL", "JAX_USE_SHARDY_PARTITIONER",
    "LIBTPU_INIT_ARGS", "NPROC", "NVIDIA_TF32_OVERRIDE", "PJRT_NPROC", "XLA_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_ALLOCATOR", "XLA_PYTHON_CLIENT_MEM_FRACTION",
)  # fmt: skip
_OLDEST_JAX = (0, 10)
_WRONG_FUSION = "xla_cpu_experimental_ynn_fusion_type"
OVERSUBSCRIBE_ADVICE = "oversubscribe=true allows it (results are checked, scaling curves omit them)"
_CGROUPS = Path("/sys/fs/cgroup")
_VARIABLES_AT_START = dict(os.environ)
_MIN_SECRET_CHARACTERS = 6  # a shorter value, such as "true", occurs in ordinary text
_SECRET_WORD = (
    r"(?:key|token|secret|passw|passphrase|credential|auth(?!or)|cookie|private|_(?:pwd|pass|pat|dsn)\b)"
)
_SECRET_ASSIGNMENT = re.compile(  # a word that contains a secret word, and a value that is not a number
    rf"""\b(?=\w*{_SECRET_WORD})(\w+)=(?!=|\d+(?!\S))("[^"]{{4,}}"|'[^']{{4,}}'|\S{{6,}})""", re.IGNORECASE
)
_ABSOLUTE_PATH = re.compile(
    r"(?:(?<=-[A-Za-z])|(?<![\w./])(?<!:/))/(?:[^\s/:'\"<>|,;()]+/)+([^\s/:'\"<>|,;()]*)"
)


def fusion_options() -> dict[str, str]:
    """Return a dict with the XLA option that disables a fusion with wrong results on CPUs.

    The dict is empty if jaxlib is not version 0.10, or if XLA_FLAGS already sets this option.
    """
    from importlib import metadata  # the import takes 40 ms, and `status` does not need it

    is_chosen = _WRONG_FUSION in os.environ.get("XLA_FLAGS", "")
    return {_WRONG_FUSION: ""} if metadata.version("jaxlib").startswith("0.10.") and not is_chosen else {}


def why_jax_is_too_old() -> str | None:
    """Return an error message if this package requires a newer JAX than the installed one, otherwise None."""
    from importlib import metadata

    version, oldest = metadata.version("jax"), ".".join(map(str, _OLDEST_JAX))
    is_old = tuple(map(int, version.split(".")[:2])) < _OLDEST_JAX
    return f"JAX {version} on {node_name()} is too old: install jax>={oldest}" if is_old else None


def variables(platform: str) -> dict[str, str]:
    """Return a worker's environment variables for XLA, glibc and JAX. The user's settings are kept."""
    xla, glibc = os.environ.get("XLA_FLAGS", ""), os.environ.get("GLIBC_TUNABLES", "")
    if platform == "cpu":
        xla = " ".join([xla, *(f"--{name}={value}" for name, value in fusion_options().items())]).strip()
        # Each call allocates its temporaries again, which is faster with huge pages.
        glibc = glibc or "glibc.malloc.hugetlb=1"
    jax_settings = {name: os.environ[name] for name in PROGRAM_VARIABLES if name in os.environ}
    return {"XLA_FLAGS": xla, "GLIBC_TUNABLES": glibc} | jax_settings


def describe(
    platform: str,
    device_kind: str | None,
    started_with: Mapping[str, str],
    workload_digest: str | None,
    bound_to: Sequence[int] | None,
    engine: Mapping[str, str | None] | None = None,
    processes: int | str | None = None,
    more: Mapping[str, Any] | None = None,
    hardware: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return a dict that describes the environment of a run, such as versions, device and commit.

    The items "digest" and "setting" are hashes. Runs with the same digest are comparable. "setting" does not
    depend on `engine`, the package versions of an AD library other than JAX. `started_with` contains the
    environment variables at the start of the process. `bound_to` lists the CPU cores of the process.
    `processes` is the requested number of processes. `hardware` describes the machine whose times are
    predicted. `more` contains additional items.
    """
    commit_hash, dirty = commit()
    description: dict[str, Any] = {
        "versions": _versions(), "platform": platform, "bound": bound_to is not None,
        "device_kind": processor() if platform == "cpu" and not hardware else device_kind,
        "xla_flags": scrub(started_with.get("XLA_FLAGS", "")),
        "glibc_tunables": started_with.get("GLIBC_TUNABLES", ""),
        "commit": commit_hash, "dirty": dirty, "source": package_hash(), "workload_digest": workload_digest,
        "driver": None if platform != "gpu" or hardware else load_option("host_monitor").driver_version(),
        "hosts": [socket.gethostname()], "cores": list(bound_to) if bound_to else None,
        "load": round(os.getloadavg()[0], 2), "governor": cpu_governor(bound_to), "kernel": machine.release(),
    }  # fmt: skip
    jax_settings = {name: scrub(started_with[name]) for name in PROGRAM_VARIABLES if name in started_with}
    description |= {"jax_settings": jax_settings} if jax_settings else {}
    description |= {"hardware": dict(hardware)} if hardware else {}
    description |= {"processes": processes} if processes not in (None, 1) else {}
    setting = _digest(description)
    description |= {"engine": dict(engine)} if engine else {}
    return description | {"digest": _digest(description), "setting": setting} | dict(more or {})


@functools.cache
def _versions() -> dict[str, str]:
    from importlib import metadata

    installed = {name: metadata.version(name) for name in ("jax", "jaxlib", "numpy")}
    return installed | {"python": machine.python_version(), "ad_scaling": scaling.__version__}


def _digest(environment: Mapping[str, Any]) -> str:
    hashed = {name: environment[name] for name in DIGEST_FIELDS if name in environment}
    return hashlib.sha256(dumps(hashed, sort_keys=True).encode()).hexdigest()[:12]


@functools.cache
def package_hash(package: Path = _PACKAGE) -> str:
    """Return a hash of the source files of this package and their names."""
    source_hash = hashlib.sha256()
    for path in sorted(path for path in package.rglob("*") if path.suffix in (".py", ".jl", ".toml")):
        source_hash.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return source_hash.hexdigest()[:12]


@functools.cache
def commit() -> tuple[str | None, bool | None]:
    """Return the hash of the package's last git commit, and whether files have changed since.

    Both are None if they are unknown.
    """
    in_package = ("-c", "safe.directory=*", "-C", str(_PACKAGE))  # another user may own the checkout
    if recorded := os.environ.get("AD_SCALING_COMMIT"):  # set for a copy of a checkout, see study/variants.py
        return recorded.removesuffix("+dirty"), recorded.endswith("+dirty")
    if run_git(*in_package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None, None
    changes = run_git(*in_package, "status", "--porcelain", "--", ".")
    return run_git(*in_package, "log", "-1", "--format=%H", "--", "."), bool(changes)


def run_git(*arguments: str, **variables: str) -> str | None:
    """Run git, and return its standard output, or None if it fails. `variables` extend its environment."""
    # A hook of git sets variables that name another repository.
    env = {k: v for k, v in os.environ.items() if not re.match("GIT_(DIR|INDEX|WORK_TREE)", k)} | variables
    try:
        completed = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False, env=env)
    except OSError:
        return None
    return completed.stdout.strip() if completed.returncode == 0 else None


def node_name() -> str:
    """Return the name of this node, from an environment variable or from `os.uname`."""
    return os.environ.get("SLURMD_NODENAME") or os.environ.get("AD_SCALING_NODE") or os.uname().nodename


def processor() -> str:
    """Return the model name of the processor, or the architecture if the name is unknown."""
    model = re.search(r"^model name\s*:\s*(.+)$", read_text("/proc/cpuinfo") or "", re.MULTILINE)
    return model.group(1).strip() if model else machine.machine()


def cpu_governor(bound_to: Sequence[int] | None) -> str | None:
    """Return the frequency governor of the CPU cores `bound_to`, or None if it is unknown.

    Different governors are joined by "+", such as "performance+powersave".
    """
    cores = bound_to or sorted(os.sched_getaffinity(0))  # by default, all cores of this process
    governors = {read_text(f"/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor") for core in cores}
    return "+".join(sorted(name for name in governors if name)) or None


def read_text(path: str) -> str | None:
    """Return the stripped text of a file such as /proc/meminfo, or None if it cannot be read."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def available_bytes(idle: bool = False) -> int | None:
    """Return the bytes of memory that this process can still allocate, or None if they are unknown.

    If `idle` is true, memory that is in use counts as free.
    """
    name = "MemTotal" if idle else "MemAvailable"
    meminfo_line = re.search(rf"^{name}:\s+(\d+) kB", read_text("/proc/meminfo") or "", re.MULTILINE)
    free_bytes = [int(meminfo_line.group(1)) * 1024] if meminfo_line else []
    for folder in cgroup_folders():  # Slurm limits a job in a parent folder
        limit_bytes = read_text(f"{folder}/memory.max") or read_text(f"{folder}/memory.limit_in_bytes")
        used_bytes = read_text(f"{folder}/memory.current") or read_text(f"{folder}/memory.usage_in_bytes")
        if limit_bytes and limit_bytes.isdigit() and used_bytes:
            cached = re.findall(r"inactive_file (\d+)", read_text(f"{folder}/memory.stat") or "") or [0]
            in_use = 0 if idle else int(used_bytes) - int(cached[-1])
            free_bytes.append(int(limit_bytes) - in_use)
    return min(free_bytes, default=None)


def cgroup_folders() -> list[Path]:
    """Return the cgroup folders of this process (v2 and v1), and all their parent folders."""
    cgroups = re.findall(r"^\d+:(|memory|cpu|cpu,cpuacct):/(.*)", read_text("/proc/self/cgroup") or "", re.M)
    folders = [_CGROUPS / mount / path for mount, path in cgroups or [("", "")]]  # some may not exist
    return [parent for folder in folders for parent in (folder, *folder.parents)]


def limit_process() -> None:
    """Limit the memory that this process may still allocate to 95 % of the free memory."""
    data_segment = re.search(r"^VmData:\s+(\d+) kB", read_text("/proc/self/status") or "", re.MULTILINE)
    if data_segment and (free := available_bytes()):
        limit = int(data_segment.group(1)) * 1024 + free - free // 20
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = limit if soft == resource.RLIM_INFINITY else min(limit, soft)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def is_out_of_memory(text: str) -> bool:
    """Return whether an error message of Python, XLA or native code says that memory ran out."""
    phrases = ("memoryerror", "resource_exhausted", "out of memory", "bad_alloc", "cannot allocate memory")
    return any(phrase in text.lower() for phrase in phrases)


def scrub(text: str) -> str:
    """Return `text` without secrets, and with the file name in place of each absolute path."""
    return _ABSOLUTE_PATH.sub(r"\1", hide_secrets(text.replace("file://", "")))


def hide_secrets(text: str) -> str:
    """Return `text` with each secret replaced by its name, and without credentials in URLs.

    A secret is the value of an environment variable such as HF_TOKEN, or abcdef in the text HF_TOKEN=abcdef.
    """
    for value, name in _find_secrets(tuple(os.environ.items())):
        text = text.replace(value, f"<{name}>")
    return re.sub(r"//[^/@\s]+@", "//", _SECRET_ASSIGNMENT.sub(r"\1=<\1>", text))


@functools.lru_cache(maxsize=1)  # a worker may print many lines
def _find_secrets(variables: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
    """Return pairs (secret or its quoted form, name of its variable). The longest secrets come first."""
    names: dict[str, str] = {}
    # A variable may have been deleted since the start of the process.
    for name, value in [*_VARIABLES_AT_START.items(), *variables]:
        if not re.search(_SECRET_WORD, name, re.IGNORECASE) or value.strip().isdecimal():
            continue
        quoted = (repr(value)[1:-1], dumps(value)[1:-1], urllib.parse.quote_plus(os.fsencode(value)))
        for text in (value, " ".join(value.split()), *quoted, *value.splitlines()):
            if len(text.strip()) >= _MIN_SECRET_CHARACTERS:
                names[text.strip()] = name
    return sorted(names.items(), key=lambda item: -len(item[0]))
