"""Print the tables and sentences of a report on a console, without reading results.

If a table is too wide for the console, each row is printed as a paragraph.
"""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from scaling.report.text import Table, TerminalReport, clean_text, keep_numbers_whole, wrap_text

_BORDERS = 3  # characters of padding and border per column


def print_report(report: TerminalReport, console: Console) -> None:
    """Print the fastest modes, the speed-ups and the conclusions of a study on a console."""
    for table in report.tables:
        print_table(table, console)
    for sentence in report.sentences:
        _print_wrapped(f"- {sentence}", console)


def print_table(table: Table, console: Console) -> None:
    """Print the title and the rows of a table on a console, as paragraphs if the table is too wide."""
    rows = [
        [keep_numbers_whole(_to_one_line(cell, console)) for cell in row]
        for row in (table.columns, *table.rows)
    ]
    _print_wrapped(table.title, console)
    widths = _column_widths(list(zip(*rows, strict=True)), console.width)
    if widths is None:
        for head, *values in rows[1:]:
            named = (f"{name} {value}" for name, value in zip(rows[0][1:], values, strict=True) if value)
            _print_wrapped(f"{head}: {', '.join(named)}", console)
        return
    rich_table = RichTable()
    for name in rows[0]:
        rich_table.add_column(Text(name), no_wrap=True)
    for row in rows[1:]:
        cells = (wrap_text(cell, width) for cell, width in zip(row, widths, strict=True))
        rich_table.add_row(*(Text("\n".join(lines)) for lines in cells))
    console.print(rich_table)


def _column_widths(columns: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """Return the width of each column in characters, or None if the table does not fit into `width`.

    `columns` contains the cells of each column. No column is narrower than its longest word.
    """
    largest = [max(map(len, column)) for column in columns]
    smallest = [max(len(word) for cell in column for word in cell.split(" ")) for column in columns]
    spare = width - _BORDERS * len(columns) - 1 - sum(smallest)
    if spare < 0:
        return None
    wanted = sum(largest) - sum(smallest)
    fraction = min(1.0, spare / wanted) if wanted else 0.0
    return [low + int(fraction * (high - low)) for low, high in zip(smallest, largest, strict=True)]


def _to_one_line(text: str, console: Console) -> str:
    """Return the text on one line, without characters that the console cannot display."""
    words = " ".join(clean_text(text).split())
    if (console.encoding or "").lower().startswith("utf"):
        return words
    return words.replace("µ", "u").encode("ascii", "replace").decode()


def _print_wrapped(text: str, console: Console) -> None:
    """Print text on a console, wrapped to its width if it is a terminal and as one line otherwise."""
    line = _to_one_line(text, console)
    lines = wrap_text(line, console.width, "  ") if console.is_terminal else [line]
    for line in lines:
        console.print(Text(line), soft_wrap=True, highlight=False)
