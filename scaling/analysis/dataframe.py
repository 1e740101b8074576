"""Convert records, curves, time samples, fitted laws and plans to pandas DataFrames with typed columns.

The main table has one row per record in full precision. The other tables except that of the laws can be
joined to it by the columns `key` and `environment`. The table of laws contains the name and environment of
each curve.
"""

import itertools
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from scaling.analysis import ratios
from scaling.analysis.curves import CurvePoint
from scaling.analysis.environments import environment_columns
from scaling.analysis.findings import Findings, read
from scaling.analysis.timings import nodes_of
from scaling.core.case import Case, to_dict
from scaling.core.record import Record
from scaling.results import store

if TYPE_CHECKING:
    from pandas import DataFrame

_DTYPES = {bool: "boolean", int: "Int64", float: "float64", str: "str"}  # column type -> pandas dtype
_LARGEST_INTEGER = 2**63
_PLAN_ONLY = ("program_flops", "program_transcendentals", "program", "compiled_as", "capacity_bytes")
_PLAN_FIELDS = (
    "status", "reason", "text", "started_at", "trace_seconds", "lower_seconds", "compile_seconds", "passes",
    "flops", "transcendentals", "hbm_bytes", "temp_bytes", "argument_bytes", "output_bytes", "peak_bytes",
    "collective_bytes", "compulsory_bytes", *_PLAN_ONLY,
)  # fmt: skip
_PREDICTION_COLUMNS = {  # key of a prediction -> column
    "seconds": "predicted_seconds", "low": "low", "high": "high", "call": "call_seconds",
    "compute": "compute_seconds", "communication": "communication_seconds", "waiting": "waiting_seconds",
    "bound": "bound", "by": "by",
}  # fmt: skip
_NESTED_COLUMNS: dict[str, tuple[str, type]] = {  # column -> (record field, type); a list becomes its length
    "blocks.block": ("blocks", int), "blocks.chunk": ("blocks", int), "blocks.storage": ("blocks", str),
    "blocks.limit_bytes": ("blocks", int), "blocks.probes": ("blocks", int),
    "colors.columns": ("colors", int), "colors.rows": ("colors", int),
    "checked.entries": ("checked", float), "checked.points": ("checked", float),
}  # fmt: skip
_RATIOS = ("speedup", "efficiency", "against_jit")
_CURVE_COLUMNS = ("baseline_devices", *(f"{name}{end}" for name in _RATIOS for end in ("", "_low", "_high")))


def _scalar_fields(dataclass: type) -> dict[str, type]:
    hints = typing.get_type_hints(dataclass).items()
    kinds = {n: typing.get_args(h)[0] if isinstance(h, types.UnionType) else h for n, h in hints}
    return {name: kind for name, kind in kinds.items() if kind in _DTYPES}


_RECORD_FIELDS = _scalar_fields(Record)
_CASE_COLUMNS = {  # case field -> column, prefixed if a record field has the same name
    name: f"case.{name}" if name in _RECORD_FIELDS else name for name in _scalar_fields(Case)
}
_TYPES: dict[str, type] = {
    **dict.fromkeys(_CURVE_COLUMNS[1:], float),
    **{column: _scalar_fields(Case)[name] for name, column in _CASE_COLUMNS.items()},
    **_RECORD_FIELDS, **{name: kind for name, (_, kind) in _NESTED_COLUMNS.items()},
    **{name: float for name in _PREDICTION_COLUMNS.values() if name not in ("bound", "by")},
    **dict.fromkeys(("median", "value", "low", "high", "seconds", "seconds_min"), float),
    **dict.fromkeys(("spread", "limit", "peak"), float),
    **dict.fromkeys(("baseline_devices", "samples", "index", "nodes"), int),
    "honest": bool, "best": bool,
}  # fmt: skip  # all other columns are text


def load(folder: str | PathLike[str], samples: bool = False) -> "DataFrame":
    """Load a results folder as a pandas DataFrame with one row per record (the run of a case in one process).

    If `samples` is true, the DataFrame has one row per time sample. docs/notebook.md documents the columns.
    """
    findings = read(store.folder_of(fspath(folder)))
    frame = record_table(findings)
    if not samples:
        return frame
    columns = [c for c in frame if c == "status" or c in _CASE_COLUMNS.values() or c.startswith("sizes.")]
    rows = [row for row, record in enumerate(findings.records) for _ in record.seconds]
    return sample_table(findings).join(frame.loc[rows, columns].reset_index(drop=True))


