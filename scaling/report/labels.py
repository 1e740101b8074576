"""Format label text: panel subtitles, file stems, removal of control characters, non-breaking spaces."""

import re
from collections.abc import Iterable

from scaling.analysis.cases import describe_call
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
    """Return a subtitle for a figure panel, such as 'width=8, 4 devices, shard_map, points split'.

    Args:
        constant_sizes: The sizes that are equal for all cases of the panel, as text such as 'width=8'.
        honest: Whether each CPU device had a core of its own. If not, 'oversubscribed' is appended.
    """
    how = [constant_sizes, count_of(case.devices, "device"), describe_call(case)]
    how += [] if honest else ["oversubscribed"]
    return ", ".join(word for word in how if word)


def clean_text(text: str) -> str:
    """Replace control characters except line feeds by spaces, and characters invalid in XML by U+FFFD."""
    return _NO_CHARACTER.sub("\ufffd", _CONTROL.sub(" ", text))


def file_stems(names: Iterable[str]) -> dict[str, str]:
    """Map each name to a unique file stem of lowercase letters, digits and hyphens, such as 'nvidia-h100'."""
    stems: dict[str, str] = {}
    for name in names:
        stem = _NO_STEM.sub("-", name.lower()).strip("-")[:40] or "other"
        taken = set(stems.values())
        numbered = (f"{stem}-{number}" for number in range(2, len(taken) + 2))
        stems[name] = stem if stem not in taken else next(new for new in numbered if new not in taken)
    return stems


def keep_numbers_whole(text: str) -> str:
    """Replace the spaces in quantities and intervals by non-breaking spaces, so that no line breaks there.

    For example, '1.2 ms (1.1 to 1.3)' and '4 devices' are kept on one line.
    """
    return _UNBREAKABLE.sub(JOINED, text)
