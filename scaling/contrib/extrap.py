"""Extra-P: timings as experiments that Extra-P can model: parameters, and samples of each method at the
same points.

Extra-P (https://github.com/extra-p/extrap) reads four parameters at most, and needs every region of a file
measured at every point. So methods that were measured at different points are written to separate files.
"""

import dataclasses
import itertools
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scaling.analysis.curves import Timing, family_key, family_name
from scaling.analysis.findings import Findings
from scaling.analysis.grouping import group_by
from scaling.analysis.methods import describe_call, method_of
from scaling.analysis.sweeps import determine_each_other
from scaling.core.case import Case
from scaling.report.labels import clean_text

MARK = "# Made by ad-scaling"  # the first line of a file
_MOST_PARAMETERS = 4  # parameters
_LONGEST_NAME = 120  # characters of a file's name
_LEAST_VALUES = 5  # values of a parameter, for a model that is more than a constant
Coordinates = tuple[int, ...]  # a value for each parameter


@dataclass(frozen=True)
class Experiment:
    """The content of one file: methods of one family in one environment, all measured at the same points."""

    name: str  # of the file, without its ending
    title: str
    held: Mapping[str, int]  # what is the same everywhere
    parameters: Mapping[str, str]  # the name in the file -> what it stands for
    coordinates: tuple[Coordinates, ...]
    regions: Mapping[str, Mapping[Coordinates, Timing]]


class _Cell(NamedTuple):
    """A timing with all its numbers."""

    timing: Timing
    kind: str
    numbers: Mapping[str, int]

    def at(self, names: Iterable[str]) -> Coordinates:
        return tuple(self.numbers[name] for name in names)


def find_experiments(findings: Findings) -> list[Experiment]:
    """Return every experiment of a folder in which something varies; oversubscribed timings are left out."""
    families = group_by(
        _cells(findings),
        lambda c: (c.kind, c.timing.environment, *family_key(c.timing.case), tuple(c.numbers)),
    )
    made = [part for group in families.values() for part in _experiments(group)]
    names = _make_unique(
        [re.sub(r"[^A-Za-z0-9]+", "-", each.title).strip("-").lower()[:_LONGEST_NAME] for each in made], "-"
    )
    return [dataclasses.replace(each, name=name) for name, each in zip(names, made, strict=True)]


