"""Hardware: a machine to plan for, as conf/hardware describes it: rates, memory, network, and the counts it comes in.

Values; what a program makes of them model.py knows, and what a measured machine's rates are calibration.py.
"""

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scaling.core.case import DTYPES, PRECISIONS, Refusal, unknown_name

SHAPES = ("torus", "switch", "tree")  # of a level of a network
PLATFORMS = ("cpu", "gpu", "tpu")
_PER_NUMBER = ("arithmetic", "divisions", "transcendental", "reductions")  # rates by dtype


@dataclass(frozen=True)
class Level:
    """A level of a network, which joins so many devices; None: as many as there are.

    bandwidth: bytes a second one way, of a link of a torus or else of a device; latency: seconds of a hop or a step.
    """

    shape: str
    devices: int | None
    bandwidth: float
    latency: float
    wraps: int = 1  # an axis of a torus that is a multiple of this is a ring, a shorter one a line


@dataclass(frozen=True)
class Rates:
    """What one device does in a second, of so many that work at the same time, and what asking costs."""

    devices: int
    bandwidth: tuple[
        tuple[float, float], ...
    ]  # (bytes of a kernel, bytes a second): of the largest that is no more
    products: Mapping[str, Mapping[str, float | None]]  # by dtype and precision
    arithmetic: Mapping[str, float | None]  # by dtype, as all below
    divisions: Mapping[str, float | None]
    transcendental: Mapping[str, float | None]
    reductions: Mapping[str, float | None]
    turned: float  # bytes a second of arrays that change which axis is the fastest
    kernel_seconds: float
    call_seconds: Mapping[str, float]  # by api; "" for any other
    network: tuple[Level, ...]

    def call(self, api: str) -> float:
        """Seconds of an empty call."""
        return self.call_seconds.get(api, self.call_seconds[""])


@dataclass(frozen=True)
class Hardware:
    """A machine to plan for."""

    name: str
    title: str
    platform: str
    device_kind: str | None
    memory: float | None  # bytes of a device; None: what this host has, shared out
    rates: tuple[
        Rates, ...
    ]  # by how many devices work, the fewest first; of a CPU, those that were measured on it
    attained: tuple[float, float]  # the share of these rates that programs reach, uniform in its logarithm
    asking: tuple[
        float, float
    ]  # how many times the seconds of a call and of a kernel's beginning asking takes, likewise
    jitter: float
    stragglers: Mapping[str, float]
    per_host: int
    per_chip: int
    slices: tuple[
        tuple[int, ...], ...
    ]  # of a torus, in chips, first one of them; empty: any count up to a host, and any hosts
    most: int  # devices, the largest number that is compiled
    price: float | None
    target: Mapping[str, Any] | None
    told: Mapping[str, Any] = field(repr=False)  # the mapping that this was made from

    @property
    def digest(self) -> str:
        """A short hash of all that matters to a prediction."""
        mine = {name: value for name, value in self.told.items() if name not in ("price", "sources", "title")}
        return hashlib.sha256(json.dumps(mine, sort_keys=True).encode()).hexdigest()[:12]

    def at(self, devices: int) -> Rates:
        """The rates of a device while so many work; those of the next smaller number where that was not looked at."""
        return max(
            (each for each in self.rates if each.devices <= devices),
            key=lambda each: each.devices,
            default=self.rates[0],
        )

    def shape(self, devices: int) -> tuple[int, ...] | None:
        """The slice, in chips, that has so many devices; None if none has, () where there are no slices."""
        if not self.slices:
            return () if devices <= self.per_host or devices % self.per_host == 0 else None
        if devices == 1:
            return self.slices[0]
        return next((shape for shape in self.slices[1:] if math.prod(shape) * self.per_chip == devices), None)

    def counts(self) -> list[int]:
        """Numbers of devices that can be had and compiled, the fewest first."""
        if self.slices:
            return sorted({1, *(math.prod(shape) * self.per_chip for shape in self.slices[1:])})
        powers = [2**k for k in range(self.most.bit_length())]
        return [count for count in powers if count <= self.most and self.shape(count) is not None]

    def enough(self, devices: int) -> None:
        """Refuse a number of devices that no machine of this kind has, up to the largest; beyond it all is formula."""
        if devices > _LARGEST:
            raise Refusal(f"devices={devices}: a plan goes up to {_LARGEST} devices")
        if devices <= self.most and self.shape(devices) is None:
            near = ", ".join(str(count) for count in self.counts())
            more = "" if self.slices else f", or a multiple of {self.per_host} up to {self.most}"
            raise Refusal(f"devices={devices} cannot be had of {self.name}: take {near}{more}")


