"""Summary that `scaling run` prints at its end: fastest methods, warnings and next commands, on one screen.

The full tables are printed by `scaling report` (terminal.py).
"""

import textwrap
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from scaling.analysis import answer, lint
from scaling.analysis.curves import FastestMethod
from scaling.analysis.findings import Findings
from scaling.analysis.methods import method_of
from scaling.core.formatting import count_of, format_seconds
from scaling.report.answer_tables import describe_certainty, problem_name
from scaling.report.labels import JOINED, clean_text, keep_numbers_whole

LINES, WIDTH = 25, 80
_RESERVED_LINES = 4  # lines printed below: other environments, counts, report path
_MOST_WARNINGS = 4


def wrap_text(text: str, width: int = WIDTH, indent: str = "") -> list[str]:
    """Return the text as lines of limited width, without a break between a number and its unit or interval.

    A word that is longer than a line is kept whole on its own line.
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
    """Print a paragraph, wrapped on a terminal without breaking numbers, and unwrapped otherwise."""
    line = to_one_line(text, console)
    lines = wrap_text(line, console.width, "  ") if console.is_terminal else [line]
    for line in lines:
        console.print(Text(line), soft_wrap=True, highlight=False)


def summary_lines(findings: Findings, folder: Path, width: int = WIDTH) -> list[str]:
    """Return the lines of the summary, limited to one screen including the lines printed below them."""
    width = min(width, WIDTH)
    below = [*_list_warnings(findings, folder, width), *_next_steps(folder, width)]
    rows = [row for _, (row, *_) in answer.largest_problems(findings)]
    sentences = [_describe_fastest(findings, row) for row in rows] or answer.summarize(findings)[1]
    paragraphs = [wrap_text(each, width, "  ") for each in sentences]
    return [
        *_take_fitting(paragraphs, LINES - _RESERVED_LINES - len(below), f"scaling report {folder}"),
        *below,
    ]


def _take_fitting(paragraphs: Sequence[Sequence[str]], most: int, where: str) -> list[str]:
    """Return the lines of the leading paragraphs that fit, and a line with the number omitted."""
    lines: list[str] = []
    for index, part in enumerate(paragraphs):
        last = index == len(paragraphs) - 1
        if len(lines) + len(part) + (not last) > most:
            return [*lines, f"{len(paragraphs) - index} more: {where}"]
        lines += part
    return lines


def _describe_fastest(findings: Findings, row: FastestMethod) -> str:
    """Return a sentence on the fastest method for the largest problem, with its time and its certainty."""
    time = f"{answer.format_time(row.first)} on {count_of(row.first.case.devices, 'device')}"
    verb = "is fastest" if row.distinguished else "takes"
    words = f"{problem_name(findings, row)}: {answer.name_with_blocks(row.first)} {verb} {time}"
    if row.second is not None and not row.empty:
        name = method_of(row.second.case).name
        words += f"; {format_seconds(name, row.ratio, row.ratio_low, row.ratio_high)}"
    return f"{words}; {describe_certainty(row)}."


def _list_warnings(findings: Findings, folder: Path, width: int) -> list[str]:
    """Return lines with the first lint errors and warnings, and the number of the others."""
    remarks = [remark for remark in lint.lint_findings(findings) if remark.severity != lint.NOTE]
    lines = [f"{each.severity}: {each.rule} ({each.count}); {each.fix}" for each in remarks[:_MOST_WARNINGS]]
    if more := len(remarks) - len(lines):
        lines.append(f"{count_of(more, 'more remark')}: scaling lint {folder}")
    return [_clip_line(line, width) for line in lines]


def _clip_line(text: str, width: int) -> str:
    """Return the text truncated to one line, with ' ...' appended if it was truncated."""
    first, *rest = wrap_text(text, width - 4) or [""]
    return f"{first} ..." if rest else first


def _next_steps(folder: Path, width: int) -> list[str]:
    """Return lines with the next commands to run and what they show."""
    steps = {
        f"scaling report {folder}": "every problem, curves and figures",
        f"scaling lint {folder}": "all warnings, and how to fix them",
    }
    space = max(map(len, steps)) + 2
    return [f"{step:{space}}{what}" if space + len(what) <= width else step for step, what in steps.items()]
