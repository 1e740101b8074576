"""Describe cases (`Method`, `Subject`) and environments as text, and define keys that group similar cases."""

import dataclasses
import functools
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from scaling.core.case import AUTO, VIEWS, Case, default_values, problem_fields
from scaling.core.formatting import format_bytes, format_count
from scaling.core.grouping import group_by
from scaling.core.modes import MODES
from scaling.core.record import Record

S = TypeVar("S", bound="Subject")
ENOUGH_COUNTS = 3  # a problem with this many device counts is preferred to a larger one with fewer
# Fields of a case that trade memory for time and change neither the result nor the AD mode. Default: None.
MEMORY_FIELDS = ("chunk", "block", "memory_limit", "storage", "remat")
OUT_OF_MEMORY_REASONS = ("too_large", "dominated", "out_of_memory")  # of records
# Fields of an environment that are derived from others, or that differ between its cases.
CASE_DEPENDENT_FIELDS = ("digest", "setting", "load", "cores", "shape", "job", "restarts")
BOOLEAN_WORDS = {"True": "yes", "False": "no"}  # text of a fact in `environment_columns` -> text for a reader


class Method(NamedTuple):
    """A way to differentiate: an AD mode with its options, without the devices and the problem."""

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
        forward = self.forward and f"forward by {self.forward}"
        chunk = f"chunk={self.chunk}" if isinstance(self.chunk, str) else _at_a_time(self.chunk, "seed")
        limit = self.memory_limit and f"within {format_bytes(self.memory_limit)}"
        storage = self.storage and f"kept on the {self.storage}"
        return join_words(*words, forward, chunk, _at_a_time(self.block, "point"), limit, storage, self.remat)

    @property
    def base(self) -> "Method":
        """Return the method without its memory settings, such as `chunk` and `remat`."""
        return self._replace(**default_values(MEMORY_FIELDS))


def join_words(*words: object) -> str:
    """Return the nonempty `words` joined by commas. None, False and 0 count as empty."""
    return ", ".join(str(word) for word in words if word)


def _at_a_time(count: int | None, noun: str) -> str:
    return f"{format_count(count, noun)} at a time" if count else ""


@functools.lru_cache(maxsize=32_768)  # comparisons copy the same case often, and each copy is validated
def with_fields(case: Case, **fields: Any) -> Case:
    """Return a copy of a case with the new field values in `fields`."""
    return dataclasses.replace(case, **fields)


def method_of(case: Case) -> Method:
    """Return the method (AD mode with its options) that a case uses."""
    return Method(*(getattr(case, field) for field in Method._fields))


def size_name(case: Case) -> str:
    """Return the sizes, number of points and data seed of a case as text, such as 'm=100 points=6'."""
    pairs = [*case.sizes.items(), ("points", case.points)]
    pairs += [("seed", case.data_seed)] if case.data_seed else []
    return " ".join(f"{name}={number}" for name, number in pairs)


def curve_case(case: Case, kind: str) -> Case:
    """Return a copy of a case that is equal for all cases of one scaling curve.

    The copy has one device and no mesh. `kind` is "strong" or "weak". If it is "weak", `points` of the copy
    is the number of points per device.
    """
    points = case.points if kind == "strong" else case.points // case.devices
    return with_fields(case, devices=1, mesh=None, points=points)


def is_candidate(case: Case) -> bool:
    """Return whether a case is ranked: it must use JAX, and be neither handwritten nor mode=auto."""
    return case.engine == "jax" and not case.ad_mode.closed_form and case.mode != AUTO


