"""Implement `scaling compare`: print which cases of two results folders A and B became slower or faster."""

import argparse
from pathlib import Path

from rich.console import Console

from scaling.analysis import folder_comparison
from scaling.cli.commands import FAILED, OK
from scaling.cli.output import print_lines
from scaling.core.case import Refusal
from scaling.report import comparison as report
from scaling.report.terminal import print_table, print_wrapped
from scaling.results import store


def execute(args: argparse.Namespace, console: Console) -> int:
    """Compare two results folders. Return exit status 1 if a case became worse in the second, otherwise 0."""
    if args.markdown not in (None, "-"):
        fix = "write --markdown - and redirect the output to a file"
        raise Refusal(f"--markdown {args.markdown!r} is not -, the standard output: {fix}")
    folders = folder_comparison.find_folders(args.a, args.b)
    if not args.markdown:
        store.require_writable(folders[1] / "report")
    return print_comparison(*folders, console, args.margin, bool(args.markdown))


def print_comparison(
    a: Path, b: Path, console: Console, margin: float | None = None, as_markdown: bool = False
) -> int:
    """Print which cases are slower or faster in the new folder `b` than in the old folder `a`.

    Relative differences up to `margin` (default: `folder_comparison.MARGIN`) are ignored. If `as_markdown` is
    true, print only a Markdown table, and write no file. Return exit status 1 if a case in `b` is slower,
    failed, or ran out of memory, and otherwise 0.
    """
    compared = folder_comparison.compare(a, b, folder_comparison.MARGIN if margin is None else margin)
    if as_markdown:
        console.print(report.format_markdown(compared), end="", soft_wrap=True, markup=False)
    else:
        if (table := report.changed_table(compared)).rows:
            print_table(table, console)
        print_lines(console, [f"page: {report.write_comparison(compared)}"])
        for sentence in report.comparison_lines(compared):
            print_wrapped(sentence, console)
    return FAILED if compared.has_regression else OK
