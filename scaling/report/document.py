"""A document: headings, paragraphs, lists, tables and figures, as Markdown and as LaTeX.

All text in it is plain: whatever means something to Markdown, HTML or LaTeX is escaped, so that nothing that stands in a record
can become markup. Knows no numbers and no records.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import NamedTuple

from scaling.report.labels import legible


class Heading(NamedTuple):
    """A title, or (level 2) that of a part."""

    text: str
    level: int = 2


class Paragraph(NamedTuple):
    """A few sentences."""

    text: str


class ItemList(NamedTuple):
    """A list of sentences."""

    texts: tuple[str, ...]


class DocumentTable(NamedTuple):
    """Rows of cells under columns."""

    caption: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


class DocumentFigure(NamedTuple):
    """A picture: the names of its files beside the document, one that a page shows and one that LaTeX takes."""

    caption: str
    shown: str
    printed: str


Block = Heading | Paragraph | ItemList | DocumentTable | DocumentFigure

_MARKDOWN = re.compile(r"([\\`*_{}\[\]#|~$!^])")
_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "#": r"\#", "$": r"\$", "%": r"\%", "&": r"\&", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    '"': r"\char34{}", "`": r"\textasciigrave{}", "[": "{[}", "]": "{]}", "*": "{*}",
}  # fmt: skip
_LIGATURE = re.compile(r"([-',])(?=\1)")  # two of them would become one sign
_SIGNS = {
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


def _line(text: str) -> str:
    """Text on one line, without control characters."""
    return " ".join(legible(text).split())


def markdown(text: str) -> str:
    """Plain text in Markdown."""
    escaped = _MARKDOWN.sub(r"\\\1", _line(text)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"^(\d+)([.)])(?=\s|$)|^([-+=])", lambda found: f"{found[1] or ''}\\{found[2] or found[3]}", escaped)


def latex(text: str) -> str:
    """Plain text in LaTeX, in ASCII: accents by their commands, what LaTeX may not have by its number."""
    signs = "".join(map(_latex_sign, _line(unicodedata.normalize("NFC", text))))
    return _LIGATURE.sub(r"\1{}", signs)


def _latex_sign(sign: str) -> str:
    if told := _LATEX.get(sign) or _SIGNS.get(sign):
        return told
    if sign.isascii():
        return sign
    base, *rest = list(unicodedata.normalize("NFD", sign))
    if len(rest) == 1 and base.isascii() and base.isalpha() and (accent := _ACCENTS.get(rest[0])):
        return f"\\{accent}{{{base}}}"
    return f"{{[}}U+{ord(sign):04X}{{]}}"


def to_markdown(blocks: Sequence[Block]) -> str:
    """The whole as Markdown."""
    return "\n\n".join(_MARKDOWN_OF[type(block)](block) for block in blocks) + "\n"


def to_latex(blocks: Sequence[Block]) -> str:
    """The whole as a part of a LaTeX document, to be taken with \\input; what it needs is PREAMBLE."""
    return "\n\n".join(_LATEX_OF[type(block)](block) for block in blocks) + "\n"


def _markdown_table(table: DocumentTable) -> str:
    lines = [table.columns, *table.rows]
    head, *rows = (f"| {' | '.join(map(markdown, line))} |" for line in lines)
    return "\n".join([f"**{markdown(table.caption)}**", "", head, f"|{' --- |' * len(table.columns)}", *rows])


def _latex_table(table: DocumentTable) -> str:
    head, *rows = (f"  {' & '.join(map(latex, line))} \\\\" for line in [table.columns, *table.rows])
    rule = "  \\hline"
    return "\n".join([
        "\\begin{table}[htbp]", "  \\centering\\small\\renewcommand{\\arraystretch}{1.15}",
        f"  \\caption{{{latex(table.caption)}}}",
        f"  \\begin{{tabular}}{{{'l' + 'r' * (len(table.columns) - 1)}}}", rule, head, rule, *rows, rule,
        "  \\end{tabular}", "\\end{table}",
    ])  # fmt: skip


def _latex_figure(figure: DocumentFigure) -> str:
    return "\n".join([
        "\\begin{figure}[htbp]", "  \\centering",
        f"  \\includegraphics[width=\\linewidth,height=0.8\\textheight,keepaspectratio]{{{figure.printed}}}",
        f"  \\caption{{{latex(figure.caption)}}}", "\\end{figure}",
    ])  # fmt: skip


def _latex_items(items: ItemList) -> str:
    return "\n".join(["\\begin{itemize}", *(f"  \\item {latex(text)}" for text in items.texts), "\\end{itemize}"])


_MARKDOWN_OF: dict[type, Callable] = {
    Heading: lambda heading: f"{'#' * heading.level} {markdown(heading.text)}",
    Paragraph: lambda paragraph: markdown(paragraph.text),
    ItemList: lambda items: "\n".join(f"- {markdown(text)}" for text in items.texts),
    DocumentTable: _markdown_table,
    DocumentFigure: lambda figure: f"![{markdown(figure.caption)}]({figure.shown})",
}
_LATEX_OF: dict[type, Callable] = {
    Heading: lambda heading: f"\\{'section' if heading.level == 1 else 'subsection'}{{{latex(heading.text)}}}",
    Paragraph: lambda paragraph: latex(paragraph.text),
    ItemList: _latex_items,
    DocumentTable: _latex_table,
    DocumentFigure: _latex_figure,
}
