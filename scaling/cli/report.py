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
    """Write the HTML report of a results folder, and print the results.

    With --proposal, also write text, tables and figures for a compute-time application.
    """
    from scaling.analysis import findings
    from scaling.report.page import write_report

    folder, efficiency = store.require_results_folder(args.folder), _read_efficiency(args.efficiency)
    store.require_writable(folder / "report")
    loaded = store.load(folder)
    lost = find_unrecorded(folder, loaded.records)
    study_findings = findings.read(folder, None, lost, loaded, efficiency or findings.EFFICIENCY)
    index = write_report(folder, study_findings)
    print_report(study_findings, console)
    print_lines(console, [f"{describe_totals(study_findings)}; report: {index}"])
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


def write_and_summarize(
    folder: Path, console: Console, settings: Collection[str], loaded: store.Loaded
) -> "Findings":
    """Write the HTML report of a folder, print a summary that fits on one screen, and return its `Findings`.

    `settings` contains the hashes of the environments to print, or is empty for all environments. `loaded`
    contains the records of the folder.
    """
    from scaling.analysis import findings
    from scaling.report.page import write_report

    lost = find_unrecorded(folder, loaded.records)
    shown_findings = findings.read(folder, None, lost, loaded)
    index = write_report(folder, shown_findings)
    shown_settings = {*settings, *(record.setting for record in lost)}
    others = [r for r in shown_findings.records if settings and r.setting not in shown_settings]
    if others:
        shown_findings = findings.read(folder, shown_settings, lost, loaded)
    print_lines(console, summary_lines(shown_findings, folder, console.width))
    if others:
        other = f"{format_count(len(others), 'record')} of other environments (versions, flags or code)"
        print_lines(console, wrap_text(f"- In the report, kept apart: {other}.", indent="  "))
    totals, page = describe_totals(shown_findings), f"report: {index}"
    joined = f"{totals}; {page}"
    print_lines(console, [joined] if len(joined) <= WIDTH else [totals, page])
    return shown_findings


def find_unrecorded(folder: Path, records: Sequence[Record]) -> list[Record]:
    """Return a new "failed" record for each case that an ended job did not record. No file is written.

    `records` contains the existing records of the folder.
    """
    if not (folder / SUBMISSIONS).is_dir():
        return []
    from scaling.cluster import task_state

    tasks = task_state.find_tasks(folder)
    return task_state.make_failed_records(tasks, records)
