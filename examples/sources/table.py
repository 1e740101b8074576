"""Compare the times of published.yaml with ours in docs/data/sources.jsonl, in the table of docs/sources.md.

python -m examples.sources.table [results/sources]   # with a folder of `study=sources`: from its records
"""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from examples.pages import DOCS, Row, data_path, make_table, read_lines, replace_between, write_lines
from scaling.analysis import findings
from scaling.analysis.cases import MEMORY_FIELDS
from scaling.analysis.estimate import format_ratio
from scaling.analysis.findings import Findings
from scaling.analysis.timings import Timing, first_call_seconds
from scaling.core.case import Case
from scaling.core.formatting import format_duration

MARKERS = "<!-- table -->", "<!-- end of table -->"
COLUMNS = ("problem", "what", "system", "published", "measured", "measured / published")
DEFAULTS: Mapping[str, Any] = {  # values of the case fields that a published result does not give
    **dict.fromkeys((*MEMORY_FIELDS, "reduce", "forward")), "seeds": "identity", "overlap": False,
}  # fmt: skip


def read_published() -> list[Row]:
    """Return the published results. "case" and, for a ratio, "over" (its divisor) contain case fields.

    A result of a system that this package does not run has neither.
    """
    groups = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text())
    return [
        row | {"problem": group["problem"]}
        | {name: {**DEFAULTS, **group["case"], **row[name]} for name in ("case", "over") if name in row}
        for group in groups for row in group["rows"]
    ]  # fmt: skip


def measured_lines(study: Findings) -> list[Row]:
    """Return a line for each published result: seconds or a ratio ("measured"), or why there is none."""
    lines = []
    for row in read_published():
        line = {"problem": row["problem"], "what": row["what"], "system": row["system"]}
        if "case" not in row:
            lines.append(line | {"missing": "not measured"})
            continue
        values = (_measure(study, environment, row) for environment in reversed(study.environments))
        value = next((value for value in values if value is not None), None)  # of the newest environment
        missing = {"missing": _describe_missing(study, row["case"])}
        lines.append(line | (missing if value is None else {"measured": value}))
    return lines


def _measure(study: Findings, environment: str, row: Mapping[str, Any]) -> float | None:
    timing = _find_timing(study, environment, row["case"])
    if timing is None or row.get("first"):
        return first_call_seconds(timing) if timing else None
    if "over" not in row:
        return timing.median
    denominator = _find_timing(study, environment, row["over"])
    return timing.median / denominator.median if denominator else None


def _find_timing(study: Findings, environment: str, fields: Mapping[str, Any]) -> Timing | None:
    timings = (timing for timing in study.timings if timing.honest and timing.environment == environment)
    return next((timing for timing in timings if matches(timing.case, fields)), None)


def matches(case: Case, fields: Mapping[str, Any]) -> bool:
    """Return whether a case has the values in `fields`. A size that `fields` omits may have any value."""
    expected = {**fields, "sizes": {**case.sizes, **fields.get("sizes", {})}}
    return all(getattr(case, name) == value for name, value in expected.items())


def _describe_missing(study: Findings, fields: Mapping[str, Any]) -> str:
    unmeasured = (record for record in study.records if record.status != "ok")
    reasons = (str(record.reason) for record in unmeasured if matches(record.case, fields))
    return next(reasons, "not in this study").replace("_", " ")


def format_table(lines: Iterable[Row]) -> str:
    """Return a Markdown table of the published results with a case: each with our value and the ratio of both."""
    rows = []
    for row, line in zip(read_published(), lines, strict=True):
        if "case" not in row:
            continue
        is_ratio, value = row.get("times"), line.get("measured")
        published = [each if is_ratio else 1e-6 * each for each in row.get("published", [])]
        show = format_ratio if is_ratio else format_duration
        what = f"{row['what']}, first call" if row.get("first") else row["what"]
        over = ""
        if value is not None and not is_ratio:
            over = format_ratio(value / min(published, key=lambda each: abs(each - value)))
        ours = line["missing"] if value is None else show(value)
        published_text = row.get("claim") or " to ".join(map(show, published))
        rows.append((row["problem"], what, row["system"], published_text, ours, over))
    return make_table(COLUMNS, rows)


def main(folders: list[str]) -> None:
    """Write the data from a results folder, if one is named, and then the table of the page."""
    data, page = data_path("sources"), DOCS / "sources.md"
    for folder in folders:
        write_lines(data, measured_lines(findings.read(Path(folder))))
    table = format_table(read_lines(data))
    page.write_text(replace_between(page.read_text(), *MARKERS, f"\n{table}\n"))


if __name__ == "__main__":
    main(sys.argv[1:])
