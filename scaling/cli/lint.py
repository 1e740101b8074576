"""Implement `scaling lint`: print each `LintFinding` of analysis/lint.py, and return the exit status."""

import argparse

from rich.console import Console
from rich.text import Text

from scaling.analysis import findings
from scaling.analysis import lint as linting
from scaling.cli import report
from scaling.cli.streams import make_printable, print_lines
from scaling.cli.verbs import FAILED, OK
from scaling.results import store

_COLOURS = {linting.ERROR: "red", linting.WARNING: "yellow", linting.NOTE: "dim"}


def execute(args: argparse.Namespace, console: Console) -> int:
    """Print the problems of a results folder. Return 1 for an error (--strict: or warning), otherwise 0."""
    folder = store.folder_of(args.folder)
    loaded = store.load(folder)
    lost = report.find_unrecorded(folder, loaded.records)
    remarks = linting.lint_findings(findings.read(folder, None, lost, loaded))
    for remark in remarks:
        text = make_printable(f"{remark.rule} ({remark.count}): {remark.text}")
        severity = f"{remark.severity:8}", _COLOURS[remark.severity]
        console.print(Text.assemble(severity, text), soft_wrap=True)
        print_lines(console, [f"        fix: {remark.fix}"])
    console.print(linting.verdict(remarks))
    failing = (linting.ERROR, linting.WARNING) if args.strict else (linting.ERROR,)
    return FAILED if any(remark.severity in failing for remark in remarks) else OK
