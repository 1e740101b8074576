"""Convert a document of headings, paragraphs, lists, tables and figures to Markdown and LaTeX.

All text is escaped, so that text from a record cannot become markup.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from scaling.report.labels import clean_text


class Heading(NamedTuple):
    """The title of a document (level 1) or of a section (level 2)."""

    text: str
    level: int = 2


class Paragraph(NamedTuple):
    """A paragraph of plain text."""

    text: str


class ItemList(NamedTuple):
    """A bulleted list of sentences."""

    texts: tuple[str, ...]


class DocumentTable(NamedTuple):
    """A table with a caption, column names and rows of cells."""

    caption: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


class DocumentFigure(NamedTuple):
    """A figure: its caption and the paths of its image files for Markdown and LaTeX.

    Attributes:
        caption: The plain text of the caption.
        shown: The path of the image file in Markdown.
        printed: The path of the image file in LaTeX.
    """

    caption: str
    shown: str
    printed: str


DocumentBlock = Heading | Paragraph | ItemList | DocumentTable | DocumentFigure

_MARKDOWN = re.compile(r"([\\`*_{}\[\]#|~$!^])")
_LATEX_ESCAPES = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "#": r"\#", "$": r"\$", "%": r"\%", "&": r"\&",
    "_": r"\_", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\char34{}", "`": r"\textasciigrave{}", "[": "{[}",
    "]": "{]}", "*": "{*}",
}  # fmt: skip
_LIGATURE = re.compile(r"([-',])(?=\1)")  # TeX would join two of them into one character
_LATEX_SYMBOLS = {
    "µ": r"\ensuremath{\mu}",
    "μ": r"\ensuremath{\mu}",
    "×": r"\ensuremath{\times}",
    "–": r"\textendash{}",
    "…": r"\ldots{}",
}
_ACCENTS = {
    "\u0300": "`",
    "\u0301": "'",
    "\u0302": "^",
    "\u0303": "~",
    "\u0308": '"',
    "\u030a": "r ",
    "\u030c": "v ",
    "\u0327": "c ",
}
PREAMBLE = r"\usepackage{graphicx}"


def _to_one_line(text: str) -> str:
    return " ".join(clean_text(text).split())


def escape_markdown(text: str) -> str:
    """Return text on one line, with Markdown and HTML markup escaped."""
    escaped = (
        _MARKDOWN.sub(r"\\\1", _to_one_line(text))
        .replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
    )
    return re.sub(
        r"^(\d+)([.)])(?=\s|$)|^([-+=])", lambda match: f"{match[1] or ''}\\{match[2] or match[3]}", escaped
    )


def escape_latex(text: str) -> str:
    """Return text as LaTeX source on one line, which contains only ASCII characters.

    Accented letters become LaTeX commands. Unsupported characters become code points such as [U+4E2D].
    """
    characters = "".join(map(_escape_latex_character, _to_one_line(unicodedata.normalize("NFC", text))))
    return _LIGATURE.sub(r"\1{}", characters)


def _escape_latex_character(character: str) -> str:
    if escaped := _LATEX_ESCAPES.get(character) or _LATEX_SYMBOLS.get(character):
        return escaped
    if character.isascii():
        return character
    base, *rest = list(unicodedata.normalize("NFD", character))
    if len(rest) == 1 and base.isascii() and base.isalpha() and (accent := _ACCENTS.get(rest[0])):
        return f"\\{accent}{{{base}}}"
    return f"{{[}}U+{ord(character):04X}{{]}}"


def to_markdown(blocks: Sequence[DocumentBlock]) -> str:
    """Return a document as Markdown text."""
    return "\n\n".join(_MARKDOWN_OF[type(block)](block) for block in blocks) + "\n"


def to_latex(blocks: Sequence[DocumentBlock]) -> str:
    """Return a document as LaTeX text without a preamble.

    The document that includes the text must contain `PREAMBLE` in its preamble.
    """
    return "\n\n".join(_LATEX_OF[type(block)](block) for block in blocks) + "\n"


def to_markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table with the given column names and rows of plain text."""
    head, *lines = (f"| {' | '.join(map(escape_markdown, row))} |" for row in (columns, *rows))
    return "\n".join([head, f"|{' --- |' * len(columns)}", *lines])


def _markdown_table(table: DocumentTable) -> str:
    return f"**{escape_markdown(table.caption)}**\n\n{to_markdown_table(table.columns, table.rows)}"


def _latex_table(table: DocumentTable) -> str:
    head, *rows = (f"  {' & '.join(map(escape_latex, line))} \\\\" for line in [table.columns, *table.rows])
    rule = "  \\hline"
    return "\n".join([
        "\\begin{table}[htbp]", "  \\centering\\small\\renewcommand{\\arraystretch}{1.15}",
        f"  \\caption{{{escape_latex(table.caption)}}}",
        f"  \\begin{{tabular}}{{{'l' + 'r' * (len(table.columns) - 1)}}}", rule, head, rule, *rows, rule,
        "  \\end{tabular}", "\\end{table}",
    ])  # fmt: skip


def _latex_figure(figure: DocumentFigure) -> str:
    return "\n".join([
        "\\begin{figure}[htbp]", "  \\centering",
        f"  \\includegraphics[width=\\linewidth,height=0.8\\textheight,keepaspectratio]{{{figure.printed}}}",
        f"  \\caption{{{escape_latex(figure.caption)}}}", "\\end{figure}",
    ])  # fmt: skip


def _latex_items(items: ItemList) -> str:
    return "\n".join(
        ["\\begin{itemize}", *(f"  \\item {escape_latex(text)}" for text in items.texts), "\\end{itemize}"]
    )


_MARKDOWN_OF: dict[type, Callable] = {
    Heading: lambda heading: f"{'#' * heading.level} {escape_markdown(heading.text)}",
    Paragraph: lambda paragraph: escape_markdown(paragraph.text),
    ItemList: lambda items: "\n".join(f"- {escape_markdown(text)}" for text in items.texts),
    DocumentTable: _markdown_table,
    DocumentFigure: lambda figure: f"![{escape_markdown(figure.caption)}]({figure.shown})",
}
_LATEX_OF: dict[type, Callable] = {
    Heading: lambda heading: (
        f"\\{'section' if heading.level == 1 else 'subsection'}{{{escape_latex(heading.text)}}}"
    ),
    Paragraph: lambda paragraph: escape_latex(paragraph.text),
    ItemList: _latex_items,
    DocumentTable: _latex_table,
    DocumentFigure: _latex_figure,
}
