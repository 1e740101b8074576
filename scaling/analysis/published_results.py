"""Table that compares times from the literature (published_results.yaml) with those in a results folder."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from scaling.analysis.cases import MEMORY_FIELDS
from scaling.analysis.estimate import format_ratio
from scaling.analysis.findings import Findings, describe_environment
from scaling.analysis.timings import Timing, first_call_seconds
from scaling.core.case import to_dict
from scaling.core.formatting import format_duration, format_number

_DEFAULTS: Mapping[str, Any] = {  # values of the case fields that a published result does not give
    **dict.fromkeys((*MEMORY_FIELDS, "reduce", "forward")), "seeds": "identity", "overlap": False,
}  # fmt: skip
COLUMNS = ("problem", "what", "system", "published, elsewhere", "measured", "measured over published")


@functools.cache
def _load_groups() -> Sequence[Mapping[str, Any]]:
    return yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())


def published_rows(findings: Findings) -> list[dict[str, str]]:
    """Return a table row for each published result, or [] if none of them was measured."""
    rows, measured = [], False
    for group, row in ((each, row) for each in _load_groups() for row in each["rows"]):
        # Use the newest environment that contains the timings of this row.
        values = ((name, _measure(findings, name, group, row)) for name in reversed(findings.environments))
        environment, value = next((pair for pair in values if pair[1] is not None), ("", None))
        measured |= value is not None
        what = f"{row['what']}, first call" if row.get("first") else row["what"]
        if value is None:
            cells = [_describe_missing(findings, {**group["case"], **row["case"]}), ""]
        else:
            time, factor = _compare_with_measured(row, value)
            cells = [time + describe_environment(findings, environment), factor]
        cells = [group["problem"], what, row["system"], _format_published(row), *cells]
        rows.append(dict(zip(COLUMNS, cells, strict=True)))
    return rows if measured else []


def _format_published(row: Mapping[str, Any]) -> str:
    values = row.get("published", [])
    if row.get("times"):
        return " to ".join(map(format_number, values)) + "x" if values else ""
    return " to ".join(format_duration(value * 1e-6) for value in values)


def _compare_with_measured(row: Mapping[str, Any], value: float) -> tuple[str, str]:
    if row.get("times"):
        return format_ratio(value), ""
    nearest = min((each * 1e-6 for each in row["published"]), key=lambda seconds: abs(seconds - value))
    return format_duration(value), format_ratio(value / nearest)


def _measure(
    findings: Findings, environment: str, group: Mapping[str, Any], row: Mapping[str, Any]
) -> float | None:
    timing = _find_timing(findings, environment, {**group["case"], **row["case"]})
    if timing is None or row.get("first"):
        return first_call_seconds(timing) if timing else None
    if "over" not in row:
        return timing.median
    below = _find_timing(findings, environment, {**group["case"], **row["over"]})
    return timing.median / below.median if below else None


def _find_timing(findings: Findings, environment: str, fields: Mapping[str, Any]) -> Timing | None:
    there = (timing for timing in findings.timings if timing.honest and timing.environment == environment)
    return next((timing for timing in there if _matches(to_dict(timing.case), {**_DEFAULTS, **fields})), None)


def _matches(case: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
    """Return whether a case has the given field values. Sizes that are not given may have any value."""
    sizes = fields.get("sizes", {}).items()
    plain = ((name, value) for name, value in fields.items() if name != "sizes")
    return all(case[n] == v for n, v in plain) and all(case["sizes"].get(n) == v for n, v in sizes)


def _describe_missing(findings: Findings, fields: Mapping[str, Any]) -> str:
    bad = (
        r for r in findings.records if r.status != "ok" and _matches(to_dict(r.case), {**_DEFAULTS, **fields})
    )
    record = next(bad, None)
    return f"{record.status}: {record.text or record.reason}" if record else "not in this study"
