"""Convert timings to the text format of Extra-P, a program that fits performance models to run times.

report/export.py writes the files (https://github.com/extra-p/extrap). In Extra-P, a parameter is a size that
varies, such as the number of devices, and a region is a timed program.
"""

import re
from collections.abc import Sequence

from scaling.analysis.findings import Findings
from scaling.analysis.sweeps import group_varying_sizes
from scaling.analysis.timings import Timing
from scaling.core.grouping import group_by
from scaling.report.text import clean_text, file_stem

Names = Sequence[Sequence[str]]  # names of sizes that vary, grouped by sizes that vary together


def format_experiments(findings: Findings) -> dict[str, str]:
    """Return the contents of Extra-P files, as a dict by file name without suffix.

    There is one file for each function and program (AD method, API and split) with several sizes or numbers
    of devices. Timings on shared CPU cores are omitted.
    """
    timings = (timing for timing in findings.case_timings if timing.honest)
    programs = group_by(timings, lambda t: (t.family_key, tuple(_sizes_of(t)), t.program_name)).values()
    experiments = [(program, names) for program in programs if (names := _varying_sizes(program))]
    by_name = group_by(experiments, lambda experiment: file_stem(_title(experiment[0][0]), 200))
    return {
        f"{name}-{number}": _format_experiment(*experiment)
        for name, same_name in by_name.items()
        for number, experiment in enumerate(same_name, 1)
    }


def _title(timing: Timing) -> str:
    return f"{timing.family}, {timing.program_name}, environment {timing.environment}"


def _sizes_of(timing: Timing) -> dict[str, int]:
    """Return the number of devices, the number of points and the sizes of a case, by name."""
    counts = {"devices": timing.case.devices, "points": timing.case.points}
    sizes = {f"sizes.{name}" if name in counts else name: size for name, size in timing.case.sizes.items()}
    return counts | sizes


def _varying_sizes(timings: Sequence[Timing]) -> Names:
    """Return the names of the sizes that differ between timings. Sizes that vary together are in one list.

    The list with "devices" comes first. The other lists are in descending order of their number of values.
    """
    rows = list(map(_sizes_of, timings))
    count_values = lambda names: len({row[names[0]] for row in rows})  # noqa: E731
    varying = group_varying_sizes(rows)
    return sorted(varying, key=lambda names: (names[0] != "devices", -count_values(names)))


def _format_experiment(timings: Sequence[Timing], varying: Names) -> str:
    """Return the content of an Extra-P file with the time samples of a program, in seconds per call.

    Its parameters are the first sizes of the lists in `varying`. The file also contains the floating-point
    operations per device if they are known for all timings.
    """
    names = [name for name, *_ in varying]
    by_coordinates = {tuple(_sizes_of(timing)[name] for name in names): timing for timing in timings}
    ordered = [by_coordinates[values] for values in sorted(by_coordinates)]
    points = [" ".join(map(str, values)) for values in sorted(by_coordinates)]
    points = [f"({values})" for values in points] if len(names) > 1 else points
    file_lines = _format_comments(timings[0], varying)
    file_lines += ["PARAMETER " + re.sub(r"\W", "_", name, flags=re.ASCII) for name in names]
    file_lines += [f"POINTS {' '.join(points)}", "", f"REGION {_to_region_name(timings[0].program_name)}"]
    file_lines += ["METRIC time", *(f"DATA {' '.join(map(repr, timing.seconds))}" for timing in ordered)]
    flops = [timing.records[0].flops for timing in ordered]
    if all(flops):  # known for all coordinates
        file_lines += ["METRIC flops", *(f"DATA {float(count or 0)!r}" for count in flops)]
    return "\n".join(file_lines) + "\n"


def _format_comments(timing: Timing, varying: Names) -> list[str]:
    names = {name for group in varying for name in group}
    constants = ", ".join(f"{name}={size}" for name, size in _sizes_of(timing).items() if name not in names)
    parameters = (f"{name} ({', '.join(others)} with it)" if others else name for name, *others in varying)
    sentences = (
        f"{_title(timing)}: seconds per call, all samples of all processes.",
        f"Parameters: {', '.join(parameters)}. Constants: {constants or 'none'}.",
    )
    return [f"# {_to_region_name(sentence)}" for sentence in sentences]


def _to_region_name(text: str) -> str:
    """Return text as one line of ASCII without "->", which would mark a call path in Extra-P."""
    ascii_text = clean_text(text).encode("ascii", "backslashreplace").decode()
    return " ".join(ascii_text.replace("->", "-").split())
