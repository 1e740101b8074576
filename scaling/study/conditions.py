"""Parse and evaluate the `where` conditions of a study, such as "api != 'jit' or devices == 1".

A condition is a Python expression of names, constants, comparisons, arithmetic, `and`, `or` and `not`. It is
evaluated without `eval`. The length and the numbers of a condition are limited, so that the evaluation takes
little time and memory.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from scaling.core.case import Refusal, unknown_name

_MAX_LENGTH = 2000  # maximum length of a condition, in characters
_MAX_NUMBER = 10**18  # maximum magnitude of a number in arithmetic
_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv,
}  # fmt: skip
_ALLOWED_NODES = (
    *_OPERATORS, ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.Compare,
    ast.BinOp, ast.Name, ast.Load, ast.Constant, ast.List, ast.Tuple,
)  # fmt: skip


def parse(where: Any) -> Callable[[Mapping[str, Any]], bool] | None:
    """Return a function that evaluates a `where` condition, or None if `where` is None.

    The function takes a dict from field or size to value, such as {"devices": 2, "p": 64}, and raises
    `Refusal` if the condition cannot be evaluated. `parse` raises `Refusal` if the condition is invalid.
    """
    if where is None:
        return None
    if not isinstance(where, str | bool):
        example = "\"devices == 1 or api != 'jit'\""
        raise Refusal(f"where must be a condition in quotes, such as {example}, not {where!r}")
    text = str(where)
    if len(text) > _MAX_LENGTH:
        start = f"{text[:40]!r}..."
        raise Refusal(f"where has {len(text)} characters, and at most {_MAX_LENGTH} are allowed: {start}")
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Refusal(f"where={text!r} cannot be read: {error or 'it is nested too deeply'}") from None
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED_NODES):
            fix = "compare fields, join with and, or, not"
            raise Refusal(f"where={text!r}: {type(node).__name__} is not allowed; {fix}")

    def holds(names: Mapping[str, Any]) -> bool:
        try:
            return bool(_evaluate(tree.body, names))
        except Refusal:
            raise
        except Exception as error:
            raise Refusal(f"where={text!r} cannot be evaluated: {error or type(error).__name__}") from None

    return holds


def _evaluate(node: Any, names: Mapping[str, Any]) -> Any:
    """Return the value of a syntax tree node. `names` is a dict from name to value."""
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            if node.id not in names:
                raise unknown_name("name in where", node.id, names)
            return names[node.id]
        case ast.List() | ast.Tuple():
            return [_evaluate(each, names) for each in node.elts]
        case ast.BoolOp():
            combine = all if isinstance(node.op, ast.And) else any
            return combine(_evaluate(each, names) for each in node.values)
        case ast.UnaryOp():
            operand = _evaluate(node.operand, names)
            return not operand if isinstance(node.op, ast.Not) else _compute(ast.Sub, 0, operand)
        case ast.BinOp():
            return _compute(type(node.op), _evaluate(node.left, names), _evaluate(node.right, names))
    left = _evaluate(node.left, names)
    for comparison, each in zip(node.ops, node.comparators, strict=True):
        right = _evaluate(each, names)
        if not _OPERATORS[type(comparison)](left, right):
            return False
        left = right
    return True


def _compute(operation: type, left: Any, right: Any) -> Any:
    """Apply an arithmetic operator, such as `ast.Add`, to two operands, and return the result.

    Raise `ValueError` if an operand is not a number, or if an operand or the result exceeds `_MAX_NUMBER`.
    """
    for operand in (left, right):
        if isinstance(operand, bool) or not isinstance(operand, int | float):
            raise ValueError(f"arithmetic takes numbers, not {operand!r}")
    result = _OPERATORS[operation](left, right)
    if any(abs(number) > _MAX_NUMBER for number in (left, right, result)):
        raise ValueError(f"a number is too large; the largest allowed is {_MAX_NUMBER:.0e}")
    return result