def _cells(findings: Findings) -> Iterator[_Cell]:
    """Yield every timing, those of weak curves once more with their points per device.

    Timings that are on weak curves only are not part of a grid of points and devices.
    """
    timings = [timing for timing in findings.timings if timing.honest and timing.case.kind == "case"]
    lines = Counter((timing.environment, dataclasses.replace(timing.case, devices=1)) for timing in timings)
    for timing in timings:
        case = timing.case
        weak = "weak" in findings.points_by_case.get((timing.environment, case), {})
        if weak:
            yield _Cell(
                timing, "weak", _numbers_of(case, {"points for each device": case.points // case.devices})
            )
        if (
            not weak
            or case.devices == 1
            or lines[timing.environment, dataclasses.replace(case, devices=1)] > 1
        ):
            yield _Cell(timing, "strong", _numbers_of(case, {"points": case.points}))


def _numbers_of(case: Case, points: Mapping[str, int]) -> dict[str, int]:
    """Return every number of a case, by a unique name."""
    sizes = {
        name if name not in ("devices", *points) else f"sizes.{name}": size
        for name, size in case.sizes.items()
    }
    return {"devices": case.devices, **points, **sizes}


def _make_unique(names: Iterable[str], sign: str) -> list[str]:
    """Return the names, with a number after each that occurred before."""
    taken: dict[str, None] = {}
    for name in names:
        numbered = (name if count == 1 else f"{name}{sign}{count}" for count in itertools.count(1))
        taken[next(one for one in numbered if one not in taken)] = None
    return list(taken)


def _experiments(group: Sequence[_Cell]) -> Iterator[Experiment]:
    """Yield the experiments of one family: methods measured at the same points together, four parameters
    at most.
    """
    methods = group_by(group, lambda cell: _region(cell.timing.case))
    by_coordinates: dict[frozenset, dict[str, list[_Cell]]] = {}
    for name, cells in methods.items():
        by_coordinates.setdefault(frozenset(cell.at(cell.numbers) for cell in cells), {})[name] = cells
    for regions in by_coordinates.values():
        cells = [cell for cells in regions.values() for cell in cells]
        extra = _varying_names([cell.numbers for cell in cells])[_MOST_PARAMETERS:]
        for values in dict.fromkeys(cell.at(extra) for cell in cells):
            part = {
                name: [cell for cell in cells if cell.at(extra) == values] for name, cells in regions.items()
            }
            if experiment := _experiment(part):
                yield experiment


def _experiment(regions: Mapping[str, Sequence[_Cell]]) -> Experiment | None:
    """Return the experiment of these methods; None where nothing varies."""
    cells = [cell for group in regions.values() for cell in group]
    rows = [cell.numbers for cell in cells]
    names = _varying_names(rows)
    if not names:
        return None
    held = {name: value for name, value in rows[0].items() if all(row[name] == value for row in rows)}
    dependent = {
        name: [
            other
            for other in rows[0]
            if other not in (name, *held) and determine_each_other(rows, name, other)
        ]
        for name in names
    }
    words = {
        name: name + (f" ({', '.join(others)} with it)" if others else "")
        for name, others in dependent.items()
    }
    ordered = sorted(regions)
    return Experiment(
        name="",
        title=_title(cells[0]),
        held=held,
        parameters=dict(zip(_make_unique(map(_to_parameter_name, words), "_"), words.values(), strict=True)),
        coordinates=tuple(sorted({cell.at(names) for cell in cells})),
        regions={
            name: {cell.at(names): cell.timing for cell in regions[region]}
            for name, region in zip(_make_unique(map(_to_region_name, ordered), " "), ordered, strict=True)
        },
    )


def _title(cell: _Cell) -> str:
    case = cell.timing.case
    seed = f" seed={case.data_seed}" if case.data_seed else ""
    weak = ", weak scaling" if cell.kind == "weak" else ""
    return f"{family_name(case)}{seed}{weak}, environment {cell.timing.environment}"


def _varying_names(rows: Sequence[Mapping[str, int]]) -> list[str]:
    """Return the names that vary, one of those that determine each other; devices first, then by number
    of values.
    """
    names: list[str] = []
    for name in rows[0]:
        if len({row[name] for row in rows}) > 1 and not any(
            determine_each_other(rows, other, name) for other in names
        ):
            names.append(name)
    return sorted(names, key=lambda name: (name != "devices", -len({row[name] for row in rows})))


def _region(case: Case) -> str:
    """Return in words how a case was computed."""
    return ", ".join(
        [method_of(case).name, describe_call(case), *([f"{case.cache} cache"] if case.cache else [])]
    )


def _to_region_name(format_experiment: str) -> str:
    """Return a name that Extra-P accepts: ASCII on one line, without an arrow, which would mean a call
    path.
    """
    return " ".join(
        clean_text(format_experiment).encode("ascii", "backslashreplace").decode().replace("->", "-").split()
    )


def _to_parameter_name(name: str) -> str:
    """Return a parameter name that Extra-P accepts: letters, digits and underscores, a letter first."""
    word = re.sub(r"\W", "_", name, flags=re.ASCII)
    return word if word[:1].isalpha() else f"size{word}"


def format_experiment(experiment: Experiment) -> str:
    """Return the content of a file: comments, parameters, points, and a region for each method."""
    lines = [*_format_comments(experiment), *(f"PARAMETER {name}" for name in experiment.parameters)]
    one = len(experiment.parameters) == 1
    points = (str(point[0]) if one else f"({' '.join(map(str, point))})" for point in experiment.coordinates)
    lines.append(f"POINTS {' '.join(points)}")
    for region, timings in experiment.regions.items():
        lines += ["", f"REGION {region}", "METRIC time"]
        lines += [f"DATA {' '.join(map(repr, timings[point].seconds))}" for point in experiment.coordinates]
        if counts := _flop_counts([timings[point] for point in experiment.coordinates]):
            lines += ["METRIC flops", *(f"DATA {count!r}" for count in counts)]
    return "\n".join(lines) + "\n"


def _flop_counts(timings: Sequence[Timing]) -> list[float]:
    """Return the operations per device at every point, or [] where a count is missing."""
    counts = [timing.records[0].flops for timing in timings]
    return [float(count) for count in counts if count] if all(counts) else []


def _format_comments(experiment: Experiment) -> list[str]:
    option = "allow_negative_exponents=True"
    options = option if len(experiment.parameters) == 1 else f"'#spm=Default' '#spo={option}'"
    values = [len(set(column)) for column in zip(*experiment.coordinates, strict=True)]
    few = [
        f"{name} has {count}"
        for name, count in zip(experiment.parameters, values, strict=True)
        if count < _LEAST_VALUES
    ]
    sentences = [
        f"{experiment.title}: seconds per call, every sample of every process.",
        f"Parameters: {', '.join(experiment.parameters.values())}.",
        *(
            [f"Everywhere: {', '.join(f'{name}={value}' for name, value in experiment.held.items())}."]
            if experiment.held
            else []
        ),
        *(
            [f"Extra-P wants {_LEAST_VALUES} values of a parameter before it models it: {', '.join(few)}."]
            if few
            else []
        ),
    ]
    wrapped = [line for sentence in sentences for line in textwrap.wrap(_to_region_name(sentence), 118)]
    return [
        MARK,
        *(f"# {line}" for line in wrapped),
        f"# extrap --text --measure median FILE --options {options}",
    ]
