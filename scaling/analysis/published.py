"""Published: the numbers that the study's sources report, next to what was measured.

The published numbers are in published.yaml.
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from scaling.analysis.curves import Timing
from scaling.analysis.findings import Findings, describe_environment
from scaling.analysis.methods import MEMORY_FIELDS
from scaling.analysis.stages import first_call_seconds
from scaling.core.case import to_dict
from scaling.core.formatting import format_duration, format_number, format_ratio

# Defaults of a published row.
_DEFAULTS: Mapping[str, Any] = {
    **dict.fromkeys(MEMORY_FIELDS),
    "reduce": None,
    "forward": None,
    "seeds": "identity",
    "overlap": False,
}
COLUMNS = ("problem", "what", "system", "published, elsewhere", "measured", "measured over published")


@functools.cache
def _load_groups() -> Sequence[Mapping[str, Any]]:
    return yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())


def published_rows(findings: Findings) -> list[tuple[str, ...]]:
    """Return a row for each published number, under COLUMNS; none where nothing of them was measured."""
    rows, measured = [], False
    for group in _load_groups():
        for row in group["rows"]:
            fields = {**group["case"], **row["case"]}
            denominator = {**group["case"], **row["over"]} if "over" in row else None
            # The environment that was measured last speaks, if it has what the row needs.
            measured_values = (
                (environment, _measure(findings, environment, fields, row, denominator))
                for environment in reversed(findings.environments)
            )
            environment, value = next((pair for pair in measured_values if pair[1] is not None), ("", None))
            measured |= value is not None
            what = f"{row['what']}, first call" if row.get("first") else row["what"]
            cells = [group["problem"], what, row["system"], _format_published(row)]
            time, factor = (
                _compare_with_measured(row, value)
                if value is not None
                else (_describe_missing(findings, fields), "")
            )
            rows.append(
                (*cells, time + (describe_environment(findings, environment) if environment else ""), factor)
            )
    return rows if measured else []


def _format_published(row: Mapping[str, Any]) -> str:
    values = row.get("published", [])
    if row.get("times"):
        return " to ".join(format_number(value) for value in values) + "x" if values else ""
    return " to ".join(format_duration(value * 1e-6) for value in values)


def _compare_with_measured(row: Mapping[str, Any], value: float) -> tuple[str, str]:
    """Return what was measured, and its ratio to the published number, the nearer end of a range."""
    if row.get("times"):
        return format_ratio(value), ""
    nearest = min((each * 1e-6 for each in row["published"]), key=lambda seconds: abs(seconds - value))
    return format_duration(value), format_ratio(value / nearest)


def _measure(
    findings: Findings,
    environment: str,
    fields: Mapping[str, Any],
    row: Mapping[str, Any],
    denominator: Mapping[str, Any] | None,
) -> float | None:
    """Return seconds, or a ratio of seconds, in one environment; None where one of them was not measured."""
    timing = _find_timing(findings, environment, fields)
    if timing is None or row.get("first"):
        return first_call_seconds(timing) if timing else None
    if denominator is None:
        return timing.median
    below = _find_timing(findings, environment, denominator)
    return timing.median / below.median if below else None


def _find_timing(findings: Findings, environment: str, fields: Mapping[str, Any]) -> Timing | None:
    there = (timing for timing in findings.timings if timing.honest and timing.environment == environment)
    return next((timing for timing in there if _matches(to_dict(timing.case), {**_DEFAULTS, **fields})), None)


def _matches(case: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
    """Return whether a case has these fields; of its sizes, those that are named."""
    for name, value in fields.items():
        if name == "sizes":
            if any(case["sizes"].get(size) != number for size, number in value.items()):
                return False
        elif case[name] != value:
            return False
    return True


def _describe_missing(findings: Findings, fields: Mapping[str, Any]) -> str:
    """Return what became of a case that has no time."""
    for record in findings.records:
        if record.status != "ok" and _matches(to_dict(record.case), {**_DEFAULTS, **fields}):
            return f"{record.status}: {record.text or record.reason}"
    return "not in this study"
