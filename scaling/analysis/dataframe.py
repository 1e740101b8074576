"""Convert records, scaling curves and time samples to pandas DataFrames with typed columns (`load`)."""

import types
import typing
import warnings
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from scaling.analysis import ratios
from scaling.analysis.cases import environment_columns
from scaling.analysis.curves import CurvePoint
from scaling.analysis.findings import Findings, read
from scaling.analysis.timings import count_nodes
from scaling.core.case import Case
from scaling.core.formatting import format_count
from scaling.core.record import Record
from scaling.results import store

if TYPE_CHECKING:
    from pandas import DataFrame

_DTYPES = {bool: "boolean", int: "Int64", float: "float64", str: "str"}  # column type -> pandas dtype
_LARGEST_INTEGER = 2**63
_PLAN_ONLY = ("program_flops", "program_transcendentals", "program", "compiled_as", "capacity_bytes")
_NESTED_COLUMNS: dict[str, type] = {  # field of a record and its key -> type
    "blocks.block": int, "blocks.chunk": int, "blocks.storage": str, "colors.columns": int,
    "colors.rows": int, "checked.entries": float, "checked.points": float,
}  # fmt: skip
_RATIOS = ("speedup", "efficiency", "against_jit")
_RATIO_COLUMNS = tuple(f"{name}{end}" for name in _RATIOS for end in ("", "_low", "_high"))


def _scalar_fields(dataclass: type) -> dict[str, type]:
    hints = typing.get_type_hints(dataclass).items()
    kinds = {
        name: typing.get_args(hint)[0] if isinstance(hint, types.UnionType) else hint for name, hint in hints
    }
    return {name: kind for name, kind in kinds.items() if kind in _DTYPES}


_RECORD_FIELDS, _CASE_FIELDS = _scalar_fields(Record), _scalar_fields(Case)
_CASE_COLUMNS = {  # case field -> column, prefixed if a record field has the same name
    name: f"case.{name}" if name in _RECORD_FIELDS else name for name in _CASE_FIELDS
}
_CASE_KEYS = ("key", "environment", *_CASE_COLUMNS.values(), "sizes")
_TYPES: dict[str, type] = {
    **{column: _CASE_FIELDS[name] for name, column in _CASE_COLUMNS.items()},
    **_RECORD_FIELDS, **_NESTED_COLUMNS,
    **dict.fromkeys((*_RATIO_COLUMNS, "median", "low", "high", "seconds", "seconds_min"), float),
    **dict.fromkeys(("baseline_devices", "samples", "index", "nodes"), int), "honest": bool,
}  # fmt: skip  # all other columns are text


def load(folder: str | PathLike[str], samples: bool = False) -> "DataFrame":
    """Return a DataFrame with one row per record, or with one row per time sample if `samples` is true.

    Damaged lines of the record files are omitted, and a warning counts them. Raise `Refusal` if the folder
    contains no record.
    """
    results = store.require_results_folder(fspath(folder))
    findings = read(results)
    if not findings.records:
        raise store.no_records_error("load", results, findings.damaged)
    if findings.damaged:
        lines = format_count(len(findings.damaged), "damaged line")
        warnings.warn(f"{lines} left out, the first {findings.damaged[0]}", stacklevel=3)
    frame = record_columns(findings)
    if not samples:
        return frame
    case_columns = {"status", *_CASE_COLUMNS.values()}
    columns = [column for column in frame if column in case_columns or column.startswith("sizes.")]
    rows = [row for row, record in enumerate(findings.records) for _ in record.seconds]
    return _sample_columns(findings).join(frame.loc[rows, columns].reset_index(drop=True))


def export_tables(findings: Findings) -> dict[str, "DataFrame"]:
    """Return the tables "records", "curves" and "samples". They share the columns `key` and `environment`."""
    records = record_columns(findings)
    return {"records": records, "curves": _curve_columns(findings), "samples": _sample_columns(findings)}


