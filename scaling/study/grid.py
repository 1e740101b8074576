"""A study: from shared fields, grids and the command line to cases, in plain Python.

Knows the fields of a case, how lists sweep, what `where` excludes and how strong and weak scaling derive points from devices.
Does not know the workloads: what is left to them is completed in preflight.py.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from scaling.core.case import ALIASES, FIELDS, LARGEST, Case, Refusal, from_dict, unknown_name
from scaling.study import conditions

SCALINGS = ("strong", "weak")
_OWN = ("scaling", "where")  # keys of a grid that are no field of a case
_STUDY = ("title", "grids", "parts", "ceilings")
_BYTES = {
    "": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
EVERY = (
    "all"  # mesh: every way to lay the devices out; devices: every count that a machine to plan for comes in
)


_COMMAND_LINE = "on the command line"
_Sources = dict[
    str, str
]  # field -> where it is stated: on the command line, in the study, or in one of its grids


class UnusedField(NamedTuple):
    """Why a field has no effect: in words, and by which other fields."""

    words: str
    because: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class GridCell:
    """A case as the study states it, before its workload completes it and the scaling rule sets its points.

    stated: for each grid that has this cell, where its fields are stated.
    """

    case: Case
    scaling: str = "strong"
    stated: tuple[_Sources, ...] = dataclasses.field(default=(), compare=False)

    def scaled(self, completed: Case) -> Case:
        """The case with its points: as stated, or as many for each device."""
        if self.scaling == "strong":
            return completed
        return dataclasses.replace(completed, points=completed.points * completed.devices)


def expand_study(
    study: Mapping[str, Any], overrides: Mapping[str, Any], most: int | None = None
) -> list[GridCell]:
    """Every cell of a study, each once, in the study's order. Precedence: shared fields < a grid's < the overrides.

    A study may have others as `parts`, by name; their cells come first. What `ceilings` asks for is added in ceilings.py.
    most: a study of more cells is refused before they are made.
    """
    if most is not None and (count := _count(study, overrides)) > most:
        raise Refusal(
            f"the study has {count:,} cases before where, more than max_cases={most}: sweep less, or max_cases={count}"
        )
    given = {k: v for k, v in overrides.items() if v is not None and (k, v) != ("sizes", {})}
    cells: dict[GridCell, GridCell] = {}
    for cell in _cells(study, given, "in the study", dict.fromkeys(given, _COMMAND_LINE)):
        stated = cells[cell].stated if cell in cells else ()
        cells[cell] = dataclasses.replace(cell, stated=(*stated, *cell.stated))
    if not cells:
        raise Refusal("the study has no cases: its grids sweep an empty list, or `where` excludes everything")
    return list(cells.values())


def _cells(
    study: Mapping[str, Any], given: Mapping[str, Any], place: str, sources: _Sources
) -> Iterator[GridCell]:
    """Yield the cells of a study, its parts first. sources: of the fields that are stated outside of it."""
    shared = {k: v for k, v in study.items() if k not in _STUDY}
    parts = study.get("parts") or {}
    if not isinstance(parts, Mapping) or not all(isinstance(part, Mapping) for part in parts.values()):
        raise Refusal(f"parts must be a mapping of studies by name, not {parts!r}")
    grids = study.get("grids") or ([] if parts else [{}])
    if not isinstance(grids, list) or not all(isinstance(grid, Mapping) for grid in grids):
        raise Refusal(f"grids must be a list of mappings, not {grids!r}")
    if study.get("ceilings") not in (None, True, False):
        raise Refusal(f"ceilings must be true or false, not {study['ceilings']!r}")
    if not isinstance(study.get("title"), str | None):
        raise Refusal(f"title must be a text, not {study['title']!r}")
    here = dict.fromkeys(shared, place) | sources
    for name, part in parts.items():
        inside = {k: source for k, source in here.items() if source == _COMMAND_LINE or k not in part}
        yield from _cells(shared | part, given, f"in part {name}", inside)
    for number, grid in enumerate(grids, 1):
        merged = _merge(_unaliased(_merge(shared, grid), given), given)
        stated = here | {k: f"{place}, grid {number}" for k in grid if k not in given}
        for cell in _grid(merged):
            yield dataclasses.replace(cell, stated=(stated,))


def refuse_unused(cells: Sequence[GridCell], unused: Sequence[Mapping[str, UnusedField]]) -> None:
    """Refuse a stated value that has an effect in none of the cases that it is stated for.

    unused: for each cell, its fields without effect. Where a field from a file lost its effect by another field that the command
    line replaces, it is no mistake.
    """
    reasons: dict[tuple[str, str, Any], list[UnusedField | None]] = {}
    for cell, without in zip(cells, unused, strict=True):
        for stated in cell.stated:
            for name in set(stated) & {*FIELDS} - {"sizes"}:
                why, source = without.get(name), stated[name]
                if (
                    why
                    and source != _COMMAND_LINE
                    and any(stated.get(each) == _COMMAND_LINE for each in why.because)
                ):
                    why = None
                reasons.setdefault((source, name, getattr(cell.case, name)), []).append(why)
    for (source, name, value), whys in reasons.items():
        if whys[0] and all(whys):
            text = str(value).lower() if isinstance(value, bool) else value
            fix = f"leave it out, or change {' or '.join(whys[0].because)}"
            raise Refusal(f"{name}={text} has no effect {whys[0].words}: {fix} (it is stated {source})")


def _count(study: Mapping[str, Any], overrides: Mapping[str, Any]) -> int:
    """Return how many cells the lists of a study sweep, before `where` leaves out any; 0 for what `expand` refuses."""
    shared = {name: value for name, value in study.items() if name not in _STUDY}
    given = {name: value for name, value in overrides.items() if value is not None and value != {}}
    parts, grids = study.get("parts") or {}, study.get("grids") or ([] if study.get("parts") else [{}])
    if not isinstance(parts, Mapping) or not isinstance(grids, list):
        return 0
    total = sum(_count({**shared, **part}, overrides) for part in parts.values() if isinstance(part, Mapping))
    for grid in (grid for grid in grids if isinstance(grid, Mapping)):
        whole = {**shared, **grid, **given}
        sizes = [layer.get("sizes") for layer in (shared, grid, given)]
        axes = {name: value for layer in sizes if isinstance(layer, Mapping) for name, value in layer.items()}
        swept = [
            value
            for name, value in {**whole, "sizes": None, "where": None}.items()
            if isinstance(value, list)
        ]
        total += math.prod(
            len(value) for value in (*swept, *(v for v in axes.values() if isinstance(v, list)))
        )
    return total


def _merge(under: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """`upper` over `under`; sizes are merged name by name, so that one can be replaced alone."""
    for layer in (under, upper):
        for name in layer:
            if name not in FIELDS + _OWN:
                raise unknown_name("study key", name, FIELDS + _OWN + _STUDY)
    merged = {**under, **{k: v for k, v in upper.items() if v is not None}}
    if isinstance(under.get("sizes"), Mapping) and isinstance(upper.get("sizes"), Mapping):
        merged["sizes"] = {**under["sizes"], **upper["sizes"]}
    return {k: v for k, v in merged.items() if v is not None}


def _unaliased(grid: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A grid in which no mode names a batching of its own, where the command line gives `batch`."""
    if "batch" not in given:
        return dict(grid)
    modes = given.get("mode", [])
    if aliases := [
        m for m in (modes if isinstance(modes, list) else [modes]) if isinstance(m, str) and m in ALIASES
    ]:
        raise Refusal(
            f"mode={aliases[0]} names its batching already: write mode={ALIASES[aliases[0]][0]}, or leave out batch"
        )
    modes = grid.get("mode")
    plain = [
        ALIASES[m][0] if isinstance(m, str) and m in ALIASES else m
        for m in (modes if isinstance(modes, list) else [modes])
    ]
    return {**grid, "mode": plain} if modes is not None else dict(grid)


