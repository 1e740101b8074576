"""Tests of the size of the package: what one must read to understand the core, the report and the dashboard."""

import ast

import pytest

from tests.support.paths import PACKAGE

MAX_LINES = {("core",): 4000, ("analysis", "report", "wandb"): 5500, ("wandb",): 800}
MAX_CORE_STATEMENTS = 2800
MAX_FUNCTION_LINES = 40  # of a function of core


def read_sources(*folders: str) -> list[str]:
    """Return the text of each Python file in some folders of the package."""
    return [path.read_text() for folder in folders for path in (PACKAGE / folder).rglob("*.py")]


@pytest.mark.parametrize("folders", MAX_LINES)
def test_folders_have_few_lines(folders):
    assert 0 < sum(source.count("\n") for source in read_sources(*folders)) <= MAX_LINES[folders]


def test_core_has_few_statements_and_no_long_function():
    nodes = [node for source in read_sources("core") for node in ast.walk(ast.parse(source))]
    assert 0 < sum(isinstance(node, ast.stmt) for node in nodes) <= MAX_CORE_STATEMENTS
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = {function.name: function.end_lineno - function.lineno + 1 for function in functions}
    assert {name: length for name, length in lengths.items() if length > MAX_FUNCTION_LINES} == {}
