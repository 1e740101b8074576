"""Published: the figures that the study's sources report, beside what was measured of the same today.

published.yaml holds them. Does not know pages, nor how anything was measured.
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from scaling.answer import Findings, first_call
from scaling.case import to_dict
from scaling.curves import Timing
from scaling.words import duration, number, ratio

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
            here = _measured(found, fields, row, {**group["case"], **row["over"]} if "over" in row else None)
            measured |= here is not None
            what = f"{row['what']}, first call" if row.get("first") else row["what"]
            told = [group["problem"], what, row["system"], _published(row)]
            made.append((*told, *(_here(row, here) if here is not None else (_why_not(found, fields), ""))))
    return made if measured else []


def _published(row: Mapping[str, Any]) -> str:
    values = row.get("published", [])
    if row.get("times"):
        return " to ".join(number(value) for value in values) + "x" if values else ""
    return " to ".join(duration(value * 1e-6) for value in values)


def _here(row: Mapping[str, Any], here: float) -> tuple[str, str]:
    """What was measured, and how many times the published figure that is, the nearer end of a range."""
    if row.get("times"):
        return ratio(here), ""
    nearest = min((value * 1e-6 for value in row["published"]), key=lambda value: abs(value - here))
    return duration(here), ratio(here / nearest)


def _measured(found: Findings, fields: Mapping[str, Any], row: Mapping[str, Any], over: Mapping[str, Any] | None) -> float | None:
    """Seconds, or a ratio of seconds; None where one of them was not measured."""
    timing = _timing(found, fields)
    if timing is None or not row.get("first"):
        below = _timing(found, over) if over else None
        if timing is None or (over and below is None):
            return None
        return timing.median / below.median if below else timing.median
    return first_call(timing)


def _timing(found: Findings, fields: Mapping[str, Any]) -> Timing | None:
    return next((timing for timing in found.timings if _fits(to_dict(timing.case), fields)), None)


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
        if record.status != "ok" and _fits(to_dict(record.case), fields):
            return f"{record.status}: {record.text or record.reason}"
    return "not in this study"
