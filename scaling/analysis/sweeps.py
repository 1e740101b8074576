"""Sweeps: which size of a family is varied, and which are held.

Knows cases and their sizes; not what was measured of them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from scaling.core.case import Case

T = TypeVar("T")


class Sweep(NamedTuple):
    """The size that most varies, with those that vary along with it."""

    name: str  # such as "m"
    title: str  # such as "m", or "points = m" where both move together


def numbers(case: Case) -> dict[str, int]:
    """The points and every size, by name."""
    return {"points": case.points, **case.sizes}


def sweeps(items: Iterable[T], case_of: Callable[[T], Case]) -> list[tuple[Sweep, str, list[T]]]:
    """Items of one family by what is held: (what is swept, the held sizes in words, the items); at least two sizes each.

    One size is swept, with those that determine it and are determined by it; the others tell the lists apart. Of several the one
    that takes the most values on a single number of devices: points that grow with their devices are no sweep.
    """
    families: dict[tuple[str, ...], list[T]] = {}  # a workload of a user's own may have had other sizes before
    for item in items:
        families.setdefault(tuple(case_of(item).sizes), []).append(item)
    return [sweep for family in families.values() for sweep in _sweeps_of_family(family, case_of)]


def _sweeps_of_family(items: Iterable[T], case_of: Callable[[T], Case]) -> list[tuple[Sweep, str, list[T]]]:
    """Return the sweeps of items whose sizes have the same names."""
    rows = [(numbers(case_of(item)), item) for item in items]
    together = _moving_together([row for row, _ in rows])
    if not together:
        return []
    counts = {case_of(item).devices for _, item in rows}

    def values(name: str) -> int:
        return max(len({row[name] for row, item in rows if case_of(item).devices == count}) for count in counts)

    swept = max(together, key=lambda names: values(names[0]))
    apart: dict[tuple, list[tuple[dict[str, int], T]]] = {}
    for row, item in rows:
        apart.setdefault(tuple((name, size) for name, size in row.items() if name not in swept), []).append((row, item))
    return [
        (
            Sweep(swept[0], _title(swept, [row for row, _ in some])),
            " ".join(f"{name}={size}" for name, size in held),
            [item for _, item in some],
        )
        for held, some in apart.items()
        if len({row[swept[0]] for row, _ in some}) > 1
    ]


def _moving_together(rows: Sequence[Mapping[str, int]]) -> list[list[str]]:
    """The names that vary, those that determine each other in one list."""
    together: list[list[str]] = []
    for name in rows[0]:
        count = len({row.get(name) for row in rows})
        if count < 2:
            continue
        for names in together:
            pairs = {(row.get(names[0]), row.get(name)) for row in rows}
            if count == len(pairs) == len({pair[0] for pair in pairs}):
                names.append(name)
                break
        else:
            together.append([name])
    return together


def _title(names: Sequence[str], rows: Sequence[Mapping[str, int]]) -> str:
    first, *rest = names
    same = [name for name in rest if all(row[name] == row[first] for row in rows)]
    along = [name for name in rest if name not in same]
    return " = ".join([first, *same]) + (f" ({', '.join(along)} with it)" if along else "")
