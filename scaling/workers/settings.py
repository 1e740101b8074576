"""Settings: how a study is run: how long a case is sampled, how often, in which order, on which cores.

Does not know cases, nor where they run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from scaling.core.case import Refusal, unknown_name
from scaling.core.timing import Sampling
from scaling.workers.machine import EACH

_MOST = 1e8  # of any setting
_VERSUS = 5  # replicates, where two variants are compared
_NESTED = 3  # replicates, where all device counts share an allocation


@dataclass(frozen=True)
class RunSettings:
    """How a study is run."""

    sampling: Sampling = field(default_factory=Sampling)
    bind: bool = True
    oversubscribe: bool = False
    case_seconds: float = 600.0
    order_seed: int = 0
    replicates: int = 1
    processes: int | str | None = None  # of a case: a number, or one for each "device" or (None) node
    max_cases: int = 100_000  # a larger study is refused
    attempts: int | None = None  # in all, where a final failure is not tried again; None: any failure is

    @classmethod
    def from_config(cls, config: Mapping[str, Any], attempts: int | None = None) -> "RunSettings":
        """Return the settings of a composed configuration; a value that is not allowed is refused."""
        for name in ("bind", "oversubscribe", "dry_run", "nested", "wait", "retry"):
            if not isinstance(config[name], bool) and not (name == "wait" and config[name] is None):
                raise Refusal(f"{name} must be true or false, not {config[name]!r}")
        processes = config["processes"]
        return cls(
            sampling=_sampling(config["sampling"]),
            bind=config["bind"],
            oversubscribe=config["oversubscribe"],
            case_seconds=_number("case_seconds", config["case_seconds"], 0.001),
            order_seed=_number("order_seed", config["order_seed"], 0, whole=True),
            replicates=_number("replicates", _replicates(config), 1, whole=True),
            processes=processes
            if processes in (None, EACH)
            else _number("processes", processes, 1, whole=True),
            max_cases=_number("max_cases", config["max_cases"], 1, whole=True),
            attempts=attempts,
        )


def _sampling(given: Any) -> Sampling:
    if not isinstance(given, Mapping):
        raise Refusal(f"sampling must be a mapping such as {{seconds: 1.0}}, not {given!r}")
    known = [each.name for each in fields(Sampling)]
    for name in given:
        if name not in known:
            raise unknown_name("key of sampling", name, known)
    return Sampling(
        width=_number("sampling.width", given["width"], 0.0),
        least=_number("sampling.least", given["least"], 1, whole=True),
        most=_number("sampling.most", given["most"], given["least"], whole=True),
        seconds=_number("sampling.seconds", given["seconds"], 0.0),
        warm_up=_number("sampling.warm_up", given["warm_up"], 0.0),
        turns=_number("sampling.turns", given["turns"], 1, whole=True),
        compilations=_number("sampling.compilations", given["compilations"], 1, whole=True),
    )


def _number(name: str, value: Any, least: float, whole: bool = False) -> Any:
    kinds = (int,) if whole else (int, float)
    bound = f" and at most {_MOST:g}" if isinstance(value, kinds) and value > _MOST else ""
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= _MOST:
        raise Refusal(
            f"{name} must be {'an integer' if whole else 'a number'}, {least:g} or more{bound}, not {value!r}"
        )
    return value


def _replicates(config: Mapping[str, Any]) -> Any:
    """Return the number of replicates; the default depends on `versus` and `nested`."""
    asked = config["replicates"]
    if config["nested"] and isinstance(asked, int) and asked < _NESTED:
        raise Refusal(
            f"nested=true takes at least {_NESTED} blocks of each device count: "
            f"replicates={asked} are too few"
        )
    default = _VERSUS if config["versus"] is not None else _NESTED if config["nested"] else 1
    return default if asked is None else asked
