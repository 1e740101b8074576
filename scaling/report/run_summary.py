"""Make the summary that `scaling run` prints last: fastest AD modes, warnings and commands to run next."""

import itertools
import textwrap
from pathlib import Path

from scaling.analysis.answers import answer_sentences, measured_answers
from scaling.analysis.findings import Findings
from scaling.analysis.lint import lint_findings
from scaling.core.formatting import format_count
from scaling.report.text import WIDTH, clean_text, wrap_text
from scaling.results.store import format_command

# `scaling run` prints at most 25 lines: answers, warnings, two commands, and four lines below them.
_ANSWER_LINES, _MAX_WARNINGS = 15, 4


def summary_lines(findings: Findings, folder: Path, width: int = WIDTH) -> list[str]:
    """Return a summary of `width` columns that fits one screen. It ends with the commands to run next."""
    width = min(width, WIDTH)
    answers = [f"{answer.headline}." for answer in measured_answers(findings)] or answer_sentences(findings)
    paragraphs = [wrap_text(answer, width, "  ") for answer in answers]
    fitting = sum(end <= _ANSWER_LINES for end in itertools.accumulate(map(len, paragraphs)))
    shown = max(1, fitting)  # the first answer also on a narrow screen
    remarks = [clean_text(f"{r.severity}: {r.rule} ({r.count}); {r.fix}") for r in lint_findings(findings)]
    warnings = [textwrap.shorten(text, width, placeholder=" ...") for text in remarks[:_MAX_WARNINGS]]
    return [
        *itertools.chain(*paragraphs[:shown]), *warnings,
        format_command("report", folder) + _count_more(len(answers[shown:]), "answer"),
        format_command("lint", folder) + _count_more(len(remarks) - len(warnings), "problem"),
    ]  # fmt: skip


def _count_more(omitted: int, noun: str) -> str:
    return f"  # {format_count(omitted, f'more {noun}')}" if omitted else ""
