"""Wording: what figures and tables alike say of a case, and how text that stands in a record is made fit to be shown."""

import re
from collections.abc import Iterable

from scaling.analysis.methods import describe_call
from scaling.core.case import Case
from scaling.core.formatting import count_of

_CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")  # but for the end of a line
_NO_CHARACTER = re.compile("[\ud800-\udfff\ufffe\uffff]")  # what no file of text and no XML may hold
_NO_STEM = re.compile("[^a-z0-9]+")


def place(case: Case, held: str, honest: bool) -> str:
    """What is the same for all of a panel, in words."""
    how = [held, count_of(case.devices, "device"), describe_call(case)]
    how += [] if honest else ["oversubscribed"]
    return ", ".join(word for word in how if word)


def legible(text: str) -> str:
    """Text without what would steer a terminal or break a file: control characters become spaces, half of one a mark."""
    return _NO_CHARACTER.sub("\ufffd", _CONTROL.sub(" ", text))


def stems(names: Iterable[str]) -> dict[str, str]:
    """A part of a file's name and of an anchor for each of these, in small letters and digits, no two alike."""
    made: dict[str, str] = {}
    for name in names:
        stem = _NO_STEM.sub("-", name.lower()).strip("-")[:40] or "other"
        taken = set(made.values())
        numbers = (f"{stem}-{number}" for number in range(2, len(taken) + 2))
        made[name] = stem if stem not in taken else next(each for each in numbers if each not in taken)
    return made
