"""Class Method (how a case is differentiated), names and keys of cases, and grouping into size sweeps."""

import dataclasses
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from scaling.core.case import AUTO, Case, defaults
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
        return _join(*words, self.forward and f"forward by {self.forward}", self.memory_setting)

    @property
    def memory_setting(self) -> str:
        """Return the memory setting as text, such as '4 seeds at a time', or '' if it is the default."""
        limit = self.memory_limit and f"within {format_bytes(self.memory_limit)}"
        storage = self.storage and f"kept on the {self.storage}"
        chunk = f"chunk={self.chunk}" if isinstance(self.chunk, str) else _at_a_time(self.chunk, "seed")
        return _join(chunk, _at_a_time(self.block, "point"), limit, storage, self.remat)


def _join(*words: str | int | None) -> str:
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


def describe_call(case: Case) -> str:
    """Return the JAX API and the partitioning of a case as text, such as 'shard_map, points split'.

    With split=both the text includes the mesh, or 'the fastest mesh' if the case has none. A case without a
    mesh represents a scaling curve with the fastest mesh on each device count.
    """
    if case.api == "jit":
        return case.api
    mesh = f"mesh {case.mesh}" if case.mesh else "the fastest mesh"
    return _join(
        case.api, f"{case.split} split", case.split == "both" and mesh, case.overlap and "overlapped"
    )


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return a dict from each key to the list of items with that key, in their original order."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def least_by(items: Iterable[T], key: Callable[[T], K], cost: Callable[[T], float]) -> dict[K, T]:
    """Return a dict from each key to the first item with the least cost among the items with that key."""
    return {of: min(group, key=cost) for of, group in group_by(items, key).items()}


def interleave_groups(items: Iterable[T], key: Callable[[T], Hashable]) -> list[T]:
    """Return the first item of each group, then the second item of each group, and so on (round-robin)."""
    ranked = [pair for group in group_by(items, key).values() for pair in enumerate(group)]
    return [item for _, item in sorted(ranked, key=lambda pair: pair[0])]


class Sweep(NamedTuple):
    """The problem size that varies in a sweep, and a title with the sizes that vary together with it."""

    name: str  # such as "m"
    title: str  # such as "m", or "points = m" if both have the same values


def size_values(case: Case) -> dict[str, int]:
    """Return a dict from the name of each problem size, including the number of points, to its value."""
    return {"points": case.points, **case.sizes}


def find_sweeps(items: Iterable[T], case_of: Callable[[T], Case]) -> list[tuple[Sweep, str, list[T]]]:
    """Return the sweeps over a problem size among the items of one function.

    In a sweep, one size varies, and the sizes that are independent of it are constant. The varying size is
    the one with the most values on a single device count, so that a number of points that grows with the
    number of devices is not a sweep.

    Args:
        case_of: returns the case of an item.
    Returns:
        Tuples of the varying size, the constant sizes as text such as 'points=6 o=2', and the items.
    """
    families = group_by(items, lambda item: tuple(case_of(item).sizes))
    return [sweep for family in families.values() for sweep in _sweeps_of_family(family, case_of)]


def _sweeps_of_family(items: Iterable[T], case_of: Callable[[T], Case]) -> list[tuple[Sweep, str, list[T]]]:
    rows = [(size_values(case_of(item)), item) for item in items]
    dependent = _dependent_names([row for row, _ in rows])
    if not dependent:
        return []
    by_devices = group_by(rows, lambda row: case_of(row[1]).devices)

    def count_values(names: Sequence[str]) -> int:
        return max(len({row[names[0]] for row, _ in same}) for same in by_devices.values())

    swept = max(dependent, key=count_values)
    by_constants = group_by(
        rows, lambda row: tuple((name, size) for name, size in row[0].items() if name not in swept)
    )
    return [
        (
            Sweep(swept[0], _join_names(swept, [row for row, _ in same])),
            " ".join(f"{name}={size}" for name, size in constant),
            [item for _, item in same],
        )
        for constant, same in by_constants.items()
        if len({row[swept[0]] for row, _ in same}) > 1
    ]


def _dependent_names(rows: Sequence[Mapping[str, int]]) -> list[list[str]]:
    dependent: list[list[str]] = []
    for name in rows[0]:
        if len({row[name] for row in rows}) > 1:
            partner = next((names for names in dependent if determine_each_other(rows, names[0], name)), None)
            partner.append(name) if partner else dependent.append([name])
    return dependent


def determine_each_other(rows: Sequence[Mapping[str, int]], one: str, other: str) -> bool:
    """Return whether the values of the sizes `one` and `other` correspond one to one over all rows."""
    pairs = {(row[one], row[other]) for row in rows}
    return len({pair[0] for pair in pairs}) == len({pair[1] for pair in pairs}) == len(pairs)


def _join_names(names: Sequence[str], rows: Sequence[Mapping[str, int]]) -> str:
    first, *rest = names
    equal = [name for name in rest if all(row[name] == row[first] for row in rows)]
    other = [name for name in rest if name not in equal]
    return " = ".join([first, *equal]) + (f" ({', '.join(other)} with it)" if other else "")


def family_key(case: Case) -> tuple:
    """Return a hashable key of the differentiated function, regardless of its size."""
    what = (case.workload, case.target, case.variant, case.wrt, case.reduce)
    return (*what, case.dtype, case.precision, case.data_seed)


def problem_size(case: Case) -> int:
    """Return the product of the number of points and all sizes of a case."""
    return case.points * math.prod(case.sizes.values())


def family_name(case: Case) -> str:
    """Return the name of the differentiated function, regardless of its size, such as 'rbf grad float64'."""
    words = [case.workload, case.target, case.variant, case.wrt and f"by {case.wrt}"]
    words += [case.reduce and f"reduce={case.reduce}", "" if case.dtype == "float32" else case.dtype]
    words.append("" if case.precision == "highest" else f"{case.precision} precision")
    return " ".join(str(word) for word in words if word)


def size_name(case: Case) -> str:
    """Return the sizes, the number of points and the data seed as text, such as 'm=100 points=6'."""
    seed = [f"seed={case.data_seed}"] if case.data_seed else []
    return " ".join(
        [*(f"{name}={size}" for name, size in case.sizes.items()), f"points={case.points}", *seed]
    )


def baseline_name(devices: int) -> str:
    """Return the device count of a baseline as text, such as 'one device' or '2 devices'."""
    return "one device" if devices == 1 else count_of(devices, "device")


def relative_to(devices: int) -> str:
    """Return a suffix such as ' relative to 2 devices', or '' if the baseline is one device."""
    return "" if devices == 1 else f" relative to {baseline_name(devices)}"


def stem(case: Case, kind: str) -> Case:
    """Return a case that is equal for all cases of one scaling curve, and thus identifies the curve.

    The returned case has one device and no mesh. If `kind` is "weak", its number of points (batch elements)
    is the number per device.
    """
    points = case.points if kind == "strong" else case.points // case.devices
    return dataclasses.replace(case, devices=1, mesh=None, points=points)


def competes(case: Case) -> bool:
    """Return whether a case is a candidate for the fastest JAX method.

    Handwritten derivatives, mode=auto and other AD systems are not candidates.
    """
    return case.engine == "jax" and not case.ad_mode.closed_form and case.mode != AUTO
