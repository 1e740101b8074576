"""Compare times from the literature (published_results.yaml) with the times in a results folder."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from scaling.analysis.cases import MEMORY_FIELDS
from scaling.analysis.estimate import format_ratio
from scaling.analysis.findings import Findings
from scaling.analysis.timings import Timing, first_call_seconds
from scaling.core.case import Case
from scaling.core.formatting import format_duration

_DEFAULTS: Mapping[str, Any] = {  # values of the case fields that a published result does not give
    **dict.fromkeys((*MEMORY_FIELDS, "reduce", "forward")), "seeds": "identity", "overlap": False,
}  # fmt: skip
COLUMNS = ("problem", "what", "system", "published, elsewhere", "measured", "measured over published")


@functools.cache
def _load_rows() -> list[dict[str, Any]]:
    """Return the published results. "case" and, for a ratio, "over" (its divisor) contain case fields."""
    groups = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    return [
        row | {"problem": group["problem"]}
        | {name: {**_DEFAULTS, **group["case"], **row[name]} for name in ("case", "over") if name in row}
        for group in groups for row in group["rows"]
    ]  # fmt: skip


def published_rows(findings: Findings) -> list[dict[str, str]]:
    """Return a dict keyed by COLUMNS for each published result, or [] if no published case was measured."""
    rows, measured = [], False
    for row in _load_rows():
        what, factor = f"{row['what']}, first call" if row.get("first") else row["what"], ""
        show, unit = (format_ratio, 1.0) if row.get("times") else (format_duration, 1e-6)
        published = [unit * value for value in row.get("published", [])]
        # Use the newest environment that contains the timings of this row.
        values = ((name, _measure(findings, name, row)) for name in reversed(findings.environments))
        environment, value = next((pair for pair in values if pair[1] is not None), ("", None))
        if value is None:
            cell = _describe_missing(findings, row["case"])
        else:
            measured, cell = True, show(value) + findings.suffix(environment)
            if not row.get("times"):
                _, nearest = min((abs(seconds - value), seconds) for seconds in published)
                factor = format_ratio(value / nearest)
        cells = (row["problem"], what, row["system"], " to ".join(map(show, published)), cell, factor)
        rows.append(dict(zip(COLUMNS, cells, strict=True)))
    return rows if measured else []


def _measure(findings: Findings, environment: str, row: Mapping[str, Any]) -> float | None:
    timing = _find_timing(findings, environment, row["case"])
    if timing is None or row.get("first"):
        return first_call_seconds(timing) if timing else None
    if "over" not in row:
        return timing.median
    denominator = _find_timing(findings, environment, row["over"])
    return timing.median / denominator.median if denominator else None


def _find_timing(findings: Findings, environment: str, fields: Mapping[str, Any]) -> Timing | None:
    timings = (timing for timing in findings.timings if timing.honest and timing.environment == environment)
    return next((timing for timing in timings if _matches(timing.case, fields)), None)


def _matches(case: Case, fields: Mapping[str, Any]) -> bool:
    """Return whether a case has the values in `fields`. A size that `fields` omits may have any value."""
    expected = {**fields, "sizes": {**case.sizes, **fields.get("sizes", {})}}
    return all(getattr(case, name) == value for name, value in expected.items())


def _describe_missing(findings: Findings, fields: Mapping[str, Any]) -> str:
    for record in findings.records:
        if record.status != "ok" and _matches(record.case, fields):
            return f"{record.status}: {record.text or record.reason}"
    return "not in this study"
