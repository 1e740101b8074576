"""Implement `scaling export`: read --format and --output, call report/export.py, print the written paths."""

import argparse
from pathlib import Path

from rich.console import Console

from scaling.cli.output import damaged_notes, print_lines
from scaling.core.case import check_value
from scaling.report import export as exporting
from scaling.results import store


def execute(args: argparse.Namespace, console: Console) -> None:
    """Export a results folder in the formats that --format lists, and print the paths of the new files."""
    is_folder = args.output is None or bool(args.output.strip())
    check_value("--output", args.output, is_folder, "a folder, such as --output tables")
    output = Path(args.output) if args.output else None
    formats = [name for argument in args.format for name in argument.split(",")] or ["csv"]
    folder = store.require_results_folder(args.folder)
    loaded = store.load(folder)
    written = exporting.write_exports(folder, formats, output, loaded)
    print_lines(console, damaged_notes(loaded), "yellow")
    print_lines(console, (str(path) for paths in written.values() for path in paths))
    if empty := [name for name, paths in written.items() if not paths]:
        print_lines(console, [exporting.describe_empty(empty)])