_LARGEST = 1_000_000


def from_config(told: Mapping[str, Any]) -> Hardware:
    """The hardware of a composed mapping; what is missing or no number is refused by name."""
    given = _Given(told)
    measured = told.get("platform") == "cpu"  # see calibration.py
    optional = [None] if measured else []
    hardware = Hardware(
        name=given.name(),
        title=given.text("title", told.get("name")),
        platform=given.one_of("platform", PLATFORMS),
        device_kind=given.text("device_kind", None),
        memory=given.number("memory", *optional),
        rates=() if measured else (_rates(given),),
        attained=given.span("attained"),
        asking=given.span("asking"),
        jitter=given.jitter(),
        stragglers=_stragglers(given),
        per_host=given.count("per_host"),
        per_chip=given.count("per_chip"),
        slices=_slices(given),
        most=given.count("most"),
        price=given.number("price", None),
        target=_target(given),
        told=dict(told),
    )
    if hardware.slices and math.prod(hardware.slices[-1]) * hardware.per_chip != hardware.most:
        raise given.refusal("most", "the devices of the last of slices")
    return hardware


class _Given:
    """What was given, with refusals that name the field."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        known = (
            {f.name for f in dataclasses.fields(Hardware)}
            | {f.name for f in dataclasses.fields(Rates)}
            | {"sources", "ceilings"}
        )
        for name in told:
            if name not in known - {"told", "rates", "devices"}:
                raise unknown_name("key of hardware", name, sorted(known - {"told", "rates", "devices"}))
        self.told = told

    def refusal(self, name: str, wanted: str) -> Refusal:
        return Refusal(f"hardware.{name} must be {wanted}, not {self.told.get(name)!r}")

    def text(self, name: str, *otherwise: Any) -> Any:
        value = self.told.get(name)
        if value is None and otherwise:
            return otherwise[0]
        if not isinstance(value, str) or not value:
            raise self.refusal(name, "a name" + (" or null" if otherwise else ""))
        return value

    def name(self) -> str:
        """A file and a figure are called by it."""
        if not re.fullmatch(r"\w[\w.+-]{0,63}", value := self.text("name"), re.ASCII):
            raise self.refusal("name", "made of letters, digits and ._+-")
        return value

    def jitter(self) -> float:
        """A share; of a larger one the slowest device of many takes for ever."""
        value = self.number("jitter")
        if value is None or value > 1:
            raise self.refusal("jitter", "a share, of 1 at most")
        return value

    def one_of(self, name: str, known: Sequence[str]) -> str:
        if self.told.get(name) not in known:
            raise unknown_name(f"hardware.{name}", self.told.get(name), known)
        return self.told[name]

    def number(self, name: str, *otherwise: Any) -> float | None:
        value = self.told.get(name)
        if value is None and otherwise:
            return otherwise[0]
        if not _positive(value):
            raise self.refusal(name, "a positive number" + (" or null" if otherwise else ""))
        return float(value)  # type: ignore[arg-type]

    def count(self, name: str) -> int:
        value = self.told.get(name)
        if not _natural(value):
            raise self.refusal(name, "a positive integer")
        return value  # type: ignore[return-value]

    def span(self, name: str) -> tuple[float, float]:
        value = self.told.get(name)
        if (
            not isinstance(value, list)
            or len(value) != 2
            or not all(map(_positive, value))
            or value[0] > value[1]
        ):
            raise self.refusal(name, "two positive numbers such as [0.4, 0.9]")
        return float(value[0]), float(value[1])

    def by_dtype(
        self, name: str, otherwise: Mapping[str, float | None] | None = None
    ) -> Mapping[str, float | None]:
        value = self.told.get(name)
        if value is None and otherwise is not None:
            return otherwise
        wanted = f"a number or null for each of {', '.join(DTYPES)}"
        if not isinstance(value, Mapping) or set(value) != set(DTYPES):
            raise self.refusal(name, wanted)
        if not all(each is None or _positive(each) for each in value.values()):
            raise self.refusal(name, wanted)
        return {dtype: None if each is None else float(each) for dtype, each in value.items()}


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _natural(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _target(given: _Given) -> Any:
    """What the compiler for a platform knows the machine by: a mapping of what a GPU is, the name of a TPU; nothing of a CPU."""
    value, platform = given.told.get("target"), given.told["platform"]
    if platform == "gpu" and not (isinstance(value, Mapping) and value):
        raise given.refusal("target", "a mapping of the fields of XLA's GpuTargetConfigProto")
    return given.text("target") if platform == "tpu" else value


def _rates(given: _Given) -> Rates:
    """One set of rates, for any number of devices. A quotient costs what a transcendental function does, a sum what other
    arithmetic does, and an array that is turned what any other bytes do, where nothing else is said."""
    bandwidth, products = given.number("bandwidth"), given.told.get("products")
    if not isinstance(products, Mapping) or set(products) != set(DTYPES):
        raise given.refusal("products", f"a mapping of {', '.join(DTYPES)}")
    for dtype, each in products.items():
        if not isinstance(each, Mapping) or set(each) != set(PRECISIONS):
            raise given.refusal("products", f"a mapping with {', '.join(PRECISIONS)} for {dtype}")
        if not all(value is None or _positive(value) for value in each.values()):
            raise given.refusal("products", "made of positive numbers and nulls")
    arithmetic, transcendental = given.by_dtype("arithmetic"), given.by_dtype("transcendental")
    assert bandwidth is not None
    return Rates(
        devices=1, bandwidth=((0.0, bandwidth),), products=products, arithmetic=arithmetic, transcendental=transcendental,
        divisions=given.by_dtype("divisions", transcendental), reductions=given.by_dtype("reductions", arithmetic),
        turned=given.number("turned", bandwidth) or bandwidth, kernel_seconds=given.number("kernel_seconds") or 0.0,
        call_seconds={"": given.number("call_seconds") or 0.0}, network=_network(given),
    )  # fmt: skip


def _network(given: _Given) -> tuple[Level, ...]:
    levels = given.told.get("network")
    if not isinstance(levels, list) or not levels or not all(isinstance(each, Mapping) for each in levels):
        raise given.refusal(
            "network",
            "a list of levels, such as {shape: tree, devices: null, bandwidth: 5.0e+10, latency: 5.0e-6}",
        )
    made = []
    for each in levels:
        try:
            level = Level(**each)
        except TypeError:
            raise given.refusal(
                "network", f"made of {', '.join(f.name for f in dataclasses.fields(Level))}"
            ) from None
        if level.shape not in SHAPES:
            raise unknown_name("shape of hardware.network", level.shape, SHAPES)
        if not (_positive(level.bandwidth) and _positive(level.latency)):
            raise given.refusal("network", "made of positive numbers")
        if not (level.devices is None or _natural(level.devices)) or not _natural(level.wraps):
            raise given.refusal("network", "made of levels whose devices and wraps are positive integers")
        made.append(level)
    if made[-1].devices is not None:
        raise given.refusal("network", "ended by a level with devices: null, for as many as there are")
    return tuple(made)


def _stragglers(given: _Given) -> Mapping[str, float]:
    value = given.told.get("stragglers")
    if (
        not isinstance(value, Mapping)
        or set(value) != {"share", "slowdown"}
        or not all(map(_positive, value.values()))
    ):
        raise given.refusal("stragglers", "such as {share: 1.0e-4, slowdown: 1.5}")
    if not (
        value["share"] < 1 <= value["slowdown"]
    ):  # the share of devices that are slower, and how many times
        raise given.refusal("stragglers", "a share under 1 and a slowdown of 1 or more")
    return {name: float(each) for name, each in value.items()}


def _slices(given: _Given) -> tuple[tuple[int, ...], ...]:
    value = given.told.get("slices")
    if value is None:
        return ()
    whole = isinstance(value, list) and value and all(isinstance(shape, list) and shape for shape in value)
    if not whole or not all(_natural(n) for shape in value for n in shape):
        raise given.refusal("slices", "a list of shapes in chips, such as [[1, 1], [2, 2]]")
    if math.prod(value[0]) != 1:
        raise given.refusal("slices", "begun by one chip")
    return tuple(tuple(shape) for shape in value)
