"""Rows: what a results folder holds as flat tables, a value a column, in full precision, every column of one kind.

What was planned for some hardware has a table of its own: no other holds it. Knows the fields of records, curves and laws; not
the format of any file (export.py), and nothing is rounded or put into words.
"""

import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from scaling.analysis import ratios
from scaling.analysis.curves import CurvePoint
from scaling.analysis.findings import Findings
from scaling.core.case import Case, to_dict
from scaling.core.record import Record

Kind = Any  # bool, int, float, str, list[int] or list[float]
# Fields that are many values; of some each has a column.
_SEVERAL = (
    "case", "environment", "collectives", "compilations", "marked", "before", "after", "blocks", "colors", "kernels", "messages",
    "predicted", "checked",
)  # fmt: skip
# Of a plan alone: what it keeps of a record and what it adds, and of a prediction what each part is called in the table.
_PLANNED = ("program_flops", "program_transcendentals", "program", "compiled_as", "capacity_bytes")
_OF_PLAN = (
    "status", "reason", "text", "started_at", "trace_seconds", "lower_seconds", "compile_seconds", "passes", "flops",
    "transcendentals", "hbm_bytes", "temp_bytes", "argument_bytes", "output_bytes", "peak_bytes", "collective_bytes",
    "compulsory_bytes", *_PLANNED,
)  # fmt: skip
_PREDICTED = {
    "seconds": "predicted_seconds", "low": "low", "high": "high", "call": "call_seconds", "compute": "compute_seconds",
    "communication": "communication_seconds", "waiting": "waiting_seconds", "bound": "bound", "by": "by",
}  # fmt: skip
_APART: dict[str, dict[str, Kind]] = {
    "blocks": {"block": int, "chunk": int, "storage": str, "limit_bytes": int, "probes": int},
    "colors": {"columns": int, "rows": int},
    "checked": {"entries": float, "points": float},
}
_COLUMNS = {f"{field}.{name}": kind for field, names in _APART.items() for name, kind in names.items()}
_LARGEST = 2**63  # what a column of integers does not hold any more
_SUMMARY = {"samples": int, "seconds_median": float, "seconds_low": float, "seconds_high": float}
_SCALED = {
    f"{kind}_{name}": of
    for kind in ("strong", "weak")
    for name, of in (("speedup", float), ("efficiency", float), ("baseline_devices", int))
} | {"against_jit": float}
_LAW = {
    "name": str, "kind": str, "environment": str, "law": str, "part": str, "value": float, "low": float, "high": float,
    "seconds": float, "spread": float, "best": bool, "limit": float, "peak": float,
}  # fmt: skip


class ExportTable(NamedTuple):
    """A name, the kind of every column in order, and a mapping from column to value for each row; what is missing is None."""

    name: str
    kinds: dict[str, Kind]
    rows: Iterable[Mapping[str, Any]]


def _kinds(of: type) -> dict[str, Kind]:
    """The fields of a dataclass that are one value or a list of them, and of which kind."""
    hints = {name: hint for name, hint in typing.get_type_hints(of).items() if name not in (*_SEVERAL, "sizes")}
    plain = {name: typing.get_args(hint)[0] for name, hint in hints.items() if isinstance(hint, types.UnionType)}
    return hints | plain


_EVERY_FIELD, _OF_POINT = _kinds(Record), _kinds(CurvePoint)
_OF_RECORD = {name: kind for name, kind in _EVERY_FIELD.items() if name not in _PLANNED}
_NAMES = {name: f"case.{name}" if name in _OF_RECORD else name for name in _kinds(Case)}  # a record has a block of another kind
_OF_CASE = {_NAMES[name]: kind for name, kind in _kinds(Case).items()}
_IDENTITY = {"key": str, "environment": str}  # what the tables have in common: the digest of what may be compared


def tables(found: Findings) -> list[ExportTable]:
    """Every table of a folder; that of plans where there is one."""
    plans = [plan_table(found)] if found.forecasts else []
    return [record_table(found), curve_table(found), sample_table(found), law_table(found), *plans]


def record_table(found: Findings) -> ExportTable:
    """A record each, whatever its status."""
    rows = record_rows(found)
    kinds = _IDENTITY | _OF_CASE | _sizes(rows) | _OF_RECORD | _COLUMNS | _SUMMARY | _SCALED | {"honest": bool}
    around = {name: str for row in rows for name in row if name.startswith("environment.")}
    return ExportTable("records", _wide(kinds | around, rows), rows)


def record_rows(found: Findings) -> list[dict[str, Any]]:
    """A record each, whatever its status: its case, every field, its median and speed-ups, and its environment in words."""
    rows = []
    for record in found.records:
        row = _identity(record) | _case_row(record.case)
        row |= {name: getattr(record, name) for name in _OF_RECORD} | _apart(record)
        if record.status == "ok":
            low, high = ratios.interval([record]) or (None, None)
            row |= zip(_SUMMARY, (len(record.seconds), ratios.median([record]), low, high), strict=True)
            for kind, point in found.placed.get((record.setting, record.case), {}).items() if record.honest else ():
                row |= {f"{kind}_{name}": getattr(point, name) for name in ("speedup", "efficiency", "baseline_devices")}
                row["against_jit"] = point.against_jit
        rows.append(row | {"honest": record.honest} | {f"environment.{k}": v for k, v in environment_columns(record.environment)})
    return rows


