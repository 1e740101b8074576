"""Parse and evaluate the `where` conditions of a study, such as "api != 'jit' or devices == 1".

A condition is a Python expression of names, constants, comparisons, arithmetic, `and`, `or` and `not`. Only
these are evaluated, arithmetic takes numbers only, and the length is limited, so that the evaluation takes
little time and memory.
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from scaling.core.case import ALIASES, CHOICES, OPTIONS, Refusal, check_names, unknown_name

SCALINGS = ("strong", "weak")
_CHOICES = CHOICES | OPTIONS | {"scaling": SCALINGS}
_BY_WORKLOAD = ("target", "variant", "wrt", "formulation", "reduce")  # their defaults depend on the workload
_NUMBERS = ("points", "devices", "chunk", "block", "memory_limit", "data_seed")
_MAX_LENGTH = 2000  # maximum length of a condition, in characters
_ALLOWED_NODES = (
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.BinOp, ast.Add, ast.Sub,
    ast.Mult, ast.Mod, ast.FloorDiv, ast.Compare, ast.cmpop, ast.Name, ast.Load, ast.Constant, ast.List,
    ast.Tuple,
)  # fmt: skip


class _Text(str):
    """The text of a field, which arithmetic rejects: a text times a large number would fill the memory."""

    def __mul__(self, other: Any) -> Any:
        raise ValueError(f"arithmetic takes numbers, not {str(self)!r}")

    __rmul__ = __mod__ = __mul__


class _Names(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        raise unknown_name("name in where", name, self)


def parse(where: Any) -> Callable[[Mapping[str, Any]], bool]:
    """Return a function that evaluates a `where` condition. None is a condition that always holds.

    The function takes a dict from field or size to value, such as {"devices": 2, "p": 64}, and raises
    `Refusal` if the condition cannot be evaluated. `parse` raises `Refusal` if the condition is invalid, or
    compares a field with a value that it never has.
    """
    if not isinstance(where, str | bool | None):
        example = "\"devices == 1 or api != 'jit'\""
        raise Refusal(f"where must be a condition in quotes, such as {example}, not {where!r}")
    text = "True" if where is None else str(where)
    if len(text) > _MAX_LENGTH:
        start = f"{text[:40]!r}..."
        raise Refusal(f"where has {len(text)} characters, and at most {_MAX_LENGTH} are allowed: {start}")
    try:
        tree = ast.parse(text, mode="eval")
        compared = list(_check_nodes(text, tree))
        code = compile(tree, "where", "eval")
    except Refusal:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Refusal(f"where={text!r} cannot be read: {error or 'it is nested too deeply'}") from None

    def holds(names: Mapping[str, Any]) -> bool:
        for name in compared:
            if name in _BY_WORKLOAD and names[name] is None:
                default = f"the default of {names['workload']}"
                raise Refusal(f"where={text!r}: {name} is null, {default}: name it in the grid")
        values = _Names({k: _Text(v) if isinstance(v, str) else v for k, v in names.items()})
        try:
            return bool(eval(code, {"__builtins__": {}}, values))
        except Refusal:
            raise
        except Exception as error:
            raise Refusal(f"where={text!r} cannot be evaluated: {error or type(error).__name__}") from None

    return holds


def _check_nodes(text: str, tree: ast.Expression) -> Iterator[str]:
    """Yield the names that an expression compares with a constant other than None.

    Raise `Refusal` if the expression contains what is not allowed, or arithmetic with a text or a list.
    """
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED_NODES):
            fix = "compare fields, join with and, or, not"
            raise Refusal(f"where={text!r}: {type(node).__name__} is not allowed; {fix}")
        for inner in ast.walk(node) if isinstance(node, ast.BinOp) else ():
            if isinstance(getattr(inner, "value", getattr(inner, "elts", 0)), str | bytes | list):
                raise Refusal(f"where={text!r}: arithmetic takes numbers, not {ast.unparse(inner)}")
        if isinstance(node, ast.Compare):  # `is` becomes `==`, because Python warns of `is` with a text
            same = {ast.Is: ast.Eq, ast.IsNot: ast.NotEq}
            node.ops = [same.get(type(each), type(each))() for each in node.ops]
            operands = [node.left, *node.comparators]
            for left, sign, right in zip(operands, node.ops, operands[1:], strict=False):
                yield from _check_comparison(left, right)
                if not isinstance(sign, ast.In | ast.NotIn):  # 'fwd' in mode looks for a part of the mode
                    yield from _check_comparison(right, left)


def _check_comparison(name: ast.expr, other: ast.expr) -> Iterator[str]:
    """Yield the field that is compared with a constant. Raise `Refusal` if it can never have this value."""
    if isinstance(name, ast.Name):
        for value in (getattr(each, "value", None) for each in getattr(other, "elts", [other])):
            if value is not None:
                _check_value(name.id, value)
                yield name.id


def _check_value(name: str, value: Any) -> None:
    if name == "mode" and value in ALIASES:
        mode, batch = ALIASES[value]
        text = f"where compares mode with {value!r}, which sets mode={mode} and batch={batch}"
        raise Refusal(f"{text}: write mode == {mode!r} and batch == {batch!r}")
    check_names(f"{name} in where", [value], _CHOICES.get(name, [value]))
    if name in _NUMBERS and isinstance(value, str) and (name, value) != ("chunk", "auto"):
        example = f"{name} == {2000000000 if name == 'memory_limit' else 2}"
        raise Refusal(f"where compares {name} with {value!r}, but it is a number: write {example}")
