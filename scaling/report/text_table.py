"""Class Table, whose cells are text, for the HTML page, the Markdown report and the console."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from scaling.core.formatting import count_of

T = TypeVar("T")


class Table(NamedTuple):
    """A table of text: its HTML anchor, title, note, column names and rows.

    If no HTML anchors are given for the rows (`row_anchors`), the rows have anchors such as 'laws-row1'.
    """

    anchor: str
    title: str
    note: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    row_anchors: Sequence[str] = ()

    @property
    def anchored_rows(self) -> list[tuple[str, tuple[str, ...]]]:
        """Return the rows as (HTML anchor, row) pairs."""
        anchors = self.row_anchors or [
            f"{self.anchor}-row{number}" for number in range(1, len(self.rows) + 1)
        ]
        return list(zip(anchors, self.rows, strict=True))

    @property
    def size(self) -> str:
        """Return the number of rows as text, such as '3 rows'."""
        return count_of(len(self.rows), "row")


def make_table(
    anchor: str,
    title: str,
    note: str,
    items: Iterable[T],
    columns: Mapping[str, Callable[[T], object]],
    row_anchors: Sequence[str] = (),
) -> Table:
    """Return a table with one row per item. A cell is empty if its value is None.

    Columns without any text are omitted, except the first column.

    Args:
        anchor: The HTML anchor of the table.
        note: The text below the title.
        columns: A dict from column name to a function that returns the cell of an item.
        row_anchors: The HTML anchors of the rows.
    """
    rows = [
        tuple("" if (cell := get(item)) is None else str(cell) for get in columns.values()) for item in items
    ]
    kept = [at for at in range(len(columns)) if at == 0 or any(row[at] for row in rows)]
    names = list(columns)
    cells = [tuple(row[at] for at in kept) for row in rows]
    return Table(anchor, title, note, tuple(names[at] for at in kept), cells, row_anchors)


def join_words(*words: object) -> str:
    """Return the words as text, separated by commas. Empty words and words that are None are omitted."""
    return ", ".join(str(word) for word in words if word)
