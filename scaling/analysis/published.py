"""Published: the figures that the study's sources report, beside what was measured of the same today.

published.yaml holds them. Does not know pages, nor how anything was measured.
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from scaling.analysis.curves import Timing
from scaling.analysis.findings import Findings, marks
from scaling.analysis.methods import AT_ONCE
from scaling.analysis.stages import first_call
from scaling.core.case import to_dict
from scaling.core.formatting import format_duration, format_number, format_ratio

# What nobody did who published; a row may say otherwise.
_PLAIN: Mapping[str, Any] = {**AT_ONCE, "reduce": None, "forward": None, "seeds": "identity", "overlap": False}
COLUMNS = ("problem", "what", "system", "published, elsewhere", "measured", "measured over published")


@functools.cache
def _groups() -> Sequence[Mapping[str, Any]]:
    return yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())


def rows(found: Findings) -> list[tuple[str, ...]]:
    """A row for each published figure, under COLUMNS; none at all where nothing of them was measured."""
    made, measured = [], False
    for group in _groups():
        for row in group["rows"]:
            fields = {**group["case"], **row["case"]}
            over = {**group["case"], **row["over"]} if "over" in row else None
            # The environment that was measured last speaks, if it has what the row needs.
            each = ((place, _measured(found, place, fields, row, over)) for place in reversed(found.environments))
            place, here = next((pair for pair in each if pair[1] is not None), ("", None))
            measured |= here is not None
            what = f"{row['what']}, first call" if row.get("first") else row["what"]
            told = [group["problem"], what, row["system"], _published(row)]
            time, factor = _here(row, here) if here is not None else (_why_not(found, fields), "")
            made.append((*told, time + (marks(found, place) if place else ""), factor))
    return made if measured else []


def _published(row: Mapping[str, Any]) -> str:
    values = row.get("published", [])
    if row.get("times"):
        return " to ".join(format_number(value) for value in values) + "x" if values else ""
    return " to ".join(format_duration(value * 1e-6) for value in values)


def _here(row: Mapping[str, Any], here: float) -> tuple[str, str]:
    """What was measured, and how many times the published figure that is, the nearer end of a range."""
    if row.get("times"):
        return format_ratio(here), ""
    nearest = min((value * 1e-6 for value in row["published"]), key=lambda value: abs(value - here))
    return format_duration(here), format_ratio(here / nearest)


def _measured(
    found: Findings, place: str, fields: Mapping[str, Any], row: Mapping[str, Any], over: Mapping[str, Any] | None
) -> float | None:
    """Seconds, or a ratio of seconds, in one environment; None where one of them was not measured."""
    timing = _timing(found, place, fields)
    if timing is None or row.get("first"):
        return first_call(timing) if timing else None
    if over is None:
        return timing.median
    below = _timing(found, place, over)
    return timing.median / below.median if below else None


def _timing(found: Findings, place: str, fields: Mapping[str, Any]) -> Timing | None:
    there = (timing for timing in found.timings if timing.honest and timing.environment == place)
    return next((timing for timing in there if _fits(to_dict(timing.case), {**_PLAIN, **fields})), None)


def _fits(case: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
    """Whether a case has these fields; of its sizes, those that are named."""
    for name, value in fields.items():
        if name == "sizes":
            if any(case["sizes"].get(size) != number for size, number in value.items()):
                return False
        elif case[name] != value:
            return False
    return True


def _why_not(found: Findings, fields: Mapping[str, Any]) -> str:
    """Why there is no time: what became of the case."""
    for record in found.records:
        if record.status != "ok" and _fits(to_dict(record.case), {**_PLAIN, **fields}):
            return f"{record.status}: {record.text or record.reason}"
    return "not in this study"