@dataclass(frozen=True)
class Subject:
    """A case that was measured in an environment. This is the base class of timings, curves and rankings."""

    case: Case
    environment: str  # the digest of hardware and software; only times with equal digests are compared
    honest: bool  # whether each CPU device had its own core; True for other kinds of devices

    @property
    def method(self) -> Method:
        """Return the method (AD mode with its options) of the case."""
        return method_of(self.case)

    @property
    def all_sizes(self) -> dict[str, int]:
        """Return all sizes of the problem by name, including the number of points ("points")."""
        return {"points": self.case.points, **self.case.sizes}

    @property
    def volume(self) -> int:
        """Return the product of all sizes of the problem, including the number of points."""
        return math.prod(self.all_sizes.values())

    @property
    def family(self) -> str:
        """Return the name of a function and its derivative, such as 'rbf grad float64'.

        The name contains the workload, the target and the other fields of the problem that are not the
        default.
        """
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
        """Return the JAX API and its settings as text, such as 'shard_map, points split'."""
        case = self.case
        cache = case.cache and f"{case.cache} cache"
        if case.api == "jit":
            return join_words(case.api, cache)
        mesh = case.split == "both" and (f"mesh {case.mesh}" if case.mesh else "the fastest mesh")
        return join_words(case.api, f"{case.split} split", mesh, case.overlap and "overlapped", cache)

    @property
    def program_name(self) -> str:
        """Return the AD method and the JAX API as text, such as 'jacrev (vmap), shard_map, points split'."""
        return f"{self.method.name}, {self.call}"

    @property
    def devices_text(self) -> str:
        """Return the device count as text, such as '4 devices'."""
        return format_count(self.case.devices, "device")

    @property
    def family_key(self) -> tuple:
        """Return a key that is equal for cases of one function in one environment, whatever their sizes."""
        function = (getattr(self.case, name) for name in VIEWS["problem"] if name not in ("sizes", "points"))
        return self.environment, self.honest, *function

    @property
    def problem_key(self) -> tuple:
        """Return a key that is equal for cases of one function with the same sizes in one environment."""
        return self.environment, self.honest, problem_fields(self.case)

    @property
    def comparison_key(self) -> tuple:
        """Return a key that is equal for all cases of one problem, device count and environment."""
        return *self.problem_key, self.case.devices


def largest_problems(
    subjects: Iterable[S], family: Callable[[S], Hashable], count_devices: Callable[[list[S]], int]
) -> list[list[S]]:
    """Return the subjects (such as timings) of the largest problem, in one list for each function.

    `family` returns a key that is equal for all subjects of one function. `count_devices` returns the number
    of device counts in a list of subjects. A problem with more device counts is preferred to a larger one.
    Three or more device counts are treated as equal.
    """

    def rank(problem: list[S]) -> tuple[int, int]:
        return min(count_devices(problem), ENOUGH_COUNTS), problem[0].volume

    families = group_by(subjects, family).values()
    return [max(group_by(each, lambda s: s.problem_key).values(), key=rank) for each in families]


def environment_columns(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the fields of an environment as pairs of a name and a text."""
    columns = []
    for name, value in environment.items():
        if isinstance(value, Mapping):
            value = [f"{key} {subvalue}" for key, subvalue in value.items()]
        if isinstance(value, list):
            value = ", ".join(map(str, value))
        columns.append((name, "" if value is None else str(value)))
    return columns


def environment_differences(groups: Iterable[Iterable[Record]]) -> dict[str, list[str]]:
    """Return a dict of the environment fields that differ between groups of records.

    It maps the name of a field to a list with its text in each group. Fields that depend on the case are
    omitted.
    """
    fields_by_group = [_study_facts(records) for records in groups]
    names = sorted({name for fields in fields_by_group for name in fields})
    values = {name: [fields.get(name, "none") for fields in fields_by_group] for name in names}
    return {name: texts for name, texts in values.items() if len(set(texts)) > 1}


def describe_environments(records: Iterable[Record]) -> str:
    """Return the number of environments of `records` and how they differ, or '' if there is only one.

    An example is "2 environments that differ in jax (0.10.2, 0.11.0)".
    """
    groups = group_by(records, lambda record: record.setting)
    differences = environment_differences(groups.values())
    descriptions = [f"{name} ({', '.join(texts)})" for name, texts in differences.items() if name != "engine"]
    suffix = f" that differ in {', '.join(descriptions)}" if descriptions else ""
    return f"{len(groups)} environments{suffix}" if len(groups) > 1 else ""


def _study_facts(records: Iterable[Record]) -> dict[str, str]:
    """Return the environment fields of records as a dict of texts, without fields that depend on the case.

    Different values of a field are joined by 'or'.
    """
    texts = defaultdict[str, set[str]](set)
    for record in records:
        for name in record.environment.keys() - CASE_DEPENDENT_FIELDS:
            value = record.environment[name]
            for fact, text in environment_columns(value if isinstance(value, Mapping) else {name: value}):
                texts[fact].add(BOOLEAN_WORDS.get(text, text) or "none")
    return {fact: " or ".join(sorted(texts_of_fact)) for fact, texts_of_fact in texts.items()}
