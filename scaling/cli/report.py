"""Implement `scaling report`: write the report, print a summary, find unrecorded cases."""

import argparse
import contextlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from scaling.cli.output import print_lines
from scaling.cluster.cluster_settings import SUBMISSIONS
from scaling.core.case import Refusal
from scaling.core.formatting import format_count
from scaling.core.record import Record
from scaling.report.terminal import describe_totals, print_report, summary_lines
from scaling.report.text import WIDTH, wrap_text
from scaling.results import store

if TYPE_CHECKING:
    from scaling.analysis.findings import Findings


def execute(args: argparse.Namespace, console: Console) -> None:
    """Write the HTML report of a results folder, and print a summary.

    With --proposal, also write text, tables and figures for a compute-time application.
    """
    folder, efficiency = store.require_results_folder(args.folder), _read_efficiency(args.efficiency)
    store.require_writable(folder / "report")
    study_findings = write_and_print(folder, console, efficiency=efficiency)
    if args.proposal:
        from scaling.report import proposal

        print_lines(console, [f"proposal: {proposal.write_proposal(folder, study_findings)}"])


def _read_efficiency(word: str | None) -> float | None:
    """Return E from "efficiency=E", or None if `word` is None. Raise `Refusal` unless 0 < E <= 1."""
    if word is None:
        return None
    name, _, value = word.partition("=")
    with contextlib.suppress(ValueError):
        if name == "efficiency" and 0 < float(value) <= 1:
            return float(value)
    raise Refusal(f"efficiency must be above 0 and at most 1, such as efficiency=0.5, not {word!r}")


def write_and_print(
    folder: Path,
    console: Console,
    settings: Collection[str] = (),
    brief: bool = False,
    loaded: store.Loaded | None = None,
    efficiency: float | None = None,
) -> "Findings":
    """Write the HTML report of a folder, print its results, and return the `Findings`.

    `settings` contains the hashes of the environments to print, or is empty for all environments. If `brief`
    is true, the printed summary fits on one screen. `loaded` contains the records, or is None to load them.
    `efficiency` is the smallest acceptable parallel efficiency, from 0 to 1, or None for the default.
    """
    from scaling.analysis import findings
    from scaling.report.page import write_report

    loaded = loaded or store.load(folder)
    lost = find_unrecorded(folder, loaded.records)
    required_efficiency = efficiency or findings.EFFICIENCY
    all_findings = findings.read(folder, None, lost, loaded, required_efficiency)
    write_report(folder, all_findings)
    shown_settings = {*settings, *(record.setting for record in lost)}
    others = [record for record in all_findings.records if settings and record.setting not in shown_settings]
    shown_findings = all_findings
    if others:
        shown_findings = findings.read(folder, shown_settings, lost, loaded, required_efficiency)
    _print_findings(shown_findings, len(others), folder, console, brief)
    return shown_findings


def _print_findings(
    findings: "Findings", other_records: int, folder: Path, console: Console, brief: bool
) -> None:
    """Print the results of a folder. `other_records` is the number of records of other environments."""
    if brief:
        print_lines(console, summary_lines(findings, folder, console.width))
    else:
        print_report(findings, console)
    if other_records:
        other = f"{format_count(other_records, 'record')} of other environments (versions, flags or code)"
        text = f"- In the report, kept apart: {other}."
        print_lines(console, wrap_text(text, indent="  ") if brief else [text])
    totals, page = describe_totals(findings), f"report: {folder / 'report' / 'index.html'}"
    joined = f"{totals}; {page}"
    print_lines(console, [totals, page] if brief and len(joined) > WIDTH else [joined])


def find_unrecorded(folder: Path, records: Sequence[Record]) -> list[Record]:
    """Return a new "failed" record for each case that an ended job did not record. No file is written.

    `records` contains the existing records of the folder.
    """
    if not (folder / SUBMISSIONS).is_dir():
        return []
    from scaling.cluster import task_state

    tasks = task_state.find_tasks(folder)
    return task_state.make_failed_records(tasks, records)
