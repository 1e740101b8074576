"""Tests of documents: text is escaped in Markdown, HTML and LaTeX."""

import re
import shutil
import subprocess

import pytest

from scaling.report.document import (
    PREAMBLE,
    Part,
    escape_latex,
    escape_markdown,
    to_latex,
    to_markdown,
    to_markdown_table,
)
from scaling.report.figures.marks import Figure
from scaling.report.text import Table

NASTY = [
    "# $ % & _ { } ~ ^ \\", "<script>alert(1)</script>", "a|b `c` *d* [e](http://f)", "\\input{/etc/passwd}", "\\\\[5cm]",
    "$$x$$ \\(y\\)", "-- --- '' ,, ?` \"q\"", "line\nbreak\x1b[31m \x00", "µ × é ñ Ł 漢 🙂", "1. not a list", "+ nor this",
    "% comment", "\\end{document}", "^^M",
]  # fmt: skip
TABLE = Table("", " ".join(NASTY), "", ("one", "two"), [(text, text) for text in NASTY])
PARTS = [*(Part(text) for text in NASTY), Part("all", NASTY, NASTY, [TABLE])]
SPECIAL = re.compile(r"(?<!\\)[#$%&_~^<>|\"`]")  # characters that LaTeX interprets or prints differently


def without_symbol_commands(text):
    """Return LaTeX text without the commands that print a single character."""
    text = re.sub(r"\\ensuremath\{\\(mu|times)\}|\\(?:[`'^~\"]|[vrc] )\{[A-Za-z]\}", "", text)
    named = "backslash|asciitilde|asciicircum|less|greater|bar|asciigrave"
    return re.sub(rf"\\(text({named})|char34|ldots)\{{\}}", "", text)


@pytest.mark.parametrize("text", NASTY)
def test_latex_characters_are_escaped(text):
    plain = without_symbol_commands(escape_latex(text))
    assert plain.isascii() and not SPECIAL.search(plain)
    assert not re.search(r"\\(?![#$%&_{}])", plain)
    assert plain.count("{") == plain.count("}") and "\n" not in plain


def test_characters_that_latex_joins_or_drops_are_preserved():
    assert (escape_latex("--"), escape_latex("''"), escape_latex("a-b")) == ("-{}-", "'{}'", "a-b")
    assert (escape_latex("é"), escape_latex("µs"), escape_latex("漢")) == (
        r"\'{e}",
        r"\ensuremath{\mu}s",
        "{[}U+6F22{]}",
    )


@pytest.mark.parametrize("text", NASTY)
def test_markdown_and_html_characters_are_escaped(text):
    plain = escape_markdown(text)
    assert not re.search(r"(?<!\\)[`*_\[\]#|~$]|<|&(?!amp;|lt;|gt;)", plain.replace("\\\\", ""))
    assert "\n" not in plain and not re.match(r"\d+[.)] |[-+] ", plain)


def test_markdown_table_keeps_its_cells_for_any_text():
    lines = to_markdown_table(TABLE.columns, TABLE.rows).splitlines()
    assert {len(re.findall(r"(?<!\\)\|", line.replace("\\\\", ""))) for line in lines} == {3}


def test_figure_refers_to_its_own_file_in_each_format():
    document = "title", [Part("part", figures=[Figure("a", "", "Speed-up", ())])]
    assert to_markdown(*document) == "# title\n\n## part\n\n![Speed-up](a.png)\n"
    assert "{a.pdf}" in to_latex(*document) and "\\caption{Speed-up}" in to_latex(*document)


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="pdflatex is not installed")
def test_pdflatex_compiles_the_document(tmp_path):
    (tmp_path / "part.tex").write_text(to_latex(NASTY[0], PARTS))
    (tmp_path / "whole.tex").write_text(
        f"\\documentclass{{article}}{PREAMBLE}\\begin{{document}}\\input{{part}}\\end{{document}}"
    )
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "-no-shell-escape", "whole.tex"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout[-2000:].decode(errors="replace")
    assert (tmp_path / "whole.pdf").stat().st_size > 10_000
