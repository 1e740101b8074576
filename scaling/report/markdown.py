"""Convert a document of headings, paragraphs, lists, tables and figures to Markdown.

All text is escaped, so that text from a record cannot become markup.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from scaling.report.figures.marks import Figure
from scaling.report.text import Table, clean_text

_SPECIAL = re.compile(r"([\\`*_{}\[\]#|~$!^])")
_LINE_START = re.compile(r"^(\d+)([.)])(?=\s|$)|^([-+=])")  # text that would start a list or a heading


class MarkdownSection(NamedTuple):
    """A section of a document: paragraphs, then tables, figures and a list of items, without markup.

    A figure becomes a reference to the image file NAME.png in the folder of the document.
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


def to_markdown(title: str, sections: Iterable[MarkdownSection]) -> str:
    """Return a document with a title and sections as Markdown text."""
    blocks = [f"# {escape_markdown(title)}"]
    for section in sections:
        blocks += [f"## {escape_markdown(section.title)}", *map(escape_markdown, section.paragraphs)]
        for table in section.tables:
            blocks += [f"**{escape_markdown(table.title)}**"] * bool(table.title) + [to_markdown_table(table)]
        blocks += [f"![{escape_markdown(figure.caption)}]({figure.name}.png)" for figure in section.figures]
        if section.items:
            blocks.append("\n".join(f"- {escape_markdown(item)}" for item in section.items))
    return "\n\n".join(blocks) + "\n"


def to_markdown_table(table: Table) -> str:
    """Return a table as Markdown text: the column names and the rows, without the title."""
    head, *lines = (f"| {' | '.join(map(escape_markdown, row))} |" for row in (table.columns, *table.rows))
    return "\n".join([head, f"|{' --- |' * len(table.columns)}", *lines])
