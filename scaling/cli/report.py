"""Implement `scaling report`: add failures of ended jobs, update the HTML report, print tables or summary."""

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
from scaling.report.terminal import (
    describe_totals,
    inputs_digest,
    load_saved_output,
    print_report,
    save_output,
    summary_lines,
    terminal_report,
)
from scaling.report.text import WIDTH, wrap_text
from scaling.results import store

if TYPE_CHECKING:
    from scaling.analysis.findings import Findings

_EFFICIENCY = 0.5  # equal to `findings.EFFICIENCY`; an up-to-date report does not import `findings`


def execute(args: argparse.Namespace, console: Console) -> None:
    """Write the HTML report of a results folder, and print a summary.

    With --proposal, also write text, tables and figures for a compute-time application.
    """
    folder, efficiency = store.require_results_folder(args.folder), _read_efficiency(args.efficiency)
    current_report = load_saved_output(folder, _report_digest(folder, efficiency))
    if current_report and not args.proposal and not find_unrecorded(folder):
        print_report(current_report, console)
        _print_totals(folder, current_report.totals, console)
        return
    store.require_writable(folder / "report")
    study_findings = write_and_print(folder, console, efficiency=efficiency)
    if args.proposal:
        from scaling.report import proposal

        print_lines(console, [f"proposal: {proposal.write_proposal(folder, study_findings)}"])


def _read_efficiency(word: str | None) -> float:
    """Return E from "efficiency=E", or 0.5 if `word` is None. Raise `Refusal` unless 0 < E <= 1."""
    if word is None:
        return _EFFICIENCY
    name, _, value = word.partition("=")
    with contextlib.suppress(ValueError):
        if name == "efficiency" and 0 < float(value) <= 1:
            return float(value)
    raise Refusal(f"efficiency must be above 0 and at most 1, such as efficiency=0.5, not {word!r}")


def _report_digest(folder: Path, efficiency: float) -> str:
    return inputs_digest(folder) + (f" efficiency={efficiency}" if efficiency != _EFFICIENCY else "")


def write_and_print(
    folder: Path,
    console: Console,
    settings: Collection[str] = (),
    brief: bool = False,
    loaded: store.Loaded | None = None,
    efficiency: float = _EFFICIENCY,
) -> "Findings":
    """Print the results of a folder, update its HTML report if it is outdated, and return the `Findings`.

    `settings` contains the digests of the environments to print, or is empty for all environments. If `brief`
    is true, print a summary that fits on one screen. `loaded` contains the records, or is None to load them.
    `efficiency` is the smallest acceptable parallel efficiency, from 0 to 1.
    """
    from scaling.analysis import findings

    digest = _report_digest(folder, efficiency)
    loaded = loaded or store.load(folder)
    unrecorded = find_unrecorded(folder, loaded.records)
    current_records = store.current_records([*loaded.records, *unrecorded], folder)
    shown_settings = {*settings, *(record.setting for record in unrecorded)}
    has_other_settings = bool(settings) and any(
        record.setting not in shown_settings for record in current_records
    )
    only = shown_settings if has_other_settings else None
    study_findings = findings.read(folder, only, unrecorded, loaded, efficiency)
    if unrecorded or not load_saved_output(folder, digest):
        from scaling.report.page import write_report

        all_findings = study_findings
        if only is not None:
            all_findings = findings.read(folder, None, unrecorded, loaded, efficiency)
        write_report(folder, all_findings)
        if not unrecorded:
            save_output(folder, digest, terminal_report(all_findings))
    _print_findings(
        study_findings, len(current_records) - len(study_findings.records), folder, console, brief
    )
    return study_findings


def _print_findings(
    study_findings: "Findings", other_records: int, folder: Path, console: Console, brief: bool
) -> None:
    """Print the results of a folder. `other_records` is the number of records that `study_findings` omits."""
    if brief:
        print_lines(console, summary_lines(study_findings, folder, console.width))
    else:
        print_report(terminal_report(study_findings), console)
    if other_records:
        other = f"{format_count(other_records, 'record')} of other environments (versions, flags or code)"
        text = f"- In the report, kept apart: {other}."
        print_lines(console, wrap_text(text, indent="  ") if brief else [text])
    _print_totals(folder, describe_totals(study_findings), console)


def find_unrecorded(folder: Path, records: Sequence[Record] | None = None) -> list[Record]:
    """Return a new "failed" record for each case that an ended job did not finish. No file is written.

    `records` contains the existing records of the folder, or is None to load them.
    """
    if not (folder / SUBMISSIONS).is_dir():
        return []
    from scaling.cluster import task_state

    tasks = task_state.find_tasks(folder)
    return task_state.make_failed_records(tasks, store.load(folder).records if records is None else records)


def _print_totals(folder: Path, totals: str, console: Console) -> None:
    """Print `totals`, a text with the number of cases of each status, and the path of the report."""
    report = f"report: {folder / 'report' / 'index.html'}"
    joined = f"{totals}; {report}"
    print_lines(console, [totals, report] if len(joined) > WIDTH else [joined])
