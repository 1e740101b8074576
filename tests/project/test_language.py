"""Tests of the language of the code: class names are unique, and its former dialect does not return."""

import ast
import re
from collections import Counter

import pytest

from tests.support.paths import PACKAGE

DIALECT = r"told|said|beside|around|seats?|tickets?|of_one|so many|in vain|shares? out"
METAPHORS = "Seat|Side|Ticket|Place|Here|Some|Lost|Gone|Seen|Made|Ran|Unfit|Way|Standing"
IN_NAMES = re.compile(rf"(?:^|_)(?:{DIALECT})(?:_|$)|^(?:{METAPHORS})$")
IN_DOCSTRINGS = re.compile(rf"\b(?:{DIALECT})\b", re.IGNORECASE)
SOURCES = {
    path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text())
    for path in sorted(PACKAGE.rglob("*.py"))
}


def find_dialect(tree: ast.AST) -> list[str]:
    """Return the identifiers and the words of docstrings of a module that are dialect."""
    matches = []
    for node in ast.walk(tree):
        names = [getattr(node, field, None) for field in ("name", "id", "arg")]
        matches += [name for name in names if isinstance(name, str) and IN_NAMES.search(name)]
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            matches += IN_DOCSTRINGS.findall(ast.get_docstring(node) or "")
    return matches


def test_no_two_public_classes_share_a_name():
    classes = (
        node.name for tree in SOURCES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    )
    assert [
        name for name, count in Counter(name for name in classes if name[0] != "_").items() if count > 1
    ] == []


@pytest.mark.parametrize("name", SOURCES)
def test_names_and_docstrings_of_a_module_contain_no_dialect(name):
    assert find_dialect(SOURCES[name]) == []


def test_the_check_finds_dialect_in_names_and_in_docstrings():
    module = ast.parse('def of_one(seat):\n    """How many of so many one has in vain."""\n    told = seat\n')
    assert sorted(find_dialect(module)) == ["in vain", "of_one", "seat", "seat", "so many", "told"]


def test_lines_of_the_package_are_at_most_110_characters_wide():
    wide = [
        f"{path.relative_to(PACKAGE)}:{number}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > 110
    ]
    assert wide == []
