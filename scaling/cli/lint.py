"""Implement `scaling lint`: print each `LintFinding` of analysis/lint.py, and return the exit status."""

import argparse

from rich.console import Console
from rich.text import Text

from scaling.analysis import findings
from scaling.analysis import lint as linting
from scaling.cli import report
from scaling.cli.commands import FAILED, OK
from scaling.cli.output import make_printable
from scaling.report.text import wrap_text
from scaling.results import store

_SEVERITY_COLORS = {linting.ERROR: "red", linting.WARNING: "yellow"}
_INDENT = " " * 8


def execute(args: argparse.Namespace, console: Console) -> int:
    """Print the lint findings of a results folder. Return exit status 1 if there are errors, otherwise 0.

    With --strict, also return 1 if there are warnings.
    """
    folder = store.require_results_folder(args.folder)
    loaded = store.load(folder)
    unrecorded = report.find_unrecorded(folder, loaded.records)
    lint_findings = linting.lint_findings(findings.read(folder, None, unrecorded, loaded))
    for finding in lint_findings:
        severity = Text(f"{finding.severity:8}", _SEVERITY_COLORS[finding.severity])
        violations = f"{finding.rule} ({finding.count}): {finding.text}"
        for head, text in ((severity, violations), (_INDENT, f"fix: {finding.fix}")):
            line = make_printable(text)
            lines = wrap_text(line, console.width - len(head)) if console.is_terminal else [line]
            console.print(Text.assemble(head, f"\n{_INDENT}".join(lines)), soft_wrap=True)
    console.print(linting.format_verdict(lint_findings))
    failed = any(args.strict or finding.severity == linting.ERROR for finding in lint_findings)
    return FAILED if failed else OK
