"""The report: a results folder as one page that needs nothing else, with its figures and tables.

Knows files and markup. Does not know what the numbers say (answer.py), how a curve is computed (curves.py) or drawn
(figures.py). Whatever stands in a record is text: it is escaped in HTML and Markdown alike.
"""

import csv
import dataclasses
import io
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from scaling import ceilings
from scaling.case import Case, label, to_dict
from scaling.reading import curves as analysis
from scaling.reading import lint, published
from scaling.reading.answer import (
    COLUMNS,
    PEER_COLUMNS,
    brief,
    peer_rows,
    sentences,
    table_rows,
    time_of,
)
from scaling.reading.curves import Point, Timing, family_name, size_name, way_of
from scaling.reading.findings import Findings, first_call, marks, read
from scaling.reading.standing import near_floor
from scaling.record import REASONS, Record
from scaling.showing import figures
from scaling.words import cell, counted, duration, number, ratio, share

_ENDINGS = ("svg", "png")
_SEVERAL = (  # fields of a record that are not one value
    "case", "environment", "seconds", "seconds_min", "collectives", "turns", "compilations", "marked", "before", "after",
)  # fmt: skip
_MEASURED = (
    "workload", "problem", "mode", "split", "api", "devices",
    "time", "samples", "stopped by", "first call", "by hand", "of the roof", "error", "tolerance", "speed-up", "remarks",
)  # fmt: skip
_MOST_VALUES = 6  # of a field of the environment, such as the jobs
_MACHINE = ("what", "devices", "dtype", "api", "a device, a call", "a device", "time", "samples", "remarks")


def _machine_rows(found: Findings) -> list[tuple[str, ...]]:
    """Every ceiling and floor, under _MACHINE; a floor has a time and no rate."""
    rows: list[tuple[str, ...]] = []
    for timing in (timing for timing in found.timings if timing.case.kind != "case"):
        case, what, rates = timing.case, str(timing.case.target), ("", "")
        if case.kind == "ceiling":
            giga, unit, (low, high) = ceilings.work(case) / 1e9, ceilings.UNITS[what], timing.interval or (None, None)
            rate = ratio(giga / timing.median, high and giga / high, low and giga / low, sign=f" G{unit}/s")
            rates = (f"{number(1e3 * giga)} M{unit}", rate)
        dtype = case.dtype if what != "matmul" else f"{case.dtype}, {case.precision} precision"
        rows.append((
            what.replace("_", "-"), str(case.devices), dtype, case.api, *rates, time_of(timing), str(len(timing.seconds)),
            marks(found, timing.environment, timing.honest).strip(" []"),
        ))  # fmt: skip
    return rows


def _measured_rows(found: Findings) -> list[tuple[str, ...]]:
    """Every case that was measured, replicates pooled, under _MEASURED."""
    scaled, standings = _scaled(found), {(s.timing.environment, s.timing.case): s for s in found.standings}
    rows: list[tuple[str, ...]] = []
    for timing in (timing for timing in found.timings if timing.case.kind == "case"):
        standing = standings.get((timing.environment, timing.case))
        case = timing.case
        points = scaled.get((timing.environment, case), []) if timing.honest else []
        speedups = [f"{kind} {ratio(p.speedup, p.speedup_low, p.speedup_high)}" for kind, p in points if p.speedup is not None]
        remarks = [marks(found, timing.environment, timing.honest).strip(" []")]
        remarks += [f"under ten floors: {duration(floor)}"] if (floor := near_floor(timing)) else []
        row = (
            family_name(case), size_name(case), way_of(case).name, "" if case.api == "jit" else case.split, case.api,
            str(case.devices), time_of(timing), str(len(timing.seconds)), ", ".join(sorted(set(_known(timing, "stop_reason")))),
            duration(first) if (first := first_call(timing)) else "",
            ratio(standing.by_hand[0]) if standing and standing.by_hand else "",
            f"{share(standing.roof.fraction)}: {standing.roof.name}" if standing and standing.roof else "",
            *(f"{max(known):.2g}" if (known := _known(timing, name)) else "" for name in ("error", "tolerance")),
            ", ".join(speedups), ", ".join(word for word in remarks if word),
        )  # fmt: skip
        rows.append(row)
    return rows


def _known(timing: Timing, name: str) -> list[Any]:
    return [value for record in timing.records if (value := getattr(record, name)) is not None]


def _scaled(found: Findings) -> dict[tuple[str, Case], list[tuple[str, Point]]]:
    """(environment, case) -> its places on curves of scaling, each with the kind."""
    places: dict[tuple[str, Case], list[tuple[str, Point]]] = {}
    for curve in found.curves:
        for point in curve.points:
            case = dataclasses.replace(curve.case, devices=point.devices, points=point.points)
            places.setdefault((curve.environment, case), []).append((curve.kind, point))
    return places


def _csv_rows(found: Findings) -> list[dict[str, Any]]:
    """A record each, whatever its status: every field that is one value, in full precision."""
    scaled, rows = _scaled(found), []
    for record in found.records:
        fields = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
        row = {"key": record.key} | {k: v for k, v in to_dict(record.case).items() if k != "sizes"}
        row |= {f"sizes.{name}": size for name, size in record.case.sizes.items()}
        row |= {name: value for name, value in fields.items() if name not in _SEVERAL}
        for timing in analysis.pooled([record]):
            low, high = timing.interval or (None, None)
            row |= {"samples": len(timing.seconds), "seconds_median": timing.median, "seconds_low": low, "seconds_high": high}
            for kind, point in scaled.get((timing.environment, timing.case), []) if timing.honest else []:
                row |= {f"{kind}_speedup": point.speedup, f"{kind}_efficiency": point.efficiency}
                row["against_jit"] = point.against_jit
        rows.append(row | {"honest": record.honest} | {f"environment.{k}": v for k, v in _environment(record.environment)})
    return rows


