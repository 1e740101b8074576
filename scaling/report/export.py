"""Export: a results folder as files for other programs: CSV, Parquet, Extra-P, and figures."""

import csv
import importlib.util
import itertools
import typing
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from scaling.analysis.findings import Findings, read
from scaling.contrib import extrap
from scaling.core.case import Refusal, unknown_name
from scaling.core.store import replacing
from scaling.report.rows import ColumnType, ExportTable, export_tables

FOLDER = "export"  # within the results folder by default
UNENCODABLE = "backslashreplace"  # lone surrogates are written as escapes
_BATCH = 50_000  # rows that are held in memory at once
_PARQUET = "pip install 'ad-scaling[parquet]', or pip install pyarrow"


def write_exports(folder: Path, formats: Collection[str], output: Path | None = None) -> list[Path]:
    """Write a results folder in these formats and return the files. Bad input is refused before anything
    is written.
    """
    for name in formats:
        if name not in FORMATS:
            raise unknown_name("format", name, FORMATS)
    if "parquet" in formats and importlib.util.find_spec("pyarrow") is None:
        raise Refusal(f"format parquet needs pyarrow, which is not installed: {_PARQUET}")
    findings, target = read(folder), folder / FOLDER if output is None else output
    if not findings.records and not findings.forecasts:
        raise Refusal(f"no record to export in {str(folder)!r}; `scaling run` makes some")
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal(
            f"cannot write to {target}: {error.strerror}; give another folder with --output PATH"
        ) from None
    return [path for name in dict.fromkeys(formats) for path in FORMATS[name](findings, target)]


def _write_csv(findings: Findings, output: Path) -> list[Path]:
    written = []
    for table in export_tables(findings):
        path = output / f"{table.name}.csv"
        with (
            replacing(path) as fresh,
            fresh.open("w", encoding="utf-8", errors=UNENCODABLE, newline="") as file,
        ):
            write_csv_table(table, file)
        written.append(path)
    return written


def write_csv_table(table: ExportTable, file: TextIO) -> None:
    """Write a table as CSV, without the columns of lists."""
    plain = [name for name, type_ in table.column_types.items() if not typing.get_args(type_)]
    writer = csv.DictWriter(file, plain, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(table.rows)


def _write_parquet(findings: Findings, output: Path) -> list[Path]:
    import pyarrow
    from pyarrow import parquet

    plain = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string()}
    written = []
    for table in export_tables(findings):
        columns = [
            (
                _to_encodable(name),
                pyarrow.list_(plain[typing.get_args(type_)[0]]) if typing.get_args(type_) else plain[type_],
            )
            for name, type_ in table.column_types.items()
        ]
        schema = pyarrow.schema(columns)
        with (
            replacing(output / f"{table.name}.parquet") as fresh,
            parquet.ParquetWriter(fresh, schema, compression="zstd") as writer,
        ):
            rows = iter(table.rows)
            while batch := list(itertools.islice(rows, _BATCH)):
                writer.write_table(
                    pyarrow.Table.from_pylist(
                        [_convert_row(row, table.column_types) for row in batch], schema=schema
                    )
                )
        written.append(output / f"{table.name}.parquet")
    return written


def _to_encodable(value: Any) -> str:
    return str(value).encode(errors=UNENCODABLE).decode()


def _convert_row(row: Any, column_types: dict[str, ColumnType]) -> dict[str, Any]:
    """Return a row with every value converted to the type of its column: JSON may have 3 for 3.0."""
    return {
        _to_encodable(name): value
        if value is None or typing.get_args(type_)
        else _to_encodable(value)
        if type_ is str
        else type_(value)
        for name, type_ in column_types.items()
        for value in (row.get(name),)
    }


def _write_extrap(findings: Findings, output: Path) -> list[Path]:
    """Write a file for each experiment into a folder of its own, and remove those of an earlier export."""
    folder = output / "extrap"
    folder.mkdir(exist_ok=True)
    written = []
    for experiment in extrap.find_experiments(findings):
        path = folder / f"{experiment.name}.txt"
        with replacing(path) as fresh:
            fresh.write_text(extrap.format_experiment(experiment), encoding="ascii")
        written.append(path)
    for stale in set(folder.glob("*.txt")) - set(written):
        if stale.read_bytes().startswith(extrap.MARK.encode()):
            stale.unlink()
    return written


def _write_figures(ending: str, findings: Findings, output: Path) -> list[Path]:
    from scaling.report.figures import files, make_figures

    written = files.write_figures(make_figures(findings), findings, output, [ending])
    files.remove_stale(output, [ending], written)
    return written


FORMATS: dict[str, Callable[[Findings, Path], list[Path]]] = {
    "csv": _write_csv,
    "parquet": _write_parquet,
    "extrap": _write_extrap,
    **{ending: partial(_write_figures, ending) for ending in ("svg", "png", "pdf")},
}


def formats(words: Iterable[str]) -> list[str]:
    """Return the requested formats, given as several words or separated by commas; CSV by default."""
    asked = [name for word in words for name in word.split(",") if name]
    if words and not asked:
        raise Refusal(f"unknown format '': choose from {', '.join(FORMATS)}")
    return asked or ["csv"]
