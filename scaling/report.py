"""The report: what a results folder says, as sentences, tables and one page that needs nothing else.

Knows how numbers and names are written. Does not know how a curve is computed (curves.py) or drawn (figures.py); needs no JAX.
Whatever stands in a record is text: it is escaped in HTML and Markdown alike.
"""

import csv
import dataclasses
import io
import math
import os
import statistics
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from scaling import curves as analysis
from scaling import figures
from scaling.case import Case, from_dict, label, to_dict
from scaling.curves import Curve, Fastest, Panel, Point, Timing, family_name, mode_name, size_name, volume
from scaling.record import REASONS, Record
from scaling.store import latest, load, read_json

COLUMNS = ("problem", "devices", "fastest", "time", "runner-up", "times as long")
_ENDINGS = ("svg", "png")
_SEVERAL = ("case", "environment", "seconds", "seconds_min", "collectives")  # fields of a record that are not one value


@dataclass(frozen=True)
class Findings:
    """A results folder, read: the last word on each case, and what follows from it."""

    name: str
    records: list[Record]
    damaged: list[str]
    missing: list[str]  # cases of the study without any record
    timings: list[Timing]
    curves: list[Curve]
    fastest: list[Fastest]
    panels: list[Panel]
    refusals: list[str]

    @property
    def environments(self) -> list[str]:
        """The digests, that of the first case started first."""
        return list(dict.fromkeys(r.environment["digest"] for r in sorted(self.records, key=lambda r: r.started_at or "")))


def read(folder: Path) -> Findings:
    """Load a results folder and work out what it says."""
    loaded, study = load(folder), read_json(folder / "study.json")
    study = study if isinstance(study, dict) else {}
    scaling = study.get("scaling") or ["strong"]
    scaling = [scaling] if isinstance(scaling, str) else scaling
    records = latest(loaded.records)
    run = {record.key for record in records}
    cases = [cell for cell in study.get("cases") or [] if isinstance(cell, dict)]
    return Findings(
        name=str(study.get("study") or folder.resolve().name),
        records=records,
        damaged=loaded.damaged,
        missing=[_planned(cell) for cell in cases if cell.get("key") not in run],
        timings=analysis.pooled(records),
        curves=analysis.curves(records, scaling),
        fastest=analysis.fastest(records),
        panels=analysis.panels(records),
        refusals=analysis.weak_refusals(records) if "weak" in scaling else [],
    )


def _planned(cell: Mapping[str, Any]) -> str:
    try:
        return label(from_dict(cell["case"]))
    except (KeyError, TypeError, ValueError):
        return str(cell.get("key"))


# Numbers and names, the one place where they become text.


def number(value: float) -> str:
    """Three digits or so, never in powers of ten between 0.01 and a million."""
    if value == 0 or not 0.01 <= abs(value) < 1e6:
        return f"{value:.3g}"
    tens = math.floor(math.log10(abs(float(f"{value:.3g}"))))
    return f"{value:.{max(0, min(2, 2 - tens))}f}"


def duration(seconds: float, low: float | None = None, high: float | None = None) -> str:
    """Seconds in a unit that suits them, with the interval where it is known: '12.3 µs (12.1 to 12.6)'."""
    units = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
    unit, size = next(((u, s) for u, s in units if seconds >= 0.9995 * s), units[-1])
    around = "" if low is None or high is None else f" ({number(low / size)} to {number(high / size)})"
    return f"{number(seconds / size)} {unit}{around}"


def ratio(value: float | None, low: float | None = None, high: float | None = None, sign: str = "x") -> str:
    """A ratio with its interval where it is known: '1.77x (1.70 to 1.81)'; nothing for None."""
    if value is None:
        return ""
    return f"{number(value)}{sign}" + ("" if low is None or high is None else f" ({number(low)} to {number(high)})")


def _time(timing: Timing) -> str:
    return duration(timing.median, *(timing.interval or (None, None)))


def _devices(count: int) -> str:
    return f"{count} device" if count == 1 else f"{count} devices"


def _call(case: Case) -> str:
    """How a mode is called and cut, in words."""
    words = [case.api, "" if case.api == "jit" else f"{case.split} split"]
    words += ["" if case.precision == "highest" else f"{case.precision} precision", "" if case.jit else "eager"]
    return ", ".join(word for word in words if word)


def _way(case: Case) -> str:
    return f"{mode_name(case.mode, case.batch)}, {_call(case)}"


def _where(found: Findings, environment: str, honest: bool = True) -> str:
    """What must stand beside a number: which environment, where there are several, and whether it was oversubscribed."""
    words = [f"environment {environment}"] if len(found.environments) > 1 else []
    words += [] if honest else ["oversubscribed"]
    return f" [{', '.join(words)}]" if words else ""


