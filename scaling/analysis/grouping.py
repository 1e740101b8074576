"""Grouping: items of an iterable by a key."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return the items by key; keys and items keep the order in which they come."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def least_by(items: Iterable[T], key: Callable[[T], K], cost: Callable[[T], float]) -> dict[K, T]:
    """Return for each key the first item with the least cost."""
    return {of: min(group, key=cost) for of, group in group_by(items, key).items()}


def interleave_groups(items: Iterable[T], key: Callable[[T], Hashable]) -> list[T]:
    """Return the first item of each group, then the second of each, and so on."""
    ranked = [pair for group in group_by(items, key).values() for pair in enumerate(group)]
    return [item for _, item in sorted(ranked, key=lambda pair: pair[0])]
