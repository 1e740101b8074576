"""The command `scaling VERB`: hands plain values on and prints what comes back. A refusal becomes one line and status 2."""

import argparse
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

import scaling
from scaling import run as running
from scaling import store
from scaling.case import Refusal, unknown
from scaling.compose import compose
from scaling.record import Record
from scaling.seats import Gone
from scaling.words import counted

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
_OVERVIEW = """\
How does the cost of a Jacobian scale, with problem size, with AD mode, and with the number of accelerators?

  scaling run       run a study, or what is missing of it      scaling run study=smoke
  scaling status    what is done, running, missing, failed     scaling status results/smoke --watch
  scaling logs      what was written about a case             scaling logs results/smoke 3f2a
  scaling cancel    end what waits or runs on a cluster        scaling cancel results/smoke
  scaling report    curves, tables and figures as HTML         scaling report results/smoke
  scaling compare   what became slower or faster               scaling compare results/old results/new
  scaling lint      what a strict reviewer would say           scaling lint results/smoke
  scaling publish   the same curves on Weights & Biases        scaling publish results/smoke

`scaling VERB --help` says more about each."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    console, complaints = Console(width=None if sys.stdout.isatty() else 140), Console(stderr=True)
    verbs: dict[str, Callable[[list[str], Console], int]] = {
        "run": run, "status": status, "report": report, "compare": compare, "lint": lint, "publish": publish, "logs": logs,
        "cancel": cancel,
    }  # fmt: skip
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) != signal.SIG_IGN:  # as nohup has it
            signal.signal(ending, _interrupt)
    try:
        if not words or words[0] in ("-h", "--help", "help"):
            console.print(escape(_OVERVIEW), highlight=False)
            return OK
        if words[0] == "--version":
            console.print(scaling.__version__, highlight=False)
            return OK
        if words[0] not in verbs:
            raise unknown("verb", words[0], verbs)
        return verbs[words[0]](words[1:], console)
    except Refusal as refusal:
        complaints.print(f"scaling: {escape(' '.join(str(refusal).split()))}", soft_wrap=True, highlight=False, style="red")
        return BAD_INPUT
    except BrokenPipeError:  # whoever read our output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except OSError as error:
        where = f" {Path(error.filename).name}" if error.filename else ""
        what = (
            f"cannot write{where}: {error.strerror or error}; what is finished is kept, and the same command goes on from there"
        )
        complaints.print(f"scaling: {escape(what)}", soft_wrap=True, highlight=False, style="red")
        return FAILED
    except Gone as gone:
        what = f"no worker can be started: {gone}; what is finished is kept, and the same command goes on from there"
        complaints.print(f"scaling: {escape(what)}", soft_wrap=True, highlight=False, style="red")
        return FAILED
    except KeyboardInterrupt:
        complaints.print(
            "scaling: stopped; every finished record is kept, and the same command goes on from there", soft_wrap=True
        )
        return INTERRUPTED


def _interrupt(_signal: int, _frame: Any) -> None:
    raise KeyboardInterrupt


def entry() -> None:
    """The console script."""
    sys.exit(main())


def run(words: list[str], console: Console) -> int:
    """Compose with Hydra, once or (--multirun) several times, and run each; the worst exit status counts."""
    statuses: list[int] = []
    compose(words, lambda config, name: statuses.append(_run_one(config, name, console)))
    return max(statuses, default=OK)


def _run_one(config: dict[str, Any], name: str, console: Console) -> int:
    """Run one composed study to its report."""
    job, tracking = running.read(config, name), _tracking(config)
    ran = running.run(job, config["versus"], config["dry_run"], console)
    if ran is None or ran.left:
        return OK
    found = _conclude(job.folder, console, ran.settings)
    if ran.beside:
        _print_comparison(ran.beside, job.folder, console)
    if tracking is not None:
        _publish(job.folder, tracking, console)
    return FAILED if any(record.status == "failed" and record.key in ran.keys for record in found) else OK


def _tracking(config: dict[str, Any]) -> Any:
    """Where to publish, or None; checked before anything starts."""
    from scaling.tracking import track

    return None if config["tracking"]["name"] == "none" else track.Settings.from_config(config["tracking"])


def status(words: list[str], console: Console) -> int:
    """What is done, missing, skipped and failed in a results folder, and how its jobs do."""
    from scaling import status as statuses

    parser = _parser("status", "What is done, running, missing, skipped and failed in a results folder, and how its jobs do.")
    parser.add_argument("--watch", action="store_true", help="go on until nothing waits or runs; Ctrl-C leaves the jobs alone")
    parser.add_argument("--all", action="store_true", help="every task and every case, however many")
    given = parser.parse_args(words)
    folder = store.folder_of(given.folder)
    found = statuses.watch(folder, console, given.all) if given.watch else statuses.look(folder)
    if found is None:
        return INTERRUPTED
    if not given.watch:
        statuses.show(found, console, given.all)
    return FAILED if found.failed else OK


def logs(words: list[str], console: Console) -> int:
    """Print what was written about a case: by its task, its worker and the scheduler."""
    from scaling import logs as logging

    parser = _parser("logs", "What the task, the worker and the scheduler wrote about a case that a cluster ran.")
    parser.add_argument("key", metavar="KEY", help="the case's key, or how it begins, as `scaling status` shows it")
    parser.add_argument("--all", action="store_true", help="files from their first line on, however long")
    given = parser.parse_args(words)
    known = logging.look(store.folder_of(given.folder))
    for number, part in enumerate(logging.parts(known, logging.find(known, given.key), given.all)):
        if number:
            console.print()
        console.print(f"[bold]{escape(part.title)}[/]", soft_wrap=True, highlight=False)
        print(part.text, file=console.file)  # as it is: no markup, and no line broken
    return OK


def cancel(words: list[str], console: Console) -> int:
    """End what a folder has in a queue."""
    from scaling.cluster import follow, outcome

    folder = store.folder_of(_parser("cancel", "End every task of a results folder that waits or runs.").parse_args(words).folder)
    if not (count := outcome.cancel(outcome.look(folder))):
        console.print("nothing waits or runs")
        return OK
    left = follow.until_gone(folder)
    told = f"{counted(count, 'task')} cancelled" + (f", {len(left)} of them still about to end" if left else "")
    again = "what was finished is kept, and the same `scaling run` goes on from there"
    console.print(f"{told}; {again}", soft_wrap=True, highlight=False)
    return OK


def report(words: list[str], console: Console) -> int:
    """Write the report of a results folder."""
    parser = _parser("report", "Write report/index.html, its figures (SVG, PNG), table.md and table.csv into a results folder.")
    _conclude(store.folder_of(parser.parse_args(words).folder), console)
    return OK


def compare(words: list[str], console: Console) -> int:
    """Say what became slower or faster from one results folder to another."""
    from scaling.reading import compare as comparing

    what = "What became slower or faster from A, the old, to B, the new; exit status 1 when something is slower or failed in B."
    parser = argparse.ArgumentParser(prog="scaling compare", description=what)
    parser.add_argument("a", metavar="A", help="a results folder; alone, one with another beside it (`scaling run versus=...`)")
    parser.add_argument("b", metavar="B", nargs="?", help="the results folder to compare with it")
    parser.add_argument("--markdown", metavar="FILE", help="write a table for a pull request; - prints that alone")
    parser.add_argument("--margin", type=float, help="a ratio as near to 1 is no difference (default: 0.01)")
    given = parser.parse_args(words)
    return _print_comparison(*comparing.sides(given.a, given.b), console, given.margin, given.markdown)


def _print_comparison(a: Path, b: Path, console: Console, margin: float | None = None, markdown: str | None = None) -> int:
    """Compare and print, what changed first; the exit status that it deserves."""
    from scaling.reading import compare as comparing

    found = comparing.compare(a, b, comparing.MARGIN if margin is None else margin)
    if markdown == "-":
        console.print(comparing.markdown(found), end="", soft_wrap=True, markup=False, highlight=False, emoji=False)
        return FAILED if found.bad else OK
    if markdown:
        Path(markdown).write_text(comparing.markdown(found), encoding="utf-8")
    table = Table(*comparing.COLUMNS)
    for row in comparing.rows(found):
        table.add_row(*(escape(cell) for cell in row))
    console.print(table)
    for line in comparing.said(found):
        console.print(escape(line), soft_wrap=True, highlight=False)
    return FAILED if found.bad else OK


def lint(words: list[str], console: Console) -> int:
    """Say what a strict reviewer would of a results folder, the worst first, and what mends it."""
    from scaling.reading import findings
    from scaling.reading import lint as linting

    parser = _parser("lint", "Check a results folder as a strict reviewer would; exit status 1 when there are errors.")
    parser.add_argument("--strict", action="store_true", help="warnings count as errors")
    given = parser.parse_args(words)
    told = linting.remarks(findings.read(store.folder_of(given.folder)))
    colours = {linting.ERROR: "red", linting.WARNING: "yellow", linting.NOTE: "dim"}
    for remark in told:
        head = f"[{colours[remark.severity]}]{remark.severity:8}[/]"
        console.print(f"{head}{escape(f'{remark.rule} ({remark.count}): {remark.text}')}", soft_wrap=True, highlight=False)
        console.print(f"        mend: {escape(remark.mend)}", soft_wrap=True, highlight=False)
    console.print(linting.verdict(told), highlight=False)
    bad = (linting.ERROR, linting.WARNING) if given.strict else (linting.ERROR,)
    return FAILED if any(remark.severity in bad for remark in told) else OK


def publish(words: list[str], console: Console) -> int:
    """Project a results folder onto W&B."""
    from scaling.tracking import track

    parser = _parser(
        "publish", "Send the curves of a results folder to Weights & Biases; offline when there is no key (WANDB_API_KEY)."
    )
    parser.add_argument("--project", default="ad-scaling", help="W&B project (default: ad-scaling)")
    parser.add_argument("--entity", default=None, help="W&B entity (default: your own)")
    parser.add_argument("--mode", default="auto", help="auto, online or offline (default: auto)")
    given = parser.parse_args(words)
    folder = store.folder_of(given.folder)
    settings = track.Settings.from_config({"project": given.project, "entity": given.entity, "mode": given.mode})
    _publish(folder, settings, console)
    return OK


def _publish(folder: Path, settings: Any, console: Console) -> None:
    from scaling.tracking import track

    for line in track.publish(folder, settings).lines:
        console.print(escape(line), soft_wrap=True, highlight=False)


def _conclude(folder: Path, console: Console, only: Collection[str] | None = None) -> list[Record]:
    """Write the report and print its short form, of these environments; their records."""
    from scaling.reading import answer, findings
    from scaling.showing import report as pages

    index, found = pages.write(folder), findings.read(folder, only)
    table = Table(*answer.COLUMNS)
    rows, said = answer.brief(found)
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    if table.row_count:
        console.print(table)
    if len(rows) < len(found.fastest):
        console.print(f"- The largest problem of each kind; the report has all {len(found.fastest)}.")
    for sentence in said:
        console.print(f"- {escape(sentence)}", soft_wrap=True, highlight=False)
    if elsewhere := len(store.latest(store.load(folder).records)) - len(found.records):
        console.print(f"- {elsewhere} records of other environments (versions, flags or code) are in the report, kept apart.")
    counts = Counter(record.status for record in found.records)
    told = ", ".join(f"{counts[name]} {name}" for name in ("ok", "skipped", "failed"))
    console.print(f"{told}; report: {escape(str(index))}", soft_wrap=True, highlight=False)
    return found.records


def _parser(verb: str, what: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"scaling {verb}", description=what)
    parser.add_argument("folder", metavar="DIR", help="a results folder, such as results/smoke")
    return parser
