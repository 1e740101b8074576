"""Find parameter sweeps: the problem size that varies in a set of cases, and the sizes that are constant."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from scaling.analysis.grouping import group_by
from scaling.core.case import Case

T = TypeVar("T")


class Sweep(NamedTuple):
    """The problem size that varies in a sweep, and a title with the sizes that vary together with it."""

    name: str  # such as "m"
    title: str  # such as "m", or "points = m" if both have the same values


def size_values(case: Case) -> dict[str, int]:
    """Return a dict from name to value of all problem sizes, including the number of points."""
    return {"points": case.points, **case.sizes}


def find_sweeps(items: Iterable[T], case_of: Callable[[T], Case]) -> list[tuple[Sweep, str, list[T]]]:
    """Partition items into sweeps, where one size varies and all sizes independent of it are constant.

    The items must belong to one function. The varying size is the one with the most values on a single device
    count, so that a number of points that grows with the number of devices is not a sweep.

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
    """Return lists of the names of the sizes that vary. Sizes that determine each other share a list."""
    dependent: list[list[str]] = []
    for name in rows[0]:
        if len({row[name] for row in rows}) > 1:
            partner = next((names for names in dependent if determine_each_other(rows, names[0], name)), None)
            partner.append(name) if partner else dependent.append([name])
    return dependent


def determine_each_other(rows: Sequence[Mapping[str, int]], one: str, other: str) -> bool:
    """Return whether the values of two sizes correspond one to one over all rows."""
    pairs = {(row[one], row[other]) for row in rows}
    return len({pair[0] for pair in pairs}) == len({pair[1] for pair in pairs}) == len(pairs)


def _join_names(names: Sequence[str], rows: Sequence[Mapping[str, int]]) -> str:
    first, *rest = names
    equal = [name for name in rest if all(row[name] == row[first] for row in rows)]
    other = [name for name in rest if name not in equal]
    return " = ".join([first, *equal]) + (f" ({', '.join(other)} with it)" if other else "")
