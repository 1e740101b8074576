"""Labels: how figures and tables describe a case, and how text from records is cleaned."""

import re
from collections.abc import Iterable

from scaling.analysis.methods import describe_call
from scaling.core.case import Case
from scaling.core.formatting import count_of

_CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")  # except the end of a line
_NO_CHARACTER = re.compile("[\ud800-\udfff\ufffe\uffff]")  # not allowed in text files and XML
_NO_STEM = re.compile("[^a-z0-9]+")
_UNBREAKABLE = re.compile(  # spaces within a number and its unit or noun, and within an interval
    r"(?<=\d) (?=(?:[mµun]?s|[kMGT]?B|%|devices?|cases?)\b|%)|(?<=\S) (?=\([-\d])|(?<=\d) "
    r"(?=to )|(?<=to) (?=[-\d])"
)
JOINED = "\N{NO-BREAK SPACE}"


def describe_panel(case: Case, constant_sizes: str, honest: bool) -> str:
    """Return in words what is the same for all of a panel."""
    how = [constant_sizes, count_of(case.devices, "device"), describe_call(case)]
    how += [] if honest else ["oversubscribed"]
    return ", ".join(word for word in how if word)


def clean_text(text: str) -> str:
    """Return text without control characters, which become spaces, and without lone surrogates."""
    return _NO_CHARACTER.sub("\ufffd", _CONTROL.sub(" ", text))


def file_stems(names: Iterable[str]) -> dict[str, str]:
    """Return for each name a unique part of a file name and anchor, in lower-case letters and digits."""
    made: dict[str, str] = {}
    for name in names:
        stem = _NO_STEM.sub("-", name.lower()).strip("-")[:40] or "other"
        taken = set(made.values())
        numbers = (f"{stem}-{number}" for number in range(2, len(taken) + 2))
        made[name] = stem if stem not in taken else next(each for each in numbers if each not in taken)
    return made


def keep_numbers_whole(text: str) -> str:
    """Return text with no space at which a line may break within a number, its unit or its interval."""
    return _UNBREAKABLE.sub(JOINED, text)
