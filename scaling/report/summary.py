"""Summary that `scaling run` prints at its end: fastest methods, warnings and next commands, on one screen.

The full tables are printed by `scaling report` (terminal.py).
"""

import textwrap
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from scaling.analysis import answer, lint
from scaling.analysis.cases import method_of
from scaling.analysis.crossover import FastestMethod
from scaling.analysis.estimate_text import format_time_ratio
from scaling.analysis.findings import Findings
from scaling.analysis.timings import format_time
from scaling.core.formatting import count_of
from scaling.report.answer_tables import describe_certainty, problem_name
from scaling.report.labels import JOINED, clean_text, keep_numbers_whole

LINES, WIDTH = 25, 80
_RESERVED_LINES = 4  # lines printed below: other environments, counts, report path
_MAX_WARNINGS = 4


def wrap_text(text: str, width: int = WIDTH, indent: str = "") -> list[str]:
    """Wrap text into lines of at most `width` characters, without a break inside a quantity such as '1.2 ms'.

    A line is longer than `width` only if it contains a single word or quantity that does not fit.

    Args:
        indent: The text at the start of each line except the first.
    """
    joined = keep_numbers_whole(" ".join(clean_text(text).split()))
    wrapper = textwrap.TextWrapper(
        width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace(JOINED, " ") for line in wrapper.wrap(joined)]


def to_one_line(text: str, console: Console) -> str:
    """Return the text on one line, restricted to characters that the console can display."""
    words = " ".join(clean_text(text).split())
    if (console.encoding or "").lower().startswith("utf"):
        return words
    return words.replace("µ", "u").encode("ascii", "replace").decode()


def print_wrapped(text: str, console: Console) -> None:
    """Print text on a console, wrapped to its width if it is a terminal and as one line otherwise."""
    line = to_one_line(text, console)
    lines = wrap_text(line, console.width, "  ") if console.is_terminal else [line]
    for line in lines:
        console.print(Text(line), soft_wrap=True, highlight=False)


def summary_lines(findings: Findings, folder: Path, width: int = WIDTH) -> list[str]:
    """Return the lines of the summary that `scaling run` prints at its end. They fit on one screen."""
    width = min(width, WIDTH)
    below = [*_list_warnings(findings, folder, width), *_list_next_commands(folder, width)]
    rows = [row for _, (row, *_) in answer.largest_problems(findings)]
    sentences = [_describe_fastest(findings, row) for row in rows] or answer.summarize(findings)
    paragraphs = [wrap_text(sentence, width, "  ") for sentence in sentences]
    return [
        *_fit_paragraphs(paragraphs, LINES - _RESERVED_LINES - len(below), f"scaling report {folder}"),
        *below,
    ]


def _fit_paragraphs(paragraphs: Sequence[Sequence[str]], max_lines: int, command: str) -> list[str]:
    """Return the lines of as many paragraphs as fit into `max_lines` lines.

    If paragraphs are omitted, the last line contains their number and the command that shows them, such as
    '3 more: scaling report results/smoke'.
    """
    lines: list[str] = []
    for index, paragraph in enumerate(paragraphs):
        is_last = index == len(paragraphs) - 1
        if len(lines) + len(paragraph) + (not is_last) > max_lines:
            return [*lines, f"{len(paragraphs) - index} more: {command}"]
        lines += paragraph
    return lines


def _describe_fastest(findings: Findings, row: FastestMethod) -> str:
    time = f"{format_time(row.first)} on {count_of(row.first.case.devices, 'device')}"
    verb = "is fastest" if row.distinguished else "takes"
    words = f"{problem_name(findings, row.first)}: {answer.name_with_blocks(row.first)} {verb} {time}"
    if row.second is not None and not row.empty:
        name = method_of(row.second.case).name
        words += f"; {format_time_ratio(name, *(row.ratio or ()))}"
    return f"{words}; {describe_certainty(row)}."


def _list_warnings(findings: Findings, folder: Path, width: int) -> list[str]:
    remarks = [remark for remark in lint.lint_findings(findings) if remark.severity != lint.NOTE]
    lines = [f"{r.severity}: {r.rule} ({r.count}); {r.fix}" for r in remarks[:_MAX_WARNINGS]]
    if more := len(remarks) - len(lines):
        lines.append(f"{count_of(more, 'more remark')}: scaling lint {folder}")
    return [_clip_line(line, width) for line in lines]


def _clip_line(text: str, width: int) -> str:
    first, *rest = wrap_text(text, width - 4) or [""]
    return f"{first} ..." if rest else first


def _list_next_commands(folder: Path, width: int) -> list[str]:
    steps = {
        f"scaling report {folder}": "every problem, curves and figures",
        f"scaling lint {folder}": "all warnings, and how to fix them",
    }
    space = max(map(len, steps)) + 2
    return [f"{step:{space}}{what}" if space + len(what) <= width else step for step, what in steps.items()]
