"""The language of the code: class names are unique, and words of its former dialect do not return."""

import ast
import re
from collections import Counter

import pytest

from tests.support.paths import PACKAGE

DIALECT = r"told|said|beside|around|seats?|tickets?|of_one|so many|in vain|stands? beside|shares? out"
DIALECT_IN_NAMES = re.compile(rf"(?:^|_)(?:{DIALECT}|Seat|Ticket|Unfit|Lost|Gone)(?:_|$)")
DIALECT_IN_DOCSTRINGS = re.compile(rf"\b(?:{DIALECT})\b", re.IGNORECASE)
EXEMPT: set[str] = set()
"""Files and folders that are not rewritten yet. Nothing may be added."""
SHARED_NAMES: set[str] = set()
"""Public classes that several modules define. Nothing may be added."""


def sources():
    """Return (name below the package, syntax tree) of every module."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return [(path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text())) for path in paths]
