"""Tests of documents in Markdown: text is escaped, and tables keep their cells."""

import re
from types import SimpleNamespace

import pytest

from scaling.report.text import Table, escape_markdown, render_markdown, to_markdown_table

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


def test_document_has_headings_paragraphs_and_tables_of_escaped_text():
    table = Table("", "part", "", ("one",), [("a|b",)])
    text = render_markdown(
        "table.md.jinja", findings=SimpleNamespace(name="*n*"), answer=["first\nline", "- x <b>"],
        tables=[table],
    )  # fmt: skip
    assert text == (
        "# \\*n\\*\n\n## Answer\n\nfirst line\n\n\\- x &lt;b&gt;\n\n## part\n\n| one |\n| --- |\n| a\\|b |\n"
    )
