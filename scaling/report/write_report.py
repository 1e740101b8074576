"""Write the report of a results folder (index.html, table.md), and check if it is up to date.

The check imports neither the analysis nor the plotting code.
"""

import contextlib
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from scaling.core import environment
from scaling.report.terminal import TerminalReport
from scaling.report.text import Table, render_markdown
from scaling.results import store

if TYPE_CHECKING:
    from scaling.analysis.findings import Findings

_FILES = ("index.html", "table.md")
_SAVED_OUTPUT = ".inputs.json"  # file with the digest of a report's inputs and its text for a console


def write_report(folder: Path, findings: "Findings") -> Path:
    """Write or replace the report in `folder`, and return the path of its file index.html."""
    from scaling.analysis.answers import answer_sentences
    from scaling.report import page, tables

    title, folded = findings.study.content.get("title"), tables.folded_tables(findings)
    markdown = render_markdown(
        "table.md.jinja", findings=findings, answer=answer_sentences(findings),
        tables=[table for table in (tables.answer_table(findings), *folded) if table.rows],
    )  # fmt: skip
    html = page.render_report(findings, f"{findings.name}: {title}" if title else findings.name, folded)
    (folder / "report").mkdir(exist_ok=True)
    for name, content in zip(_FILES, (html, markdown), strict=True):
        store.replace_file(folder / "report" / name, content.encode())
    return folder / "report" / "index.html"


def inputs_digest(folder: Path) -> str:
    """Return a SHA-256 digest of the records, plans, study.json, folder name, Python source and templates."""
    digest = hashlib.sha256(os.fsencode(f"{folder.resolve().name} {environment.source()}"))
    templates = Path(__file__).parent.glob("*.[cj]*")  # .css, .jinja and .js files
    inputs = [*folder.glob("*.jsonl"), *folder.glob("plan-*.json"), folder / "study.json"]
    for path in (*sorted(inputs), *sorted(templates)):
        content = b""
        with contextlib.suppress(OSError):
            content = store.read_file(path)
        digest.update(os.fsencode(f"{path.name} {len(content)} ") + content)
    return digest.hexdigest()


def _add_output_digest(folder: Path, digest: str) -> str:
    """Return `digest`, followed by a digest of the files of the report. Missing files are ignored."""
    output = hashlib.sha256()
    for name in _FILES:
        with contextlib.suppress(OSError):
            output.update(store.read_file(folder / "report" / name))
    return f"{digest} {output.hexdigest()}"


def load_saved_output(folder: Path, digest: str) -> TerminalReport | None:
    """Return the saved console output of a report, or None if the report is outdated or was changed.

    A report is outdated if the saved digest of its inputs differs from `digest`.
    """
    saved = store.read_json(folder / "report" / _SAVED_OUTPUT)
    if not (isinstance(saved, dict) and saved.get("digest") == _add_output_digest(folder, digest)):
        return None
    return TerminalReport([Table(*table) for table in saved["tables"]], saved["sentences"], saved["totals"])


def save_output(folder: Path, digest: str, printed: TerminalReport) -> None:
    """Save the console output of a report and the digest of its inputs to the file report/.inputs.json."""
    content = {"digest": _add_output_digest(folder, digest)} | printed._asdict()
    store.write_json(folder / "report" / _SAVED_OUTPUT, content)
