"""Implement `scaling compare`: parse its arguments, and print the result of analysis/folder_comparison.py."""

import argparse
import os
from pathlib import Path

from rich.console import Console

from scaling.analysis import folder_comparison
from scaling.cli.commands import FAILED, OK
from scaling.cli.streams import print_lines
from scaling.core.case import Refusal
from scaling.report import comparison as report
from scaling.report.terminal import print_table
from scaling.results import results_folder


def execute(args: argparse.Namespace, console: Console) -> int:
    """Compare two results folders. Return exit status 1 if the second has a regression, otherwise 0."""
    if args.markdown not in (None, "-"):
        path = os.path.realpath(args.markdown)  # a loop of links remains a link
        existing = path if os.path.lexists(path) else os.path.join(os.path.dirname(path), ".")
        if not args.markdown or os.path.isdir(path) or not os.access(existing, os.W_OK):
            raise Refusal(
                f"--markdown {args.markdown!r} cannot be written: name a file in a folder that exists, or -"
            )
    folders = folder_comparison.find_folders(args.a, args.b)
    if args.markdown != "-":
        results_folder.require_writable(folders[1] / "report")
    return print_comparison(*folders, console, args.margin, args.markdown)


def print_comparison(
    a: Path, b: Path, console: Console, margin: float | None = None, markdown: str | None = None
) -> int:
    """Print which cases are slower or faster in folder `b` (new) than in folder `a` (old).

    Relative differences below `margin`, by default `folder_comparison.MARGIN`, are ignored. If `markdown` is
    a path, also write a Markdown table to this file. If it is "-", print only this table. Return exit status
    1 if a case in `b` is slower, failed, or ran out of memory, and otherwise 0.
    """
    compared = folder_comparison.compare(a, b, folder_comparison.MARGIN if margin is None else margin)
    if markdown == "-":
        console.print(report.format_markdown(compared), end="", soft_wrap=True, markup=False)
        return FAILED if compared.has_regression else OK
    if markdown:
        try:
            Path(markdown).write_text(report.format_markdown(compared), encoding="utf-8")
        except OSError as error:
            error.filename = markdown  # the error of a failed write contains no file name
            raise
    if (table := report.changed_table(compared)).rows:
        print_table(table, console)
    print_lines(console, [f"page: {report.write_comparison(compared)}", *report.comparison_lines(compared)])
    return FAILED if compared.has_regression else OK
