"""Convert records, curves, samples, laws and plans to typed pandas DataFrames (`load`, `export_tables`).

All tables except the table of laws can be joined on the columns `key` and `environment`. The table of laws
contains the name and environment of each curve.
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
from scaling.core.case import Case
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
_NESTED_COLUMNS: dict[str, type] = {  # field of a record and key -> type; a list becomes its length
    "blocks.block": int, "blocks.chunk": int, "blocks.storage": str, "blocks.limit_bytes": int,
    "blocks.probes": int, "colors.columns": int, "colors.rows": int, "checked.entries": float,
    "checked.points": float,
}  # fmt: skip
_RATIOS = ("speedup", "efficiency", "against_jit")
_RATIO_COLUMNS = tuple(f"{name}{end}" for name in _RATIOS for end in ("", "_low", "_high"))


def _scalar_fields(dataclass: type) -> dict[str, type]:
    hints = typing.get_type_hints(dataclass).items()
    kinds = {n: typing.get_args(h)[0] if isinstance(h, types.UnionType) else h for n, h in hints}
    return {name: kind for name, kind in kinds.items() if kind in _DTYPES}


_RECORD_FIELDS, _CASE_FIELDS = _scalar_fields(Record), _scalar_fields(Case)
_CASE_COLUMNS = {  # case field -> column, prefixed if a record field has the same name
    name: f"case.{name}" if name in _RECORD_FIELDS else name for name in _CASE_FIELDS
}
_CASE_KEYS = ("key", "environment", *_CASE_COLUMNS.values(), "sizes")
_TYPES: dict[str, type] = {
    **{column: _CASE_FIELDS[name] for name, column in _CASE_COLUMNS.items()},
    **_RECORD_FIELDS, **_NESTED_COLUMNS,
    **dict.fromkeys((*_RATIO_COLUMNS, *_PREDICTION_COLUMNS.values(), "median", "value"), float),
    **dict.fromkeys(("seconds", "seconds_min", "spread", "limit", "peak"), float),
    **dict.fromkeys(("baseline_devices", "samples", "index", "nodes"), int),
    "bound": str, "by": str, "honest": bool, "best": bool,
}  # fmt: skip  # all other columns are text


def load(folder: str | PathLike[str], samples: bool = False) -> "DataFrame":
    """Load a results folder as a pandas DataFrame, one row per record or, if `samples` is true, per sample.

    docs/notebook.md documents the columns.
    """
    findings = read(store.folder_of(fspath(folder)))
    frame = record_table(findings)
    if not samples:
        return frame
    columns = [c for c in frame if c == "status" or c in _CASE_COLUMNS.values() or c.startswith("sizes.")]
    rows = [row for row, record in enumerate(findings.records) for _ in record.seconds]
    return sample_table(findings).join(frame.loc[rows, columns].reset_index(drop=True))


def export_tables(findings: Findings) -> "dict[str, DataFrame]":
    """Return the exported tables as a dict from name to table. Plans are included if there are any."""
    tables = {
        "records": record_table(findings),
        "curves": curve_table(findings),
        "samples": sample_table(findings),
        "laws": law_table(findings),
    }
    return tables | {"plans": plan_table(findings)} if findings.forecasts else tables


def to_frame(columns: Iterable[str], rows: Sequence[Mapping[str, Any]]) -> "DataFrame":
    """Return a DataFrame with typed columns. `rows` are dicts from column name to cell.

    The entry "sizes" of `columns` means all columns "sizes.*". All columns "environment.*" are appended.
    An integer column becomes text if it contains strings or integers beyond 64 bits.
    """
    import pandas

    present = dict.fromkeys(name for row in rows for name in row)
    sizes, environment = ([n for n in present if n.startswith(p)] for p in ("sizes.", "environment."))
    names = [name for column in columns for name in (sizes if column == "sizes" else [column])]
    cells = {name: [row.get(name) for row in rows] for name in (*names, *environment)}
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
    """Return the text with escapes for lone surrogates and for carriage returns, which end a row of CSV."""
    return text.encode(errors="backslashreplace").decode().replace("\r", r"\r")


def record_table(findings: Findings) -> "DataFrame":
    """Return the table of all records, including failed and skipped ones, with one row per record."""
    certainties = {(row.first.environment, row.first.case): row.certainty for row in findings.fastest}
    fields = [name for name in _RECORD_FIELDS if name not in _PLAN_ONLY]
    rows = []
    for record in findings.records:
        row = _case_cells(record) | {name: getattr(record, name) for name in fields}
        row |= {column: _nested_cell(record, column, kind) for column, kind in _NESTED_COLUMNS.items()}
        if record.status == "ok":
            row |= zip(("median", "low", "high"), ratios.estimate_time([record]), strict=True)
            certainty = certainties.get((record.setting, record.case))
            row |= {"samples": len(record.seconds), "certainty": certainty}
            row |= _scaling_cells(findings, record)
        rows.append(row | {"honest": record.honest, "nodes": nodes_of(record)} | _environment_cells(record))
    columns = (
        *_CASE_KEYS, *fields, *_NESTED_COLUMNS, "samples", "median", "low", "high", "kind",
        "baseline_devices", *_RATIO_COLUMNS, "certainty", "honest", "nodes",
    )  # fmt: skip
    return to_frame(columns, rows)


def _scaling_cells(findings: Findings, record: Record) -> dict[str, Any]:
    """Return the cells that describe the longest scaling curve of a record, or {} if it is on no curve."""
    curves = findings.curves_by_case.get((record.setting, record.case), {}) if record.honest else {}
    if not curves:
        return {}
    curve, point = max(curves.values(), key=lambda pair: (len(pair[0].points), pair[0].kind == "strong"))
    return {"kind": curve.kind} | _ratio_cells(point)


def _ratio_cells(point: CurvePoint) -> dict[str, Any]:
    numbers = itertools.chain(*(getattr(point, name) or (None, None, None) for name in _RATIOS))
    return {"baseline_devices": point.baseline_devices} | dict(zip(_RATIO_COLUMNS, numbers, strict=True))


def curve_table(findings: Findings) -> "DataFrame":
    """Return the table of scaling curves, with one row per device count of each curve."""
    rows = [
        {"name": curve.name, "kind": curve.kind}
        | _case_cells(point.timing.record)
        | point.timing.estimate._asdict()
        | {"seconds": point.seconds, "samples": len(point.timing.seconds)}
        | _ratio_cells(point)
        for curve in findings.curves
        for point in curve.points
    ]
    times = ("seconds", "low", "high", "samples")
    return to_frame(("name", "kind", *_CASE_KEYS, *times, "baseline_devices", *_RATIO_COLUMNS), rows)


def sample_table(findings: Findings) -> "DataFrame":
    """Return the table of time samples in the order of measurement, with one row per sample.

    `seconds` is the time of the slowest process of a case, and `seconds_min` the time of the fastest.
    """
    columns = ("key", "replicate", "environment", "index", "seconds", "seconds_min")
    rows = []
    for record in findings.records:
        count = len(record.seconds)
        minima = record.seconds_min if len(record.seconds_min) == count else [None] * count
        for index, times in enumerate(zip(record.seconds, minima, strict=True)):
            cells = (record.key, record.replicate, record.setting, index, *times)
            rows.append(dict(zip(columns, cells, strict=True)))
    return to_frame(columns, rows)


def law_table(findings: Findings) -> "DataFrame":
    """Return the table of fitted scaling laws, with one row per parameter of each law."""
    rows = [
        (curve.name, curve.kind, curve.environment, law.name, part, *estimate, law.seconds, law.spread,
         law.best, law.limit, law.peak)
        for curve, laws in findings.scaling_fits
        for law in laws
        for part, estimate in law.parts.items()
    ]  # fmt: skip
    columns = (
        "name", "kind", "environment", "law", "part", "value", "low", "high", "seconds", "spread", "best",
        "limit", "peak",
    )  # fmt: skip
    return to_frame(columns, [dict(zip(columns, row, strict=True)) for row in rows])


def plan_table(findings: Findings) -> "DataFrame":
    """Return the table of planned cases with counted work and predicted times, one row per planned case."""
    rows = []
    for forecast in findings.forecasts:
        points = (point for curve in forecast.curves for point in curve.points)
        efficiency = {point.timing.case.key: point.efficiency.value for point in points}
        for record in forecast.records:
            predicted = record.predicted or {}
            row: dict[str, Any] = {"hardware": forecast.hardware, "efficiency": efficiency.get(record.key)}
            row |= _case_cells(record) | {name: getattr(record, name) for name in _PLAN_FIELDS}
            row |= {column: predicted.get(name) for name, column in _PREDICTION_COLUMNS.items()}
            rows.append(row | _environment_cells(record))
    predictions = _PREDICTION_COLUMNS.values()
    return to_frame(("hardware", *_CASE_KEYS, *_PLAN_FIELDS, *predictions, "efficiency"), rows)


def _case_cells(record: Record) -> dict[str, Any]:
    cells = {column: getattr(record.case, name) for name, column in _CASE_COLUMNS.items()}
    sizes = {f"sizes.{name}": size for name, size in record.case.sizes.items()}
    return {"key": record.key, "environment": record.setting} | cells | sizes


def _nested_cell(record: Record, column: str, kind: type) -> Any:
    field, _, name = column.partition(".")
    value = (getattr(record, field) or {}).get(name)
    value = len(value) if isinstance(value, list) else value
    return value if isinstance(value, kind) else None  # what a field contains is not checked when it is read


def _environment_cells(record: Record) -> dict[str, str]:
    return {f"environment.{name}": text for name, text in environment_columns(record.environment)}
