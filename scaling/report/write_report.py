"""Write the folder `report` of a results folder (index.html, table.md, table.csv), unless it is up to date.

The functions on whether a report is up to date do not import the plotting code.
"""

import contextlib
import hashlib
import os
from pathlib import Path

from scaling.analysis.findings import Findings, read
from scaling.core import environment
from scaling.results import store

_FILES = ("index.html", "table.md", "table.csv")
_DIGEST = ".inputs.json"  # file with the digest of the inputs of a report


def write_report(folder: Path, findings: Findings | None = None) -> Path:
    """Write the report of a results folder to its subfolder `report`, and return the path of index.html.

    If `findings` is None, the results are read from the folder.
    """
    from scaling.analysis.dataframe import record_table
    from scaling.analysis.summary import answer_sentences
    from scaling.report import page, tables
    from scaling.report.markdown import render_markdown

    findings = findings or read(folder)
    study = store.read_json(folder / "study.json")
    title = study.get("title") if isinstance(study, dict) else None
    folded = tables.folded_tables(findings)
    text = render_markdown(
        "table.md.jinja", findings=findings, answer=answer_sentences(findings),
        tables=[table for table in (tables.answer_table(findings), *folded) if table.rows],
    )  # fmt: skip
    html = page.render_report(findings, f"{findings.name}: {title}" if title else findings.name, folded)
    csv = record_table(findings).to_csv(index=False)
    (folder / "report").mkdir(exist_ok=True)
    for name, content in zip(_FILES, (html, text, csv), strict=True):
        store.replace_file(folder / "report" / name, content.encode())
    return folder / "report" / "index.html"


def inputs_digest(folder: Path) -> str:
    """Return the hexadecimal SHA-256 digest of a report's inputs.

    The inputs are the folder name, the records, the plans, study.json and the source code of the package.
    """
    digest = hashlib.sha256(os.fsencode(f"{folder.resolve().name} {environment.source()}"))
    for path in sorted([*folder.glob("*.jsonl"), *folder.glob("plan-*.json"), folder / "study.json"]):
        content = b""
        with contextlib.suppress(OSError):
            content = store.read_file(path)
        digest.update(os.fsencode(f"{path.name} {len(content)} ") + content)
    return digest.hexdigest()


def is_current(folder: Path, digest: str) -> bool:
    """Return whether the report of a results folder is complete and was written from inputs with `digest`."""
    report = folder / "report"
    return store.read_json(report / _DIGEST) == digest and all((report / name).is_file() for name in _FILES)


def mark_current(folder: Path, digest: str) -> None:
    """Save the digest of the inputs of a report to report/.inputs.json."""
    store.write_json(folder / "report" / _DIGEST, digest)
