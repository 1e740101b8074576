"""Export: a results folder as files for other programs: CSV, Parquet, and the text format of Extra-P.

Knows formats; not what stands in the tables (rows.py), nor how Extra-P is to be asked (extrap.py).
"""

import csv
import importlib.util
import itertools
import typing
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, TextIO

from scaling.analysis.findings import Findings, read
from scaling.contrib import extrap
from scaling.core.case import Refusal, unknown_name
from scaling.core.files import replacing
from scaling.report.rows import ExportTable, Kind, tables

FOLDER = "export"  # within a results folder, unless another is named
UNENCODABLE = "backslashreplace"  # half a character, as a damaged message may hold, comes as its number
_BATCH = 50_000  # rows that are held in memory at once
_PARQUET = "pip install 'ad-scaling[parquet]', or pip install pyarrow"


def write(folder: Path, formats: Collection[str], output: Path | None = None) -> list[Path]:
    """Write a results folder in these formats; what was written. Bad input is refused before anything is."""
    for name in formats:
        if name not in FORMATS:
            raise unknown_name("format", name, FORMATS)
    if "parquet" in formats and importlib.util.find_spec("pyarrow") is None:
        raise Refusal(f"format parquet needs pyarrow, which is not installed: {_PARQUET}")
    found, target = read(folder), folder / FOLDER if output is None else output
    if not found.records and not found.forecasts:
        raise Refusal(f"no record to export in {str(folder)!r}; `scaling run` makes some")
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal(f"cannot write to {target}: {error.strerror}; give another folder with --output PATH") from None
    return [path for name in dict.fromkeys(formats) for path in FORMATS[name](found, target)]


def _csv(found: Findings, output: Path) -> list[Path]:
    written = []
    for table in tables(found):
        path = output / f"{table.name}.csv"
        with replacing(path) as fresh, fresh.open("w", encoding="utf-8", errors=UNENCODABLE, newline="") as file:
            csv_table(table, file)
        written.append(path)
    return written


def csv_table(table: ExportTable, file: TextIO) -> None:
    """Write a table as CSV, less the columns whose values are lists: a cell holds one value."""
    plain = [name for name, kind in table.kinds.items() if not typing.get_args(kind)]
    writer = csv.DictWriter(file, plain, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(table.rows)


def _parquet(found: Findings, output: Path) -> list[Path]:
    import pyarrow
    from pyarrow import parquet

    plain = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string()}
    written = []
    for table in tables(found):
        columns = [
            (_encodable(name), pyarrow.list_(plain[typing.get_args(kind)[0]]) if typing.get_args(kind) else plain[kind])
            for name, kind in table.kinds.items()
        ]
        schema = pyarrow.schema(columns)
        with (
            replacing(output / f"{table.name}.parquet") as fresh,
            parquet.ParquetWriter(fresh, schema, compression="zstd") as writer,
        ):
            rows = iter(table.rows)
            while batch := list(itertools.islice(rows, _BATCH)):
                writer.write_table(pyarrow.Table.from_pylist([_exact(row, table.kinds) for row in batch], schema=schema))
        written.append(output / f"{table.name}.parquet")
    return written


def _encodable(value: Any) -> str:
    return str(value).encode(errors=UNENCODABLE).decode()


def _exact(row: Any, kinds: dict[str, Kind]) -> dict[str, Any]:
    """A row with every value of the kind of its column: JSON tells 3.0 as 3."""
    return {
        _encodable(name): value if value is None or typing.get_args(kind) else _encodable(value) if kind is str else kind(value)
        for name, kind in kinds.items()
        for value in (row.get(name),)
    }


def _extrap(found: Findings, output: Path) -> list[Path]:
    """A file for each experiment, in a folder of their own; those of an earlier export that are no longer due go away."""
    folder = output / "extrap"
    folder.mkdir(exist_ok=True)
    written = []
    for experiment in extrap.experiments(found):
        path = folder / f"{experiment.name}.txt"
        with replacing(path) as fresh:
            fresh.write_text(extrap.text(experiment), encoding="ascii")
        written.append(path)
    for stale in set(folder.glob("*.txt")) - set(written):
        if stale.read_bytes().startswith(extrap.MARK.encode()):
            stale.unlink()
    return written


FORMATS: dict[str, Callable[[Findings, Path], list[Path]]] = {"csv": _csv, "parquet": _parquet, "extrap": _extrap}


def formats(words: Iterable[str]) -> list[str]:
    """The formats that were asked for, as several words or with commas between them; CSV if none was."""
    asked = [name for word in words for name in word.split(",") if name]
    if words and not asked:
        raise Refusal(f"unknown format '': choose from {', '.join(FORMATS)}")
    return asked or ["csv"]
