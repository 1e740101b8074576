"""The settings of a cluster: the values of `conf/cluster/*.yaml`, checked."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from scaling.core.case import Refusal, unknown_name

NONE, LOCAL, SLURM, ALLOCATION, HOSTS = NAMES = ("none", "local", "slurm", "allocation", "hosts")
SUBMISSIONS = "jobs"  # folder of submissions within a results folder
REJECTED = "rejected.txt"  # in a results folder: why the last submission was rejected
PLATFORMS = ("cpu", "gpu", "tpu")
GPU_OPTIONS = ("gres", "gpus_per_node", "gpus_per_task")  # ways to request GPUs
LISTS = ("setup", "srun", "hosts", "shell")  # fields that hold words
_MEMORY_UNITS = {"m": 1, "g": 1024, "t": 1024**2}  # MB, as Slurm counts them
_TIME_UNITS = {"s": 1 / 60, "m": 1.0, "h": 60.0, "d": 1440.0}  # minutes


@dataclass(frozen=True)
class Cluster:
    """Where to run, and what to request; `conf/cluster/slurm.yaml` explains the fields."""

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
    memory: int | None = None  # MB of a node, as Slurm counts them
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
        """Return whether the study runs in other processes than the one that was started, maybe later."""
        return self.name in (LOCAL, SLURM)

    @property
    def untold(self) -> tuple[str, ...]:
        """Return the fields of the environment that only a process there can know."""
        loaded = ("xla_flags", "glibc_tunables") if self.setup else ()
        return (*loaded, *(("versions",) if self.python or self.container else ()))

    @property
    def srun_words(self) -> tuple[str, ...]:
        """Return the options of every srun, without those of the shape of a step."""
        return (*([f"--container-image={self.container}"] if self.container else []), *self.srun)


def from_config(config: Any) -> Cluster:
    """Return the settings of a composed configuration; a `Refusal` for a value that is not allowed."""
    name = config.get("name") if isinstance(config, Mapping) else config
    if isinstance(config, Mapping) and name is None:
        raise Refusal(
            "the file of the cluster has no `name`: "
            "add the line `defaults: [slurm]` at its top, or name: slurm"
        )
    if not isinstance(config, Mapping) or name not in NAMES:
        raise unknown_name("cluster", name, NAMES)
    known = [field.name for field in fields(Cluster)]
    for key in config:
        if key not in known:
            raise unknown_name(f"key of cluster={name}", key, known)
    values = {key: _parse(key, value) for key, value in config.items()}
    cluster = Cluster(**{key: value for key, value in values.items() if value is not None})
    if cluster.gpu_option != "gres" and cluster.gres.split(":")[0] != "gpu":
        request = f"cluster.gpu_option={cluster.gpu_option} requests a gpu, not cluster.gres={cluster.gres}"
        raise Refusal(f"{request}: take cluster.gpu_option=gres")
    return cluster


def _parse(key: str, value: Any) -> Any:
    """Return a value as its field holds it; None where the default holds."""
    choices = {"platform": PLATFORMS, "gpu_option": (None, *GPU_OPTIONS)}.get(key)
    if choices and value not in choices:
        raise unknown_name(f"cluster.{key}", value, [each for each in choices if each])
    if key not in _PARSERS or (value is None and key not in _NEVER_NULL):
        return value
    parser, expected = _PARSERS[key]
    parsed = parser(value)
    if parsed is None:
        raise Refusal(f"cluster.{key} must be {expected}, not {value!r}{_FORMATS.get(key, '')}")
    return parsed


# Parsers of the values of fields: each returns None for a value that is not allowed.


def _parse_count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 1 else None


def _parse_name(value: Any) -> str | None:
    return None if isinstance(value, bool | list | dict) or not str(value).strip() else str(value)


def _parse_partitions(value: Any) -> str | None:
    names = _parse_words(value)
    return ",".join(names) if names else _parse_name(value)


def _parse_words(value: Any) -> tuple[str, ...] | None:
    is_words = isinstance(value, list) and all(isinstance(word, str) for word in value)
    return tuple(value) if is_words else None


def _parse_shell_lines(value: Any) -> tuple[str, ...] | None:
    if isinstance(value, str):
        return tuple(line for line in value.splitlines() if line.strip())
    return _parse_words(value)


def _parse_options(value: Any) -> tuple[tuple[str, Any], ...] | None:
    return tuple((str(name), each) for name, each in value.items()) if isinstance(value, Mapping) else None


def _parse_flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _parse_fraction(value: Any) -> float | None:
    return (
        value if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1 else None
    )


def parse_minutes(value: Any) -> float | None:
    """Return a time in minutes; None if the value is not a positive time.

    value: a number of minutes, a number with a unit (`90min`, `2h`, `1.5d`), or one of Slurm's formats: `MM`,
    `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM`, `D-HH:MM:SS`.
    """
    text = "" if isinstance(value, bool) else str(value).strip()
    if match := re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(s|sec|m|min|h|hours?|d|days?)?", text):
        minutes = float(match.group(1)) * _TIME_UNITS[(match.group(2) or "m")[0]]
    elif re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", text):
        days, dash, clock = text.rpartition("-")
        numbers = [int(number) for number in clock.split(":")]
        missing = [0] * (
            3 - len(numbers)
        )  # after days the first number is hours, otherwise the last is seconds
        hours, rest, seconds = [*numbers, *missing] if dash else [*missing, *numbers]
        minutes = (int(days or 0) * 24 + hours) * 60 + rest + seconds / 60
    else:
        return None
    return minutes if 0 < minutes < 1e6 else None


def parse_megabytes(value: Any) -> int | None:
    """Return an amount of memory in Slurm's MB, 1024 in a GB; None if the value is not a positive amount.

    value: a number of GB, or a number with a unit: `4GB`, `4G`, `4GiB`, `4000MB`, `4000M`, `1.5TB`.
    """
    text = "" if isinstance(value, bool) else str(value).strip()
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(?:([mgt])(?:i?b)?)?", text, re.IGNORECASE)
    if match is None:
        return None
    megabytes = round(float(match.group(1)) * _MEMORY_UNITS[(match.group(2) or "g").lower()])
    return megabytes if 0 < megabytes < 1e9 else None


_PARSERS: dict[str, tuple[Callable[[Any], Any], str]] = {  # field -> its parser, and what a value must be
    **dict.fromkeys(
        ("at_once", "attempts", "per_node", "nodes", "cores"), (_parse_count, "a positive integer")
    ),
    **dict.fromkeys(
        (
            "account", "qos", "constraint", "exclude", "reservation", "device_kind", "gres", "python",
            "container", "mpi",
        ),
        (_parse_name, "a name"),
    ),
    **dict.fromkeys(("srun", "hosts", "shell"), (_parse_words, "a list of words, such as [--verbose]")),
    "partition": (_parse_partitions, "a name, or a list of names such as [gpu, gpu_long]"),
    "setup": (_parse_shell_lines, "a list of shell lines, such as [module load cuda]"),
    "sbatch": (_parse_options, "a mapping of options, such as {wckey: study}"),
    "exclusive": (_parse_flag, "true or false"),
    "time": (parse_minutes, "a positive number of minutes"),
    "memory": (parse_megabytes, "a positive number of GB"),
    "fill": (_parse_fraction, "a part of the time, more than 0 and at most 1"),
}  # fmt: skip
_FORMATS = {
    "time": " (or a time such as 2h, 02:00:00 or 1-12:00:00)",
    "memory": " (or an amount such as 4GB or 4000MB)",
}
_NEVER_NULL = ("setup", "srun", "hosts", "shell", "sbatch", "exclusive")
