"""The summary at the end of `scaling run`: the answer, the warnings, and the next steps, on one screen.

The long table is printed by `scaling report` (terminal.py).
"""

import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

from scaling.analysis import answer, lint
from scaling.analysis.curves import FastestMethod, family_name, size_name
from scaling.analysis.findings import Findings, describe_environment
from scaling.analysis.methods import method_of
from scaling.core.formatting import count_of, format_seconds
from scaling.report.labels import clean_text

LINES, WIDTH = 25, 80
_RESERVED_LINES = 4  # for the lines below: other environments, counts and the path of the report
_MOST_WARNINGS = 4
_UNBREAKABLE = re.compile(  # spaces within a number and its unit or noun, and within an interval
    r"(?<=\d) (?=(?:[mµun]?s|[kMGT]?B|%|devices?|cases?)\b|%)|(?<=\S) (?=\([-\d])|(?<=\d) "
    r"(?=to )|(?<=to) (?=[-\d])"
)
_JOINED = "\N{NO-BREAK SPACE}"


def wrap_text(text: str, width: int = WIDTH, indent: str = "") -> list[str]:
    """Return text in lines of at most this width, without breaking between a number and its unit or interval.

    A word longer than a line stays whole, on a line of its own.
    """
    joined = _UNBREAKABLE.sub(_JOINED, " ".join(clean_text(text).split()))
    wrapper = textwrap.TextWrapper(
        width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace(_JOINED, " ") for line in wrapper.wrap(joined)]


def summary_lines(findings: Findings, folder: Path, width: int = WIDTH) -> list[str]:
    """Return the lines of the summary, at most a screen with what is printed below them."""
    width = min(width, WIDTH)
    below = [*_list_warnings(findings, folder, width), *_next_steps(folder, width)]
    paragraphs = [wrap_text(each, width, "  ") for each in _answer_sentences(findings)]
    return [
        *_take_fitting(paragraphs, LINES - _RESERVED_LINES - len(below), f"scaling report {folder}"),
        *below,
    ]


def _take_fitting(paragraphs: Sequence[Sequence[str]], most: int, where: str) -> list[str]:
    """Return the lines of the first paragraphs that fit, and the number of the others."""
    lines: list[str] = []
    for index, part in enumerate(paragraphs):
        last = index == len(paragraphs) - 1
        if len(lines) + len(part) + (not last) > most:
            return [*lines, f"{len(paragraphs) - index} more: {where}"]
        lines += part
    return lines


def _answer_sentences(findings: Findings) -> list[str]:
    """Return a sentence for each family."""
    rows = [row for _, (row, *_) in answer.largest_problems(findings)]
    return [_describe_fastest(findings, row) for row in rows] if rows else answer.summarize(findings)[1]


def _describe_fastest(findings: Findings, row: FastestMethod) -> str:
    """Return the fastest method for the largest problem, its time, and how sure that is."""
    case, where = row.first.case, describe_environment(findings, row.first.environment, row.first.honest)
    what = f"{family_name(case)} ({size_name(case)}){where}"
    time = f"{answer.format_time(row.first)} on {count_of(case.devices, 'device')}"
    if row.empty:
        return (
            f"{what}: {answer.name_with_blocks(row.first)} {time} is not distinguishable from an empty call: "
            "none is the fastest."
        )
    if row.second is None:
        return f"{what}: {answer.list_measured(row)}, {time}."
    second = format_seconds(method_of(row.second.case).name, row.ratio, row.ratio_low, row.ratio_high)
    doubts = f"; not sure: {', '.join(row.doubts)}" if row.doubts else ""
    if not row.distinguished:
        return (
            f"{what}: {answer.name_with_blocks(row.first)} {time} is not distinguished from the "
            f"next; {second}."
        )
    return f"{what}: {answer.name_with_blocks(row.first)} is fastest, {time}; {second}{doubts}."


def _list_warnings(findings: Findings, folder: Path, width: int) -> list[str]:
    """Return the first errors and warnings of lint, and the number of the others."""
    lines = [remark for remark in lint.lint_findings(findings) if remark.severity != lint.NOTE]
    shown = [
        _clip_line(f"{each.severity}: {each.rule} ({each.count}); {each.fix}", width)
        for each in lines[:_MOST_WARNINGS]
    ]
    more = len(lines) - len(shown)
    return shown + (
        [_clip_line(f"{count_of(more, 'more remark')}: scaling lint {folder}", width)] if more else []
    )


def _clip_line(text: str, width: int) -> str:
    """Return one line; a cut line ends with a mark."""
    first, *rest = wrap_text(text, width - 4) or [""]
    return f"{first} ..." if rest else first


def _next_steps(folder: Path, width: int) -> list[str]:
    """Return what to do next."""
    steps = (f"scaling report {folder}", f"scaling lint {folder}")
    whats = ("every problem, curves and figures", "all warnings, and how to fix them")
    return list(_align_columns(steps, whats, width))


def _align_columns(steps: Sequence[str], whats: Sequence[str], width: int) -> Iterable[str]:
    space = max(map(len, steps)) + 2
    for step, what in zip(steps, whats, strict=True):
        yield f"{step:{space}}{what}" if space + len(what) <= width else step
