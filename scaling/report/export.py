"""Export of results to files for other programs (`scaling export`): CSV, Parquet, Extra-P, SVG, PNG, PDF."""

import importlib.util
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path

from scaling.analysis.dataframe import export_tables
from scaling.analysis.findings import Findings, read
from scaling.contrib import extrap
from scaling.core.case import Refusal, unknown_name
from scaling.results.store import replacing

FOLDER = "export"  # the default subfolder of the results folder
_PARQUET = "pip install 'ad-scaling[parquet]', or pip install pyarrow"


def write_exports(folder: Path, formats: Collection[str], output: Path | None = None) -> list[Path]:
    """Export a results folder to files in the given formats, such as 'csv', and return the file paths.

    The default of `output` is the subfolder `export` of the results folder. Raise `Refusal` before any file
    is written if a format is unknown or not available, if there are no results, or if `output` is invalid.
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


def _write_tables(ending: str, findings: Findings, output: Path) -> list[Path]:
    written = []
    for name, frame in export_tables(findings).items():
        path = output / f"{name}.{ending}"
        with replacing(path) as fresh:
            if ending == "csv":
                frame.to_csv(fresh, index=False)
            else:
                frame.to_parquet(fresh, index=False, compression="zstd")
        written.append(path)
    return written


def _write_extrap(findings: Findings, output: Path) -> list[Path]:
    folder = output / "extrap"
    folder.mkdir(exist_ok=True)
    written = []
    for name, experiment in extrap.find_experiments(findings).items():
        path = folder / f"{name}.txt"
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
    **{ending: partial(_write_tables, ending) for ending in ("csv", "parquet")},
    "extrap": _write_extrap,
    **{ending: partial(_write_figures, ending) for ending in ("svg", "png", "pdf")},
}


def formats(words: Iterable[str]) -> list[str]:
    """Return the format names in comma-separated words such as 'svg,png', or ['csv'] if there are no words.

    The names are not validated here. Raise `Refusal` if the words contain no name at all.
    """
    names = [name for word in words for name in word.split(",") if name]
    if words and not names:
        raise Refusal(f"unknown format '': choose from {', '.join(FORMATS)}")
    return names or ["csv"]
