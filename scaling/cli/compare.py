"""The verb `compare`: what became slower or faster from one results folder to another."""

import argparse
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from scaling.analysis import compare as comparing
from scaling.cli.output import print_lines
from scaling.cli.verbs import FAILED, OK
from scaling.core.case import Refusal


def execute(given: argparse.Namespace, console: Console) -> int:
    """Compare two folders; the exit status is 1 if something is slower or failed."""
    if given.markdown not in (None, "-"):
        file = Path(given.markdown)
        if not given.markdown or file.is_dir() or not file.parent.is_dir():
            raise Refusal(
                f"--markdown {given.markdown!r} cannot be written: name a file in a folder that exists, or -"
            )
    folders = comparing.find_folders(given.a, given.b)
    return print_comparison(*folders, console, given.margin, given.markdown)


def print_comparison(
    a: Path, b: Path, console: Console, margin: float | None = None, markdown: str | None = None
) -> int:
    """Compare and print, what changed first; returns the exit status."""
    found = comparing.compare(a, b, comparing.MARGIN if margin is None else margin)
    if markdown == "-":
        text = comparing.format_markdown(found)
        console.print(text, end="", soft_wrap=True, markup=False, highlight=False, emoji=False)
    else:
        if markdown:
            Path(markdown).write_text(comparing.format_markdown(found), encoding="utf-8")
        table = Table(*comparing.COLUMNS)
        for row in comparing.comparison_rows(found):
            table.add_row(*map(escape, row))
        console.print(table)
        from scaling.report.comparison import write_comparison

        print_lines(console, [f"page: {write_comparison(found)}", *comparing.comparison_lines(found)])
    return FAILED if found.bad else OK
