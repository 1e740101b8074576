"""Class Table, and text functions for file names, line wrapping and control characters."""

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

_CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")  # all of them except the line feed
_NO_CHARACTER = re.compile("[\ud800-\udfff\ufffe\uffff]")  # characters that text files and XML do not allow
_NO_STEM = re.compile("[^a-z0-9]+")
_UNBREAKABLE = re.compile(  # spaces between a number and its unit or noun, and in an interval
    r"(?<=\d) (?=(?:[mµun]?s|[kMGT]?B|%|devices?|cases?)\b|%)|(?<=\S) (?=\([-\d])|(?<=\d) "
    r"(?=to )|(?<=to) (?=[-\d])"
)
JOINED = "\N{NO-BREAK SPACE}"
LINES, WIDTH = 25, 80  # of a console


def clean_text(text: str) -> str:
    """Return the text with control characters replaced by spaces and invalid XML characters by U+FFFD.

    Line feeds are kept.
    """
    return _NO_CHARACTER.sub("\ufffd", _CONTROL.sub(" ", text))


def file_stems(names: Iterable[str]) -> dict[str, str]:
    """Return a dict from each name to a unique file name without extension, such as 'nvidia-h100'.

    A file name consists of lowercase letters, digits and hyphens.
    """
    stems: dict[str, str] = {}
    for name in names:
        stem = _NO_STEM.sub("-", name.lower()).strip("-")[:40] or "other"
        taken = set(stems.values())
        numbered = (f"{stem}-{number}" for number in range(2, len(taken) + 2))
        stems[name] = stem if stem not in taken else next(new for new in numbered if new not in taken)
    return stems


def keep_numbers_whole(text: str) -> str:
    """Return the text with non-breaking spaces within quantities such as '1.2 ms (1.1 to 1.3)'."""
    return _UNBREAKABLE.sub(JOINED, text)


class Table(NamedTuple):
    """A table of text: its HTML anchor, title, note, column names and rows.

    Without `row_anchors`, the rows have numbered HTML anchors such as 'laws-row1'.
    """

    anchor: str
    title: str
    note: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    row_anchors: Sequence[str] = ()

    @property
    def anchored_rows(self) -> list[tuple[str, tuple[str, ...]]]:
        """Return the rows as (HTML anchor, row) pairs."""
        anchors = self.row_anchors or [
            f"{self.anchor}-row{number}" for number in range(1, len(self.rows) + 1)
        ]
        return list(zip(anchors, self.rows, strict=True))


def make_table(
    anchor: str,
    title: str,
    note: str,
    rows: Iterable[Mapping[str, object]],
    row_anchors: Sequence[str] = (),
) -> Table:
    """Return a table of text without its empty columns. The first column is always included.

    A row is a dict from column name to value. A value of None becomes an empty cell.
    """
    texts = [{name: "" if cell is None else str(cell) for name, cell in row.items()} for row in rows]
    names = list(texts[0]) if texts else []
    kept = tuple(name for name in names if name == names[0] or any(row[name] for row in texts))
    return Table(anchor, title, note, kept, [tuple(row[name] for name in kept) for row in texts], row_anchors)


def wrap_text(text: str, width: int = WIDTH, indent: str = "") -> list[str]:
    """Return the text as lines of at most `width` characters, those after the first with an indent.

    Quantities such as '1.2 ms' are not broken, so that a line may be longer.
    """
    joined = keep_numbers_whole(" ".join(clean_text(text).split()))
    wrapper = textwrap.TextWrapper(
        width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace(JOINED, " ") for line in wrapper.wrap(joined)]
