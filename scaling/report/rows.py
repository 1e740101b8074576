"""Rows: a results folder as flat tables in full precision: one value per cell, one type per column.

Plans have a table of their own. Knows no file format (export.py); nothing is rounded or put into words.
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

ColumnType = Any  # bool, int, float, str, list[int] or list[float]
# Fields with several values; some parts have columns of their own.
_NESTED_FIELDS = (
    "case", "environment", "collectives", "compilations", "marked", "before", "after", "blocks", "colors",
    "kernels", "messages", "predicted", "checked",
)  # fmt: skip
# Fields of plans only, the columns of a plan, and the column of each part of a prediction.
_PLAN_ONLY = ("program_flops", "program_transcendentals", "program", "compiled_as", "capacity_bytes")
_PLAN_FIELDS = (
    "status", "reason", "text", "started_at", "trace_seconds", "lower_seconds", "compile_seconds", "passes",
    "flops", "transcendentals", "hbm_bytes", "temp_bytes", "argument_bytes", "output_bytes", "peak_bytes",
    "collective_bytes", "compulsory_bytes", *_PLAN_ONLY,
)  # fmt: skip
_PREDICTION_COLUMNS = {
    "seconds": "predicted_seconds", "low": "low", "high": "high", "call": "call_seconds",
    "compute": "compute_seconds", "communication": "communication_seconds", "waiting": "waiting_seconds",
    "bound": "bound", "by": "by",
}  # fmt: skip
_NESTED_PARTS: dict[str, dict[str, ColumnType]] = {
    "blocks": {"block": int, "chunk": int, "storage": str, "limit_bytes": int, "probes": int},
    "colors": {"columns": int, "rows": int},
    "checked": {"entries": float, "points": float},
}
_PART_COLUMNS = {
    f"{field}.{name}": kind for field, names in _NESTED_PARTS.items() for name, kind in names.items()
}
_LARGEST_INTEGER = 2**63  # beyond 64-bit integers
_SUMMARY_COLUMNS = {"samples": int, "seconds_median": float, "seconds_low": float, "seconds_high": float}
_SCALING_COLUMNS = {
    f"{kind}_{name}": of
    for kind in ("strong", "weak")
    for name, of in (("speedup", float), ("efficiency", float), ("baseline_devices", int))
} | {"against_jit": float}
_LAW_COLUMNS = {
    "name": str, "kind": str, "environment": str, "law": str, "part": str, "value": float, "low": float,
    "high": float, "seconds": float, "spread": float, "best": bool, "limit": float, "peak": float,
}  # fmt: skip


class ExportTable(NamedTuple):
    """A table: its name, the type of each column, and rows as mappings from column to value; missing
    values are None.
    """

    name: str
    column_types: dict[str, ColumnType]
    rows: Iterable[Mapping[str, Any]]


def _field_types(of: type) -> dict[str, ColumnType]:
    """Return the fields of a dataclass that are one value or a list of values, with their types."""
    hints = {
        name: hint
        for name, hint in typing.get_type_hints(of).items()
        if name not in (*_NESTED_FIELDS, "sizes")
    }
    plain = {
        name: typing.get_args(hint)[0] for name, hint in hints.items() if isinstance(hint, types.UnionType)
    }
    return hints | plain


_RECORD_FIELDS, _POINT_COLUMNS = _field_types(Record), _field_types(CurvePoint)
_RECORD_COLUMNS = {name: kind for name, kind in _RECORD_FIELDS.items() if name not in _PLAN_ONLY}
_CASE_COLUMN_NAMES = {
    name: f"case.{name}" if name in _RECORD_COLUMNS else name for name in _field_types(Case)
}  # a record has fields of the same name
_CASE_COLUMNS = {_CASE_COLUMN_NAMES[name]: kind for name, kind in _field_types(Case).items()}
_IDENTITY_COLUMNS = {"key": str, "environment": str}  # in all tables


def export_tables(findings: Findings) -> list[ExportTable]:
    """Return every table of a folder; that of plans only where there is a plan."""
    plans = [plan_table(findings)] if findings.forecasts else []
    return [
        record_table(findings),
        curve_table(findings),
        sample_table(findings),
        law_table(findings),
        *plans,
    ]


def record_table(findings: Findings) -> ExportTable:
    """Return the table of records, whatever their status."""
    rows = record_rows(findings)
    column_types = (
        _IDENTITY_COLUMNS
        | _CASE_COLUMNS
        | _size_columns(rows)
        | _RECORD_COLUMNS
        | _PART_COLUMNS
        | _SUMMARY_COLUMNS
        | _SCALING_COLUMNS
        | {"honest": bool}
    )
    environment_types = {name: str for row in rows for name in row if name.startswith("environment.")}
    return ExportTable("records", _widen_integers(column_types | environment_types, rows), rows)


def record_rows(findings: Findings) -> list[dict[str, Any]]:
    """Return a row for each record: its case, fields, median, speed-ups, and environment in words."""
    rows = []
    for record in findings.records:
        row = _identity_cells(record) | _case_cells(record.case)
        row |= {name: getattr(record, name) for name in _RECORD_COLUMNS} | _part_cells(record)
        if record.status == "ok":
            low, high = ratios.case_interval([record]) or (None, None)
            row |= zip(
                _SUMMARY_COLUMNS, (len(record.seconds), ratios.case_median([record]), low, high), strict=True
            )
            for kind, point in (
                findings.points_by_case.get((record.setting, record.case), {}).items()
                if record.honest
                else ()
            ):
                row |= {
                    f"{kind}_{name}": getattr(point, name)
                    for name in ("speedup", "efficiency", "baseline_devices")
                }
                row["against_jit"] = point.against_jit
        rows.append(
            row
            | {"honest": record.honest}
            | {f"environment.{k}": v for k, v in environment_columns(record.environment)}
        )
    return rows


def curve_table(findings: Findings) -> ExportTable:
    """Return a row for each point of a curve, with its case."""
    rows = []
    for curve in findings.curves:
        for point, timing in zip(curve.points, curve.timings, strict=True):
            case = timing.case
            row = {"name": curve.name, "kind": curve.kind, "key": case.key, "environment": curve.environment}
            rows.append(row | _case_cells(case) | {name: getattr(point, name) for name in _POINT_COLUMNS})
    return ExportTable(
        "curves",
        _widen_integers(
            {"name": str, "kind": str}
            | _IDENTITY_COLUMNS
            | _CASE_COLUMNS
            | _size_columns(rows)
            | _POINT_COLUMNS,
            rows,
        ),
        rows,
    )


def sample_table(findings: Findings) -> ExportTable:
    """Return a row for each sample in order; `seconds_min` is the same sample on the fastest process."""
    column_types = {
        "key": str,
        "replicate": int,
        "environment": str,
        "index": int,
        "seconds": float,
        "seconds_min": float,
    }
    return ExportTable("samples", column_types, _sample_rows(findings.records))


def _sample_rows(of: Sequence[Record]) -> Iterator[dict[str, Any]]:
    for record in of:
        same = _identity_cells(record) | {"replicate": record.replicate}
        least = (
            record.seconds_min
            if len(record.seconds_min) == len(record.seconds)
            else [None] * len(record.seconds)
        )
        for index, (seconds, fastest) in enumerate(zip(record.seconds, least, strict=True)):
            yield same | {"index": index, "seconds": seconds, "seconds_min": fastest}


def law_table(findings: Findings) -> ExportTable:
    """Return a row for each part of each fitted law."""
    rows = []
    for curve, fitted in findings.scaling_fits:
        for law in fitted:
            shared = {
                "name": curve.name,
                "kind": curve.kind,
                "environment": curve.environment,
                "law": law.name,
            }
            shared |= {name: getattr(law, name) for name in ("seconds", "spread", "best", "limit", "peak")}
            rows += [shared | {"part": part, **estimate._asdict()} for part, estimate in law.parts.items()]
    return ExportTable("laws", dict(_LAW_COLUMNS), rows)


def plan_table(findings: Findings) -> ExportTable:
    """Return a row for each planned case: what was counted, and the predicted times."""
    rows = []
    for forecast in findings.forecasts:
        efficiency = {
            point.record.key: point.efficiency for curve in forecast.curves for point in curve.points
        }
        for record in forecast.records:
            row = {"hardware": forecast.hardware} | _identity_cells(record) | _case_cells(record.case)
            row |= {
                column: (record.predicted or {}).get(name) for name, column in _PREDICTION_COLUMNS.items()
            }
            row |= {name: getattr(record, name) for name in _PLAN_FIELDS} | {
                "efficiency": efficiency.get(record.key)
            }
            rows.append(row | {f"environment.{k}": v for k, v in environment_columns(record.environment)})
    columns = {
        column: str if name in ("bound", "by") else float for name, column in _PREDICTION_COLUMNS.items()
    } | {"efficiency": float}
    column_types = (
        {"hardware": str}
        | _IDENTITY_COLUMNS
        | _CASE_COLUMNS
        | _size_columns(rows)
        | {name: _RECORD_FIELDS[name] for name in _PLAN_FIELDS}
        | columns
    )
    return ExportTable(
        "plans",
        _widen_integers(
            column_types | {n: str for row in rows for n in row if n.startswith("environment.")}, rows
        ),
        rows,
    )


def _identity_cells(record: Record) -> dict[str, Any]:
    return {"key": record.key, "environment": record.setting}


def _case_cells(case: Case) -> dict[str, Any]:
    fields, sizes = to_dict(case), {f"sizes.{name}": size for name, size in case.sizes.items()}
    return {column: fields[name] for name, column in _CASE_COLUMN_NAMES.items()} | sizes


def _part_cells(record: Record) -> dict[str, Any]:
    """Return the parts of nested fields; None where a part has another type than its column. A list
    counts by its length.
    """
    row = {}
    for field, parts in _NESTED_PARTS.items():
        value = getattr(record, field)
        for name, kind in parts.items():
            part = value.get(name) if isinstance(value, Mapping) else None
            part = len(part) if isinstance(part, list) else part
            row[f"{field}.{name}"] = part if isinstance(part, kind) else None
    return row


def _size_columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, ColumnType]:
    return {name: int for row in rows for name in row if name.startswith("sizes.")}


def _widen_integers(
    column_types: Mapping[str, ColumnType], rows: Sequence[Mapping[str, Any]]
) -> dict[str, ColumnType]:
    """Return the types, with text for integer columns that hold words or integers beyond 64 bits."""
    names = [name for name, kind in column_types.items() if kind is int]
    large = {name for name in names if any(_exceeds_integer(row.get(name)) for row in rows)}
    return {name: str if name in large else kind for name, kind in column_types.items()}


def _exceeds_integer(value: Any) -> bool:
    return isinstance(value, str) or abs(value or 0) >= _LARGEST_INTEGER


def environment_columns(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return an environment as names and words; lists and mappings are joined."""
    columns = []
    for name, value in environment.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{k} {v}" for k, v in value.items())
        elif isinstance(value, list):
            value = ", ".join(map(str, value))
        columns.append((name, "" if value is None else str(value)))
    return columns
