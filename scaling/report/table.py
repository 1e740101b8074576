"""A table: a title, a note, columns, and rows of words, as every page and document shows them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from scaling.core.formatting import count_of

T = TypeVar("T")


class Table(NamedTuple):
    """A table: its anchor in a page, its title, a note, its columns and rows.

    row_anchors: the anchor of each row, of a case the name of its panel; without any, rows are numbered.
    """

    anchor: str
    title: str
    note: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    row_anchors: Sequence[str] = ()

    @property
    def anchored_rows(self) -> list[tuple[str, tuple[str, ...]]]:
        """Return each row with its anchor."""
        anchors = self.row_anchors or [
            f"{self.anchor}-row{number}" for number in range(1, len(self.rows) + 1)
        ]
        return list(zip(anchors, self.rows, strict=True))

    @property
    def size(self) -> str:
        """Return the number of rows in words."""
        return count_of(len(self.rows), "row")


def make_table(
    anchor: str,
    title: str,
    note: str,
    items: Iterable[T],
    columns: Mapping[str, Callable[[T], object]],
    row_anchors: Sequence[str] = (),
) -> Table:
    """Return the table of some items, with a function that returns the cell of each column.

    None is an empty cell; columns without any word are left out, but for the first.
    """
    rows = [
        tuple("" if (cell := of(item)) is None else str(cell) for of in columns.values()) for item in items
    ]
    kept = [at for at in range(len(columns)) if at == 0 or any(row[at] for row in rows)]
    names = list(columns)
    cells = [tuple(row[at] for at in kept) for row in rows]
    return Table(anchor, title, note, tuple(names[at] for at in kept), cells, row_anchors)


def join_words(*words: object) -> str:
    """Return the words that are not empty, separated by commas."""
    return ", ".join(str(word) for word in words if word)
