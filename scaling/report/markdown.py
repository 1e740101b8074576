"""Convert a document of headings, paragraphs, lists, tables and figures to Markdown.

All text is escaped, so that text from a record cannot become markup.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from scaling.report.figures.marks import Figure
from scaling.report.text import Table, clean_text

_SPECIAL = re.compile(r"([\\`*_{}\[\]#|~$!^])")
_LINE_START = re.compile(r"^(\d+)([.)])(?=\s|$)|^([-+=])")  # of a list or a heading


class Part(NamedTuple):
    """A section of a document: paragraphs, then tables, figures and a list of items, without markup.

    The document includes each figure from its folder, as NAME.png.
    """

    title: str
    paragraphs: Sequence[str] = ()
    items: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()


def escape_markdown(text: str) -> str:
    """Return the text on one line, with the special characters of Markdown and HTML escaped."""
    text = _SPECIAL.sub(r"\\\1", " ".join(clean_text(text).split()))
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _LINE_START.sub(lambda match: f"{match[1] or ''}\\{match[2] or match[3]}", text)


def to_markdown(title: str, parts: Iterable[Part]) -> str:
    """Return a document as Markdown text."""
    blocks = [f"# {escape_markdown(title)}"]
    for part in parts:
        blocks += [f"## {escape_markdown(part.title)}", *map(escape_markdown, part.paragraphs)]
        for table in part.tables:
            blocks += [f"**{escape_markdown(table.title)}**"] * bool(table.title) + [to_markdown_table(table)]
        blocks += [f"![{escape_markdown(figure.caption)}]({figure.name}.png)" for figure in part.figures]
        if part.items:
            blocks.append("\n".join(f"- {escape_markdown(item)}" for item in part.items))
    return "\n\n".join(blocks) + "\n"


def to_markdown_table(table: Table) -> str:
    """Return the column names and the rows of a table as Markdown, without its title."""
    head, *lines = (f"| {' | '.join(map(escape_markdown, row))} |" for row in (table.columns, *table.rows))
    return "\n".join([head, f"|{' --- |' * len(table.columns)}", *lines])
