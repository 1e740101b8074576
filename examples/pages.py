"""Read the data of a page about examples, and write the generated part of the page: tables and a figure."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from scaling.core.formatting import format_interval, format_number

DOCS = Path(__file__).resolve().parents[1] / "docs"
Row = dict[str, Any]


def data_path(name: str) -> Path:
    """Return the path of a file of JSON lines in docs/data."""
    return DOCS / "data" / f"{name}.jsonl"


def read_lines(path: Path) -> list[Row]:
    """Read JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path: Path, rows: Iterable[Row]) -> None:
    """Write JSON lines. The folder is created if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def format_ratio(value: float, low: float, high: float) -> str:
    """Format a ratio with its interval, such as '1.77 (1.70 to 1.81)'."""
    return format_number(value) + format_interval(low, high)


def replace_between(page: str, begin: str, end: str, text: str) -> str:
    """Return a page with the text between two markers replaced. Raise `ValueError` if it has no such markers."""
    before, _, rest = page.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"the page has no markers {begin} and {end}")
    return f"{before}{begin}{text}{end}{after}"
