"""Name cases, give them grouping keys (`Method`, `Subject`), and group items by key or by varying size."""

import dataclasses
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from scaling.core.case import AUTO, Case, defaults, problem
from scaling.core.formatting import count_of, format_bytes
from scaling.core.modes import MODES

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
# Fields of a case that trade memory for time and change neither the result nor the AD mode. Default: None.
MEMORY_FIELDS = ("chunk", "block", "memory_limit", "storage", "remat")


class Method(NamedTuple):
    """A differentiation method: AD mode, batching, seeds and memory setting, without the devices."""

    mode: str
    batch: str
    engine: str = "jax"
    formulation: str | None = None
    jit: bool = True
    chunk: int | str | None = None
    seeds: str = "identity"
    forward: str | None = None
    block: int | None = None
    memory_limit: int | None = None
    storage: str | None = None
    remat: str | None = None

    @property
    def name(self) -> str:
        """Return the method as text, such as 'jacfwd (vmap), 4 seeds at a time'."""
        batched = self.batch != "vmap" or (self.mode != AUTO and MODES[self.mode].has_seeds)
        mode = f"{self.mode} ({self.batch})" if batched else self.mode
        words = [mode if self.engine == "jax" else f"{self.engine} {mode}", self.formulation]
        if (self.engine == "jax") != self.jit:  # JAX is compiled by default, most other engines are not
            words.append("compiled" if self.jit else "eager")
        words.append("" if self.seeds == "identity" else f"{self.seeds} seeds")
        return join_words(*words, self.forward and f"forward by {self.forward}", self.memory_setting)

    @property
    def memory_setting(self) -> str:
        """Return the memory setting as text, such as '4 seeds at a time', or '' if it is the default."""
        limit = self.memory_limit and f"within {format_bytes(self.memory_limit)}"
        storage = self.storage and f"kept on the {self.storage}"
        chunk = f"chunk={self.chunk}" if isinstance(self.chunk, str) else _at_a_time(self.chunk, "seed")
        return join_words(chunk, _at_a_time(self.block, "point"), limit, storage, self.remat)


def join_words(*words: object) -> str:
    """Return the words as text, separated by commas. Words that are empty, None, False or 0 are omitted."""
    return ", ".join(str(word) for word in words if word)


def _at_a_time(count: int | None, noun: str) -> str:
    return f"{count_of(count, noun)} at a time" if count else ""


def without_memory_setting(case: Case) -> Case:
    """Return a copy of a case with the default memory setting (all seeds and points at once)."""
    return dataclasses.replace(case, **defaults(MEMORY_FIELDS))


def method_of(case: Case) -> Method:
    """Return the differentiation method (AD mode, batching, seeds, memory setting) of a case."""
    return Method(*(getattr(case, name) for name in Method._fields))


def base_method(case: Case) -> Method:
    """Return the differentiation method of a case, with its memory setting replaced by the default."""
    return method_of(without_memory_setting(case))


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return a dict from each key to the list of items with that key, in their original order."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def least_by(items: Iterable[T], key: Callable[[T], K], cost: Callable[[T], float]) -> dict[K, T]:
    """Return a dict from each key to the first item with the least cost among the items with that key."""
    return {common: min(group, key=cost) for common, group in group_by(items, key).items()}


def interleave_groups(items: Iterable[T], key: Callable[[T], Hashable]) -> list[T]:
    """Return the items in round-robin order: the first item of each group, then the second ones, and so on.

    Items with equal `key` are in the same group.
    """
    ranked = [pair for group in group_by(items, key).values() for pair in enumerate(group)]
    return [item for _, item in sorted(ranked, key=lambda pair: pair[0])]


def size_values(case: Case) -> dict[str, int]:
    """Return a dict from the name of each problem size, including the number of points, to its value."""
    return {"points": case.points, **case.sizes}


class SizeSeries(NamedTuple, Generic[T]):
    """Timings or results of one function for several values of one problem size.

    Sizes that change together with the varying size may differ too. All other sizes are constant.
    """

    name: str  # the varying size, such as "m"
    title: str  # such as "m", or "points = m" if both have the same values
    fixed_sizes: str  # the constant sizes as text, such as "points=6 o=2"
    items: list[T]


def find_size_series(items: Iterable[T], case_of: Callable[[T], Case]) -> list[SizeSeries[T]]:
    """Group items into series along which one problem size varies and the independent sizes are constant.

    The varying size is the one with the most values on a single device count, so that a number of points that
    grows with the number of devices is not a series. `case_of` returns the case of an item.
    """
    families = group_by(items, lambda item: tuple(case_of(item).sizes))
    return [series for family in families.values() for series in _series_of_family(family, case_of)]


