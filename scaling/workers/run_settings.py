"""Settings of a run: sampling, core binding, time limits, replicates, processes per case, and order seed."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from scaling.core.case import Refusal, unknown_name
from scaling.core.timing import Sampling
from scaling.workers.machine import ONE_PER_DEVICE

_MAXIMUM = 1e8  # largest valid value of a numeric setting
_VERSUS_REPLICATES = 5  # default if two programs are compared
_NESTED_REPLICATES = 3  # default and minimum if all device counts share one allocation


@dataclass(frozen=True)
class RunSettings:
    """Settings of a run that apply to every benchmark case of the study."""

    sampling: Sampling = field(default_factory=Sampling)  # rule for the number of samples
    bind: bool = True  # whether each process on a CPU is bound to as many cores as it has devices
    oversubscribe: bool = False  # whether a case may have more devices than the host has cores
    case_seconds: float = 600.0  # time limit of a case in seconds
    order_seed: int = 0  # seed of the random order of the cases
    replicates: int = 1  # number of times that every case is measured, each time in a new process
    processes: int | str | None = None  # number per case, "device" (one per device), or None (one per node)
    max_cases: int = 100_000  # maximum number of cases. A larger study is rejected.
    attempts: int | None = None  # maximum per case, or None to retry every failed case in each run

    @classmethod
    def from_config(cls, config: Mapping[str, Any], attempts: int | None = None) -> "RunSettings":
        """Return the settings in a composed Hydra configuration. Raise `Refusal` if a value is invalid.

        The configuration has no field `attempts`. The argument sets this field.
        """
        for name in ("bind", "oversubscribe", "dry_run", "nested", "wait", "retry"):
            if not isinstance(config[name], bool) and not (name == "wait" and config[name] is None):
                raise Refusal(f"{name} must be true or false, not {config[name]!r}")
        processes = config["processes"]
        return cls(
            sampling=_parse_sampling(config["sampling"]),
            bind=config["bind"],
            oversubscribe=config["oversubscribe"],
            case_seconds=_check_number("case_seconds", config["case_seconds"], 0.001),
            order_seed=_check_number("order_seed", config["order_seed"], 0, whole=True),
            replicates=_check_number("replicates", _choose_replicates(config), 1, whole=True),
            processes=processes
            if processes in (None, ONE_PER_DEVICE)
            else _check_number("processes", processes, 1, whole=True),
            max_cases=_check_number("max_cases", config["max_cases"], 1, whole=True),
            attempts=attempts,
        )


def _parse_sampling(config: Any) -> Sampling:
    if not isinstance(config, Mapping):
        raise Refusal(f"sampling must be a mapping such as {{seconds: 1.0}}, not {config!r}")
    field_names = [field.name for field in fields(Sampling)]
    for name in config:
        if name not in field_names:
            raise unknown_name("key of sampling", name, field_names)
    return Sampling(
        width=_check_number("sampling.width", config["width"], 0.0),
        least=_check_number("sampling.least", config["least"], 1, whole=True),
        most=_check_number("sampling.most", config["most"], config["least"], whole=True),
        seconds=_check_number("sampling.seconds", config["seconds"], 0.0),
        warm_up=_check_number("sampling.warm_up", config["warm_up"], 0.0),
        turns=_check_number("sampling.turns", config["turns"], 1, whole=True),
        compilations=_check_number("sampling.compilations", config["compilations"], 1, whole=True),
    )


def _check_number(name: str, value: Any, minimum: float, whole: bool = False) -> Any:
    kinds = (int,) if whole else (int, float)
    bound = f" and at most {_MAXIMUM:g}" if isinstance(value, kinds) and value > _MAXIMUM else ""
    if isinstance(value, bool) or not isinstance(value, kinds) or not minimum <= value <= _MAXIMUM:
        kind = "an integer" if whole else "a number"
        raise Refusal(f"{name} must be {kind}, {minimum:g} or more{bound}, not {value!r}")
    return value


def _choose_replicates(config: Mapping[str, Any]) -> Any:
    """Return the configured number of replicates or, if it is not set, the default.

    The default is 5 to compare two programs (`versus`), 3 if all device counts share one allocation
    (`nested`), and otherwise 1. Raise `Refusal` if a nested study sets fewer than 3 replicates.
    """
    replicates = config["replicates"]
    if config["nested"] and isinstance(replicates, int) and replicates < _NESTED_REPLICATES:
        raise Refusal(
            f"nested=true needs at least {_NESTED_REPLICATES} replicates of each device count, "
            f"but replicates={replicates}; increase replicates, or leave it out"
        )
    if replicates is not None:
        return replicates
    if config["versus"] is not None:
        return _VERSUS_REPLICATES
    return _NESTED_REPLICATES if config["nested"] else 1
