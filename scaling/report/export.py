"""Export the tables and figures of a results folder to CSV, Parquet, Extra-P or image files (FORMATS)."""

import importlib.util
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from scaling.analysis.dataframe import export_tables
from scaling.analysis.findings import Findings, read
from scaling.contrib import extrap
from scaling.core.case import Refusal, check_names
from scaling.results.store import Loaded, no_records_error, replace_file


def write_exports(
    folder: Path, formats: Collection[str], output: Path | None = None, loaded: Loaded | None = None
) -> dict[str, list[Path]]:
    """Export a results folder to files, and return {format: paths of the written files}.

    `formats` are keys of FORMATS. `output` is the folder to write to, or None for the subfolder `export`.
    `loaded` contains the records of the folder, or is None to read them. Files with the same names are
    replaced.

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
    try:
        is_new_folder = not output_folder.exists()
        output_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal(
            f"cannot write to {output_folder}: {error.strerror}; give another folder with --output PATH"
        ) from None
    written = {name: FORMATS[name](findings, output_folder) for name in dict.fromkeys(formats)}
    if not any(written.values()):
        if is_new_folder:
            output_folder.rmdir()
        raise Refusal(describe_empty(written))
    return written


def describe_empty(formats: Collection[str]) -> str:
    """Return the error message to print if there is nothing to export in any of the given formats."""
    if "csv" in formats or "parquet" in formats:
        return "no table: nothing was measured; `scaling report` shows the planned cases"
    return (
        f"nothing to show as {', '.join(formats)}: no times at two sizes or device counts; "
        "--format csv writes the records"
    )


def _write_tables(extension: str, findings: Findings, output: Path) -> list[Path]:
    tables = export_tables(findings) if findings.records else {}
    paths = [output / f"{name}.{extension}" for name in tables]
    for path, table in zip(paths, tables.values(), strict=True):
        if extension == "csv":
            replace_file(path, table.to_csv(index=False).encode())
        else:
            replace_file(path, table.to_parquet(index=False, compression="zstd"))
    return paths


def _write_extrap(findings: Findings, output: Path) -> list[Path]:
    extrap_paths = []
    for name, experiment_text in extrap.format_experiments(findings).items():
        extrap_paths.append(output / "extrap" / f"{name}.txt")
        extrap_paths[-1].parent.mkdir(exist_ok=True)
        replace_file(extrap_paths[-1], experiment_text.encode("ascii"))
    return extrap_paths


def _write_figures(extension: str, findings: Findings, output: Path) -> list[Path]:
    from scaling.report.figures import charts, files

    return files.write_figures(charts.make_figures(findings), findings, output, extension)


FORMATS: dict[str, Callable[[Findings, Path], list[Path]]] = {  # format -> function that writes its files
    **{name: partial(_write_tables, name) for name in ("csv", "parquet")},
    "extrap": _write_extrap,
    **{name: partial(_write_figures, name) for name in ("svg", "png", "pdf")},
}
