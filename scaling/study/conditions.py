"""Parse and evaluate the `where` conditions of a study, such as "api != 'jit' or devices == 1".

A condition is a Python expression that compares names and constants, and combines comparisons with `and`,
`or` and `not`. It is evaluated without `eval`. Numbers in arithmetic are limited in magnitude, so that no
condition takes much time or memory to evaluate.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from scaling.core.case import Refusal, unknown_name

_MAX_LENGTH = 2000  # maximum length of a condition, in characters
_MAX_NUMBER = 10**18  # maximum magnitude of a number in arithmetic
_COMPARISONS: dict[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv,
}  # fmt: skip
_ALLOWED_NODES = (
    *_COMPARISONS, *_ARITHMETIC, ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub,
    ast.Compare, ast.BinOp, ast.Name, ast.Load, ast.Constant, ast.List, ast.Tuple,
)  # fmt: skip


def parse(where: Any) -> Callable[[Mapping[str, Any]], bool] | None:
    """Return a function that evaluates a `where` condition, or None if `where` is None.

    The returned function takes a dict from field or size to value, such as {"devices": 2, "p": 64}, and
    returns whether the condition holds. It raises `Refusal` if the condition cannot be evaluated. `parse`
    raises `Refusal` if the condition is not a valid expression, is too long, or contains a call or attribute.
    """
    if where is None:
        return None
    if not isinstance(where, str | bool):
        raise Refusal(
            f"where must be a condition in quotes, such as \"devices == 1 or api != 'jit'\", not {where!r}"
        )
    text = str(where)
    if len(text) > _MAX_LENGTH:
        start = f"{text[:40]!r}..."
        raise Refusal(f"where has {len(text)} characters, and at most {_MAX_LENGTH} are allowed: {start}")
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Refusal(f"where={text!r} cannot be read: {error or 'it is nested too deeply'}") from None
    if wrong := [type(node).__name__ for node in ast.walk(tree) if not isinstance(node, _ALLOWED_NODES)]:
        raise Refusal(f"where={text!r}: {wrong[0]} is not allowed; compare fields, join with and, or, not")

    def holds(names: Mapping[str, Any]) -> bool:
        try:
            return bool(_evaluate(tree.body, names))
        except Refusal:
            raise
        except Exception as error:
            raise Refusal(f"where={text!r} cannot be evaluated: {error or type(error).__name__}") from None

    return holds


def _evaluate(node: Any, names: Mapping[str, Any]) -> Any:
    """Return the value of a node of the syntax tree. `names` is a dict from name to value."""
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
            return not operand if isinstance(node.op, ast.Not) else _compute(operator.sub, 0, operand)
        case ast.BinOp():
            operands = _evaluate(node.left, names), _evaluate(node.right, names)
            return _compute(_ARITHMETIC[type(node.op)], *operands)
    left = _evaluate(node.left, names)
    for comparison, each in zip(node.ops, node.comparators, strict=True):
        right = _evaluate(each, names)
        if not _COMPARISONS[type(comparison)](left, right):
            return False
        left = right
    return True


def _compute(operation: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """Return `operation(left, right)`. Raise `ValueError` if an operand is not a small enough number."""
    for operand in (left, right):
        if isinstance(operand, bool) or not isinstance(operand, int | float):
            raise ValueError(f"arithmetic takes numbers, not {operand!r}")
    result = operation(left, right)
    if any(abs(number) > _MAX_NUMBER for number in (left, right, result)):
        raise ValueError(f"a number is too large; the largest allowed is {_MAX_NUMBER:.0e}")
    return result
