"""Define `TerminalReport`, and print it or a `Table` on a rich console of any width."""

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from scaling.report.text import Table, clean_text, keep_numbers_whole, wrap_text

_BORDER_WIDTH = 3  # characters of padding and border per column


class TerminalReport(NamedTuple):
    """The tables and text that `scaling report` prints about a results folder."""

    tables: Sequence[Table]  # the fastest modes, and the scaling curves of each problem
    sentences: Sequence[str]
    totals: str  # the number of cases per status


def print_report(report: TerminalReport, console: Console) -> None:
    """Print the tables and the sentences of a report on a console. The field `totals` is not printed."""
    for table in report.tables:
        print_table(table, console)
    for sentence in report.sentences:
        _print_wrapped(f"- {sentence}", console)


def print_table(table: Table, console: Console) -> None:
    """Print a table and its title. If the console is too narrow, print each row as a paragraph."""
    header, *text_rows = (
        [keep_numbers_whole(_to_one_line(cell, console)) for cell in row]
        for row in (table.columns, *table.rows)
    )
    _print_wrapped(table.title, console)
    widths = _column_widths(list(zip(header, *text_rows, strict=True)), console.width)
    if widths is None:
        for first_cell, *cells in text_rows:
            named = (f"{name} {cell}" for name, cell in zip(header[1:], cells, strict=True) if cell)
            _print_wrapped(f"{first_cell}: {', '.join(named)}", console)
        return
    rich_table = RichTable()
    names, *rows = (
        [Text("\n".join(wrap_text(cell, width))) for cell, width in zip(row, widths, strict=True)]
        for row in (header, *text_rows)
    )
    for name in names:
        rich_table.add_column(name, no_wrap=True)
    for row in rows:
        rich_table.add_row(*row)
    console.print(rich_table)


def _column_widths(columns: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """Return the width of each column in characters, or None if the longest words do not fit into `width`."""
    max_widths = [max(map(len, column)) for column in columns]
    min_widths = [max(len(word) for cell in column for word in cell.split(" ")) for column in columns]
    free_width = width - _BORDER_WIDTH * len(columns) - 1 - sum(min_widths)
    if free_width < 0:
        return None
    wanted_width = sum(max_widths) - sum(min_widths)
    fraction = min(1.0, free_width / wanted_width) if wanted_width else 0.0
    return [low + int(fraction * (high - low)) for low, high in zip(min_widths, max_widths, strict=True)]


def _to_one_line(text: str, console: Console) -> str:
    """Return a text on one line. Characters that the console cannot display are replaced."""
    line = " ".join(clean_text(text).split())
    if (console.encoding or "").lower().startswith("utf"):
        return line
    return line.replace("µ", "u").encode("ascii", "replace").decode()


def _print_wrapped(text: str, console: Console) -> None:
    """Print text wrapped to the width of the console, or on one line if the console is not a terminal."""
    line = _to_one_line(text, console)
    wrapped = "\n".join(wrap_text(line, console.width, "  ")) if console.is_terminal else line
    console.print(Text(wrapped), soft_wrap=True, highlight=False)