def _environment(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """An environment as names and words, lists and mappings joined."""
    told = []
    for name, value in environment.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{k} {v}" for k, v in value.items())
        elif isinstance(value, list):
            value = ", ".join(map(str, value))
        told.append((name, "" if value is None else str(value)))
    return told


def _environments(found: Findings) -> list[dict[str, Any]]:
    """Where it was measured: a digest, how many cases, when, and what is the same or not in all of its records."""
    told = []
    for digest in found.environments:
        records = [r for r in found.records if r.setting == digest]
        started = sorted(r.started_at for r in records if r.started_at)
        values: dict[str, dict[str, None]] = {}
        for record in records:
            for name, value in _environment(record.environment):
                values.setdefault(name, {})[value] = None
        rows = [(name, _listed([value for value in several if value])) for name, several in values.items() if name != "load"]
        rows += [("first case started", started[0]), ("last case started", started[-1])] if started else []
        told.append({"digest": digest, "cases": counted(len(records), "case"), "rows": [row for row in rows if row[1]]})
    return told


def _listed(values: Sequence[str]) -> str:
    """Values in a row; of many, the first and how many more."""
    return "; ".join(values[:_MOST_VALUES]) + (
        f"; and {counted(more, 'other')}" if (more := len(values) - _MOST_VALUES) > 0 else ""
    )


def _unmeasured(found: Findings) -> list[dict[str, Any]]:
    """Skipped and failed cases by reason, failures first, each with its label and text."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in sorted(found.records, key=lambda r: (r.status, r.reason or "")):
        if record.status != "ok":
            groups.setdefault((record.status, record.reason or "no reason given"), []).append(record)
    return [
        {
            "status": status,
            "reason": reason,
            "meaning": REASONS.get(reason, ""),
            "count": counted(len(records), "case"),
            "items": [(label(r.case) + marks(found, r.setting), r.text or "") for r in records],
        }
        for (status, reason), records in groups.items()
    ]


# The files.


def write(folder: Path) -> Path:
    """Write the report of a results folder into its folder `report`; the path of the page."""
    found = read(folder)
    drawings = figures.draw(found.curves, found.panels)
    target = folder / "report"
    target.mkdir(exist_ok=True)
    for stale in set(figures.NAMES) - {drawing.name for drawing in drawings}:
        for ending in _ENDINGS:
            (target / f"{stale}.{ending}").unlink(missing_ok=True)
    for drawing in drawings:
        _replace(target / f"{drawing.name}.svg", drawing.svg.encode())
        _replace(target / f"{drawing.name}.png", drawing.png)
    _replace(target / "table.md", _markdown(found).encode())
    _replace(target / "table.csv", _csv(found).encode())
    _replace(target / "index.html", _html(found, drawings).encode())
    return target / "index.html"


def _replace(path: Path, content: bytes) -> None:
    """Replace a file as a whole, or not at all."""
    fresh = path.with_name(f".{path.name}-{uuid.uuid4().hex[:8]}")
    try:
        fresh.write_bytes(content)
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def _html(found: Findings, drawings: Iterable[figures.Drawing]) -> str:
    page = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    source = Path(__file__).with_name("report.html.jinja").read_text()
    return page.from_string(source).render(
        name=found.name,
        sentences=brief(found)[1],
        drawings=[(d.name, d.title, d.caption, Markup(d.svg)) for d in drawings],  # ours, and escaped by matplotlib
        tables=[(title, columns, rows) for title, columns, rows in _tables(found) if rows],
        unmeasured=_unmeasured(found),
        environments=_environments(found),
        missing=found.missing,
        damaged=found.damaged,
    )


def _markdown(found: Findings) -> str:
    parts = [f"# {cell(found.name)}", *map(cell, sentences(found))]
    for title, columns, rows in (
        *_tables(found),
        (
            "Skipped and failed",
            ("status", "reason", "case", "text"),
            [(group["status"], group["reason"], *item) for group in _unmeasured(found) for item in group["items"]],
        ),
    ):
        if rows:
            lines = [columns, ["---"] * len(columns), *([cell(text) for text in row] for row in rows)]
            parts += [f"## {title}", "\n".join(f"| {' | '.join(line)} |" for line in lines)]
    return "\n\n".join(parts) + "\n"


def _tables(found: Findings) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    """Every table: its title, its columns and its rows."""
    return [
        ("Published and measured", published.COLUMNS, published.rows(found)),
        ("Fastest mode", COLUMNS, table_rows(found)),
        ("Other systems", PEER_COLUMNS, peer_rows(found)),
        ("Would a reviewer accept it?", lint.COLUMNS, lint.rows(found)),
        ("What the machine can do", _MACHINE, _machine_rows(found)),
        ("Every measured case", _MEASURED, _measured_rows(found)),
    ]


def _csv(found: Findings) -> str:
    rows = _csv_rows(found)
    text = io.StringIO()
    table = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()
