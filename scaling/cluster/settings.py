"""What is asked of a cluster: the values of `conf/cluster/*.yaml`, checked."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from scaling.core.case import Refusal, unknown_name

NONE, LOCAL, SLURM, ALLOCATION, HOSTS = NAMES = ("none", "local", "slurm", "allocation", "hosts")
SUBMISSIONS = "jobs"  # folder of submissions within a results folder
PLATFORMS = ("cpu", "gpu", "tpu")
GPU_OPTIONS = ("gres", "gpus_per_node", "gpus_per_task")  # ways to request GPUs
LISTS = ("setup", "srun", "hosts", "shell")  # fields that hold words
_WHOLE = ("at_once", "attempts", "per_node", "nodes", "cores")
_TEXTS = (
    "partition",
    "account",
    "qos",
    "constraint",
    "exclude",
    "reservation",
    "device_kind",
    "gres",
    "python",
    "container",
    "mpi",
)
_MEMORY_UNITS = {"m": 1, "g": 1024, "t": 1024**2}  # MB, as Slurm counts them
_TIME_UNITS = {"s": 1 / 60, "m": 1.0, "h": 60.0, "d": 1440.0}  # minutes


@dataclass(frozen=True)
class Cluster:
    """Where to run, and what to ask for; the fields are the keys of `conf/cluster/slurm.yaml`, which says what they mean."""

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
        """Whether it runs elsewhere, or later: not in the process that was asked to."""
        return self.name in (LOCAL, SLURM)

    @property
    def untold(self) -> tuple[str, ...]:
        """What of the environment cannot be known without running there."""
        loaded = ("xla_flags", "glibc_tunables") if self.setup else ()
        return (*loaded, *(("versions",) if self.python or self.container else ()))

    @property
    def srun_words(self) -> tuple[str, ...]:
        """What every srun is told beside the shape of a step."""
        return (*([f"--container-image={self.container}"] if self.container else []), *self.srun)


def from_config(config: Any) -> Cluster:
    """The settings of a composed configuration; a value that cannot be meant is a `Refusal`."""
    if isinstance(config, Mapping) and config.get("name") is None:
        raise Refusal(
            "the file of the cluster has no `name`: add the line `defaults: [slurm]` at its top, or name: slurm"
        )
    if not isinstance(config, Mapping) or config.get("name") not in NAMES:
        raise unknown_name("cluster", config.get("name") if isinstance(config, Mapping) else config, NAMES)
    known = [f.name for f in fields(Cluster)]
    for name in config:
        if name not in known:
            raise unknown_name(f"key of cluster={config['name']}", name, known)
    given = {name: _checked(name, value) for name, value in config.items()}
    cluster = Cluster(**{name: value for name, value in given.items() if value is not None})
    if cluster.gpu_option != "gres" and cluster.gres.split(":")[0] != "gpu":
        asked = f"cluster.gpu_option={cluster.gpu_option}"
        raise Refusal(
            f"{asked} requests a gpu, not cluster.gres={cluster.gres}: take cluster.gpu_option=gres"
        )
    return cluster


def _checked(name: str, value: Any) -> Any:
    """One value as its field holds it."""

    def wrong(what: str, more: str = "") -> Refusal:
        return Refusal(f"cluster.{name} must be {what}, not {value!r}{more}")

    if name == "platform" and value not in PLATFORMS:
        raise unknown_name("cluster.platform", value, PLATFORMS)
    if name == "setup" and isinstance(value, str):
        value = [line for line in value.splitlines() if line.strip()]
    if (
        name == "partition"
        and isinstance(value, list)
        and value
        and all(isinstance(each, str) for each in value)
    ):
        value = ",".join(value)  # as Slurm writes several partitions
    if name in LISTS:
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            example = (
                "shell lines, such as [module load cuda]" if name == "setup" else "words, such as [--verbose]"
            )
            raise wrong(f"a list of {example}")
        return tuple(value)
    if name == "sbatch":
        if not isinstance(value, Mapping):
            raise wrong("a mapping of options, such as {wckey: study}")
        return tuple((str(option), each) for option, each in value.items())
    if name == "exclusive" and not isinstance(value, bool):
        raise wrong("true or false")
    if value is None:
        return None
    if name in _TEXTS:
        if isinstance(value, bool | list | dict) or not str(value).strip():
            raise wrong(
                "a name, or a list of names such as [gpu, gpu_long]" if name == "partition" else "a name"
            )
        return str(value)
    if name == "gpu_option" and value not in GPU_OPTIONS:
        raise unknown_name("cluster.gpu_option", value, GPU_OPTIONS)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if name in _WHOLE and not (number and isinstance(value, int) and value >= 1):
        raise wrong("a positive integer")
    if name == "time":
        if (minutes := parse_minutes(value)) is None:
            raise wrong("a positive number of minutes", " (or a time such as 2h, 02:00:00 or 1-12:00:00)")
        return minutes
    if name == "memory":
        if (megabytes := parse_megabytes(value)) is None:
            raise wrong("a positive number of GB", " (or an amount such as 4GB or 4000MB)")
        return megabytes
    if name == "fill" and not (number and 0 < value <= 1):
        raise wrong("a part of the time, more than 0 and at most 1")
    return value


def parse_minutes(value: Any) -> float | None:
    """Return a time limit in minutes; None if the value is not a positive time.

    value: a number of minutes, a number with a unit (`90min`, `2h`, `1.5d`), or one of Slurm's formats: `MM`, `MM:SS`,
    `HH:MM:SS`, `D-HH`, `D-HH:MM`, `D-HH:MM:SS`.
    """
    text = "" if isinstance(value, bool) else str(value).strip()
    if match := re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(s|sec|m|min|h|hours?|d|days?)?", text):
        minutes = float(match.group(1)) * _TIME_UNITS[(match.group(2) or "m")[0]]
    elif match := re.fullmatch(r"(\d+)-(\d+)(?::(\d+))?(?::(\d+))?", text):
        days, hours, rest, seconds = (int(part or 0) for part in match.groups())
        minutes = (days * 24 + hours) * 60 + rest + seconds / 60
    elif match := re.fullmatch(r"(?:(\d+):)?(\d+):(\d+)", text):
        hours, rest, seconds = (int(part or 0) for part in match.groups())
        minutes = hours * 60 + rest + seconds / 60
    else:
        return None
    return minutes if 0 < minutes < 1e6 else None


def parse_megabytes(value: Any) -> int | None:
    """Return an amount of memory in Slurm's MB, of which 1024 are a GB; None if the value is not a positive amount.

    value: a number of GB, or a number with a unit: `4GB`, `4G`, `4GiB`, `4000MB`, `4000M`, `1.5TB`.
    """
    text = "" if isinstance(value, bool) else str(value).strip()
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(?:([mgt])(?:i?b)?)?", text, re.IGNORECASE)
    if match is None:
        return None
    megabytes = round(float(match.group(1)) * _MEMORY_UNITS[(match.group(2) or "g").lower()])
    return megabytes if 0 < megabytes < 1e9 else None
