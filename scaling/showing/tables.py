"""Tables: what the report tells in rows, as words: every measured case, laws, growth, the machine, the environments.

Knows findings and how they are worded; not markup, and not files. Whatever stands in a record is text here.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from scaling import ceilings
from scaling.case import Case
from scaling.reading import lint, published
from scaling.reading.answer import COLUMNS, PEER_COLUMNS, peer_rows, table_rows, time_of
from scaling.reading.curves import Timing, family_name, size_name, way_of
from scaling.reading.findings import Findings, first_call, marks
from scaling.reading.footprint import memory
from scaling.reading.laws import karp_flatt
from scaling.reading.resampling import Estimate
from scaling.reading.standing import near_floor
from scaling.showing.rows import around
from scaling.showing.wording import place
from scaling.words import counted, duration, number, ratio, share

_MEASURED = (
    "workload", "problem", "mode", "split", "api", "devices", "time", "samples", "stopped by", "first call", "in later calls",
    "memory", "by hand", "of the roof", "error", "tolerance", "speed-up", "remarks",
)  # fmt: skip
_MACHINE = ("what", "devices", "dtype", "api", "a device, a call", "a device", "time", "samples", "remarks")
_LAWS = ("curve", "law", "best", "serial", "contention", "coherency", "largest speed-up", "at devices", "off by", "Karp-Flatt")
_GROWTH = ("problem", "swept", "mode", "exponent", "sizes", "left out, under ten floors")
_MOST_VALUES = 6  # of a field of the environment, such as the jobs


class Table(NamedTuple):
    """A table: its place in the page, its title, what has to be said of it, its columns and rows."""

    anchor: str
    title: str
    note: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def every(found: Findings) -> list[Table]:
    """Every table that has rows."""
    roof = (
        "The roof of a case is the longest of the least times that the machine's measured ceilings allow: for the bytes of its "
        "inputs and its result, its operations, its transcendental functions and what it sends. What stays in a cache, or reads "
        "more than it writes, can pass 100 %. In later calls: how many of them take as long as the first one did."
    )
    law = (
        "Fitted to the logarithms of the times, the time on one device among the parameters; intervals are 95 %. Karp-Flatt: the "
        "serial fraction that the speed-up on the most devices stands for by itself."
    )
    power = "Time grows with the size to the power of the exponent."
    tables = [
        Table("fastest", "Fastest mode", "", COLUMNS, table_rows(found)),
        Table("review", "Would a reviewer accept it?", "", lint.COLUMNS, lint.rows(found)),
        Table("published", "Published and measured", "", published.COLUMNS, published.rows(found)),
        Table("laws", "Laws of scaling", law, _LAWS, _law_rows(found)),
        Table("growth", "Growth with size", power, _GROWTH, _growth_rows(found)),
        Table("systems", "Other systems", "", PEER_COLUMNS, peer_rows(found)),
        Table("machine", "What the machine can do", "", _MACHINE, _machine_rows(found)),
        Table("measured", "Every measured case", roof, _MEASURED, _measured_rows(found)),
    ]
    return [table for table in tables if table.rows]


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
    standings = {(s.timing.environment, s.timing.honest, s.timing.case): s for s in found.standings}
    eager = {_place(timing): timing for timing in found.timings if not timing.case.jit}
    rows: list[tuple[str, ...]] = []
    for timing in (timing for timing in found.timings if timing.case.kind == "case"):
        standing, case = standings.get((timing.environment, timing.honest, timing.case)), timing.case
        first, bytes_of = first_call(timing), memory(timing)
        remarks = [marks(found, timing.environment, timing.honest).strip(" []")]
        remarks += [f"under ten floors: {duration(floor)}"] if (floor := near_floor(timing)) else []
        remarks += [f"compiling pays after {calls}"] if (calls := _worth(timing, eager.get(_place(timing)))) else []
        rows.append((
            family_name(case), size_name(case), way_of(case).name, "" if case.api == "jit" else case.split, case.api,
            str(case.devices), time_of(timing), str(len(timing.seconds)), ", ".join(sorted(set(_known(timing, "stop_reason")))),
            duration(first) if first else "",
            number(first / timing.median) if first else "",
            f"{number(bytes_of / 1e6)} MB" if bytes_of else "",
            ratio(standing.by_hand[0]) if standing and standing.by_hand else "",
            f"{share(standing.roof.fraction)}: {standing.roof.name}" if standing and standing.roof else "",
            *(f"{max(known):.2g}" if (known := _known(timing, name)) else "" for name in ("error", "tolerance")),
            ", ".join(_speedups(found, timing)), ", ".join(word for word in remarks if word),
        ))  # fmt: skip
    return rows


def _place(timing: Timing) -> tuple[str, bool, Case]:
    """What a case has in common with the same that is not compiled."""
    return timing.environment, timing.honest, replace(timing.case, jit=False)


def _worth(timing: Timing, eager: Timing | None) -> str:
    """After how many calls a compiled program has caught up with one that is not, where both were measured."""
    compiled, plain = first_call(timing), first_call(eager) if eager else None
    if eager is None or not timing.case.jit or compiled is None or plain is None or eager.median <= timing.median:
        return ""
    return counted(1 + max(0, math.ceil((compiled - plain) / (eager.median - timing.median))), "call")


def _speedups(found: Findings, timing: Timing) -> list[str]:
    """Those of a case by the kinds of the curves that it is on; a weak one that was refused is on none."""
    points = found.places(timing)
    return [f"{kind} {ratio(p.speedup, p.speedup_low, p.speedup_high)}" for kind, p in points.items() if p.speedup is not None]


def _known(timing: Timing, name: str) -> list[Any]:
    return [value for record in timing.records if (value := getattr(record, name)) is not None]


def _law_rows(found: Findings) -> list[tuple[str, ...]]:
    rows = []
    for curve, fitted in found.laws:
        karp = karp_flatt(curve.points[-1]) if curve.kind == "strong" else None
        for law in fitted:
            parts = (_estimate(law.parts.get(name)) for name in ("serial", "contention", "coherency"))
            rows.append((
                f"{curve.kind}: {curve.name}{marks(found, curve.environment)}", law.name, "best" if law.best else "", *parts,
                ratio(law.limit), number(law.peak) if law.peak else "", f"{law.spread:.1%}", _estimate(karp),
            ))  # fmt: skip
    return rows


def _estimate(estimate: Estimate | None) -> str:
    """In three digits after the point: a part of a law is a share."""
    if estimate is None:
        return ""
    value, low, high = estimate
    digits = 3 if abs(value) >= 0.001 or not value else 6
    around = "" if low is None or high is None else f" ({low:.{digits}f} to {high:.{digits}f})"
    return f"{value:.{digits}f}{around}"


def _growth_rows(found: Findings) -> list[tuple[str, ...]]:
    return [
        (
            f"{family_name(growth.panel.case)}, {place(growth.panel.case, growth.panel.held, growth.panel.honest)}"
            + marks(found, growth.panel.environment),
            growth.panel.swept, growth.way.name,
            ratio(*growth.exponent, sign=""), str(growth.sizes), str(growth.left_out or ""),
        )
        for growth in found.growths
    ]  # fmt: skip


def environments(found: Findings) -> list[dict[str, Any]]:
    """Where it was measured: a digest, how many cases, when, and what is the same or not in all of its records."""
    told = []
    for digest in found.environments:
        of = [record for record in found.records if record.setting == digest]
        started = sorted(record.started_at for record in of if record.started_at)
        values: dict[str, dict[str, None]] = {}
        for record in of:
            for name, value in around(record.environment):
                values.setdefault(name, {})[value] = None
        rows = [(name, _listed([value for value in several if value])) for name, several in values.items() if name != "load"]
        rows += [("first case started", started[0]), ("last case started", started[-1])] if started else []
        told.append({"digest": digest, "cases": counted(len(of), "record"), "rows": [row for row in rows if row[1]]})
    return told


def _listed(values: Sequence[str]) -> str:
    """Values in a row; of many, the first and how many more."""
    more = len(values) - _MOST_VALUES
    return "; ".join(values[:_MOST_VALUES]) + (f"; and {counted(more, 'other')}" if more > 0 else "")
