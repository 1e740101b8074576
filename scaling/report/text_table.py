"""Class Table, whose cells are text, for the HTML page, the Markdown report and the console."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from scaling.core.formatting import count_of


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
    rows: Iterable[Mapping[str, object]],
    row_anchors: Sequence[str] = (),
) -> Table:
    """Return a table of text from dicts, from column name to cell. A cell is empty if its value is None.

    Columns without any text are omitted, except the first column.
    """
    texts = [{name: "" if cell is None else str(cell) for name, cell in row.items()} for row in rows]
    names = list(texts[0]) if texts else []
    kept = tuple(name for name in names if name == names[0] or any(row[name] for row in texts))
    return Table(anchor, title, note, kept, [tuple(row[name] for name in kept) for row in texts], row_anchors)


def join_words(*words: object) -> str:
    """Return the words as text, separated by commas. Empty words and words that are None are omitted."""
    return ", ".join(str(word) for word in words if word)
