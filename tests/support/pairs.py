"""The rows of the contract that contain every pair of values that can run, and subsets of other products of parameters.

`python -m tests.support.pairs` repeats the search and writes tests/contract/pairs.json.
"""

import heapq
import itertools
import json
from collections.abc import Callable
from typing import Any

from tests.support.paths import TOP

FILE = TOP / "tests" / "contract" / "pairs.json"
Row = tuple[Any, ...]
EAGER = 8  # cost of an uncompiled case relative to a compiled one: JAX compiles each of its operations


def pairs_of(row: Row) -> set[tuple[int, Any, int, Any]]:
    """Return the pairs of values in a row, each with the indices of its axes."""
    return {(i, row[i], j, row[j]) for i, j in itertools.combinations(range(len(row)), 2)}


def all_pairs(axes: dict[str, list]) -> set[tuple[int, Any, int, Any]]:
    """Return every pair of values of two axes, each with the indices of the axes."""
    return {
        (i, a, j, b)
        for (i, first), (j, second) in itertools.combinations(enumerate(axes.values()), 2)
        for a, b in itertools.product(first, second)
    }


def read_rows() -> tuple[list[Row], set[tuple[int, Any, int, Any]]]:
    """Return the committed rows, sorted by the pairs that they add, and the pairs that no row can contain."""
    stored = json.loads(FILE.read_text())
    return [tuple(row) for row in stored["rows"]], {tuple(pair) for pair in stored["impossible"]}


def find_cover(rows: list[Row], cost: Callable[[Row], int]) -> list[Row]:
    """Return a subset of the rows with all their pairs, chosen greedily by new pairs per cost."""
    pairs = {row: pairs_of(row) for row in rows}
    missing: set = set().union(*pairs.values())
    chosen = []
    heap = sorted((-len(pairs[row]) / cost(row), i) for i, row in enumerate(rows))
    while missing:
        _, i = heapq.heappop(heap)
        new = len(pairs[rows[i]] & missing) / cost(rows[i])
        if new and (not heap or new >= -heap[0][0]):
            chosen.append(rows[i])
            missing -= pairs[rows[i]]
        elif new:
            heapq.heappush(heap, (-new, i))
    return chosen


def covering_rows(rows: list[Row], strength: int, given: list[Row]) -> set[Row]:
    """Return the given rows and others, so that every combination of `strength` values in a row is in one of them."""
    combinations = {row: set(itertools.combinations(enumerate(row), min(strength, len(row)))) for row in rows}
    missing = set().union(*combinations.values()).difference(*(combinations[row] for row in given))
    chosen = set(given)
    while missing:
        best = max(rows, key=lambda row: len(combinations[row] & missing))
        chosen.add(best)
        missing -= combinations[best]
    return chosen


def main() -> None:
    """Search the rows among all that can run, and write them and the pairs that cannot run."""
    from tests.support.problems import AXES, find_rows

    rows = find_rows()
    possible = set().union(*map(pairs_of, rows))
    product = all_pairs(AXES)
    lines = [json.dumps(row) for row in find_cover(rows, lambda row: 1 if row[-1] else EAGER)]
    impossible = [json.dumps(pair) for pair in sorted(product - possible, key=str)]
    text = '{{"rows": [\n{}\n], "impossible": [\n{}\n]}}\n'.format(",\n".join(lines), ",\n".join(impossible))
    FILE.write_text(text)


if __name__ == "__main__":
    main()
