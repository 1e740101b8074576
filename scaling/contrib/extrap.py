"""Extra-P: timings as experiments that it can model: parameters, and for each way to a derivative samples at the same points.

Extra-P (https://github.com/extra-p/extrap) reads four parameters at most, and wants every region of a file measured at every
point of it. So ways that were measured elsewhere than others come in a file of their own. Does not know files.
"""

import dataclasses
import itertools
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scaling.analysis.curves import Timing, family, family_name
from scaling.analysis.findings import Findings
from scaling.analysis.methods import describe_call, method_of
from scaling.core.case import Case
from scaling.report.labels import legible

MARK = "# Made by ad-scaling"  # how a file begins
_MOST = 4  # parameters
_LONGEST = 120  # characters of a file's name
_ENOUGH = 5  # values of a parameter, for a model that is more than a constant
Place = tuple[int, ...]  # a value for each parameter


@dataclass(frozen=True)
class Experiment:
    """What one file holds: ways that were all measured at the same places, of one family in one environment."""

    name: str  # of the file, without its ending
    title: str
    held: Mapping[str, int]  # what is the same everywhere
    parameters: Mapping[str, str]  # the name in the file -> what it stands for
    places: tuple[Place, ...]
    regions: Mapping[str, Mapping[Place, Timing]]


class _Cell(NamedTuple):
    """A timing with all that is a number of it."""

    timing: Timing
    kind: str
    numbers: Mapping[str, int]

    def at(self, names: Iterable[str]) -> Place:
        return tuple(self.numbers[name] for name in names)


def experiments(found: Findings) -> list[Experiment]:
    """Every experiment of a folder in which something varies; what ran without a core for each device is left out."""
    families: dict[tuple, list[_Cell]] = {}
    for cell in _cells(found):
        of = (cell.kind, cell.timing.environment, *family(cell.timing.case), tuple(cell.numbers))
        families.setdefault(of, []).append(cell)
    made = [part for group in families.values() for part in _experiments(group)]
    names = _apart([re.sub(r"[^A-Za-z0-9]+", "-", each.title).strip("-").lower()[:_LONGEST] for each in made], "-")
    return [dataclasses.replace(each, name=name) for name, each in zip(names, made, strict=True)]


