"""The rows of the contract that run by default: together they hold every pair of values that can run.

`python -m tests.support.pairs` searches them anew and writes tests/contract/pairs.json.
"""

import heapq
import itertools
import json
from collections.abc import Callable
from typing import Any

from tests.support.paths import TOP

FILE = TOP / "tests" / "contract" / "pairs.json"
Row = tuple[Any, ...]
EAGER = 8  # what a case that is not compiled costs in compiled ones: each of its operations is compiled


def pairs_of(row: Row) -> set[tuple[int, Any, int, Any]]:
    """Return the pairs of values that a row holds, each with the positions of its axes."""
    return {(i, row[i], j, row[j]) for i, j in itertools.combinations(range(len(row)), 2)}


def all_pairs(axes: dict[str, list]) -> set[tuple[int, Any, int, Any]]:
    """Return every pair of values of two axes."""
    return {
        (i, a, j, b)
        for (i, first), (j, second) in itertools.combinations(enumerate(axes.values()), 2)
        for a, b in itertools.product(first, second)
    }


def read() -> tuple[list[Row], set[tuple[int, Any, int, Any]]]:
    """Return the committed rows, those that cover most first, and the pairs that no row can hold."""
    stored = json.loads(FILE.read_text())
    return [tuple(row) for row in stored["rows"]], {tuple(pair) for pair in stored["impossible"]}


def search(rows: list[Row], cost: Callable[[Row], int]) -> list[Row]:
    """Return some of these rows that hold every pair of any of them, the most new pairs for their cost first."""
    pairs = {row: pairs_of(row) for row in rows}
    wanted: set = set().union(*pairs.values())
    chosen = []
    heap = sorted((-len(pairs[row]) / cost(row), i) for i, row in enumerate(rows))
    while wanted:
        _, i = heapq.heappop(heap)
        new = len(pairs[rows[i]] & wanted) / cost(rows[i])
        if new and (not heap or new >= -heap[0][0]):
            chosen.append(rows[i])
            wanted -= pairs[rows[i]]
        elif new:
            heapq.heappush(heap, (-new, i))
    return chosen


def main() -> None:
    """Search the rows among all that run, and write them with the pairs that cannot run."""
    from tests.support.problems import AXES, rows_that_run

    rows = rows_that_run()
    possible = set().union(*map(pairs_of, rows))
    product = all_pairs(AXES)
    lines = [json.dumps(row) for row in search(rows, lambda row: 1 if row[-1] else EAGER)]
    impossible = [json.dumps(pair) for pair in sorted(product - possible, key=str)]
    text = '{{"rows": [\n{}\n], "impossible": [\n{}\n]}}\n'.format(",\n".join(lines), ",\n".join(impossible))
    FILE.write_text(text)


if __name__ == "__main__":
    main()
