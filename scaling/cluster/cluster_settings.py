"""Define `ClusterSettings` (partition, time limit, GPUs, ...), and parse the files conf/cluster/*.yaml."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scaling.core.case import Refusal, check_value

NONE, LOCAL, SLURM, ALLOCATION, HOSTS = ("none", "local", "slurm", "allocation", "hosts")
SUBMISSIONS = "jobs"  # subfolder of the results folder that contains the submissions
PLATFORMS = ("cpu", "gpu", "tpu")
GPU_OPTIONS = ("gres", "gpus_per_node", "gpus_per_task")  # options of sbatch that request GPUs
# Options of sbatch by which `scaling` finds its jobs and their logs, and settings that it uses or quotes.
_RESERVED_OPTIONS = {
    "array", "clusters", "error", "job-name", "nodes", "output", "parsable", "partition", "test-only", "time",
}  # fmt: skip
_DECIMAL = r"\d+(?:\.\d*)?|\.\d+"
_MEMORY_UNITS = {"m": 1, "g": 1024, "t": 1024**2}  # unit -> MB
_TIME_UNITS = {"s": 1 / 60, "m": 1.0, "h": 60.0, "d": 1440.0}  # unit -> minutes


@dataclass(frozen=True)
class ClusterSettings:
    """Settings of a cluster and of its jobs. The files conf/cluster/*.yaml explain the fields."""

    name: str = NONE
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    exclude: str | None = None
    reservation: str | None = None
    time: float = 60.0  # minutes
    fill: float = 0.5
    at_once: int | None = None
    attempts: int = 3
    platform: str = "cpu"
    device_kind: str | None = None
    per_node: int | None = None
    nodes: int | None = None
    gres: str = "gpu"
    gpu_option: str = "gres"
    cores: int | None = None
    memory: int | None = None  # MB per node
    exclusive: bool = False
    setup: tuple[str, ...] = ()
    python: str | None = None
    container: str | None = None
    mpi: str | None = None
    srun: tuple[str, ...] = ()
    sbatch: tuple[tuple[str, Any], ...] = ()
    hosts: tuple[str, ...] = ()
    shell: tuple[str, ...] = ()

    @property
    def submits(self) -> bool:
        """Return whether cases run in submitted jobs: Slurm jobs, or one background process on this host."""
        return self.name in (LOCAL, SLURM)

    @property
    def unknown_fields(self) -> tuple[str, ...]:
        """Return the names of the environment fields that are unknown before a job runs.

        Setup commands may change "xla_flags", "glibc_tunables" and "jax_settings". The settings `python` and
        `container` may change "versions" (package versions).
        """
        set_by_setup = ("xla_flags", "glibc_tunables", "jax_settings") if self.setup else ()
        return (*set_by_setup, *(("versions",) if self.python or self.container else ()))

    @property
    def srun_options(self) -> tuple[str, ...]:
        """Return the options to add to every srun command, such as ("--container-image=...",)."""
        return (*([f"--container-image={self.container}"] if self.container else []), *self.srun)


def parse_cluster_settings(config: Mapping[str, Any]) -> ClusterSettings:
    """Return the settings in the group `cluster` of a configuration. Raise `Refusal` if one is invalid."""
    values = {key: _parse_field(key, value) for key, value in config.items()}
    cluster = ClusterSettings(**{key: value for key, value in values.items() if value is not None})
    if cluster.gpu_option != "gres" and cluster.gres.split(":")[0] != "gpu":
        request = f"cluster.gpu_option={cluster.gpu_option} cannot request cluster.gres={cluster.gres}"
        raise Refusal(f"{request}: set cluster.gpu_option=gres")
    return cluster


def _parse_field(key: str, value: Any) -> Any:
    """Convert the value of the setting `key` to the type of its field. None stays None.

    Raise `Refusal` if the value is invalid.
    """
    if value is None:
        return None
    parse, expected = _PARSERS.get(key, (_parse_name, "a name"))
    parsed = parse(value) if isinstance(value, bool) == (key == "exclusive") else None
    check_value(f"cluster.{key}", value, parsed is not None, expected)
    return parsed


# Parsers return None if the value is invalid.


def _parse_name(value: Any) -> str | None:
    is_name = not isinstance(value, list | dict) and str(value).strip() and str(value).isprintable()
    return str(value) if is_name else None


def _parse_word_list(value: Any) -> tuple[str, ...] | None:
    is_words = isinstance(value, list) and all(isinstance(word, str) for word in value)
    return tuple(value) if is_words else None


def _parse_options(value: Any) -> tuple[tuple[str, Any], ...] | None:
    names = {str(name).replace("_", "-") for name in value} if isinstance(value, Mapping) else None
    if names is None or names & _RESERVED_OPTIONS:
        return None
    if any(isinstance(option, Mapping | list) or "\n" in str(option) for option in value.values()):
        return None
    return tuple((str(name).replace("-", "_"), option) for name, option in value.items())


def _parse_minutes(value: Any) -> float | None:
    """Return a positive duration in minutes, or None if `value` is invalid.

    `value` is a number of minutes, a number with a unit ("90min", "2h", "1.5d"), or a time in a Slurm format
    ("02:00:00", "1-12:00:00").
    """
    text = str(value).strip()
    if match := re.fullmatch(rf"({_DECIMAL})\s*(s|sec|m|min|h|hours?|d|days?)?", text):
        minutes = float(match.group(1)) * _TIME_UNITS[(match.group(2) or "m")[0]]
    # MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS
    elif re.fullmatch(r"(\d{1,9}-)?\d{1,9}(:\d{1,9}){0,2}", text):
        days, dash, clock = text.rpartition("-")
        numbers = [int(number) for number in clock.split(":")]
        zeros = [0] * (3 - len(numbers))
        # After days, the first number is hours. Otherwise, the last number is seconds.
        hours, full_minutes, seconds = [*numbers, *zeros] if dash else [*zeros, *numbers]
        minutes = (int(days or 0) * 24 + hours) * 60 + full_minutes + seconds / 60
    else:
        return None
    return minutes if 0 < minutes < 1e6 else None


def _parse_megabytes(value: Any) -> int | None:
    """Return an amount of memory in MB, or None if `value` is invalid.

    `value` is a number of GB, or has a unit ("4GB", "4GiB", "4000MB"). As in Slurm, 1 GB is 1024 MB.
    """
    match = re.fullmatch(rf"({_DECIMAL})\s*(?:([mgt])(?:i?b)?)?", str(value).strip(), re.IGNORECASE)
    megabytes = float(match[1]) * _MEMORY_UNITS[(match[2] or "g").lower()] if match else 0
    return round(megabytes) if 0.5 < megabytes < 1e9 else None


def _choice(names: tuple[str, ...]) -> tuple[Callable[[Any], Any], str]:
    return lambda value: value if value in names else None, f"one of {', '.join(names)}"


_COUNT = (lambda value: value if isinstance(value, int) and value >= 1 else None, "a positive integer")
_WORDS = (_parse_word_list, "a list of words, such as [--verbose]")
_ONE_OR_MORE_NAMES = (
    lambda value: _parse_name(",".join(_parse_word_list(value) or ()) or value),
    "a name, or a list of names such as [a, b]",
)
# Field -> (parser, description of the valid values). All other fields are names.
_PARSERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    **dict.fromkeys(("at_once", "attempts", "per_node", "nodes", "cores"), _COUNT),
    **dict.fromkeys(("srun", "hosts", "shell"), _WORDS),
    "platform": _choice(PLATFORMS),
    "gpu_option": _choice(GPU_OPTIONS),
    **dict.fromkeys(("partition", "exclude"), _ONE_OR_MORE_NAMES),
    "setup": (_parse_word_list, "a list of shell lines, such as [module load cuda]"),
    "sbatch": (
        _parse_options,
        "a mapping of options to single values, such as {wckey: study}, "
        f"without {', '.join(sorted(_RESERVED_OPTIONS))}",
    ),
    "time": (_parse_minutes, "a positive number of minutes, or a time such as 2h, 02:00:00 or 1-12:00:00"),
    "memory": (_parse_megabytes, "a positive number of GB, or an amount such as 4GB or 4000MB"),
    "fill": (
        lambda value: value if isinstance(value, int | float) and 0 < value <= 1 else None,
        "a fraction of the time limit, greater than 0 and at most 1",
    ),
    "exclusive": (lambda value: value, "true or false"),
}
