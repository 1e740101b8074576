"""Define `Table`, clean and wrap text, escape Markdown and HTML, and load Jinja templates (*.jinja).

Jinja and MarkupSafe are imported only where they are used, because other commands start faster without them,
and scripts/accelerator needs neither.
"""

import functools
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import jinja2
    from markupsafe import Markup

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
_SPECIAL_CHARACTER = re.compile(r"([\\`*_{}\[\]#|~$!^])")
_LINE_START = re.compile(r"^(\d+)([.)])(?=\s|$)|^([-+=])")  # text that would start a list or a heading
_BREAK_IN_PARAGRAPH = re.compile(r"(?<=[^\n|])\n(?=[^\n|#!*-])")


class Table(NamedTuple):
    """A table whose cells are text, for the HTML page, Markdown files and the console."""

    anchor: str  # the HTML anchor of the table
    title: str
    note: str  # text above the table
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    row_anchors: Sequence[str] = ()  # the HTML anchor of each row; if empty, anchors such as 'each-row1'


def make_table(
    anchor: str, title: str, note: str, rows: Iterable[Mapping[str, object]], row_anchors: Sequence[str] = ()
) -> Table:
    """Return a `Table` of `rows`, which are dicts with the same column names as keys.

    None becomes an empty cell. A column with only empty cells is omitted, unless it is the first one.
    """
    text_rows = [{name: "" if cell is None else str(cell) for name, cell in row.items()} for row in rows]
    headers = list(text_rows[0]) if text_rows else []
    columns = tuple(name for name in headers if name == headers[0] or any(row[name] for row in text_rows))
    cells = [tuple(row[name] for name in columns) for row in text_rows]
    return Table(anchor, title, note, columns, cells, row_anchors)


def clean_text(text: str) -> str:
    """Return a text without control characters (except line feeds) and without invalid characters.

    A control character becomes a space. Lone surrogates, and characters that XML does not allow, become
    U+FFFD.
    """
    return _INVALID.sub("\ufffd", _CONTROL.sub(" ", text))


def file_stem(name: str, length: int = 40) -> str:
    """Return a name in a form suitable for file names, such as 'nvidia-h100' for 'NVIDIA H100'."""
    return re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")[:length] or "other"


def keep_numbers_whole(text: str) -> str:
    """Return a text with non-breaking spaces in quantities, such as '1.2 ms (1.1 to 1.3)'."""
    return _UNBREAKABLE.sub(NO_BREAK_SPACE, text)


def wrap_text(text: str, width: int = WIDTH, indent: str = "") -> list[str]:
    """Return the lines of a text, wrapped at `width` characters. All but the first begin with `indent`.

    A line can be longer, because words and quantities such as '1.2 ms' are not broken.
    """
    joined = keep_numbers_whole(" ".join(clean_text(text).split()))
    wrapper = textwrap.TextWrapper(
        width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace(NO_BREAK_SPACE, " ") for line in wrapper.wrap(joined)]


def escape_markdown(text: str) -> str:
    """Return a text on one line, with the special characters of Markdown and HTML escaped."""
    text = _SPECIAL_CHARACTER.sub(r"\\\1", " ".join(clean_text(text).split()))
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _LINE_START.sub(lambda match: f"{match[1] or ''}\\{match[2] or match[3]}", text)


def to_markdown_table(table: Table) -> "Markup":
    """Return a table in Markdown, with a header of column names, but without its title."""
    from markupsafe import Markup

    header, *rows = (f"| {' | '.join(map(escape_markdown, row))} |" for row in (table.columns, *table.rows))
    return Markup("\n".join([header, f"|{' --- |' * len(table.columns)}", *rows]))


def render_markdown(template: str, **values: Any) -> str:
    """Return the text of a Markdown template, such as "table.md.jinja", filled in with `values`.

    Each paragraph and each list item is on one line.
    """
    text = load_template(template).render(values)
    return _BREAK_IN_PARAGRAPH.sub(" ", re.sub(r"\n{3,}", "\n\n", text.strip())) + "\n"


@functools.cache
def load_template(name: str) -> "jinja2.Template":
    """Return the Jinja template with the given file name.

    It escapes values for Markdown if its name ends with .md.jinja, otherwise for HTML.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, undefined=jinja2.StrictUndefined,
        finalize=_to_markdown if name.endswith(".md.jinja") else None,
    )  # fmt: skip
    environment.filters |= {"table": to_markdown_table, "html": _to_html}
    return environment.get_template(name)


def _to_html(text: str) -> "Markup":
    """Return text as HTML. Text in backticks becomes a `<code>` element, and quantities are not broken."""
    from markupsafe import Markup, escape

    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(keep_numbers_whole(text)))))


def _to_markdown(value: Any) -> "Markup":
    from markupsafe import Markup

    return value if isinstance(value, Markup) else Markup(escape_markdown(str(value)))
