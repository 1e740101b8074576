"""Make the summary that `scaling run` prints last: fastest AD modes, warnings and commands to run next."""

import textwrap
from pathlib import Path

from scaling.analysis.answers import measured_answers
from scaling.analysis.findings import Findings
from scaling.analysis.lint import lint_findings
from scaling.analysis.summary import answer_sentences
from scaling.report.text import LINES, WIDTH, clean_text, wrap_text
from scaling.results.store import format_command

_RESERVED_LINES = 4  # lines printed below a summary: other environments, counts, report path
_MAX_WARNINGS = 4  # largest number of warnings in a summary


def summary_lines(findings: Findings, folder: Path, width: int = WIDTH) -> list[str]:
    """Return a summary of `width` columns that fits one screen. It ends with the commands to run next."""
    width = min(width, WIDTH)
    lint = lint_findings(findings)
    messages = [f"{finding.severity}: {finding.rule} ({finding.count}); {finding.fix}" for finding in lint]
    warnings = [
        textwrap.shorten(clean_text(text), width, placeholder=" ...") for text in messages[:_MAX_WARNINGS]
    ]
    commands = [format_command(verb, folder) for verb in ("report", "lint")]
    if omitted := len(lint) - len(warnings):
        warnings.append(f"{omitted} more: {commands[1]}")
    answers = [f"{answer.headline}." for answer in measured_answers(findings)] or answer_sentences(findings)
    max_lines, answer_lines = LINES - _RESERVED_LINES - len(warnings) - len(commands), list[str]()
    for index, answer in enumerate(answers):
        paragraph = wrap_text(answer, width, "  ")
        if len(answer_lines) + len(paragraph) + (index < len(answers) - 1) > max_lines:
            answer_lines.append(f"{len(answers) - index} more: {commands[0]}")
            break
        answer_lines += paragraph
    return [*answer_lines, *warnings, *commands]
