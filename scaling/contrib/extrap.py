"""Export run times as text files for Extra-P (https://github.com/extra-p/extrap), which fits models to them.

A file has at most four parameters, and one region for each timed method. All regions of a file must be
measured at the same coordinates (values of the parameters).
"""

import dataclasses
import itertools
import operator
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scaling.analysis.cases import group_by
from scaling.analysis.findings import Findings
from scaling.analysis.timings import Timing
from scaling.report.text import clean_text

MARK = "# Made by ad-scaling"  # the first line of a file
_MOST_PARAMETERS = 4
_MOST_NAME_CHARACTERS = 120  # the most characters of a file name, without number and suffix
_LEAST_VALUES = 5  # the fewest values of a parameter; with fewer, Extra-P fits only a constant
Coordinates = tuple[int, ...]  # a value for each parameter


@dataclass(frozen=True)
class Experiment:
    """The content of an Extra-P file: run times of methods measured at the same parameter values."""

    title: str  # the differentiated function and the environment
    constants: Mapping[str, int]  # the sizes that are equal in all timings, by name
    parameters: Mapping[str, str]  # the description of each parameter, by name
    coordinates: tuple[Coordinates, ...]  # the parameter values of each measurement
    regions: Mapping[str, Mapping[Coordinates, Timing]]  # method -> timings by coordinates


class _SizedTiming(NamedTuple):
    """A timing, its kind of scaling ("strong" or "weak"), and the sizes that a fit may depend on."""

    timing: Timing
    kind: str
    sizes: Mapping[str, int]

    def coordinates(self, names: Iterable[str]) -> Coordinates:
        return tuple(self.sizes[name] for name in names)


def find_experiments(findings: Findings) -> dict[str, Experiment]:
    """Return the content of each Extra-P file for a results folder, as a dict by file name without suffix.

    Timings in which several devices shared a CPU core are omitted.
    """
    timings = _sized_timings(findings)
    families = group_by(timings, lambda each: (each.kind, each.timing.family_key, tuple(each.sizes)))
    experiments = [experiment for group in families.values() for experiment in _split_into_experiments(group)]
    slugs = [re.sub(r"[^A-Za-z0-9]+", "-", experiment.title).strip("-").lower() for experiment in experiments]
    names = _make_unique([slug[:_MOST_NAME_CHARACTERS] for slug in slugs], "-")
    return dict(zip(names, experiments, strict=True))


