"""Parse and evaluate the `where` conditions of a study, such as "api != 'jit' or devices == 1".

A condition compares names and constants, and combines comparisons with `and`, `or` and `not`. Conditions are
evaluated without `eval`. The numbers in arithmetic have a magnitude of at most `_LARGEST`, so that every
condition can be evaluated with little time and memory.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from scaling.core.case import Refusal, unknown_name

_LONGEST = 2000  # maximum length of a condition, in characters
_LARGEST = 10**18  # maximum magnitude of a number in arithmetic
_COMPARISONS: dict[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv,
}  # fmt: skip
_FORMS = (
    *_COMPARISONS, *_ARITHMETIC, ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub,
    ast.Compare, ast.BinOp, ast.Name, ast.Load, ast.Constant, ast.List, ast.Tuple,
)  # fmt: skip


def parse(where: Any) -> Callable[[Mapping[str, Any]], bool] | None:
    """Return a function that evaluates a `where` condition, or None if `where` is None.

    The function takes a dict from name to value, and returns whether the condition holds. It raises `Refusal`
    if the condition cannot be evaluated. `parse` raises `Refusal` if the condition cannot be parsed.
    """
    if where is None:
        return None
    if not isinstance(where, str | bool):
        raise Refusal(
            f"where must be a condition in quotes, such as \"devices == 1 or api != 'jit'\", not {where!r}"
        )
    text = str(where)
    if len(text) > _LONGEST:
        start = f"{text[:40]!r}..."
        raise Refusal(f"where has {len(text)} characters, and at most {_LONGEST} are allowed: {start}")
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Refusal(f"where={text!r} cannot be read: {error or 'it is nested too deeply'}") from None
    if wrong := [type(node).__name__ for node in ast.walk(tree) if not isinstance(node, _FORMS)]:
        raise Refusal(f"where={text!r}: {wrong[0]} is not allowed; compare fields, join with and, or, not")

    def holds(names: Mapping[str, Any]) -> bool:
        try:
            return bool(_value(tree.body, names))
        except Refusal:
            raise
        except Exception as error:
            raise Refusal(f"where={text!r} cannot be evaluated: {error or type(error).__name__}") from None

    return holds


def _value(node: Any, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            if node.id not in names:
                raise unknown_name("name in where", node.id, names)
            return names[node.id]
        case ast.List() | ast.Tuple():
            return [_value(each, names) for each in node.elts]
        case ast.BoolOp():
            every = isinstance(node.op, ast.And)
            return (all if every else any)(_value(each, names) for each in node.values)
        case ast.UnaryOp():
            operand = _value(node.operand, names)
            return not operand if isinstance(node.op, ast.Not) else _compute(operator.sub, 0, operand)
        case ast.BinOp():
            return _compute(_ARITHMETIC[type(node.op)], _value(node.left, names), _value(node.right, names))
    left = _value(node.left, names)
    for comparison, each in zip(node.ops, node.comparators, strict=True):
        right = _value(each, names)
        if not _COMPARISONS[type(comparison)](left, right):
            return False
        left = right
    return True


def _compute(operation: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    for operand in (left, right):
        if isinstance(operand, bool) or not isinstance(operand, int | float):
            raise ValueError(f"arithmetic takes numbers, not {operand!r}")
    result = operation(left, right)
    if any(abs(number) > _LARGEST for number in (left, right, result)):
        raise ValueError(f"a number is too large; the largest allowed is {_LARGEST:.0e}")
    return result
