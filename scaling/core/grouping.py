"""Group items by a key (`group_by`), and find the smallest item of each group (`least_by`)."""

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return a dict from each value of `key(item)` to the list of items with this value, in order."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def least_by(items: Iterable[T], key: Callable[[T], K], cost: Callable[[T], Any]) -> dict[K, T]:
    """Return a dict from each value of `key(item)` to its item with the least cost, the first in a tie."""
    return {common: min(group, key=cost) for common, group in group_by(items, key).items()}