def _cells(found: Findings) -> Iterator[_Cell]:
    """Every timing, those of weak curves once more, by their points for each device.

    Points that grow with the devices are no grid with either: what has its place on a weak curve alone stands among those only.
    """
    timings = [timing for timing in found.timings if timing.honest and timing.case.kind == "case"]
    lines = Counter((timing.environment, dataclasses.replace(timing.case, devices=1)) for timing in timings)
    for timing in timings:
        case = timing.case
        weak = "weak" in found.placed.get((timing.environment, case), {})
        if weak:
            yield _Cell(timing, "weak", _numbers(case, {"points for each device": case.points // case.devices}))
        if not weak or case.devices == 1 or lines[timing.environment, dataclasses.replace(case, devices=1)] > 1:
            yield _Cell(timing, "strong", _numbers(case, {"points": case.points}))


def _numbers(case: Case, points: Mapping[str, int]) -> dict[str, int]:
    """Everything of a case that is a size, by a name that stands for one thing only."""
    sizes = {name if name not in ("devices", *points) else f"sizes.{name}": size for name, size in case.sizes.items()}
    return {"devices": case.devices, **points, **sizes}


def _apart(names: Iterable[str], sign: str) -> list[str]:
    """The same names, a number behind those that others had before."""
    taken: dict[str, None] = {}
    for name in names:
        numbered = (name if count == 1 else f"{name}{sign}{count}" for count in itertools.count(1))
        taken[next(one for one in numbered if one not in taken)] = None
    return list(taken)


def _experiments(group: Sequence[_Cell]) -> Iterator[Experiment]:
    """Ways of one family with the same places together; what varies beyond four parameters tells experiments apart."""
    ways: dict[str, list[_Cell]] = {}
    for cell in group:
        ways.setdefault(_region(cell.timing.case), []).append(cell)
    alike: dict[frozenset, dict[str, list[_Cell]]] = {}
    for name, cells in ways.items():
        alike.setdefault(frozenset(cell.at(cell.numbers) for cell in cells), {})[name] = cells
    for regions in alike.values():
        several = [cell for cells in regions.values() for cell in cells]
        beyond = _varying([cell.numbers for cell in several])[_MOST:]
        for values in dict.fromkeys(cell.at(beyond) for cell in several):
            part = {name: [cell for cell in cells if cell.at(beyond) == values] for name, cells in regions.items()}
            if experiment := _experiment(part):
                yield experiment


def _experiment(regions: Mapping[str, Sequence[_Cell]]) -> Experiment | None:
    """The experiment of these ways; None where nothing varies."""
    cells = [cell for group in regions.values() for cell in group]
    rows = [cell.numbers for cell in cells]
    names = _varying(rows)
    if not names:
        return None
    held = {name: value for name, value in rows[0].items() if all(row[name] == value for row in rows)}
    along = {name: [other for other in rows[0] if other not in (name, *held) and _together(rows, name, other)] for name in names}
    words = {name: name + (f" ({', '.join(others)} with it)" if others else "") for name, others in along.items()}
    ordered = sorted(regions)
    return Experiment(
        name="",
        title=_title(cells[0]),
        held=held,
        parameters=dict(zip(_apart(map(_parameter, words), "_"), words.values(), strict=True)),
        places=tuple(sorted({cell.at(names) for cell in cells})),
        regions={
            name: {cell.at(names): cell.timing for cell in regions[region]}
            for name, region in zip(_apart(map(_plain, ordered), " "), ordered, strict=True)
        },
    )


def _title(cell: _Cell) -> str:
    case = cell.timing.case
    seed = f" seed={case.data_seed}" if case.data_seed else ""
    weak = ", weak scaling" if cell.kind == "weak" else ""
    return f"{family_name(case)}{seed}{weak}, environment {cell.timing.environment}"


def _varying(rows: Sequence[Mapping[str, int]]) -> list[str]:
    """The names that vary, one of those that determine each other, devices first and then those with the most values."""
    names: list[str] = []
    for name in rows[0]:
        if len({row[name] for row in rows}) > 1 and not any(_together(rows, other, name) for other in names):
            names.append(name)
    return sorted(names, key=lambda name: (name != "devices", -len({row[name] for row in rows})))


def _together(rows: Sequence[Mapping[str, int]], one: str, other: str) -> bool:
    """Whether two names determine each other."""
    pairs = {(row[one], row[other]) for row in rows}
    return len({pair[0] for pair in pairs}) == len({pair[1] for pair in pairs}) == len(pairs)


def _region(case: Case) -> str:
    """All of how it was computed: the rest of a case is its family and its numbers."""
    return ", ".join([method_of(case).name, describe_call(case), *([f"{case.cache} cache"] if case.cache else [])])


def _plain(text: str) -> str:
    """A name that Extra-P reads as one: ASCII on one line, and no arrow, which would make a call path of it."""
    return " ".join(legible(text).encode("ascii", "backslashreplace").decode().replace("->", "-").split())


def _parameter(name: str) -> str:
    """A name of a parameter: letters, digits and underscores, a letter first."""
    word = re.sub(r"\W", "_", name, flags=re.ASCII)
    return word if word[:1].isalpha() else f"size{word}"


def text(experiment: Experiment) -> str:
    """The file, in ASCII: how it is to be read in comments, then parameters, points, and a region for each way."""
    lines = [*_comments(experiment), *(f"PARAMETER {name}" for name in experiment.parameters)]
    one = len(experiment.parameters) == 1
    points = (str(place[0]) if one else f"({' '.join(map(str, place))})" for place in experiment.places)
    lines.append(f"POINTS {' '.join(points)}")
    for region, timings in experiment.regions.items():
        lines += ["", f"REGION {region}", "METRIC time"]
        lines += [f"DATA {' '.join(map(repr, timings[place].seconds))}" for place in experiment.places]
        if counts := _counts([timings[place] for place in experiment.places]):
            lines += ["METRIC flops", *(f"DATA {count!r}" for count in counts)]
    return "\n".join(lines) + "\n"


def _counts(timings: Sequence[Timing]) -> list[float]:
    """Operations per device at every place, or nothing: a metric that is missing anywhere cannot be told."""
    counts = [timing.records[0].flops for timing in timings]
    return [float(count) for count in counts if count] if all(counts) else []


def _comments(experiment: Experiment) -> list[str]:
    option = "allow_negative_exponents=True"
    options = option if len(experiment.parameters) == 1 else f"'#spm=Default' '#spo={option}'"
    values = [len(set(column)) for column in zip(*experiment.places, strict=True)]
    few = [f"{name} has {count}" for name, count in zip(experiment.parameters, values, strict=True) if count < _ENOUGH]
    told = [
        f"{experiment.title}: seconds per call, every sample of every process.",
        f"Parameters: {', '.join(experiment.parameters.values())}.",
        *([f"Everywhere: {', '.join(f'{name}={value}' for name, value in experiment.held.items())}."] if experiment.held else []),
        *([f"Extra-P wants {_ENOUGH} values of a parameter before it models it: {', '.join(few)}."] if few else []),
    ]
    wrapped = [line for sentence in told for line in textwrap.wrap(_plain(sentence), 118)]
    return [MARK, *(f"# {line}" for line in wrapped), f"# extrap --text --measure median FILE --options {options}"]
