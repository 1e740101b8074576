"""Group items by a key, select the item of least cost in each group, or interleave the groups."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return a dict from key to list of items. Keys and items keep their original order."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def least_by(items: Iterable[T], key: Callable[[T], K], cost: Callable[[T], float]) -> dict[K, T]:
    """Return a dict from key to the item with the least cost among the items with that key.

    The first item wins a tie.
    """
    return {of: min(group, key=cost) for of, group in group_by(items, key).items()}


def interleave_groups(items: Iterable[T], key: Callable[[T], Hashable]) -> list[T]:
    """Return the first item of each group, then the second item of each group, and so on (round-robin)."""
    ranked = [pair for group in group_by(items, key).values() for pair in enumerate(group)]
    return [item for _, item in sorted(ranked, key=lambda pair: pair[0])]