def _grid(grid: Mapping[str, Any]) -> Iterator[GridCell]:
    """The product of a grid's lists, less what `where` excludes."""
    where = conditions.check(grid.get("where"))
    axes = {k: v for k, v in grid.items() if k not in ("where", "sizes")}
    sizes = grid.get("sizes", {})
    if not isinstance(sizes, Mapping):
        raise Refusal(f"sizes must be a mapping such as {{p: 64}} or {{p: [8, 64]}}, not {sizes!r}")
    axes |= {f"sizes.{name}": value for name, value in sizes.items()}
    for values in itertools.product(*(v if isinstance(v, list) else [v] for v in axes.values())):
        for fields in _meshes(dict(zip(axes, values, strict=True))):
            cell = _cell(fields)
            if where is None or conditions.holds(where, _names(cell)):
                yield cell


def _meshes(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The fields of a cell, once for each way to lay its devices out where it asks for all of them."""
    devices = fields.get("devices", 1)
    if fields.get("mesh") != EVERY or not isinstance(devices, int) or devices < 1:
        yield fields
        return
    for over_points in range(devices, 0, -1):
        if devices % over_points == 0:
            yield fields | {"mesh": f"{over_points}x{devices // over_points}"}


def _cell(fields: dict[str, Any]) -> GridCell:
    scaling = fields.pop("scaling", "strong")
    if scaling not in SCALINGS:
        raise unknown_name("scaling", scaling, SCALINGS)
    if "workload" not in fields:
        raise Refusal("a grid names no workload: write workload: rbf, or the import path of your own")
    if fields.get("devices") == EVERY:
        raise Refusal(
            "devices=all is for `scaling plan`, which knows in what counts hardware comes; here write devices=[1,2]"
        )
    sizes = {
        name.removeprefix("sizes."): fields.pop(name) for name in list(fields) if name.startswith("sizes.")
    }
    for name, size in sizes.items():
        if size == "points":  # as many as there are points, before weak scaling multiplies those
            sizes[name] = fields.get("points", 1)
    if isinstance(fields.get("mode"), str) and fields["mode"] in ALIASES:
        fields["mode"], fields["batch"] = ALIASES[fields["mode"]]
    if isinstance(fields.get("memory_limit"), str):
        fields["memory_limit"] = _bytes(fields["memory_limit"])
    counts = {name: fields.get(name) for name in ("points", "devices", "chunk", "block", "memory_limit")}
    for name, value in (*counts.items(), *((f"sizes.{name}", size) for name, size in sizes.items())):
        if isinstance(value, int) and value > LARGEST:
            found = f"{float(value):g}" if value < 1e300 else "a larger one"
            raise Refusal(f"{name} must be a positive integer of at most {LARGEST}, not {found}")
    return GridCell(from_dict(fields | {"sizes": sizes}), scaling)


def _bytes(words: str) -> int:
    """2GB -> 2000000000."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", words)
    unit = next((unit for unit in _BYTES if found and unit.lower() == found[2].lower()), None)
    if found is None or unit is None or float(found[1]) * _BYTES[unit] > LARGEST:
        raise Refusal(f"memory_limit must be bytes, such as 2GB, 512MiB or 2000000000, not {words!r}")
    return int(float(found[1]) * _BYTES[unit])


def _names(cell: GridCell) -> dict[str, Any]:
    """Return what a condition may name: the fields, the sizes and the scaling of a cell."""
    fields = {name: getattr(cell.case, name) for name in FIELDS if name != "sizes"}
    return fields | dict(cell.case.sizes) | {"scaling": cell.scaling}
