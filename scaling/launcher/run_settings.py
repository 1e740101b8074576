"""Define `RunSettings` (sampling, replicates, processes, time limit), and check the values of a config."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from scaling.core.case import Refusal, check_names, check_value
from scaling.core.timing import Sampling
from scaling.launcher.machine import ONE_PER_DEVICE
from scaling.results.store import MAX_REPLICATES

_MAX_NUMBER = 1e8  # largest valid value of a numeric setting, except `replicates`
_COMPARISON_REPLICATES = 5  # default if two programs are compared
_NESTED_REPLICATES = 3  # default and minimum if all device counts share one allocation
_BOOLEAN_SETTINGS = ("bind", "oversubscribe", "dry_run", "nested", "wait", "retry")
_NUMERIC_SETTINGS = {  # numeric setting -> (minimum, whether the setting is an integer)
    "case_seconds": (0.001, False), "order_seed": (0, True), "replicates": (1, True),
    "processes": (1, True), "max_cases": (1, True), "sampling.width": (0, False), "sampling.least": (1, True),
    "sampling.most": (1, True), "sampling.seconds": (0, False), "sampling.warm_up": (0, False),
    "sampling.turns": (1, True),
}  # fmt: skip


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run. They apply to all cases of the study."""

    sampling: Sampling = field(default_factory=Sampling)  # rule for the number of samples
    bind: bool = True  # whether each process on a CPU is bound to as many cores as it has devices
    oversubscribe: bool = False  # whether a case may have more devices than the host has cores
    case_seconds: float = 600.0  # time limit of a case in seconds
    order_seed: int = 0  # seed of the random order of the cases
    replicates: int = 1  # number of times that every case is measured, each time in a new process
    processes: int | str | None = None  # number per case, "device" for one per device, None for one per node
    max_cases: int = 100_000  # maximum number of cases. A larger study is rejected.
    attempts: int | None = None  # maximum per case, or None to retry every failed case in each run

    @classmethod
    def from_config(cls, config: Mapping[str, Any], attempts: int | None = None) -> "RunSettings":
        """Return the settings in the Hydra configuration `config`. Raise `Refusal` if a value is invalid.

        `attempts` is the maximum number of attempts per case. None means that each run retries every failed
        case.
        """
        for name in _BOOLEAN_SETTINGS:
            is_valid = isinstance(config[name], bool) or (name == "wait" and config[name] is None)
            check_value(name, config[name], is_valid, "true or false")
        sampling = config["sampling"]
        check_value("sampling", sampling, isinstance(sampling, Mapping), "a mapping such as {seconds: 1.0}")
        check_names("key of sampling", sampling, [setting.name for setting in fields(Sampling)])
        values = {**config, "replicates": _choose_replicates(config)}
        values |= {f"sampling.{name}": value for name, value in sampling.items()}
        for name, (minimum, is_integer) in _NUMERIC_SETTINGS.items():
            least = sampling["least"] if name == "sampling.most" else minimum
            if (name, values[name]) not in (("processes", None), ("processes", ONE_PER_DEVICE)):
                _check_number(name, values[name], least, is_integer)
        configured = {setting.name: values[setting.name] for setting in fields(cls) if setting.name in values}
        return cls(**configured | {"sampling": Sampling(**sampling), "attempts": attempts})


def _check_number(name: str, value: Any, minimum: float, is_integer: bool) -> None:
    types = (int,) if is_integer else (int, float)
    maximum = MAX_REPLICATES if name == "replicates" else _MAX_NUMBER
    bound = f" and at most {maximum:g}" if isinstance(value, types) and value > maximum else ""
    kind = "an integer" if is_integer else "a number"
    kind = f"{ONE_PER_DEVICE} or {kind}" if name == "processes" else kind
    is_number = isinstance(value, types) and not isinstance(value, bool)
    is_valid = is_number and minimum <= value <= maximum
    check_value(name, value, is_valid, f"{kind}, {minimum:g} or more{bound}")


def _choose_replicates(config: Mapping[str, Any]) -> Any:
    replicates, default = config["replicates"], _NESTED_REPLICATES if config["nested"] else 1
    if config["nested"] and isinstance(replicates, int) and replicates < _NESTED_REPLICATES:
        raise Refusal(
            f"nested=true needs at least {_NESTED_REPLICATES} replicates of each device count, "
            f"but replicates={replicates}; increase or omit replicates"
        )
    if config["versus"] is not None:
        default = _COMPARISON_REPLICATES
    return default if replicates is None else replicates
