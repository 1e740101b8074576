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


def contents_of(row: Row, strength: int) -> set:
    """Return the combinations of `strength` values in a row, 1 or 2, each with the indices of their axes."""
    return set(enumerate(row)) if strength == 1 else pairs_of(row)


def find_cover(
    rows: list[Row], strength: int = 2, given: list[Row] = (), cost: Callable[[Row], int] = lambda row: 1
) -> list[Row]:
    """Return the given rows and others with all combinations of `strength` values, chosen greedily by new ones per cost."""
    contents = {row: contents_of(row, strength) for row in rows}
    missing: set = set().union(*contents.values()).difference(*(contents[row] for row in given))
    chosen = [*given]
    heap = sorted((-len(contents[row]) / cost(row), i) for i, row in enumerate(rows))
    while missing:
        _, i = heapq.heappop(heap)
        new = len(contents[rows[i]] & missing) / cost(rows[i])
        if new and (not heap or new >= -heap[0][0]):
            chosen.append(rows[i])
            missing -= contents[rows[i]]
        elif new:
            heapq.heappush(heap, (-new, i))
    return chosen


def main() -> None:
    """Search the rows among all that can run, and write them and the pairs that cannot run."""
    from tests.support.problems import AXES, find_rows

    rows = find_rows()
    possible = set().union(*map(pairs_of, rows))
    product = all_pairs(AXES)
    lines = [json.dumps(row) for row in find_cover(rows, cost=lambda row: 1 if row[-1] else EAGER)]
    impossible = [json.dumps(pair) for pair in sorted(product - possible, key=str)]
    text = '{{"rows": [\n{}\n], "impossible": [\n{}\n]}}\n'.format(",\n".join(lines), ",\n".join(impossible))
    FILE.write_text(text)


if __name__ == "__main__":
    main()
