"""Implement `scaling lint`: print each `LintFinding` of analysis/lint.py, and return the exit status."""

import argparse

from rich.console import Console
from rich.text import Text

from scaling.analysis import findings
from scaling.analysis import lint as linting
from scaling.cli import report
from scaling.cli.commands import FAILED, OK
from scaling.cli.output import make_printable, print_lines
from scaling.results import store

_SEVERITY_COLORS = {linting.ERROR: "red", linting.WARNING: "yellow"}


def execute(args: argparse.Namespace, console: Console) -> int:
    """Print the lint findings of a results folder. Return exit status 1 if there are errors, otherwise 0.

    With --strict, also return 1 if there are warnings.
    """
    folder = store.require_results_folder(args.folder)
    loaded = store.load(folder)
    unrecorded = report.find_unrecorded(folder, loaded.records)
    lint_findings = linting.lint_findings(findings.read(folder, None, unrecorded, loaded))
    for finding in lint_findings:
        text = make_printable(f"{finding.rule} ({finding.count}): {finding.text}")
        severity = f"{finding.severity:8}", _SEVERITY_COLORS[finding.severity]
        console.print(Text.assemble(severity, text), soft_wrap=True)
        print_lines(console, [f"        fix: {finding.fix}"])
    console.print(linting.format_verdict(lint_findings))
    failed = any(args.strict or finding.severity == linting.ERROR for finding in lint_findings)
    return FAILED if failed else OK
