"""Implement `scaling compare`: parse its arguments, and print the result of analysis/folder_comparison.py."""

import argparse
from pathlib import Path

from rich.console import Console

from scaling.analysis import folder_comparison
from scaling.cli.streams import print_lines
from scaling.cli.verbs import FAILED, OK
from scaling.core.case import Refusal
from scaling.report import comparison as report
from scaling.report.terminal import print_table


def execute(args: argparse.Namespace, console: Console) -> int:
    """Compare two results folders. Return exit status 1 if a case became worse, otherwise 0."""
    if args.markdown not in (None, "-"):
        file = Path(args.markdown)
        if not args.markdown or file.is_dir() or not file.parent.is_dir():
            raise Refusal(
                f"--markdown {args.markdown!r} cannot be written: name a file in a folder that exists, or -"
            )
    folders = folder_comparison.find_folders(args.a, args.b)
    return print_comparison(*folders, console, args.margin, args.markdown)


def print_comparison(
    a: Path, b: Path, console: Console, margin: float | None = None, markdown: str | None = None
) -> int:
    """Print which cases became slower or faster from folder `a` (old) to folder `b` (new).

    Times with a relative difference below `margin` (default: 0.01) count as equal. `markdown` is a file to
    write a Markdown table to, or "-" to print only this table. Return exit status 1 if a case became slower,
    failed or ran out of memory, otherwise 0.
    """
    result = folder_comparison.compare(a, b, folder_comparison.MARGIN if margin is None else margin)
    if markdown == "-":
        console.print(report.format_markdown(result), end="", soft_wrap=True, markup=False)
        return FAILED if result.has_regression else OK
    if markdown:
        Path(markdown).write_text(report.format_markdown(result), encoding="utf-8")
    if (table := report.changed_table(result)).rows:
        print_table(table, console)
    print_lines(console, [f"page: {report.write_comparison(result)}", *report.comparison_lines(result)])
    return FAILED if result.has_regression else OK