def export_tables(findings: Findings) -> "dict[str, DataFrame]":
    """Return a dict from the name of each exported table to the table.

    The names are "records", "curves" (scaling curves), "samples" (of times), "laws" (fitted scaling laws),
    and "plans" if there are planned cases.
    """
    tables = {
        "records": record_table, "curves": curve_table, "samples": sample_table, "laws": law_table,
        **({"plans": plan_table} if findings.forecasts else {}),
    }  # fmt: skip
    return {name: make_table(findings) for name, make_table in tables.items()}


def to_frame(columns: Iterable[str], rows: Sequence[Mapping[str, Any]]) -> "DataFrame":
    """Return a DataFrame with typed columns. `rows` are dicts from column name to cell.

    The entry "sizes" of `columns` is replaced by the columns of the rows whose names begin with "sizes.".
    Those that begin with "environment." are appended. An integer column becomes text if it contains strings
    or integers beyond 64 bits.
    """
    import pandas

    present = dict.fromkeys(name for row in rows for name in row)
    sizes, environment = ([n for n in present if n.startswith(p)] for p in ("sizes.", "environment."))
    names = [*columns, *environment]
    ordered = dict.fromkeys(n for name in names for n in (sizes if name == "sizes" else [name]))
    cells = {name: [row.get(name) for row in rows] for name in ordered}
    return pandas.DataFrame({_encodable(name): _typed_array(name, values) for name, values in cells.items()})


def _typed_array(name: str, cells: Sequence[Any]) -> Any:
    import pandas

    kind = int if name.startswith("sizes.") else _TYPES.get(name, str)
    if kind is int and any(isinstance(cell, str) or abs(cell or 0) >= _LARGEST_INTEGER for cell in cells):
        kind = str
    if kind is str:
        cells = [None if cell is None else _encodable(str(cell)) for cell in cells]
    return pandas.array(cells, dtype=_DTYPES[kind])


def _encodable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()  # writes lone surrogates as escapes


def record_table(findings: Findings) -> "DataFrame":
    """Return the table of all records, including failed and skipped ones, with one row per record."""
    certainties = {(row.first.environment, row.first.case): row.certainty for row in findings.fastest}
    fields = [name for name in _RECORD_FIELDS if name not in _PLAN_ONLY]
    rows = []
    for record in findings.records:
        row = _case_cells(record) | {name: getattr(record, name) for name in fields} | _nested_cells(record)
        if record.status == "ok":
            low, high = ratios.case_interval([record]) or (None, None)
            row |= {"samples": len(record.seconds), "median": ratios.case_median([record])}
            row |= {"low": low, "high": high, "certainty": certainties.get((record.setting, record.case))}
            row |= _scaling_cells(findings, record)
        row |= {"honest": record.honest, "nodes": nodes_of(record)}
        rows.append(row | _environment_cells(record))
    columns = (
        "key", "environment", *_CASE_COLUMNS.values(), "sizes", *fields, *_NESTED_COLUMNS, "samples",
        "median", "low", "high", "kind", *_CURVE_COLUMNS, "certainty", "honest", "nodes",
    )  # fmt: skip
    return to_frame(columns, rows)


def _scaling_cells(findings: Findings, record: Record) -> dict[str, Any]:
    """Return the cells of a record that describe its scaling curve, or {} if it is on no scaling curve.

    If the record is on both a strong and a weak scaling curve, the curve with more device counts is used.
    """
    curves = findings.curves_by_case.get((record.setting, record.case), {}) if record.honest else {}
    if not curves:
        return {}
    curve, point = max(curves.values(), key=lambda pair: (len(pair[0].points), pair[0].kind == "strong"))
    return {"kind": curve.kind} | _ratio_cells(point)


def _ratio_cells(point: CurvePoint) -> dict[str, Any]:
    ends = itertools.chain(*(getattr(point, name) or (None, None, None) for name in _RATIOS))
    return dict(zip(_CURVE_COLUMNS, (point.baseline_devices, *ends), strict=True))


