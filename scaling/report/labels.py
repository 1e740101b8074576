"""Text labels of cases in figures and tables, file names, and removal of control characters."""

import re
from collections.abc import Iterable

from scaling.analysis.methods import describe_call
from scaling.core.case import Case
from scaling.core.formatting import count_of

_CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")  # all of them except the line feed
_NO_CHARACTER = re.compile("[\ud800-\udfff\ufffe\uffff]")  # characters that text files and XML do not allow
_NO_STEM = re.compile("[^a-z0-9]+")
_UNBREAKABLE = re.compile(  # spaces between a number and its unit or noun, and in an interval
    r"(?<=\d) (?=(?:[mµun]?s|[kMGT]?B|%|devices?|cases?)\b|%)|(?<=\S) (?=\([-\d])|(?<=\d) "
    r"(?=to )|(?<=to) (?=[-\d])"
)
JOINED = "\N{NO-BREAK SPACE}"


def describe_panel(case: Case, constant_sizes: str, honest: bool) -> str:
    """Return the subtitle of a panel: constant sizes, device count and transformation."""
    how = [constant_sizes, count_of(case.devices, "device"), describe_call(case)]
    how += [] if honest else ["oversubscribed"]
    return ", ".join(word for word in how if word)


def clean_text(text: str) -> str:
    """Return the text with control characters replaced by spaces and invalid characters by U+FFFD."""
    return _NO_CHARACTER.sub("\ufffd", _CONTROL.sub(" ", text))


def file_stems(names: Iterable[str]) -> dict[str, str]:
    """Map each name to a unique file stem and anchor of lowercase letters, digits and hyphens."""
    made: dict[str, str] = {}
    for name in names:
        stem = _NO_STEM.sub("-", name.lower()).strip("-")[:40] or "other"
        taken = set(made.values())
        numbers = (f"{stem}-{number}" for number in range(2, len(taken) + 2))
        made[name] = stem if stem not in taken else next(each for each in numbers if each not in taken)
    return made


def keep_numbers_whole(text: str) -> str:
    """Return the text with non-breaking spaces within numbers, units and intervals."""
    return _UNBREAKABLE.sub(JOINED, text)
