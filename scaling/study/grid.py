"""Check the fields of a study, and expand its grids into the cases (`GridCell`) that fulfill `where`.

The value of a field comes from the command line, from the grid, or from the fields that all grids share. A
list is swept over its elements. A condition, such as "api != 'jit' or devices == 1", compares fields and
sizes of a case with constants. With weak scaling, the number of points is multiplied by the number of
devices.
"""

import ast
import contextlib
import dataclasses
import functools
import itertools
import math
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from scaling.core.case import (
    ALIASES,
    FIELDS,
    LARGEST,
    SCALINGS,
    Case,
    Refusal,
    check_names,
    check_value,
    from_dict,
    unknown_name,
)
from scaling.core.formatting import format_value

EVERY = "all"  # mesh=all: all meshes of the devices; devices=all: all device counts of the planned hardware
COMMAND_LINE = "on the command line"
_GRID = "grids"  # key of `_Sources` whose value is the source of the grid itself
_Sources = dict[str, str]  # field -> its source: the command line, the study, or one of its grids
_GRID_KEYS = ("scaling", "where")  # keys of a grid that are not fields of a case
_STUDY_KEYS = ("title", "grids", "parts", "ceilings")  # keys of a study that are not keys of a grid
_COUNTS = ("points", "devices", "chunk", "block", "memory_limit")  # fields whose values are positive integers
_NUMBERS = (*_COUNTS, "data_seed")
_BOOLEANS = ("jit", "overlap")  # fields that are true or false
_BYTES = {  # unit in lower case -> number of bytes
    "": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_BY_WORKLOAD = ("target", "variant", "wrt", "formulation", "reduce")  # their defaults depend on the workload
_ALLOWED_NODES = (  # names, constants, comparisons, arithmetic, and, or, not
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.BinOp, ast.Add, ast.Sub,
    ast.Mult, ast.Mod, ast.FloorDiv, ast.Compare, ast.cmpop, ast.Name, ast.Load, ast.Constant, ast.List,
    ast.Tuple,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class GridCell:
    """A case as given in a study, before workload defaults and weak scaling are applied."""

    case: Case
    scaling: str = "strong"  # or "weak"
    sources: tuple[_Sources, ...] = dataclasses.field(default=(), compare=False)  # one dict for each grid

    def scaled(self, case: Case) -> Case:
        """Return a copy of `case`, with `points` multiplied by `devices` if the scaling is weak."""
        factor = case.devices if self.scaling == "weak" else 1
        return dataclasses.replace(case, points=case.points * factor)


class _Grid(NamedTuple):
    """The fields of a grid and their sources. Fields that it shares with other grids are included."""

    fields: dict[str, Any]  # field -> value, or list of values to sweep
    sources: _Sources


def expand_study(
    study: Mapping[str, Any],
    overrides: Mapping[str, Any],
    max_cases: int | None = None,
    device_counts: Sequence[int] = (),
    name: str = "",
) -> list[GridCell]:
    """Return the cases of a study as `GridCell`s, without duplicates, in the order of the study.

    Raise `Refusal` if the study is invalid or has no cases.

    Args:
        study: The shared fields, `grids`, `parts` (studies within the study) and `title`.
        overrides: The values of fields on the command line. A value of None, or {} for `sizes`, means that
            the field is not set. Other keys are ignored.
        max_cases: The maximum number of cases, counted before `where` excludes any. None means no limit.
        device_counts: The device counts that replace devices=all. If empty, devices=all is invalid.
        name: The name of the study, such as "rbf", for error messages.
    """
    command_line = {
        field: value
        for field in (*FIELDS, *_GRID_KEYS)
        if (value := overrides.get(field)) is not None and (field, value) != ("sizes", {})
    }
    location = f"in study/{name}.yaml" if name else "in the study"
    file_grids = list(_list_grids(study, _Grid({}, {}), location))
    grids = [_override(grid, command_line, COMMAND_LINE) for grid in file_grids]
    for grid in [grid for grid in grids if grid.fields.get("devices") == EVERY]:
        if not device_counts:
            text = "devices=all is for `scaling plan`: write numbers here, such as 'devices=[1,2]'"
            raise Refusal(add_source(text, grid.sources))
        grid.fields["devices"] = list(device_counts)
    if max_cases is not None:
        _check_case_count(grids, max_cases)
    cells: dict[GridCell, list[_Sources]] = defaultdict(list)
    for fields, sources in grids:
        with _with_source(sources):
            for cell in _expand_cells(fields, command_line.keys()):
                cells[cell].append(sources)
    if not cells:
        raise Refusal("the study has no cases: `where` excludes everything; change or leave out where")
    return [dataclasses.replace(cell, sources=tuple(all_sources)) for cell, all_sources in cells.items()]


def _check_case_count(grids: Sequence[_Grid], max_cases: int) -> None:
    """Raise `Refusal` if `grids` have more than `max_cases` cases before `where` excludes any.

    mesh=all counts as one case.
    """
    count = 0
    for fields, sources in grids:
        with _with_source(sources):
            count += math.prod(map(len, _swept_values(fields).values()))
    if count > max_cases:
        problem = f"the study has {count:,} cases before where, more than max_cases={max_cases}"
        raise Refusal(f"{problem}: sweep less, or max_cases={count}")


def _list_grids(study: Mapping[str, Any], enclosing: _Grid, location: str) -> Iterator[_Grid]:
    """Yield the grids of a study before command-line overrides. The grids of its parts come first.

    Args:
        study: The shared fields, `grids`, `parts` (studies within the study) and `title`.
        enclosing: The shared fields of the study that contains `study` as a part, or an empty grid.
        location: The source of the fields of `study`, such as "in study/rbf.yaml".
    """
    own_fields = {field: value for field, value in study.items() if field not in _STUDY_KEYS}
    parts = {} if study.get("parts") is None else study["parts"]
    with _with_source({_GRID: location}):
        _check_study(study, parts)
        check_names("study key", own_fields, FIELDS + _GRID_KEYS + _STUDY_KEYS)
    shared = _override(enclosing, own_fields, location)
    if enclosing.fields.get("workload") not in (None, shared.fields.get("workload")):
        # Another workload has other sizes.
        shared = shared._replace(fields={**enclosing.fields, **own_fields})
    for name, part in parts.items():
        yield from _list_grids(part, shared, f"in part {name} of {location.removeprefix('in ')}")
    for number, grid in enumerate(study.get("grids", [] if parts else [{}]), 1):
        grid_location = f"{location}, grid {number}" if "grids" in study else location
        with _with_source({_GRID: grid_location}):
            check_names("study key", grid, FIELDS + _GRID_KEYS)
            _read_sizes(grid)
            _parse_where(grid.get("where"))  # also if the command line replaces it
        yield _override(shared._replace(sources=shared.sources | {_GRID: grid_location}), grid, grid_location)


def _override(grid: _Grid, replacements: Mapping[str, Any], source: str) -> _Grid:
    """Return a copy of a grid with the fields `replacements`, which come from `source`.

    A size is replaced without changing the other sizes.
    """
    fields = {**grid.fields, **replacements}
    if isinstance(grid.fields.get("sizes"), Mapping) and isinstance(replacements.get("sizes"), Mapping):
        fields["sizes"] = {**grid.fields["sizes"], **replacements["sizes"]}
    return _Grid(fields, grid.sources | dict.fromkeys(replacements, source))


def _check_study(study: Mapping[str, Any], parts: Any) -> None:
    """Raise `Refusal` if `parts`, `grids`, `ceilings`, `title`, `sizes` or `where` of a study is invalid."""
    has_parts = isinstance(parts, Mapping) and all(isinstance(part, Mapping) for part in parts.values())
    check_value("parts", parts, has_parts, "a mapping of studies by name")
    grids, fix = study.get("grids", [{}]), "write one such as `- {mode: jacfwd}`, or leave grids out"
    has_grids = isinstance(grids, list) and grids and all(isinstance(grid, Mapping) for grid in grids)
    check_value("grids", grids, bool(has_grids), "a list of mappings, at least one", fix)
    ceilings, title = study.get("ceilings"), study.get("title")
    check_value("ceilings", ceilings, isinstance(ceilings, bool | None), "true or false")
    check_value("title", title, isinstance(title, str | None), "a text")
    _read_sizes(study)
    _parse_where(study.get("where"))  # also if all grids replace it


@contextlib.contextmanager
def _with_source(sources: _Sources) -> Iterator[None]:
    """Add the source of the invalid field to the message of a `Refusal` that the `with` block raises.

    `sources` maps fields to their sources, such as "in study/rbf.yaml, grid 2".
    """
    try:
        yield
    except Refusal as refusal:
        raise Refusal(add_source(str(refusal), sources)) from None


def add_source(text: str, sources: _Sources) -> str:
    """Return the error message `text`, followed by the source of the invalid field: "(in study/rbf.yaml)".

    `sources` maps fields to their sources. The invalid field is the first word of `text` that is a key of
    `sources`. If no word is a key, the source of the grid is added. A source is not added if it is unknown or
    is the command line. If the command line sets the workload, an added source is followed by the advice to
    use study=function.
    """
    names = re.findall(r"[a-z_]+", text.partition(":")[0].replace("unknown size", "unknown sizes"))
    workload = sources.get("workload")
    grid = workload if workload == COMMAND_LINE else sources.get(_GRID)
    source = next((sources[name] for name in names if name in sources), grid)
    alone = "; study=function runs it alone" if workload == COMMAND_LINE else ""
    return text if source in (None, COMMAND_LINE) else f"{text} ({source}{alone})"


def _read_sizes(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the value of `sizes`, or {} if it is not given. Raise `Refusal` if it is not a mapping."""
    sizes = {} if fields.get("sizes") is None else fields["sizes"]
    check_value("sizes", sizes, isinstance(sizes, Mapping), "a mapping such as {p: [8, 64]}")
    return sizes


def _swept_values(fields: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return a dict from the name of each field or size, such as "mode" or "sizes.p", to its values."""
    swept = {name: value for name, value in fields.items() if name not in ("where", "sizes")}
    swept |= {f"sizes.{name}": value for name, value in _read_sizes(fields).items()}
    if empty := next((name for name, value in swept.items() if value == []), None):
        fix = f"write one or more values, or leave {empty} out"
        raise Refusal(f"the study has no cases with {empty}=[]: {fix}")
    return {name: value if isinstance(value, list) else [value] for name, value in swept.items()}


def _expand_cells(fields: Mapping[str, Any], overridden: Collection[str]) -> Iterator[GridCell]:
    """Yield a `GridCell` for each combination of swept values that fulfills the condition `where`.

    `fields` are the fields of a grid. `overridden` contains the names of the fields that the command line
    sets.
    """
    fulfills_where, swept = _parse_where(fields.get("where")), _swept_values(fields)
    for combination in itertools.product(*swept.values()):
        values = dict(zip(swept, combination, strict=True))
        devices = values.get("devices", 1)
        is_count = isinstance(devices, int) and 0 < devices <= LARGEST
        is_every_mesh = values.get("mesh") == EVERY and is_count
        for mesh in list_meshes(devices) if is_every_mesh else [values.get("mesh")]:
            cell = _make_cell(values | {"mesh": mesh}, overridden)
            field_values = {name: getattr(cell.case, name) for name in FIELDS if name != "sizes"}
            if fulfills_where(field_values | dict(cell.case.sizes) | {"scaling": cell.scaling}):
                yield cell


@functools.lru_cache
def list_meshes(devices: int) -> list[str]:
    """Return all meshes for `devices` devices, such as "2x4" (points over 2 devices, seeds over 4)."""
    small_divisors = [n for n in range(1, math.isqrt(devices) + 1) if devices % n == 0]
    divisors = sorted({*small_divisors, *(devices // n for n in small_divisors)}, reverse=True)
    return [f"{n}x{devices // n}" for n in divisors]


def _make_cell(fields: dict[str, Any], overridden: Collection[str]) -> GridCell:
    """Return the `GridCell` with the values in `fields`, or raise `Refusal` if a value is invalid.

    `overridden` contains the names of the fields that the command line sets.
    """
    scaling = fields.pop("scaling", "strong")
    check_names("scaling", [scaling], SCALINGS)
    name = fields.get("workload")
    fix = "write workload=rbf, or the import path of your module, as workload=spring"
    check_value("workload", name, isinstance(name, str) and name != "", "a name", fix)
    if isinstance(fields.get("mode"), str) and fields["mode"] in ALIASES:  # such as vmap_jacfwd
        alias, (fields["mode"], batch) = fields["mode"], ALIASES[fields["mode"]]
        if fields.get("batch", batch) != batch and ("mode" in overridden) == ("batch" in overridden):
            fix = f"write mode={fields['mode']}, or leave out batch"
            raise Refusal(f"mode={alias} already sets batch={batch}, not {fields['batch']}: {fix}")
        fields["batch"] = fields["batch"] if "batch" in overridden else batch
    if isinstance(fields.get("memory_limit"), str):
        fields["memory_limit"] = _parse_bytes(fields["memory_limit"])
    case_fields, sizes = dict[str, Any](), dict[str, Any]()
    for name, value in fields.items():
        size = name.removeprefix("sizes.")
        if (size != name or name in _COUNTS) and isinstance(value, int) and value > LARGEST:
            raise Refusal(f"{name} must be a positive integer of at most {LARGEST}, not a larger one")
        if size == name:
            case_fields[name] = value
        else:  # "points" is the number of points before weak scaling
            sizes[size] = fields.get("points", 1) if value == "points" else value
    return GridCell(from_dict(case_fields | {"sizes": sizes}), scaling)


def _parse_bytes(text: str) -> int:
    """Convert an amount of memory, such as "512MiB", to bytes. Raise `Refusal` if it is invalid."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    unit = _BYTES.get(match[2].lower()) if match else None
    if match is None or unit is None or float(match[1]) * unit > LARGEST:
        raise Refusal(f"memory_limit must be bytes, such as 2GB, 512MiB or 2000000000, not {text!r}")
    return int(float(match[1]) * unit)


def _parse_where(where: Any) -> Callable[[Mapping[str, Any]], bool]:
    """Return a function that tests whether a case fulfills the condition `where`, such as "p < 64".

    Raise `Refusal` if the condition is invalid. The argument of the returned function maps the fields and
    sizes of a case to their values, such as {"devices": 2, "p": 64}. The returned function raises `Refusal`
    if the condition cannot be evaluated. If `where` is None, it returns True.
    """
    expected = "a condition in quotes, such as \"devices == 1 or api != 'jit'\""
    check_value("where", where, isinstance(where, str | bool | None), expected)
    condition = "True" if where is None else str(where)
    try:
        tree = ast.parse(condition, mode="eval")
        compared_fields = [name for node in ast.walk(tree) for name in _check_node(node)]
        with warnings.catch_warnings(action="error"):  # such as `is` with a text
            code = compile(tree, "where", "eval")
    except Refusal as refusal:
        raise Refusal(f"where={condition!r}: {refusal}") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        problem = getattr(error, "msg", None) or str(error) or "it is nested too deeply"
        fix = "compare with ==, join with and, such as \"devices == 1 and mode != 'jacrev'\""
        raise Refusal(f"where={condition!r} cannot be read: {problem}; {fix}") from None

    def fulfills_where(case_values: Mapping[str, Any]) -> bool:
        for name in compared_fields:
            if name in _BY_WORKLOAD and case_values[name] is None:
                default = f"the default of {case_values['workload']}"
                raise Refusal(f"where={condition!r}: {name} is null, {default}: name it in the grid")
        try:
            return bool(eval(code, {"__builtins__": {}}, case_values))
        except NameError as error:
            size = f"a size must be in the grid, sizes: {{{error.name}: 8}}"
            fix = f"write a text in quotes, {error.name!r}; {size}"
            raise Refusal(f"{unknown_name('name in where', error.name, case_values)}; {fix}") from None
        except Exception as error:
            raise Refusal(
                f"where={condition!r} cannot be evaluated: {error or type(error).__name__}"
            ) from None

    return fulfills_where


def _check_node(node: ast.AST) -> Iterator[str]:
    """Check a node of the syntax tree of a condition, and yield the fields that it compares with constants.

    Raise `Refusal` if a condition must not contain such a node, or if a comparison is invalid.
    """
    if not isinstance(node, _ALLOWED_NODES):
        fix = "compare fields, join with and, or, not"
        raise Refusal(f"{type(node).__name__} is not allowed; {fix}")
    is_not = isinstance(getattr(node, "op", None), ast.Not)
    has_conditions = is_not or isinstance(node, ast.Expression | ast.BoolOp)
    for operand in ast.iter_child_nodes(node) if has_conditions else ():
        if isinstance(operand, ast.expr) and not _is_condition(operand):
            fix = "compare it, such as api == 'jit' or api == 'pmap'"
            raise Refusal(f"{ast.unparse(operand)} is not a condition; {fix}")
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
        for left, op, right in zip(operands, node.ops, operands[1:], strict=False):
            yield from _check_comparison(left, right)
            if not isinstance(op, ast.In | ast.NotIn):  # 'fwd' in mode is a substring test
                yield from _check_comparison(right, left)


def _is_condition(node: ast.expr) -> bool:
    """Return whether a node of a syntax tree is a condition.

    Conditions are comparisons, expressions with `and`, `or` or `not`, True, False, and the names of fields
    that are true or false, such as jit.
    """
    is_logical = isinstance(getattr(node, "op", None), ast.boolop | ast.Not)
    is_true_or_false = isinstance(getattr(node, "value", None), bool) or getattr(node, "id", "") in _BOOLEANS
    return isinstance(node, ast.Compare) or is_logical or is_true_or_false


def _check_comparison(left: ast.expr, right: ast.expr) -> Iterator[str]:
    """Check a comparison in a condition, and yield the name of the field that is compared with a constant.

    `left` and `right` are the operands. `right` may be a list of constants. Yield nothing unless `left` is a
    name and `right` contains a constant other than None. Raise `Refusal` if the field cannot have the value
    of a constant. A numeric field may be compared with any number.
    """
    if not isinstance(left, ast.Name):
        return
    name = left.id
    constants = [getattr(constant, "value", None) for constant in getattr(right, "elts", [right])]
    values = [value for value in constants if value is not None]
    for value in values:
        if name == "mode" and value in ALIASES:
            mode, batch = ALIASES[value]
            raise Refusal(f"mode == {value!r} is written mode == {mode!r} and batch == {batch!r}")
        is_number = name in _NUMBERS and isinstance(value, int | float)
        if name in FIELDS and name != "sizes" and not is_number:
            Case(**{"workload": "any", name: value})
    check_names("scaling", values if name == "scaling" else [], SCALINGS)
    if values:
        yield name


def format_setting(name: str, value: Any) -> str:
    """Return a field and its value as text for the command line, such as "jit=true"."""
    return f"{name}={value if isinstance(value, str) else format_value(value)}"