# The answer in sentences.


def sentences(source: Path | Findings) -> list[str]:
    """What the folder says, in plain lines with figures in them: the fastest modes, the best scaling, and all that went wrong."""
    found = source if isinstance(source, Findings) else read(source)
    count = Counter(record.status for record in found.records)
    if not count["ok"]:
        return ["Nothing has been measured: the folder holds no record of a case that ended well.", *_trouble(found)]
    return [*_fastest_sentences(found), *_scaling_sentences(found), *_trouble(found)]


def _fastest_sentences(found: Findings) -> list[str]:
    families: dict[tuple, list[Fastest]] = {}
    for row in found.fastest:
        first = row.first
        families.setdefault((first.environment, first.honest, *analysis.family(first.case)), []).append(row)
    told = []
    for rows in families.values():
        row = max(rows, key=lambda row: (volume(row.first.case), row.first.case.devices))
        case = row.first.case
        mode = mode_name(case.mode, case.batch)
        at = f"on {_devices(case.devices)} at the largest size ({size_name(case)}): {_time(row.first)}, {_call(case)}"
        if row.second is None:
            text = f"only {mode} was measured {at}"
        else:
            factor = ratio(row.ratio, row.ratio_low, row.ratio_high)
            second = mode_name(row.second.case.mode, row.second.case.batch)
            verdict = "is fastest" if row.sure else "is ahead of the next, but the two are not distinguished,"
            text = f"{mode} {verdict} {at}; the next, {second}, takes {factor} as long"
        if row.by_hand:
            text += f". Written by hand it would take {ratio(1 / row.by_hand)} as long"
        wins = Counter(mode_name(r.first.case.mode, r.first.case.batch) for r in rows if r.sure)
        if len(rows) > 1 and wins:
            counts = ", ".join(f"{name} ({count})" for name, count in wins.most_common())
            text += f". Clear winners over {len(rows)} problems and device counts: {counts}"
        told.append(f"{family_name(case)}: {text}.{_where(found, row.first.environment, row.first.honest)}")
    return told


def _scaling_sentences(found: Findings) -> list[str]:
    """For each kind and family: the best curve on the most devices, beside the median of all curves that reach them."""
    families: dict[tuple, list[Curve]] = {}
    for curve in found.curves:
        if curve.points[-1].devices > 1 and curve.points[-1].speedup is not None:
            families.setdefault((curve.kind, curve.environment, *analysis.family(curve.case)), []).append(curve)
    told = []
    for of in families.values():
        most = max(curve.points[-1].devices for curve in of)
        rivals = [curve for curve in of if curve.points[-1].devices == most]
        best = max(rivals, key=lambda curve: curve.points[-1].speedup or 0)
        last = best.points[-1]
        word = "scaled speed-up" if best.kind == "weak" else "speed-up"
        speedup = ratio(last.speedup, last.speedup_low, last.speedup_high)
        efficiency = ratio(last.efficiency, last.efficiency_low, last.efficiency_high, sign="")
        text = f"{best.kind.capitalize()} scaling of {family_name(best.case)} on {_devices(most)}: the best {word} is {speedup}, "
        text += f"efficiency {efficiency}, with {_way(best.case)} at {size_name(best.case)}"
        text += " for each device" if best.kind == "weak" else ""
        if len(rivals) > 1:
            middle = statistics.median(curve.points[-1].speedup or 0 for curve in rivals)
            text += f" (the median of {len(rivals)} curves is {ratio(middle)})"
        text += f"; {ratio(last.against_jit)} the speed of the best plain jit program on one device" if last.against_jit else ""
        told.append(f"{text}.{_where(found, best.environment)}")
    return told


def _trouble(found: Findings) -> list[str]:
    told = []
    for status in ("failed", "skipped"):
        reasons = Counter(f"{r.reason}: {REASONS.get(r.reason or '', '')}" for r in found.records if r.status == status)
        if reasons:
            counts = "; ".join(f"{count} {reason}" for reason, count in reasons.most_common())
            told.append(f"{_cases(reasons.total())} {status}: {counts}.")
    told += found.refusals
    if count := len([t for t in found.timings if not t.honest]):
        told.append(f"{_cases(count)} ran oversubscribed, without a core for each device: marked, and never drawn as scaling.")
    if len(found.environments) > 1:
        told.append(
            f"{len(found.environments)} environments stand in this folder ({', '.join(found.environments)}): "
            "they are kept apart, no curve and no comparison mixes them."
        )
    if found.missing:
        told.append(f"{_cases(len(found.missing))} of the study {'has' if len(found.missing) == 1 else 'have'} no record yet.")
    if found.damaged:
        lines = f"{len(found.damaged)} damaged {'line was' if len(found.damaged) == 1 else 'lines were'}"
        told.append(f"{lines} passed over, the first {found.damaged[0]}.")
    return told


