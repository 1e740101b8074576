"""Read and write the JSON lines of the pages in docs/ about examples, and format their Markdown tables."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from scaling.core.formatting import format_interval, format_number

DOCS = Path(__file__).resolve().parents[1] / "docs"
Row = dict[str, Any]


def data_path(name: str) -> Path:
    """Return the path docs/data/NAME.jsonl."""
    return DOCS / "data" / f"{name}.jsonl"


def read_lines(path: Path) -> list[Row]:
    """Return the objects of a file of JSON lines as dicts."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path: Path, rows: Iterable[Row]) -> None:
    """Write dicts to a file as JSON lines. The folder is created if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table with a header and rows of text cells."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def format_ratio(value: float, low: float, high: float) -> str:
    """Return a ratio and its interval as text, such as '1.77 (1.70 to 1.81)'."""
    return format_number(value) + format_interval(low, high)


def replace_between(page: str, begin: str, end: str, text: str) -> str:
    """Return `page` with the text between two markers replaced. Raise `ValueError` if a marker is missing."""
    before, _, after_begin = page.partition(begin)
    _, end_marker, after = after_begin.partition(end)
    if not end_marker:
        raise ValueError(f"the page has no markers {begin} and {end}")
    return f"{before}{begin}{text}{end}{after}"
