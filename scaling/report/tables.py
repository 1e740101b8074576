"""Tables: what the report tells in rows, as words: every measured case, laws, growth, the machine, the environments.

Knows findings and how they are worded; not markup, and not files. Whatever stands in a record is text here.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from scaling.analysis import lint, published
from scaling.analysis.answer import COLUMNS, PEER_COLUMNS, peer_rows, table_rows, time_of
from scaling.analysis.certainty import near_floor
from scaling.analysis.curves import Timing, family_name, ratio_of, relative_to, size_name
from scaling.analysis.findings import Findings, marks
from scaling.analysis.footprint import memory
from scaling.analysis.meshes import padding, shape
from scaling.analysis.methods import describe_call, method_of
from scaling.analysis.pareto import chosen, method_time_name
from scaling.analysis.resampling import ResampledEstimate
from scaling.analysis.scaling_fits import karp_flatt
from scaling.analysis.stages import first_call, made, pays_after, stage
from scaling.core.case import Case
from scaling.core.formatting import (
    count_of,
    format_duration,
    format_exponent,
    format_number,
    format_percentage,
    format_ratio,
    format_share,
    is_share_determined,
)
from scaling.options import machine_peaks
from scaling.report import planned
from scaling.report.labels import place, stems
from scaling.report.rows import environment_columns

_MEASURED = (
    "workload", "problem", "mode", "split", "api", "devices", "time", "samples", "stopped by", "first call", "in later calls",
    "memory", "by hand", "of the roof", "error", "tolerance", "speed-up", "sends", "remarks",
)  # fmt: skip
_MACHINE = ("what", "devices", "dtype", "api", "a device, a call", "a device", "time", "samples", "remarks")
_LAWS = ("curve", "law", "best", "serial", "contention", "coherency", "largest speed-up", "at devices", "off by", "Karp-Flatt")
_GROWTH = ("problem", "swept", "mode", "exponent", "sizes", "left out, under ten floors")
_FRONTS = ("problem", "program", "devices", "setting", "memory", "of the fastest", "time", "times as long", "front", "remarks")
_MESHES = ("problem", "program", "devices", "mesh", "time", "times as long", "fastest", "in vain", "sends", "remarks")
_SPARSE = (
    "problem", "mode", "devices", "nonzeros", "seeds", "detecting", "colouring", "compiling", "first call", "time", "all seeds",
    "times as long", "pays after", "remarks",
)  # fmt: skip
_MOST_VALUES = 6  # of a field of the environment, such as the jobs


class PageTable(NamedTuple):
    """A table: its place in the page, its title, what has to be said of it, its columns and rows."""

    anchor: str
    title: str
    note: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def every(found: Findings) -> list[PageTable]:
    """Every table that has rows."""
    roof = (
        "The roof of a case is the longest of the least times that the machine's measured ceilings allow: for the bytes of its "
        "inputs and its result, its operations, its transcendental functions and what it sends. What stays in a cache, or reads "
        "more than it writes, can pass 100 %. In later calls: how many of them take as long as the first one did. A speed-up is "
        "over one device, or over the fewest that were measured, which it then names."
    )
    law = (
        "Fitted to the logarithms of the times, the time on one device among the parameters; intervals are 95 %. Karp-Flatt: the "
        "serial fraction that the speed-up on the most devices stands for by itself, where it is over one device."
    )
    front = (
        "One program under several settings of memory. Memory: inputs, result and temporaries of a device; of the fastest: as a "
        "share of what the fastest setting takes. On the front: no other setting takes less of one of memory and time without "
        "taking more of the other."
    )
    mesh = "Points x seeds: over how many devices each is cut. In vain: the share that is computed so that both share out."
    sparse = (
        "Detecting: finding where the derivative is not zero; colouring: finding few seeds that give all of it. All seeds: the "
        "fastest way with a seed for each row or column, and how many times as long it takes. Pays after: the number of "
        "evaluations from which on few seeds are faster in all, everything before the first result included."
    )
    power = "Time grows with the size to the power of the exponent."
    tables = [
        PageTable("fastest", "Fastest mode", "", COLUMNS, table_rows(found)),
        PageTable("review", "Would a reviewer accept it?", "", lint.COLUMNS, lint.rows(found)),
        *_planned(found),
        PageTable("published", "Published and measured", "", published.COLUMNS, published.rows(found)),
        PageTable("laws", "Laws of scaling", law, _LAWS, _law_rows(found)),
        PageTable("growth", "Growth with size", power, _GROWTH, _growth_rows(found)),
        PageTable("meshes", "Meshes", mesh, _MESHES, _mesh_rows(found)),
        PageTable("fronts", "Settings of memory", front, _FRONTS, _front_rows(found)),
        PageTable("sparsity", "Sparse derivatives", sparse, _SPARSE, _sparse_rows(found)),
        PageTable("systems", "Other systems", "", PEER_COLUMNS, peer_rows(found)),
        PageTable("machine", "What the machine can do", "", _MACHINE, _machine_rows(found)),
        PageTable("measured", "Every measured case", roof, _MEASURED, _measured_rows(found)),
    ]
    return [table for table in tables if table.rows]


def _planned(found: Findings) -> list[PageTable]:
    """What was planned, hardware by hardware, apart from all that was measured, and how far predictions were from that."""
    tables, of = [], stems(each.hardware for each in found.forecasts)
    for each in found.forecasts:
        stem, title = of[each.hardware], each.title
        tables += [
            PageTable(f"planned-{stem}", f"Every case planned for {title}", planned.NOTE, planned.COLUMNS, planned.rows(each)),
            PageTable(f"unfit-{stem}", f"What does not fit {title}", "", planned.UNFIT_COLUMNS, planned.unfit(each)),
            PageTable(f"unplanned-{stem}", f"Not planned for {title}", "", planned.OTHER_COLUMNS, planned.others(each)),
        ]
    of = stems(each.hardware for each in found.scores)
    for scores in found.scores:
        title = f"Predicted against measured: {scores.hardware}"
        rows = planned.score_rows(scores)
        tables.append(PageTable(f"scores-{of[scores.hardware]}", title, planned.SCORE_NOTE, planned.SCORE_COLUMNS, rows))
    return tables


def _machine_rows(found: Findings) -> list[tuple[str, ...]]:
    """Every ceiling and floor, under _MACHINE; a floor has a time and no rate."""
    rows: list[tuple[str, ...]] = []
    for timing in (timing for timing in found.timings if timing.case.kind != "case"):
        case, what, rates = timing.case, str(timing.case.target), ("", "")
        if case.kind == "ceiling":
            giga, unit, (low, high) = (
                machine_peaks.peak_work(case) / 1e9,
                machine_peaks.UNITS[what],
                timing.interval or (None, None),
            )
            around = f" ({format_number(giga / high)} to {format_number(giga / low)})" if low and high else ""
            rate = f"{format_number(giga / timing.median)} G{unit}/s{around}"
            rates = (f"{format_number(1e3 * giga)} M{unit}", rate)
        dtype = case.dtype if what != "matmul" else f"{case.dtype}, {case.precision} precision"
        rows.append((
            what.replace("_", "-"), str(case.devices), dtype, case.api, *rates, time_of(timing), str(len(timing.seconds)),
            marks(found, timing.environment, timing.honest).strip(" []"),
        ))  # fmt: skip
    return rows


def _measured_rows(found: Findings) -> list[tuple[str, ...]]:
    """Every case that was measured, replicates pooled, under _MEASURED."""
    standings = {(s.timing.environment, s.timing.honest, s.timing.case): s for s in found.standings}
    overlapped = {id(each.timing): each for each in found.overlaps}
    eager = {_place(timing): timing for timing in found.timings if not timing.case.jit}
    rows: list[tuple[str, ...]] = []
    for timing in (timing for timing in found.timings if timing.case.kind == "case"):
        standing, case = standings.get((timing.environment, timing.honest, timing.case)), timing.case
        overlap = overlapped.get(id(timing))
        first, bytes_of = first_call(timing), memory(timing)
        remarks = [marks(found, timing.environment, timing.honest).strip(" []")]
        remarks += [f"under ten floors: {format_duration(floor)}"] if (floor := near_floor(timing)) else []
        remarks += [f"compiling pays after {calls}"] if (calls := _worth(timing, eager.get(_place(timing)))) else []
        remarks += [f"takes {auto}"] if (auto := chosen(timing.records[0])) else []
        remarks += [f"{format_percentage(padding(timing))} in vain"] if padding(timing) else []
        remarks += [f"{format_ratio(*overlap.ratio)} as long as without overlap"] if overlap else []
        rows.append((
            family_name(case), size_name(case), method_of(case).name, _split(case), case.api,
            str(case.devices), time_of(timing), str(len(timing.seconds)), ", ".join(sorted(set(_known(timing, "stop_reason")))),
            format_duration(first) if first else "",
            format_number(first / timing.median) if first else "",
            _megabytes(bytes_of),
            format_ratio(standing.by_hand[0]) if standing and standing.by_hand else "",
            f"{format_percentage(standing.roof.fraction)}: {standing.roof.name}" if standing and standing.roof else "",
            *(f"{max(known):.2g}" if (known := _known(timing, name)) else "" for name in ("error", "tolerance")),
            ", ".join(_speedups(found, timing)), _sends(timing), ", ".join(word for word in remarks if word),
        ))  # fmt: skip
    return rows


def _place(timing: Timing) -> tuple[str, bool, Case]:
    """What a case has in common with the same that is not compiled."""
    return timing.environment, timing.honest, replace(timing.case, jit=False)


def _worth(timing: Timing, eager: Timing | None) -> str:
    """After how many calls a compiled program has caught up with one that is not, where both were measured."""
    calls = pays_after(timing, eager) if eager and timing.case.jit else None
    return count_of(calls, "call") if calls else ""


def _split(case: Case) -> str:
    """How a case is cut, in a cell."""
    words = ["" if case.api == "jit" else case.split, case.mesh, "overlapped" if case.overlap else None]
    return " ".join(word for word in words if word)


def _megabytes(value: float | None) -> str:
    """In one unit, so that a column of them can be sorted."""
    return f"{format_number(value / 1e6)} MB" if value else ""


def _sends(timing: Timing) -> str:
    """What a device sends in a call, and in how many collectives of which kind."""
    record = timing.records[0]
    kinds = ", ".join(f"{count} {kind}" for kind, count in (record.collectives or {}).items() if count)
    return f"{_megabytes(record.collective_bytes)} in {kinds}" if record.collective_bytes and kinds else ""


def _speedups(found: Findings, timing: Timing) -> list[str]:
    """Those of a case by the kinds of the curves that it is on; a weak one that was refused is on none."""
    points = found.places(timing)
    return [
        f"{kind} {format_ratio(p.speedup, p.speedup_low, p.speedup_high)}{relative_to(p.baseline_devices)}"
        for kind, p in points.items()
    ]


def _known(timing: Timing, name: str) -> list[Any]:
    return [value for record in timing.records if (value := getattr(record, name)) is not None]


def _law_rows(found: Findings) -> list[tuple[str, ...]]:
    rows = []
    for curve, fitted in found.laws:
        karp = karp_flatt(curve.points[-1]) if curve.kind == "strong" else None
        for law in fitted:
            parts = (_estimate(law.parts.get(name)) for name in ("serial", "contention", "coherency"))
            ends = (format_ratio(law.limit), format_number(law.peak) if law.peak else "") if law.determined else ("", "")
            rows.append((
                f"{curve.kind}: {curve.name}{marks(found, curve.environment)}", law.name, "best" if law.best else "", *parts,
                *ends, f"{law.spread:.1%}", _estimate(karp),
            ))  # fmt: skip
    return rows


def _estimate(estimate: ResampledEstimate | None) -> str:
    """In three digits after the point: a part of a law is a share."""
    if estimate is None:
        return ""
    value, low, high = estimate
    if not is_share_determined(low, high):
        return format_share(value, low, high)
    digits = 3 if abs(value) >= 0.001 or not value else 6
    around = "" if low is None or high is None else f" ({low:.{digits}f} to {high:.{digits}f})"
    return f"{value:.{digits}f}{around}"


def _growth_rows(found: Findings) -> list[tuple[str, ...]]:
    return [
        (
            f"{family_name(growth.panel.case)}, {place(growth.panel.case, growth.panel.held, growth.panel.honest)}"
            + marks(found, growth.panel.environment),
            growth.panel.swept, growth.way.name,
            format_exponent(*growth.exponent), str(growth.sizes), str(growth.left_out or ""),
        )
        for growth in found.growths
    ]  # fmt: skip


def _program(case: Case) -> str:
    return f"{method_of(case).plain.name}, {describe_call(case)}"


def _front_rows(found: Findings) -> list[tuple[str, ...]]:
    """Every setting of every program of several, the smallest first, then those that memory was too small for."""
    rows: list[tuple[str, ...]] = []
    for front in found.fronts:
        of = (f"{family_name(front.case)} {size_name(front.case)}", _program(front.case), str(front.case.devices))
        marked = marks(found, front.environment).strip(" []")
        for setting in front.settings:
            remarks = [marked, f"takes {auto}" if (auto := chosen(setting.timing.records[0])) else ""]
            times = "" if setting is front.fastest else format_ratio(*ratio_of(setting.timing, front.fastest.timing))
            held = format_percentage(setting.memory / front.fastest.memory)
            rows.append((
                *of, setting.name, _megabytes(setting.memory), held, time_of(setting.timing), times,
                "on it" if setting.best else "", ", ".join(word for word in remarks if word),
            ))  # fmt: skip
        for record in front.unfit:
            rows.append((*of, method_time_name(record.case), "", "", "", "", "", f"did not fit: {record.text or record.reason}"))
    return rows


def _mesh_rows(found: Findings) -> list[tuple[str, ...]]:
    """Every mesh of every program and number of devices, the fastest first."""
    rows: list[tuple[str, ...]] = []
    for each in found.meshes:
        for timing, times in each.rows:
            first = timing is each.rows[0][0]
            vain = padding(timing)
            rows.append((
                f"{family_name(each.case)} {size_name(each.case)}", f"{method_of(each.case).name}, {each.case.api}",
                str(each.case.devices), shape(timing.case), time_of(timing), "" if first else format_ratio(*times),
                ("fastest" if each.distinguished else "ahead, not told apart") if first else "", format_percentage(vain) if vain else "",
                _sends(timing), marks(found, each.environment, each.honest).strip(" []"),
            ))  # fmt: skip
    return rows


def _sparse_rows(found: Findings) -> list[tuple[str, ...]]:
    """Every timing with coloured seeds, its stages, and the fastest with all of them beside it."""
    rows: list[tuple[str, ...]] = []
    for each in found.colorings:
        timing, record, rival = each.timing, each.timing.records[0], each.rival
        spent = (stage(timing, "detect_seconds"), stage(timing, "color_seconds"), made(timing), first_call(timing))
        colors = " + ".join(f"{count} {kind}" for kind, count in (record.colors or {}).items() if count)
        rows.append((
            f"{family_name(timing.case)} {size_name(timing.case)}", method_of(timing.case).name, str(timing.case.devices),
            f"{record.nonzeros:,}" if record.nonzeros is not None else "", colors,
            *("" if seconds is None else format_duration(seconds) for seconds in spent), time_of(timing),
            f"{method_of(rival.case).name}, {format_duration(rival.median)}" if rival else "not measured",
            format_ratio(*each.ratio) if each.ratio else "",
            "" if rival is None else count_of(each.pays, "evaluation") if each.pays else "never",
            marks(found, timing.environment, timing.honest).strip(" []"),
        ))  # fmt: skip
    return rows


def environments(found: Findings) -> list[dict[str, Any]]:
    """Where it was measured: a digest, how many cases, when, and what is the same or not in all of its records."""
    told = []
    for digest in found.environments:
        of = [record for record in found.records if record.setting == digest]
        started = sorted(record.started_at for record in of if record.started_at)
        values: dict[str, dict[str, None]] = {}
        for record in of:
            for name, value in environment_columns(record.environment):
                values.setdefault(name, {})[value] = None
        rows = [(name, _listed([value for value in several if value])) for name, several in values.items() if name != "load"]
        rows += [("first case started", started[0]), ("last case started", started[-1])] if started else []
        told.append({"digest": digest, "cases": count_of(len(of), "record"), "rows": [row for row in rows if row[1]]})
    return told


def _listed(values: Sequence[str]) -> str:
    """Values in a row; of many, the first and how many more."""
    more = len(values) - _MOST_VALUES
    return "; ".join(values[:_MOST_VALUES]) + (f"; and {count_of(more, 'other')}" if more > 0 else "")