def _cases(count: int) -> str:
    return f"{count} case" if count == 1 else f"{count} cases"


# The same in tables: rows of text for people, rows of numbers for programs.


def table_rows(source: Path | Findings) -> list[tuple[str, ...]]:
    """The fastest mode of each problem on each number of devices, under COLUMNS."""
    found = source if isinstance(source, Findings) else read(source)
    rows: list[tuple[str, ...]] = []
    for row in found.fastest:
        case, second = row.first.case, row.second
        factor = ratio(row.ratio, row.ratio_low, row.ratio_high) or "no other mode"
        rows.append((
            f"{family_name(case)} {size_name(case)}{_where(found, row.first.environment, row.first.honest)}",
            str(case.devices),
            _way(case),
            _time(row.first),
            f"{_way(second.case)}, {duration(second.median)}" if second else "",
            factor if row.sure or second is None else f"not distinguished: {factor}",
        ))  # fmt: skip
    return rows


_MEASURED = (
    "workload", "problem", "mode", "batch", "split", "api", "devices",
    "time", "samples", "stopped by", "error", "tolerance", "speed-up", "remarks",
)  # fmt: skip


def _measured_rows(found: Findings) -> list[tuple[str, ...]]:
    """Every case that was measured, replicates pooled, under _MEASURED."""
    scaled = _scaled(found)
    rows: list[tuple[str, ...]] = []
    for timing in found.timings:
        case = timing.case
        points = scaled.get((timing.environment, case), []) if timing.honest else []
        speedups = [f"{kind} {ratio(p.speedup, p.speedup_low, p.speedup_high)}" for kind, p in points if p.speedup is not None]
        remarks = [_where(found, timing.environment, timing.honest).strip(" []")]
        remarks += [] if case.precision == "highest" else [f"{case.precision} precision"]
        remarks += [] if case.jit else ["eager"]
        row = (
            family_name(case), size_name(case), case.mode, case.batch, "" if case.api == "jit" else case.split, case.api,
            str(case.devices), _time(timing), str(len(timing.seconds)), ", ".join(sorted(set(_known(timing, "stop_reason")))),
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
        records = [r for r in found.records if r.environment["digest"] == digest]
        started = sorted(r.started_at for r in records if r.started_at)
        values: dict[str, dict[str, None]] = {}
        for record in records:
            for name, value in _environment(record.environment):
                values.setdefault(name, {})[value] = None
        rows = [(name, "; ".join(value for value in several if value)) for name, several in values.items() if name != "load"]
        rows += [("first case started", started[0]), ("last case started", started[-1])] if started else []
        told.append({"digest": digest, "cases": _cases(len(records)), "rows": [row for row in rows if row[1]]})
    return told


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
            "count": _cases(len(records)),
            "items": [(label(r.case) + _where(found, r.environment["digest"]), r.text or "") for r in records],
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
        sentences=sentences(found),
        drawings=[(d.name, d.title, d.caption, Markup(d.svg)) for d in drawings],  # ours, and escaped by matplotlib
        tables=[("Fastest mode", COLUMNS, table_rows(found)), ("Every measured case", _MEASURED, _measured_rows(found))],
        unmeasured=_unmeasured(found),
        environments=_environments(found),
        missing=found.missing,
        damaged=found.damaged,
    )


def _markdown(found: Findings) -> str:
    parts = [f"# {_cell(found.name)}", *map(_cell, sentences(found))]
    for title, columns, rows in (
        ("Fastest mode", COLUMNS, table_rows(found)),
        ("Every measured case", _MEASURED, _measured_rows(found)),
        (
            "Skipped and failed",
            ("status", "reason", "case", "text"),
            [(group["status"], group["reason"], *item) for group in _unmeasured(found) for item in group["items"]],
        ),
    ):
        if rows:
            lines = [columns, ["---"] * len(columns), *([_cell(text) for text in row] for row in rows)]
            parts += [f"## {title}", "\n".join(f"| {' | '.join(line)} |" for line in lines)]
    return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    """Text that stays in its cell and is not read as HTML."""
    for plain, escaped in (("\\", "\\\\"), ("&", "&amp;"), ("<", "&lt;"), ("|", "\\|")):
        text = text.replace(plain, escaped)
    return " ".join(text.split())


def _csv(found: Findings) -> str:
    rows = _csv_rows(found)
    text = io.StringIO()
    table = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()