def curve_table(findings: Findings) -> "DataFrame":
    """Return the table of scaling curves, with one row per device count of each curve."""
    rows = [
        {"name": curve.name, "kind": curve.kind}
        | _case_cells(point.timing.record)
        | dict(zip(("seconds", "low", "high"), point.timing.estimate, strict=True))
        | {"samples": len(point.timing.seconds)}
        | _ratio_cells(point)
        for curve in findings.curves
        for point in curve.points
    ]
    columns = (
        "name", "kind", "key", "environment", *_CASE_COLUMNS.values(), "sizes", "seconds", "low", "high",
        "samples", *_CURVE_COLUMNS,
    )  # fmt: skip
    return to_frame(columns, rows)


def sample_table(findings: Findings) -> "DataFrame":
    """Return the table of time samples in the order of measurement, with one row per sample.

    If several processes run a case together, the column `seconds` has the times of the slowest process, and
    `seconds_min` those of the fastest process.
    """
    rows = []
    for record in findings.records:
        common = {"key": record.key, "environment": record.setting, "replicate": record.replicate}
        has_minima = len(record.seconds_min) == len(record.seconds)
        for index, seconds in enumerate(record.seconds):
            least = record.seconds_min[index] if has_minima else None
            rows.append(common | {"index": index, "seconds": seconds, "seconds_min": least})
    return to_frame(("key", "replicate", "environment", "index", "seconds", "seconds_min"), rows)


def law_table(findings: Findings) -> "DataFrame":
    """Return the table of fitted scaling laws, with one row per parameter of each law."""
    rows = [
        {"name": curve.name, "kind": curve.kind, "environment": curve.environment, "law": law.name,
         "part": part, "limit": law.limit, "peak": law.peak, **estimate._asdict(),
         "seconds": law.seconds, "spread": law.spread, "best": law.best}
        for curve, laws in findings.scaling_fits
        for law in laws
        for part, estimate in law.parts.items()
    ]  # fmt: skip
    columns = (
        "name", "kind", "environment", "law", "part", "value", "low", "high", "seconds", "spread", "best",
        "limit", "peak",
    )  # fmt: skip
    return to_frame(columns, rows)


def plan_table(findings: Findings) -> "DataFrame":
    """Return the table of planned cases with counted work and predicted times, one row per planned case."""
    rows = []
    for forecast in findings.forecasts:
        points = (point for curve in forecast.curves for point in curve.points)
        efficiency = {point.timing.case.key: point.efficiency.value for point in points}
        for record in forecast.records:
            predicted = record.predicted or {}
            row: dict[str, Any] = {"hardware": forecast.hardware, "efficiency": efficiency.get(record.key)}
            row |= _case_cells(record)
            row |= {column: predicted.get(name) for name, column in _PREDICTION_COLUMNS.items()}
            row |= {name: getattr(record, name) for name in _PLAN_FIELDS}
            rows.append(row | _environment_cells(record))
    columns = (
        "hardware", "key", "environment", *_CASE_COLUMNS.values(), "sizes", *_PLAN_FIELDS,
        *_PREDICTION_COLUMNS.values(), "efficiency",
    )  # fmt: skip
    return to_frame(columns, rows)


def _case_cells(record: Record) -> dict[str, Any]:
    fields, sizes = to_dict(record.case), {f"sizes.{n}": size for n, size in record.case.sizes.items()}
    cells = {column: fields[name] for name, column in _CASE_COLUMNS.items()}
    return {"key": record.key, "environment": record.setting} | cells | sizes


def _nested_cells(record: Record) -> dict[str, Any]:
    """Return a dict from columns such as 'blocks.chunk' to the values inside the dict fields of a record.

    A list is replaced by its length, and a value of an unexpected type by None.
    """
    cells = {}
    for column, (field, kind) in _NESTED_COLUMNS.items():
        value = getattr(record, field)
        part = value.get(column.partition(".")[2]) if isinstance(value, Mapping) else None
        part = len(part) if isinstance(part, list) else part
        cells[column] = part if isinstance(part, kind) else None
    return cells


def _environment_cells(record: Record) -> dict[str, str]:
    return {f"environment.{name}": text for name, text in environment_columns(record.environment)}