def _series_of_family(items: Sequence[T], case_of: Callable[[T], Case]) -> list[SizeSeries[T]]:
    rows = [(size_values(case_of(item)), item) for item in items]
    columns = {name: [row[name] for row, _ in rows] for name in rows[0][0]}
    # Sizes that determine each other change in the same items.
    together = group_by(columns, lambda name: tuple(map(columns[name].index, columns[name])))
    varying = [names for changes, names in together.items() if any(changes)]
    if not varying:
        return []
    by_devices = group_by(rows, lambda row: case_of(row[1]).devices).values()
    swept = max(
        varying, key=lambda names: max(len({row[names[0]] for row, _ in same}) for same in by_devices)
    )
    by_constants = group_by(rows, lambda row: tuple(n for n in row[0].items() if n[0] not in swept))
    return [
        SizeSeries(
            swept[0],
            _join_names(swept, [row for row, _ in same]),
            " ".join(f"{name}={size}" for name, size in constants),
            [item for _, item in same],
        )
        for constants, same in by_constants.items()
        if len({row[swept[0]] for row, _ in same}) > 1
    ]


def _join_names(names: Sequence[str], rows: Sequence[Mapping[str, int]]) -> str:
    first, *dependent = names
    equal = [name for name in dependent if all(row[name] == row[first] for row in rows)]
    other = [name for name in dependent if name not in equal]
    return " = ".join([first, *equal]) + (f" ({', '.join(other)} with it)" if other else "")


def family_key(case: Case) -> tuple:
    """Return a key that is equal for cases with the same function, target, inputs, dtype and data seed.

    Such cases differ in their problem size, AD mode, layout or memory settings.
    """
    function = (case.workload, case.target, case.variant, case.wrt, case.reduce)
    return (*function, case.dtype, case.precision, case.data_seed)


def size_name(case: Case) -> str:
    """Return the sizes, the number of points and the data seed as text, such as 'm=100 points=6'."""
    seed = [f"seed={case.data_seed}"] if case.data_seed else []
    return " ".join(
        [*(f"{name}={size}" for name, size in case.sizes.items()), f"points={case.points}", *seed]
    )


def curve_case(case: Case, kind: str) -> Case:
    """Return a copy of a case without the settings that vary along a scaling curve, as a key of the curve.

    The copy has one device and no mesh. If `kind` is "weak" instead of "strong", its number of points (batch
    elements) is the number per device.
    """
    points = case.points if kind == "strong" else case.points // case.devices
    return dataclasses.replace(case, devices=1, mesh=None, points=points)


def is_candidate(case: Case) -> bool:
    """Return whether a case can be called the fastest JAX method of its problem.

    Handwritten derivatives, mode=auto and other AD systems are excluded.
    """
    return case.engine == "jax" and not case.ad_mode.closed_form and case.mode != AUTO


@dataclass(frozen=True)
class Subject:
    """A case in one environment, with its names and grouping keys: the base class of timings and results."""

    case: Case
    environment: str  # the digest of hardware and software; only times with equal digests are compared
    honest: bool  # whether each CPU device had its own core; True for other kinds of devices

    @property
    def method(self) -> Method:
        """Return the differentiation method (AD mode, batching, seeds, memory setting)."""
        return method_of(self.case)

    @property
    def base_method(self) -> Method:
        """Return the differentiation method with the default memory setting."""
        return base_method(self.case)

    @property
    def volume(self) -> int:
        """Return the product of the number of points and all sizes."""
        return self.case.points * math.prod(self.case.sizes.values())

    @property
    def family(self) -> str:
        """Return the name of the differentiated function, such as 'rbf grad float64'."""
        case, reduced = self.case, self.case.reduce and f"reduce={self.case.reduce}"
        dtype = "" if case.dtype == "float32" else case.dtype
        precision = "" if case.precision == "highest" else f"{case.precision} precision"
        by = case.wrt and f"by {case.wrt}"
        words = (case.workload, case.target, case.variant, by, reduced, dtype, precision)
        return " ".join(word for word in words if word)

    @property
    def size(self) -> str:
        """Return the problem size as text, such as 'm=100 points=6'."""
        return size_name(self.case)

    @property
    def call(self) -> str:
        """Return the JAX API and the partitioning as text, such as 'shard_map, points split'.

        If split=both, the text names the device mesh, or 'the fastest mesh' if the case has none.
        """
        case = self.case
        if case.api == "jit":
            return case.api
        mesh = case.split == "both" and (f"mesh {case.mesh}" if case.mesh else "the fastest mesh")
        return join_words(case.api, f"{case.split} split", mesh, case.overlap and "overlapped")

    @property
    def program_name(self) -> str:
        """Return the method, JAX API and partitioning as text: 'jacrev (vmap), shard_map, points split'."""
        return f"{self.method.name}, {self.call}"

    @property
    def devices_text(self) -> str:
        """Return the device count as text, such as '4 devices'."""
        return count_of(self.case.devices, "device")

    @property
    def family_key(self) -> tuple:
        """Return a key that is equal for subjects of one environment whose cases have equal family keys."""
        return self.environment, self.honest, *family_key(self.case)

    @property
    def problem_key(self) -> tuple:
        """Return a hashable key that all methods and device counts of one problem in one environment share.

        A problem is a function to differentiate with fixed input sizes.
        """
        return self.environment, self.honest, problem(self.case)

    @property
    def comparison_key(self) -> tuple:
        """Return a hashable key that all methods for one problem on one device count share."""
        return *self.problem_key, self.case.devices
