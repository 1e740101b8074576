"""Tests of documents in Markdown: text is escaped, tables keep their cells, and figures refer to their files."""

import re

import pytest

from scaling.report.figures.marks import Figure
from scaling.report.markdown import MarkdownSection, escape_markdown, to_markdown, to_markdown_table
from scaling.report.text import Table

NASTY = [
    "# $ % & _ { } ~ ^ \\", "<script>alert(1)</script>", "a|b `c` *d* [e](http://f)", "\\input{/etc/passwd}", "\\\\[5cm]",
    "$$x$$ \\(y\\)", "-- --- '' ,, ?` \"q\"", "line\nbreak\x1b[31m \x00", "µ × é ñ Ł 漢 🙂", "1. not a list", "+ nor this",
    "% comment", "\\end{document}", "^^M",
]  # fmt: skip


@pytest.mark.parametrize("text", NASTY)
def test_markdown_and_html_characters_are_escaped(text):
    plain = escape_markdown(text)
    assert not re.search(r"(?<!\\)[`*_\[\]#|~$]|<|&(?!amp;|lt;|gt;)", plain.replace("\\\\", ""))
    assert "\n" not in plain and not re.match(r"\d+[.)] |[-+] ", plain)


def test_markdown_table_keeps_its_cells_for_any_text():
    lines = to_markdown_table(
        Table("", "", "", ("one", "two"), [(text, text) for text in NASTY])
    ).splitlines()
    assert {len(re.findall(r"(?<!\\)\|", line.replace("\\\\", ""))) for line in lines} == {3}


def test_figure_refers_to_its_own_file():
    parts = [MarkdownSection("part", figures=[Figure("a", "", "Speed-up", ())])]
    assert to_markdown("title", parts) == "# title\n\n## part\n\n![Speed-up](a.png)\n"
