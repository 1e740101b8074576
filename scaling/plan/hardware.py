"""Read and check conf/hardware/*.yaml: the rates, memory, network and compiler of a machine (`Hardware`).

time_model.py adds the measured rates of a CPU, and predicts run times.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from scaling.core.case import DTYPES, PRECISIONS, Refusal, check_names
from scaling.core.formatting import format_value
from scaling.study.configuration import configuration_folder

SHAPES = ("torus", "switch", "tree")  # topologies of a network level
# Packages by platform. One of them must be installed to compile for the platform.
_COMPILERS = {"tpu": ("libtpu",), "gpu": ("jax-cuda12-plugin", "jax-cuda13-plugin"), "cpu": ("jaxlib",)}


@dataclass(frozen=True)
class Level:
    """A level of the network of a machine, such as NVLink within a host or InfiniBand between hosts."""

    shape: str  # the topology: torus, switch, or tree
    devices: int | None  # the number of devices that the level connects, or None for any number
    bandwidth: float  # bytes per second in one direction, per link of a torus and otherwise per device
    latency: float  # seconds per hop or step
    wraps: int = 1  # a torus axis is a ring if its length is a multiple of this number, otherwise a line


@dataclass(frozen=True)
class Rates:
    """The rates and latencies of one device of a machine while `devices` devices work at the same time.

    Bandwidths are in bytes per second, latencies in seconds, other rates in operations per second.
    """

    devices: int
    bandwidth: tuple[tuple[float, float], ...]  # (bytes that a kernel moves, bytes per second), ascending
    products: Mapping[str, Mapping[str, float | None]]  # dtype -> precision -> rate, None if unknown
    arithmetic: Mapping[str, float | None]  # dtype -> rate of the operations that have no rate of their own
    transcendental: Mapping[str, float | None]  # the rate of divisions, too
    kernel_seconds: float  # the launch latency of a kernel
    call_seconds: Mapping[str, float]  # API, or "" for other APIs -> dispatch latency of an empty function
    network: tuple[Level, ...]  # the levels of the network, innermost first


@dataclass(frozen=True)
class Hardware:
    """A model of a machine, from which run times are predicted. It is read from conf/hardware/*.yaml."""

    name: str
    title: str
    platform: str
    device_kind: str | None  # the `device_kind` of its devices in JAX, or None if unknown
    memory: float | None  # bytes per device; for a CPU, free memory per usable core, or None if unknown
    rates: tuple[Rates, ...]  # one for each number of working devices, ascending; measured on a CPU
    attained: tuple[float, float]  # the least and the largest fraction of the rates that a program reaches
    asking: tuple[float, float]  # the least and the largest factor on the call and kernel latencies
    jitter: float  # the standard deviation of the time of one device, as a fraction of the time
    stragglers: Mapping[str, float]  # the fraction of slower devices (`share`), and their `slowdown`
    per_host: int  # devices per host
    per_chip: int  # devices per chip
    # Torus shapes in chips, beginning with one chip. If empty, a case uses part of a host or whole hosts.
    slices: tuple[tuple[int, ...], ...]
    most: int  # the largest device count
    target: Any  # the target of the compiler: a GPU target configuration, or the libtpu name of a TPU
    config: Mapping[str, Any] = field(repr=False)  # the YAML mapping from which this model was created

    @property
    def digest(self) -> str:
        """Return a hash of the fields that affect a prediction, as 12 hexadecimal digits."""
        ignored = ("sources", "title")
        relevant = {name: value for name, value in self.config.items() if name not in ignored}
        return hashlib.sha256(json.dumps(relevant, sort_keys=True).encode()).hexdigest()[:12]

    def rates_at(self, devices: int) -> Rates:
        """Return the `Rates` of one device while `devices` devices work at the same time.

        If there are no `Rates` for this number of devices, return the `Rates` for the next smaller number. If
        there is no smaller number, return the `Rates` for the smallest number.
        """
        return next((rates for rates in reversed(self.rates) if rates.devices <= devices), self.rates[0])

    def slice_shape(self, devices: int) -> tuple[int, ...] | None:
        """Return the shape in chips, such as (2, 2, 4), of the TPU slice with `devices` devices.

        For hardware without slices, return (). If the hardware is not available with this number of devices,
        return None.
        """
        if not self.slices:
            return () if devices <= self.per_host or devices % self.per_host == 0 else None
        if devices == 1:
            return self.slices[0]
        return next((shape for shape in self.slices[1:] if math.prod(shape) * self.per_chip == devices), None)

    def device_counts(self) -> list[int]:
        """Return the numbers of devices that devices=all selects, in ascending order.

        These are the sizes of the slices of a TPU, or the available powers of two for other hardware.
        """
        if self.slices:
            return sorted({1, *(math.prod(shape) * self.per_chip for shape in self.slices[1:])})
        powers_of_two = (2**k for k in range(self.most.bit_length()))
        return [count for count in powers_of_two if self.slice_shape(count) is not None]

    def check_devices(self, devices: int) -> None:
        """Raise `Refusal` if the hardware is not available with this number of devices."""
        if devices > self.most or self.slice_shape(devices) is None:
            if self.slices:
                counts = ", ".join(map(str, self.device_counts()))
            elif self.most <= self.per_host:
                counts = f"1 to {self.most}"
            else:
                counts = f"1 to {self.per_host}, or a multiple of {self.per_host} up to {self.most}"
            raise Refusal(f"devices={devices} are not available on {self.name}: use {counts}")


def read_hardware(name: str) -> Hardware:
    """Return the `Hardware` in conf/hardware/NAME.yaml. Raise `Refusal` if there is no such file."""
    from omegaconf import OmegaConf

    files = _hardware_files()
    check_names("hardware", [name], [*files])  # lists, because `name` may not be hashable
    config: Any = OmegaConf.load(files[name])
    for default in config.pop("defaults", []):  # such as base/gpu@_here_, as Hydra reads it
        if default != "_self_":
            base = files[name].parent / f"{default.partition('@')[0]}.yaml"
            config = OmegaConf.merge(OmegaConf.load(base), config)
    fields: Any = OmegaConf.to_container(config)
    return from_config(fields)


def find_model(device: Any) -> Hardware | None:
    """Return the `Hardware` of a JAX device, or None if no file in conf/hardware describes this GPU or TPU.

    The `Hardware` of a CPU has no rates.
    """
    if device.platform == "cpu":
        return read_hardware("cpu")
    models = map(read_hardware, _hardware_files())
    return next((model for model in models if model.device_kind == device.device_kind), None)


def _hardware_files() -> dict[str, Path]:
    return {path.stem: path for path in sorted((configuration_folder() / "hardware").glob("*.yaml"))}


def find_compiler(hardware: Hardware) -> tuple[str, str]:
    """Return the name and the version of the installed package that compiles programs for the hardware.

    Raise `Refusal` if it is not installed.
    """
    for name in _COMPILERS[hardware.platform]:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return name, importlib.metadata.version(name)
    raise Refusal(
        f"the compiler for hardware={hardware.name} is not installed: "
        f"run `scripts/plan`, or pip install 'ad-scaling[plan-{hardware.platform}]'"
    )


def from_config(config: Mapping[str, Any]) -> Hardware:
    """Return the `Hardware` that a file conf/hardware/*.yaml describes. Raise `Refusal` if it is invalid."""
    platform: Any = config.get("platform")
    check_names("hardware.platform", [platform], [*_PLATFORM_RULES])
    rules = _RULES | _PLATFORM_RULES[platform]
    check_names("key of hardware", config, sorted([*rules, "platform"]))
    for name, (description, *patterns) in rules.items():
        if not all(_matches(config.get(name), pattern) for pattern in patterns):
            raise Refusal(f"hardware.{name} must be {description}, not {format_value(config.get(name))}")
    slices = config.get("slices") or ()
    if slices and (largest := math.prod(slices[-1]) * config["per_chip"]) != config["most"]:
        raise Refusal(
            f"hardware.most must be {largest}, the devices of the last slice, not {config['most']!r}"
        )
    rates = () if platform == "cpu" else (_read_rates(config),)  # time_model.py adds the rates of a CPU
    field_values: dict[str, Any] = {each.name: config.get(each.name) for each in fields(Hardware)}
    field_values |= {name: tuple(map(float, config[name])) for name in ("attained", "asking")}
    field_values |= {"title": config.get("title") or config["name"], "slices": tuple(map(tuple, slices))}
    return Hardware(**field_values | {"rates": rates, "config": dict(config)})


def _read_rates(config: Mapping[str, Any]) -> Rates:
    """Return the `Rates` of a GPU or TPU, which do not depend on the number of working devices."""
    names = ("products", "arithmetic", "transcendental", "kernel_seconds")
    return Rates(
        **{name: config[name] for name in names}, devices=1, bandwidth=((0.0, config["bandwidth"]),),
        call_seconds={"": config["call_seconds"]},
        network=tuple(Level(**level) for level in config["network"]),
    )  # fmt: skip


def _matches(value: Any, pattern: Any) -> bool:
    """Return whether a value of a configuration has the form that a pattern describes.

    pattern                       values that match
    function                      any value for which the function returns true
    tuple of patterns             any value that matches one of the patterns
    {key: pattern}                mappings with the same keys, each of whose values matches its pattern
    [pattern, Ellipsis]           lists of one or more elements that all match the pattern
    [pattern, pattern]            lists of two elements that match the patterns
    text or None                  only this text, or only None
    """
    if isinstance(pattern, tuple):
        return any(_matches(value, each) for each in pattern)
    if isinstance(pattern, Mapping):
        has_keys = isinstance(value, Mapping) and set(value) == set(pattern)
        return has_keys and all(_matches(value[key], pattern[key]) for key in pattern)
    if isinstance(pattern, list):
        patterns = pattern[:1] * len(value) if pattern[1] is ... and isinstance(value, list) else pattern
        return (
            isinstance(value, list)
            and 0 < len(value) == len(patterns)
            and all(map(_matches, value, patterns))
        )
    return bool(pattern(value)) if callable(pattern) else value == pattern


def _is_positive(value: Any) -> bool:
    """Return whether a value of a configuration is a positive, finite number."""
    return isinstance(value, int | float) and value is not True and 0 < value <= sys.float_info.max


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and _is_positive(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\w[\w.+-]{0,63}", value, re.ASCII) is not None


def _are_texts(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(_is_text, (*value, *value.values())))


def _is_gpu_target(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and value != {}
        and all(
            _is_name(name) and (isinstance(x, int | str) or _is_positive(x) or _is_gpu_target(x))
            for name, x in value.items()
        )
    )


def _are_ascending(slices: Any) -> bool:
    chips = list(map(math.prod, slices or [()]))
    return chips == sorted({1, *chips}) and len(set(map(len, slices or [()]))) == 1


_NUMBER, _COUNT, _RANGE = "a positive number", "a positive integer", "two positive numbers such as [0.4, 0.9]"
_SLICES = "shapes in chips, each with more chips and as many axes, beginning with one chip: [[1, 1], [2, 2]]"
_NUMBERS_BY_DTYPE = f"a number or null for each of {', '.join(DTYPES)}"
_POSITIVE_RANGE = [_is_positive, _is_positive], lambda value: value[0] <= value[1]
_OR_NULL = (_is_positive, None)
_BY_DTYPE = dict.fromkeys(DTYPES, _OR_NULL)
_LEVEL = {"shape": SHAPES, "devices": (_is_count, None), "bandwidth": _is_positive, "latency": _is_positive}
_Rules = dict[str, tuple[Any, ...]]  # field -> (description of valid values, patterns that all must match)
_RULES: _Rules = {
    "name": ("made of letters, digits and ._+-", _is_name),
    **dict.fromkeys(("title", "device_kind"), ("a name or null", (_is_text, None))),
    **dict.fromkeys(("attained", "asking"), (_RANGE, *_POSITIVE_RANGE)),
    "jitter": ("a positive number of at most 1", _is_positive, lambda value: value <= 1),
    "stragglers": (
        "such as {share: 1.0e-4, slowdown: 1.5}, with a share between 0 and 1 and a slowdown of at least 1",
        {"share": _is_positive, "slowdown": _is_positive},
        lambda value: value["share"] < 1 <= value["slowdown"],
    ),
    **dict.fromkeys(("per_host", "per_chip", "most"), (_COUNT, _is_count)),
    "slices": (_SLICES, ([[_is_count, ...], ...], None), _are_ascending),
    "sources": ("a mapping of fields to texts", (_are_texts, None)),
}
_ACCELERATOR_RULES: _Rules = {
    "attained": (f"{_RANGE}, at most 1", *_POSITIVE_RANGE, lambda value: value[1] <= 1),
    **dict.fromkeys(("memory", "bandwidth", "kernel_seconds", "call_seconds"), (_NUMBER, _is_positive)),
    "products": (
        f"a positive number or null for each of {', '.join(PRECISIONS)}, for each of {', '.join(DTYPES)}",
        dict.fromkeys(DTYPES, dict.fromkeys(PRECISIONS, _OR_NULL)),
    ),
    **dict.fromkeys(("arithmetic", "transcendental"), (_NUMBERS_BY_DTYPE, _BY_DTYPE)),
    "network": (
        "a list of levels such as {shape: tree, devices: null, bandwidth: 5.0e+10, latency: 5.0e-6}, "
        "with ascending devices and null for the last level only, each with a shape of "
        f"{', '.join(SHAPES)} and positive numbers",
        [(_LEVEL, _LEVEL | {"wraps": _is_count}), ...],
        lambda levels: (
            (devices := [level["devices"] or math.inf for level in levels]) == sorted({*devices, math.inf})
        ),
    ),
}
_TPUS = ("v2", "v3", "v4", "v5e", "v5p", "v6e", "tpu7x")  # the names that libtpu 0.0.42 accepts
_GPU_TARGET = "a mapping of the fields of XLA's GpuTargetConfigProto to numbers, texts or such mappings"
_PLATFORM_RULES: dict[str, _Rules] = {
    "cpu": {
        "memory": (f"{_NUMBER} or null", _OR_NULL),
        "ceilings": (
            "the path of a results folder or null",
            lambda value: isinstance(value, str | int | None),
        ),
    },
    "gpu": _ACCELERATOR_RULES | {"target": (_GPU_TARGET, _is_gpu_target)},
    "tpu": _ACCELERATOR_RULES
    | {
        "target": (f"one of {', '.join(_TPUS)}", _TPUS),
        "slices": (_SLICES, [[_is_count, ...], ...], _are_ascending),
    },
}
