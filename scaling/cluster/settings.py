"""What is asked of a cluster: the values of `conf/cluster/*.yaml`, checked."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from scaling.case import Refusal, unknown

NONE, LOCAL, SLURM, ALLOCATION, HOSTS = NAMES = ("none", "local", "slurm", "allocation", "hosts")
PLATFORMS = ("cpu", "gpu", "tpu")
LISTS = ("setup", "srun", "hosts", "shell")  # fields that hold words
_WHOLE = ("at_once", "attempts", "per_node", "nodes", "cores")
_TEXTS = ("partition", "account", "qos", "constraint", "exclude", "reservation", "device_kind", "gres", "python", "container")


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
    cores: int | None = None
    memory: float | None = None  # GB
    exclusive: bool = False
    setup: tuple[str, ...] = ()
    python: str | None = None
    container: str | None = None
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
    if not isinstance(config, Mapping) or config.get("name") not in NAMES:
        raise unknown("cluster", config.get("name") if isinstance(config, Mapping) else config, NAMES)
    known = {f.name for f in fields(Cluster)}
    for name in config:
        if name not in known:
            raise unknown(f"key of cluster={config['name']}", name, known)
    given = {name: _checked(name, value) for name, value in config.items()}
    return Cluster(**{name: value for name, value in given.items() if value is not None})


def _checked(name: str, value: Any) -> Any:
    """One value as its field holds it."""

    def wrong(what: str) -> Refusal:
        return Refusal(f"cluster.{name} must be {what}, not {value!r}")

    if name == "platform" and value not in PLATFORMS:
        raise unknown("cluster.platform", value, PLATFORMS)
    if name in LISTS:
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise wrong("a list of words, such as [--verbose]")
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
            raise wrong("a name")
        return str(value)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if name in _WHOLE and not (number and isinstance(value, int) and value >= 1):
        raise wrong("a positive integer")
    if name in ("time", "memory") and not (number and 0 < value < 1e6):
        raise wrong("a positive number" + (" of minutes" if name == "time" else " of GB"))
    if name == "fill" and not (number and 0 < value <= 1):
        raise wrong("a part of the time, more than 0 and at most 1")
    return value
