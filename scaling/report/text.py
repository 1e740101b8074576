"""Define `Table` and `TerminalReport`, and functions that clean text, wrap lines and make file names."""

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

_CONTROL = re.compile(  # control characters except the line feed, line separators, text direction marks
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]"
)
_INVALID = re.compile("[\ud800-\udfff\ufffe\uffff]")  # characters that text files and XML do not allow
_UNBREAKABLE = re.compile(  # spaces between a number and its unit or noun, and in an interval
    r"(?<=\d) (?=(?:[mµun]?s|[kMGT]?B|%|devices?|cases?)\b|%)|(?<=\S) (?=\([-\d])|(?<=\d) "
    r"(?=to )|(?<=to) (?=[-\d])"
)
NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"
WIDTH = 80  # columns of a usual console


def clean_text(text: str) -> str:
    """Replace control characters except line feeds with spaces, and invalid characters with U+FFFD.

    The invalid characters are lone surrogates and those that XML does not allow.
    """
    return _INVALID.sub("\ufffd", _CONTROL.sub(" ", text))


def file_stem(name: str) -> str:
    """Convert a name to a part of a file name, such as 'NVIDIA H100' to 'nvidia-h100'."""
    return re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "other"


def keep_numbers_whole(text: str) -> str:
    """Replace the spaces within quantities such as '1.2 ms (1.1 to 1.3)' with non-breaking spaces."""
    return _UNBREAKABLE.sub(NO_BREAK_SPACE, text)


class Table(NamedTuple):
    """A table of text for the HTML page, Markdown files and the console."""

    anchor: str  # the HTML anchor of the table
    title: str
    note: str  # text above the table
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    row_anchors: Sequence[str] = ()  # the HTML anchor of each row; if empty, anchors such as 'each-row1'


class TerminalReport(NamedTuple):
    """The tables and text that `scaling report` prints about a results folder."""

    tables: Sequence[Table]  # the fastest modes, and the scaling curves of each problem
    sentences: Sequence[str]
    totals: str  # the number of cases per status


def make_table(
    anchor: str, title: str, note: str, rows: Iterable[Mapping[str, object]], row_anchors: Sequence[str] = ()
) -> Table:
    """Return a `Table` of text from `rows`, which are dicts with the same column names as keys.

    None becomes an empty cell. A column with only empty cells is omitted, unless it is the first one.
    """
    text_rows = [{name: "" if cell is None else str(cell) for name, cell in row.items()} for row in rows]
    headers = list(text_rows[0]) if text_rows else []
    columns = tuple(name for name in headers if name == headers[0] or any(row[name] for row in text_rows))
    cells = [tuple(row[name] for name in columns) for row in text_rows]
    return Table(anchor, title, note, columns, cells, row_anchors)


def wrap_text(text: str, width: int = WIDTH, indent: str = "") -> list[str]:
    """Return the lines of a text, wrapped at `width` characters.

    The text `indent` precedes all lines except the first. Words and quantities such as '1.2 ms' are not
    broken. Therefore, a line can exceed the width.
    """
    joined = keep_numbers_whole(" ".join(clean_text(text).split()))
    wrapper = textwrap.TextWrapper(
        width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace(NO_BREAK_SPACE, " ") for line in wrapper.wrap(joined)]