def _sized_timings(findings: Findings) -> Iterator[_SizedTiming]:
    """Yield every timing with its sizes, once for each kind of scaling ("strong", "weak") it belongs to.

    A timing on a weak scaling curve also belongs to strong scaling if it ran on one device, or if the same
    case was also timed on another number of devices.
    """
    timings = [timing for timing in findings.case_timings if timing.honest]
    on_one_device = [(t.environment, dataclasses.replace(t.case, devices=1)) for t in timings]
    device_counts = Counter(on_one_device)
    for timing, key in zip(timings, on_one_device, strict=True):
        case = timing.case
        is_weak = "weak" in findings.curves_by_case.get((timing.environment, case), {})
        points = {"weak": ("points for each device", case.points // case.devices)} if is_weak else {}
        if not is_weak or case.devices == 1 or device_counts[key] > 1:
            points["strong"] = "points", case.points
        for kind, (label, count) in points.items():
            first = {"devices": case.devices, label: count}
            sizes = {f"sizes.{name}" if name in first else name: size for name, size in case.sizes.items()}
            yield _SizedTiming(timing, kind, first | sizes)


def _make_unique(names: Iterable[str], separator: str) -> list[str]:
    """Return the names with a number appended to each repeated one, such as "a-2"."""
    unique: dict[str, None] = {}
    for name in names:
        numbered = (name if count == 1 else f"{name}{separator}{count}" for count in itertools.count(1))
        unique[next(candidate for candidate in numbered if candidate not in unique)] = None
    return list(unique)


def _split_into_experiments(group: Sequence[_SizedTiming]) -> Iterator[Experiment]:
    """Yield the content of each Extra-P file for the timings of one function.

    Methods with the same coordinates share a file. If more than four sizes vary, each combination of the
    excess sizes has its own file.
    """
    methods = group_by(group, lambda sized: sized.timing.program_name).values()
    same = group_by(methods, lambda timings: frozenset(sized.coordinates(sized.sizes) for sized in timings))
    for parts in same.values():
        timings = [sized for part in parts for sized in part]
        excess = [names[0] for names in _varying_names(timings)[_MOST_PARAMETERS:]]
        for selected in group_by(timings, operator.methodcaller("coordinates", excess)).values():
            if varying := _varying_names(selected):
                yield _make_experiment(selected, varying)


def _varying_names(timings: Sequence[_SizedTiming]) -> list[list[str]]:
    """Return lists of the sizes that vary, with one list for sizes that vary together, devices first."""
    columns = {name: [sized.sizes[name] for sized in timings] for name in timings[0].sizes}
    by_pattern = group_by(columns, lambda name: tuple(map(columns[name].index, columns[name])))
    varying = [(-len(set(pattern)), names) for pattern, names in by_pattern.items() if any(pattern)]
    return [names for _, names in sorted(varying, key=lambda each: (each[1][0] != "devices", each[0]))]


def _make_experiment(timings: Sequence[_SizedTiming], varying: Sequence[Sequence[str]]) -> Experiment:
    first, names = timings[0], [name for name, *_ in varying]
    descriptions = [
        name + (f" ({', '.join(dependent)} with it)" if dependent else "") for name, *dependent in varying
    ]
    parameters = _make_unique(map(_to_parameter_name, descriptions), "_")
    regions = group_by(timings, lambda sized: sized.timing.program_name)
    region_names = _make_unique(map(_to_region_name, sorted(regions)), " ")
    case, not_constant = first.timing.case, {name for same in varying for name in same}
    seed = f" seed={case.data_seed}" if case.data_seed else ""
    weak = ", weak scaling" if first.kind == "weak" else ""
    return Experiment(
        title=f"{first.timing.family}{seed}{weak}, environment {first.timing.environment}",
        constants={name: size for name, size in first.sizes.items() if name not in not_constant},
        parameters=dict(zip(parameters, descriptions, strict=True)),
        coordinates=tuple(sorted({sized.coordinates(names) for sized in timings})),
        regions={
            name: {sized.coordinates(names): sized.timing for sized in regions[region]}
            for name, region in zip(region_names, sorted(regions), strict=True)
        },
    )


def _to_region_name(text: str) -> str:
    """Convert text to one line of ASCII without "->", which marks a call path in a region name."""
    ascii_text = clean_text(text).encode("ascii", "backslashreplace").decode()
    return " ".join(ascii_text.replace("->", "-").split())


def _to_parameter_name(name: str) -> str:
    word = re.sub(r"\W", "_", name, flags=re.ASCII)
    return word if word[:1].isalpha() else f"size{word}"


def format_experiment(experiment: Experiment) -> str:
    """Return the text of an Extra-P file: times per call in seconds, and operations of a device if known."""
    lines = [*_format_comments(experiment), *(f"PARAMETER {name}" for name in experiment.parameters)]
    points = [" ".join(map(str, values)) for values in experiment.coordinates]
    if len(experiment.parameters) > 1:
        points = [f"({values})" for values in points]
    lines.append(f"POINTS {' '.join(points)}")
    for region, timings in experiment.regions.items():
        ordered = [timings[values] for values in experiment.coordinates]
        lines += ["", f"REGION {region}", "METRIC time"]
        lines += [f"DATA {' '.join(map(repr, timing.seconds))}" for timing in ordered]
        flops = [timing.records[0].flops for timing in ordered]
        if all(flops):
            lines += ["METRIC flops", *(f"DATA {float(count or 0)!r}" for count in flops)]
    return "\n".join(lines) + "\n"


def _format_comments(experiment: Experiment) -> list[str]:
    option = "allow_negative_exponents=True"
    options = option if len(experiment.parameters) == 1 else f"'#spm=Default' '#spo={option}'"
    constants = ", ".join(f"{name}={value}" for name, value in experiment.constants.items())
    columns = zip(experiment.parameters, zip(*experiment.coordinates, strict=True), strict=True)
    counts = {name: len(set(column)) for name, column in columns}
    few = ", ".join(f"{name} has {count}" for name, count in counts.items() if count < _LEAST_VALUES)
    sentences = [
        f"{experiment.title}: seconds per call, all samples of all processes.",
        f"Parameters: {', '.join(experiment.parameters.values())}.",
        f"Constants: {constants}." if constants else "",
        f"Extra-P needs {_LEAST_VALUES} values of a parameter to model it: {few}." if few else "",
    ]
    wrapped = [line for sentence in sentences for line in textwrap.wrap(_to_region_name(sentence), 118)]
    command = f"extrap --text --measure median FILE --options {options}"
    return [MARK, *(f"# {line}" for line in (*wrapped, command))]