def typed_columns(columns: Iterable[str], rows: Sequence[Mapping[str, Any]]) -> "DataFrame":
    """Return a DataFrame with typed columns. Each of `rows` is a dict from column name to cell.

    The first columns are `columns`, in which "sizes" means all columns "sizes.*". All columns
    "environment.*" follow. An integer column becomes text if one of its cells is text or exceeds 64 bits.
    """
    import pandas

    names_in_rows = dict.fromkeys(name for row in rows for name in row)
    sizes = [name for name in names_in_rows if name.startswith("sizes.")]
    environment = [name for name in names_in_rows if name.startswith("environment.")]
    names = [name for column in columns for name in (sizes if column == "sizes" else [column])]
    table = {}
    for name in (*names, *environment):
        cells, column_type = [row.get(name) for row in rows], int if name in sizes else _TYPES.get(name, str)
        if column_type is int and any(
            isinstance(cell, str) or abs(cell or 0) >= _LARGEST_INTEGER for cell in cells
        ):
            column_type = str
        convert = _encodable if column_type is str else column_type
        cells = [None if cell is None else convert(cell) for cell in cells]
        table[_encodable(name)] = pandas.array(cells, dtype=_DTYPES[column_type])
    return pandas.DataFrame(table)


def _encodable(value: object) -> str:
    """Return a value as text that UTF-8 can encode, with escaped lone surrogates and carriage returns."""
    return str(value).encode(errors="backslashreplace").decode().replace("\r", r"\r")


def record_columns(findings: Findings) -> "DataFrame":
    """Return a DataFrame with one row per record, including failed and skipped records."""
    certainties = {(row.fastest.environment, row.fastest.case): row.certainty for row in findings.fastest}
    fields = [name for name in _RECORD_FIELDS if name not in _PLAN_ONLY]
    nested = {column: column.split(".") for column in _NESTED_COLUMNS}
    rows = []
    for record in findings.records:
        row = _case_cells(record) | {name: getattr(record, name) for name in fields}
        row |= {column: (getattr(record, name) or {}).get(key) for column, (name, key) in nested.items()}
        row |= {"honest": record.honest, "nodes": count_nodes(record)}
        row |= {f"environment.{name}": text for name, text in environment_columns(record.environment)}
        if record.status == "ok":
            row |= zip(("median", "low", "high"), ratios.estimate_time([record]), strict=True)
            row["certainty"] = certainties.get((record.setting, record.case))
            row["samples"] = len(record.seconds)
            pairs = findings.curves_by_case.get((record.setting, record.honest, record.case), {})
            if pairs:  # the longest scaling curve that contains the record
                curve, point = max(pairs.values(), key=lambda p: (len(p[0].points), p[0].kind == "strong"))
                row |= {"kind": curve.kind} | _ratio_cells(point)
        rows.append(row)
    columns = (
        *_CASE_KEYS, *fields, *_NESTED_COLUMNS, "samples", "median", "low", "high", "kind",
        "baseline_devices", *_RATIO_COLUMNS, "certainty", "honest", "nodes",
    )  # fmt: skip
    return typed_columns(columns, rows)


def _ratio_cells(point: CurvePoint) -> dict[str, Any]:
    numbers = chain(*(getattr(point, name) or (None, None, None) for name in _RATIOS))
    return {"baseline_devices": point.baseline_devices} | dict(zip(_RATIO_COLUMNS, numbers, strict=True))


def _curve_columns(findings: Findings) -> "DataFrame":
    """Return a DataFrame with one row for each number of devices of each scaling curve."""
    rows = [
        {"name": curve.name, "kind": curve.kind, "samples": len(point.timing.seconds)}
        | _case_cells(point.timing.record)
        | dict(zip(("seconds", "low", "high"), point.timing.estimate, strict=True))
        | _ratio_cells(point)
        for curve in findings.curves
        for point in curve.points
    ]
    times = ("seconds", "low", "high", "samples")
    return typed_columns(("name", "kind", *_CASE_KEYS, *times, "baseline_devices", *_RATIO_COLUMNS), rows)


def _sample_columns(findings: Findings) -> "DataFrame":
    """Return a DataFrame with one row per time sample, in the order of measurement."""
    # `seconds` and `seconds_min` are the times of the slowest and the fastest process.
    columns = ("key", "replicate", "environment", "index", "seconds", "seconds_min")
    rows = [
        dict(zip(columns, (record.key, record.replicate, record.setting, index, *times), strict=True))
        for record in findings.records
        for index, times in enumerate(zip_longest(record.seconds, record.seconds_min[: len(record.seconds)]))
    ]
    return typed_columns(columns, rows)


def _case_cells(record: Record) -> dict[str, Any]:
    cells = {column: getattr(record.case, name) for name, column in _CASE_COLUMNS.items()}
    sizes = {f"sizes.{name}": size for name, size in record.case.sizes.items()}
    return {"key": record.key, "environment": record.setting} | cells | sizes
