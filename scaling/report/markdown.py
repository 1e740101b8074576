"""Load the Jinja templates of this folder, render Markdown text and tables, and escape inserted values."""

import functools
import re
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from scaling.report.text import Table, clean_text, keep_numbers_whole

_SPECIAL_CHARACTER = re.compile(r"([\\`*_{}\[\]#|~$!^])")
_LINE_START = re.compile(r"^(\d+)([.)])(?=\s|$)|^([-+=])")  # text that would start a list or a heading
_BREAK_IN_PARAGRAPH = re.compile(r"(?<=[^\n|])\n(?=[^\n|#!*-])")


def escape_markdown(text: str) -> str:
    """Escape the special characters of Markdown and HTML in a text, and put the text on one line."""
    text = _SPECIAL_CHARACTER.sub(r"\\\1", " ".join(clean_text(text).split()))
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _LINE_START.sub(lambda match: f"{match[1] or ''}\\{match[2] or match[3]}", text)


def to_markdown_table(table: Table) -> Markup:
    """Return a table in Markdown, with a header of column names. The title of the table is omitted."""
    header, *rows = (f"| {' | '.join(map(escape_markdown, row))} |" for row in (table.columns, *table.rows))
    return Markup("\n".join([header, f"|{' --- |' * len(table.columns)}", *rows]))


def render_markdown(template: str, **values: Any) -> str:
    """Render a Markdown template file with `values`. Each paragraph and each list item is on one line."""
    text = load_template(template).render(values)
    return _BREAK_IN_PARAGRAPH.sub(" ", re.sub(r"\n{3,}", "\n\n", text.strip())) + "\n"


@functools.cache
def load_template(name: str) -> jinja2.Template:
    """Load the Jinja template with the given file name.

    Inserted values are escaped for Markdown if the name ends with .md.jinja, otherwise for HTML.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, undefined=jinja2.StrictUndefined,
        finalize=_to_markdown if name.endswith(".md.jinja") else None,
    )  # fmt: skip
    environment.filters |= {"table": to_markdown_table, "html": _to_html}
    return environment.get_template(name)


def _to_html(text: str) -> Markup:
    """Convert text to HTML, with text in backticks as `<code>` elements and without breaks in quantities."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(keep_numbers_whole(text)))))


def _to_markdown(value: Any) -> Markup:
    return value if isinstance(value, Markup) else Markup(escape_markdown(str(value)))
