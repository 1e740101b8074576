"""The summary that `scaling run` ends with: the answer, the warnings that gate it, and what to do next, on one screen.

Knows findings and lint; the long table is that of `scaling report` (terminal.py).
"""

import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

from scaling.analysis import answer, lint
from scaling.analysis.curves import Fastest, family_name, size_name
from scaling.analysis.findings import Findings, marks
from scaling.analysis.methods import method_of
from scaling.core.formatting import count_of, format_seconds
from scaling.report.labels import legible

LINES, WIDTH = 25, 80
_KEPT = 4  # lines for what stands below: other environments, counts and the path of the report, which may take two
_MOST_WARNINGS = 4
_TOGETHER = re.compile(  # what no line is broken in: a number with its unit or its noun, an interval
    r"(?<=\d) (?=(?:[mµun]?s|[kMGT]?B|%|devices?|cases?)\b|%)|(?<=\S) (?=\([-\d])|(?<=\d) (?=to )|(?<=to) (?=[-\d])"
)
_JOINED = "\N{NO-BREAK SPACE}"


def fold(text: str, width: int = WIDTH, indent: str = "") -> list[str]:
    """Return text in lines of at most this width; a number stays together with its unit and its interval.

    A word that is longer than a line stays whole, on a line of its own.
    """
    joined = _TOGETHER.sub(_JOINED, " ".join(legible(text).split()))
    wrapper = textwrap.TextWrapper(width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [line.replace(_JOINED, " ") for line in wrapper.wrap(joined)]


def lines(found: Findings, folder: Path, width: int = WIDTH) -> list[str]:
    """Return the summary in lines; with what stands below it they are no more than a screen."""
    width = min(width, WIDTH)
    below = [*_warnings(found, folder, width), *_next(folder, width)]
    heads = [fold(each, width, "  ") for each in _answer(found)]
    return [*_fitting(heads, LINES - _KEPT - len(below), f"scaling report {folder}"), *below]


def _fitting(parts: Sequence[Sequence[str]], most: int, where: str) -> list[str]:
    """Return the lines of the first parts that fit, and how many more there are."""
    told: list[str] = []
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if len(told) + len(part) + (not last) > most:
            return [*told, f"{len(parts) - index} more: {where}"]
        told += part
    return told


def _answer(found: Findings) -> list[str]:
    """Return a sentence for each family."""
    rows = [row for _, (row, *_) in answer.heads(found)]
    return [_headline(found, row) for row in rows] if rows else answer.brief(found)[1]


def _headline(found: Findings, row: Fastest) -> str:
    """Return the fastest way to the largest problem, where, how long it takes and how sure that is."""
    case, where = row.first.case, marks(found, row.first.environment, row.first.honest)
    what = f"{family_name(case)} ({size_name(case)}){where}"
    time = f"{answer.time_of(row.first)} on {count_of(case.devices, 'device')}"
    if row.empty:
        return f"{what}: {answer.named(row.first)} {time} is not distinguishable from an empty call: none is the fastest."
    if row.second is None:
        return f"{what}: {answer.measured_alone(row)}, {time}."
    second = format_seconds(method_of(row.second.case).name, row.ratio, row.ratio_low, row.ratio_high)
    doubts = f"; not sure: {', '.join(row.doubts)}" if row.doubts else ""
    if not row.distinguished:
        return f"{what}: {answer.named(row.first)} {time} is not distinguished from the next; {second}."
    return f"{what}: {answer.named(row.first)} is fastest, {time}; {second}{doubts}."


def _warnings(found: Findings, folder: Path, width: int) -> list[str]:
    """Return what gates the answer: the first errors and warnings of lint, and how many more there are."""
    told = [remark for remark in lint.lint_findings(found) if remark.severity != lint.NOTE]
    shown = [_clipped(f"{each.severity}: {each.rule} ({each.count}); {each.mend}", width) for each in told[:_MOST_WARNINGS]]
    more = len(told) - len(shown)
    return shown + ([_clipped(f"{count_of(more, 'more remark')}: scaling lint {folder}", width)] if more else [])


def _clipped(text: str, width: int) -> str:
    """Return one line; what is cut off ends with a mark."""
    first, *rest = fold(text, width - 4) or [""]
    return f"{first} ..." if rest else first


def _next(folder: Path, width: int) -> list[str]:
    """Return what to do next."""
    steps = (f"scaling report {folder}", f"scaling lint {folder}")
    whats = ("every problem, curves and figures", "all warnings, and what mends them")
    return list(_aligned(steps, whats, width))


def _aligned(steps: Sequence[str], whats: Sequence[str], width: int) -> Iterable[str]:
    space = max(map(len, steps)) + 2
    for step, what in zip(steps, whats, strict=True):
        yield f"{step:{space}}{what}" if space + len(what) <= width else step
