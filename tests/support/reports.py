"""Write the report of a results folder."""

from pathlib import Path

from scaling.analysis.findings import read
from scaling.report import page


def write_report(folder: Path) -> Path:
    """Write the report of a results folder, and return the path of index.html."""
    return page.write_report(folder, read(folder))