def curve_table(found: Findings) -> ExportTable:
    """A point of a curve each, with the case that it is of."""
    rows = []
    for curve in found.curves:
        for point, timing in zip(curve.points, curve.timings, strict=True):
            case = timing.case
            row = {"name": curve.name, "kind": curve.kind, "key": case.key, "environment": curve.environment}
            rows.append(row | _case_row(case) | {name: getattr(point, name) for name in _OF_POINT})
    return ExportTable("curves", _wide({"name": str, "kind": str} | _IDENTITY | _OF_CASE | _sizes(rows) | _OF_POINT, rows), rows)


def sample_table(found: Findings) -> ExportTable:
    """A sample each, in the order in which its process took it; `seconds_min` is the same sample on the fastest process."""
    kinds = {"key": str, "replicate": int, "environment": str, "index": int, "seconds": float, "seconds_min": float}
    return ExportTable("samples", kinds, _sample_rows(found.records))


def _sample_rows(of: Sequence[Record]) -> Iterator[dict[str, Any]]:
    for record in of:
        same = _identity(record) | {"replicate": record.replicate}
        least = record.seconds_min if len(record.seconds_min) == len(record.seconds) else [None] * len(record.seconds)
        for index, (seconds, fastest) in enumerate(zip(record.seconds, least, strict=True)):
            yield same | {"index": index, "seconds": seconds, "seconds_min": fastest}


def law_table(found: Findings) -> ExportTable:
    """A part of a law that was fitted to a curve each, with what is said of the law as a whole."""
    rows = []
    for curve, fitted in found.laws:
        for law in fitted:
            whole = {"name": curve.name, "kind": curve.kind, "environment": curve.environment, "law": law.name}
            whole |= {name: getattr(law, name) for name in ("seconds", "spread", "best", "limit", "peak")}
            rows += [whole | {"part": part, **estimate._asdict()} for part, estimate in law.parts.items()]
    return ExportTable("laws", dict(_LAW), rows)


def plan_table(found: Findings) -> ExportTable:
    """What was planned for each hardware, a case each, whatever became of it: what was counted, and what it would take there."""
    rows = []
    for forecast in found.forecasts:
        efficiency = {point.record.key: point.efficiency for curve in forecast.curves for point in curve.points}
        for record in forecast.records:
            row = {"hardware": forecast.hardware} | _identity(record) | _case_row(record.case)
            row |= {column: (record.predicted or {}).get(name) for name, column in _PREDICTED.items()}
            row |= {name: getattr(record, name) for name in _OF_PLAN} | {"efficiency": efficiency.get(record.key)}
            rows.append(row | {f"environment.{k}": v for k, v in environment_columns(record.environment)})
    told = {column: str if name in ("bound", "by") else float for name, column in _PREDICTED.items()} | {"efficiency": float}
    kinds = {"hardware": str} | _IDENTITY | _OF_CASE | _sizes(rows) | {name: _EVERY_FIELD[name] for name in _OF_PLAN} | told
    return ExportTable("plans", _wide(kinds | {n: str for row in rows for n in row if n.startswith("environment.")}, rows), rows)


def _identity(record: Record) -> dict[str, Any]:
    return {"key": record.key, "environment": record.setting}


def _case_row(case: Case) -> dict[str, Any]:
    fields, sizes = to_dict(case), {f"sizes.{name}": size for name, size in case.sizes.items()}
    return {column: fields[name] for name, column in _NAMES.items()} | sizes


def _apart(record: Record) -> dict[str, Any]:
    """The parts of what is several values, each of the kind of its column or not at all; a list by how long it is."""
    row = {}
    for field, names in _APART.items():
        whole = getattr(record, field)
        for name, kind in names.items():
            part = whole.get(name) if isinstance(whole, Mapping) else None
            part = len(part) if isinstance(part, list) else part
            row[f"{field}.{name}"] = part if isinstance(part, kind) else None
    return row


def _sizes(rows: Iterable[Mapping[str, Any]]) -> dict[str, Kind]:
    return {name: int for row in rows for name in row if name.startswith("sizes.")}


def _wide(kinds: Mapping[str, Kind], rows: Sequence[Mapping[str, Any]]) -> dict[str, Kind]:
    """The same kinds, integers that a column of them does not hold as text: a seed of many digits, a chunk that is `auto`."""
    whole = [name for name, kind in kinds.items() if kind is int]
    large = {name for name in whole if any(_odd(row.get(name)) for row in rows)}
    return {name: str if name in large else kind for name, kind in kinds.items()}


def _odd(value: Any) -> bool:
    return isinstance(value, str) or abs(value or 0) >= _LARGEST


def environment_columns(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """An environment as names and words, lists and mappings joined."""
    told = []
    for name, value in environment.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{k} {v}" for k, v in value.items())
        elif isinstance(value, list):
            value = ", ".join(map(str, value))
        told.append((name, "" if value is None else str(value)))
    return told
