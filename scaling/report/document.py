"""Convert a document of headings, paragraphs, lists, tables and figures to Markdown and LaTeX.

All text is escaped, so that text from a record cannot become markup.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from scaling.report.figures.marks import Figure
from scaling.report.text import Table, clean_text


class Part(NamedTuple):
    """A section of a document: paragraphs, then tables, figures and a list of items, without markup.

    The document includes each figure from its folder, as NAME.png in Markdown and as NAME.pdf in LaTeX.
    """

    title: str
    paragraphs: Sequence[str] = ()
    items: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()


_MARKDOWN = re.compile(r"([\\`*_{}\[\]#|~$!^])")
_LATEX_ESCAPES = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "#": r"\#", "$": r"\$", "%": r"\%", "&": r"\&",
    "_": r"\_", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\char34{}", "`": r"\textasciigrave{}", "[": "{[}",
    "]": "{]}", "*": "{*}",
}  # fmt: skip
_LIGATURE = re.compile(r"([-',])(?=\1)")  # repeated characters that TeX would join into one
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
    """Return the text on one line, with the special characters of Markdown and HTML escaped."""
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
    """Return the text as one line of LaTeX source that contains only ASCII characters.

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


def to_markdown(title: str, parts: Iterable[Part]) -> str:
    """Return a document as Markdown text."""
    blocks = [f"# {escape_markdown(title)}"]
    for part in parts:
        blocks += [f"## {escape_markdown(part.title)}", *map(escape_markdown, part.paragraphs)]
        blocks += [
            f"**{escape_markdown(t.title)}**\n\n{to_markdown_table(t.columns, t.rows)}" for t in part.tables
        ]
        blocks += [f"![{escape_markdown(figure.caption)}]({figure.name}.png)" for figure in part.figures]
        blocks += ["\n".join(f"- {escape_markdown(item)}" for item in part.items)] if part.items else []
    return "\n\n".join(blocks) + "\n"


def to_latex(title: str, parts: Iterable[Part]) -> str:
    """Return a document as LaTeX text without a preamble.

    The document that includes the text must contain `PREAMBLE` in its preamble.
    """
    blocks = [f"\\section{{{escape_latex(title)}}}"]
    for part in parts:
        blocks += [f"\\subsection{{{escape_latex(part.title)}}}", *map(escape_latex, part.paragraphs)]
        blocks += [*map(_latex_table, part.tables), *map(_latex_figure, part.figures)]
        items = [f"  \\item {escape_latex(item)}" for item in part.items]
        blocks += ["\n".join(["\\begin{itemize}", *items, "\\end{itemize}"])] if items else []
    return "\n\n".join(blocks) + "\n"


def to_markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table with the given column names and rows of plain text."""
    head, *lines = (f"| {' | '.join(map(escape_markdown, row))} |" for row in (columns, *rows))
    return "\n".join([head, f"|{' --- |' * len(columns)}", *lines])


def _latex_table(table: Table) -> str:
    head, *rows = (f"  {' & '.join(map(escape_latex, line))} \\\\" for line in [table.columns, *table.rows])
    rule = "  \\hline"
    return "\n".join([
        "\\begin{table}[htbp]", "  \\centering\\small\\renewcommand{\\arraystretch}{1.15}",
        f"  \\caption{{{escape_latex(table.title)}}}",
        f"  \\begin{{tabular}}{{{'l' + 'r' * (len(table.columns) - 1)}}}", rule, head, rule, *rows, rule,
        "  \\end{tabular}", "\\end{table}",
    ])  # fmt: skip


def _latex_figure(figure: Figure) -> str:
    return "\n".join([
        "\\begin{figure}[htbp]", "  \\centering",
        f"  \\includegraphics[width=\\linewidth,height=0.8\\textheight,keepaspectratio]{{{figure.name}.pdf}}",
        f"  \\caption{{{escape_latex(figure.caption)}}}", "\\end{figure}",
    ])  # fmt: skip
