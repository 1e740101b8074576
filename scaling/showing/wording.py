"""Wording: what figures and tables alike say of a case, and how text that stands in a record is made fit to be shown."""

import re

from scaling.case import Case
from scaling.reading.ways import call_of
from scaling.words import counted

_CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")  # but for the end of a line
_NO_CHARACTER = re.compile("[\ud800-\udfff\ufffe\uffff]")  # what no file of text and no XML may hold


def place(case: Case, held: str, honest: bool) -> str:
    """What is the same for all of a panel, in words."""
    how = [held, counted(case.devices, "device"), call_of(case)]
    how += [] if honest else ["oversubscribed"]
    return ", ".join(word for word in how if word)


def legible(text: str) -> str:
    """Text without what would steer a terminal or break a file: control characters become spaces, half of one a mark."""
    return _NO_CHARACTER.sub("\ufffd", _CONTROL.sub(" ", text))
