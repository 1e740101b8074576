"""Export a results folder to CSV, Parquet or Extra-P files, or its figures to images (`FORMATS`)."""

import importlib.util
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path

from scaling.analysis.dataframe import export_tables
from scaling.analysis.findings import Findings, read
from scaling.contrib import extrap
from scaling.core.case import Refusal, check_names
from scaling.results.store import Loaded, no_records_error, write_files


def write_exports(
    folder: Path, formats: Collection[str], output: Path | None = None, loaded: Loaded | None = None
) -> dict[str, list[Path]]:
    """Export a results folder to files, and return the paths of the files of each format.

    `formats` are keys of FORMATS. `output` is the folder to write to, or None for the subfolder `export`.
    `loaded` contains the records of the folder, or is None to load them. Existing files are replaced.

    Raise `Refusal` and write no file if a format is unknown, a required package is not installed, there is
    nothing to export, or `output` cannot be created.
    """
    check_names("format", formats, FORMATS)
    if "parquet" in formats and importlib.util.find_spec("pyarrow") is None:
        raise Refusal(
            "format parquet needs pyarrow, which is not installed: pip install 'ad-scaling[parquet]'"
        )
    findings, output_folder = read(folder, loaded=loaded), output or folder / "export"
    if not findings.records and not findings.forecasts:
        raise no_records_error("export", folder, findings.damaged)
    contents = {name: FORMATS[name](findings) for name in dict.fromkeys(formats)}
    if not any(contents.values()):
        raise Refusal(describe_empty(contents))
    try:
        output_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal(
            f"cannot write to {output_folder}: {error.strerror}; give another folder with --output PATH"
        ) from None
    return {name: write_files(output_folder, files) for name, files in contents.items()}


def describe_empty(formats: Collection[str]) -> str:
    """Return the message to print if there is nothing to export in any of the given formats."""
    if "csv" in formats or "parquet" in formats:
        return "no table: nothing was measured; `scaling report` shows the planned cases"
    return (
        f"nothing to show as {', '.join(formats)}: no times at two sizes or device counts; "
        "--format csv writes the records"
    )


# The functions below return {file name: content}.


def _encode_tables(extension: str, findings: Findings) -> dict[str, bytes]:
    tables = export_tables(findings) if findings.records else {}
    if extension == "csv":
        return {f"{name}.csv": table.to_csv(index=False).encode() for name, table in tables.items()}
    return {
        f"{name}.parquet": table.to_parquet(index=False, compression="zstd") for name, table in tables.items()
    }


def _encode_experiments(findings: Findings) -> dict[str, bytes]:
    experiments = extrap.format_experiments(findings)
    return {f"extrap/{name}.txt": text.encode("ascii") for name, text in experiments.items()}


def _encode_figures(extension: str, findings: Findings) -> dict[str, bytes]:
    from scaling.report.figures import charts, files

    return files.encode_figures(charts.make_figures(findings), findings, extension)


FORMATS: Mapping[str, Callable[[Findings], dict[str, bytes]]] = {
    **{name: partial(_encode_tables, name) for name in ("csv", "parquet")},
    "extrap": _encode_experiments,
    **{name: partial(_encode_figures, name) for name in ("svg", "png", "pdf")},
}
