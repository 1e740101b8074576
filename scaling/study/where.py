"""Parse a `where` condition of a study, such as "api != 'jit' or devices == 1" (`parse_where`).

A condition compares fields and sizes of a case with constants. Conditions are joined with and, or, not.
"""

import ast
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from scaling.core.case import ALIASES, CHOICES, FIELDS, OPTIONS, SCALINGS, Refusal, check_names, unknown_name
from scaling.core.formatting import format_value

_BY_WORKLOAD = ("target", "variant", "wrt", "formulation", "reduce")  # their defaults depend on the workload
COUNTS = ("points", "devices", "chunk", "block", "memory_limit")  # fields whose values are positive integers
_NUMBERS = (*COUNTS, "data_seed")
_MAX_WHERE = 2000  # maximum length of a condition, in characters
_ALLOWED_NODES = (  # names, constants, comparisons, arithmetic, and, or, not
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.BinOp, ast.Add, ast.Sub,
    ast.Mult, ast.Mod, ast.FloorDiv, ast.Compare, ast.cmpop, ast.Name, ast.Load, ast.Constant, ast.List,
    ast.Tuple,
)  # fmt: skip


def parse_where(where: Any) -> Callable[[Mapping[str, Any]], bool]:
    """Return a function f(values) that tests whether a case fulfills the condition `where`.

    `values` maps the fields and sizes of the case to their values, such as {"devices": 2, "p": 64}. If
    `where` is None, f returns True. Raise `Refusal` if the condition is invalid. f raises `Refusal` if the
    condition cannot be evaluated.
    """
    if not isinstance(where, str | bool | None):
        example = "\"devices == 1 or api != 'jit'\""
        raise Refusal(f"where must be a condition in quotes, such as {example}, not {format_value(where)}")
    text = "True" if where is None else str(where)
    if len(text) > _MAX_WHERE:  # so that the evaluation takes little time and memory
        start = f"{text[:40]!r}..."
        raise Refusal(f"where has {len(text)} characters, and at most {_MAX_WHERE} are allowed: {start}")
    try:
        tree = ast.parse(text, mode="eval")
        compared_fields = list(_check_nodes(text, tree))
        code = compile(tree, "where", "eval")
    except Refusal:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        problem = getattr(error, "msg", None) or str(error) or "it is nested too deeply"
        fix = "compare with ==, join with and, such as \"devices == 1 and mode != 'jacrev'\""
        raise Refusal(f"where={text!r} cannot be read: {problem}; {fix}") from None

    def fulfills_where(names: Mapping[str, Any]) -> bool:
        for name in compared_fields:
            if name in _BY_WORKLOAD and names[name] is None:
                default = f"the default of {names['workload']}"
                raise Refusal(f"where={text!r}: {name} is null, {default}: name it in the grid")
        try:
            return bool(eval(code, {"__builtins__": {}}, names))
        except NameError as error:
            size = f"a size must be in the grid, sizes: {{{error.name}: 8}}"
            fix = f"write a text in quotes, {error.name!r}; {size}"
            raise Refusal(f"{unknown_name('name in where', error.name, names)}; {fix}") from None
        except Exception as error:
            raise Refusal(f"where={text!r} cannot be evaluated: {error or type(error).__name__}") from None

    return fulfills_where


def _check_nodes(text: str, tree: ast.Expression) -> Iterator[str]:
    """Check the syntax tree of a condition, and yield each field that it compares with a constant.

    `tree` is modified: `is` becomes == and `is not` becomes !=, because Python emits a SyntaxWarning for `is`
    with a string. Raise `Refusal` if the condition is invalid. `text` is the condition, for error messages.
    """
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED_NODES):
            fix = "compare fields, join with and, or, not"
            raise Refusal(f"where={text!r}: {type(node).__name__} is not allowed; {fix}")
        is_negation = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
        is_logical = isinstance(node, ast.Expression | ast.BoolOp | ast.UnaryOp) and not is_negation
        for operand in ast.iter_child_nodes(node) if is_logical or is_negation else ():
            if _is_text(operand) or (is_logical and _is_number(operand)):
                fix = "compare it, such as api == 'jit' or api == 'pmap'"
                raise Refusal(f"where={text!r}: {ast.unparse(operand)} is not a condition; {fix}")
        for operand in ast.walk(node) if isinstance(node, ast.BinOp) else ():
            if _is_text(operand) or (
                isinstance(operand, ast.Name) and operand.id in set(FIELDS).difference(_NUMBERS)
            ):
                raise Refusal(f"where={text!r}: arithmetic takes numbers, not {ast.unparse(operand)}")
        if isinstance(node, ast.Compare):  # `is` becomes `==`, because Python warns of `is` with a text
            equality = {ast.Is: ast.Eq, ast.IsNot: ast.NotEq}
            node.ops = [equality.get(type(operator), type(operator))() for operator in node.ops]
            operands = [node.left, *node.comparators]
            for left, op, right in zip(operands, node.ops, operands[1:], strict=False):
                yield from _check_comparison(left, right)
                if not isinstance(op, ast.In | ast.NotIn):  # 'fwd' in mode is a substring test
                    yield from _check_comparison(right, left)


def _is_text(node: ast.AST) -> bool:
    """Return whether a node of a syntax tree is a string, a list or a tuple."""
    return isinstance(getattr(node, "value", getattr(node, "elts", 0)), str | bytes | list)


def _is_number(node: ast.AST) -> bool:
    """Return whether a node of a syntax tree is a number (not a bool), or arithmetic with numbers alone."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _is_number(node.operand)
    if isinstance(node, ast.BinOp):
        return _is_number(node.left) and _is_number(node.right)
    return type(getattr(node, "value", None)) in (int, float)


def _check_comparison(left: ast.expr, right: ast.expr) -> Iterator[str]:
    """Yield the name of the field `left` if it is compared with a constant other than None.

    `left` and `right` are the operands of a comparison in a condition. `right` may be a list of constants.
    Raise `Refusal` if a constant is not valid for the field.
    """
    if not isinstance(left, ast.Name):
        return
    name = left.id
    valid: Mapping[str, Collection[str]] = CHOICES | OPTIONS | {"scaling": SCALINGS}
    constants = [getattr(constant, "value", None) for constant in getattr(right, "elts", [right])]
    values = [value for value in constants if value is not None]
    for value in values:
        if name == "mode" and value in ALIASES:
            mode, batch = ALIASES[value]
            text = f"where compares mode with {value!r}, which sets mode={mode} and batch={batch}"
            raise Refusal(f"{text}: write mode == {mode!r} and batch == {batch!r}")
        check_names(f"{name} in where", [value], valid.get(name, [value]))
        if name in _NUMBERS and isinstance(value, str) and (name, value) != ("chunk", "auto"):
            example = f"{name} == {2000000000 if name == 'memory_limit' else 2}"
            raise Refusal(f"where compares {name} with {value!r}, but it is a number: write {example}")
    if values:
        yield name
