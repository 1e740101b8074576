"""The command `scaling VERB`: hands plain values on and prints what comes back. A refusal becomes one line and status 2."""

import argparse
import contextlib
import io
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

import scaling
from scaling.cli import progress, streams
from scaling.cli import run as running
from scaling.cluster.settings import SUBMISSIONS
from scaling.core import store
from scaling.core.case import Refusal, label, unknown_name
from scaling.core.environment import hide_secrets
from scaling.core.formatting import count_of
from scaling.core.record import Record
from scaling.study.compose import complete, compose, configuration
from scaling.study.hydra_options import Parser
from scaling.workers.worker_group import AllocationLost

if TYPE_CHECKING:
    from scaling.analysis.findings import Findings

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
_LONGEST = 1400  # characters of a refusal
_OVERVIEW = """\
How does the cost of a Jacobian scale, with problem size, with AD mode, and with the number of accelerators?

  scaling run       run a study, or what is missing of it      scaling run study=smoke
  scaling plan      compile it for a machine one does not have scaling plan study=plan hardware=v5p
  scaling status    what is done, running, missing, failed     scaling status results/smoke --watch
  scaling logs      what was written about a case             scaling logs results/smoke 3f2a
  scaling cancel    end what waits or runs on a cluster        scaling cancel results/smoke
  scaling report    curves, tables and figures as HTML         scaling report results/smoke
  scaling compare   what became slower or faster               scaling compare results/old results/new
  scaling lint      what a strict reviewer would say           scaling lint results/smoke
  scaling export    the same as CSV, Parquet or for Extra-P    scaling export results/smoke
  scaling merge     one folder of several clusters             scaling merge results/a results/b --output results/ab
  scaling publish   the same curves on Weights & Biases        scaling publish results/smoke

`scaling VERB --help` says more about each."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    console, complaints = Console(width=None if sys.stdout.isatty() else 140), Console(stderr=True)
    verbs: dict[str, Callable[[list[str], Console], int]] = {
        "run": run, "plan": plan, "status": status, "report": report, "compare": compare, "lint": lint, "export": export,
        "merge": merge, "publish": publish, "logs": logs, "cancel": cancel,
    }  # fmt: skip
    for ending in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(ending) != signal.SIG_IGN:  # as nohup has it
            signal.signal(ending, _interrupt)
    try:
        if words[:1] == ["help"] and len(words) > 1:
            words = [words[1], "--help", *words[2:]]
        if not words or words in (["-h"], ["--help"], ["help"]):
            console.print(escape(_OVERVIEW), highlight=False)
            return OK
        if words[0] in ("version", "--version", "-V"):
            return version(words[1:], console)
        if words[0] in ("-sc", "--shell-completion"):
            return complete(words[1:], list(verbs))
        if words[0] not in verbs:
            raise _unknown_verb(words, list(verbs))
        return verbs[words[0]](words[1:], console)
    except Refusal as refusal:
        complaints.print(
            f"scaling: {escape(hide_secrets(_one_line(refusal)))}",
            soft_wrap=True,
            highlight=False,
            style="red",
        )
        return BAD_INPUT
    except BrokenPipeError:  # whoever read the output of what would never end has seen enough
        return OK
    except OSError as error:
        where = f" {Path(error.filename).name}" if error.filename else ""
        kept = "what is finished is kept, and the same command goes on from there"
        what = f"cannot write{where}: {error.strerror or error}; {kept}"
        complaints.print(
            f"scaling: {escape(hide_secrets(what))}", soft_wrap=True, highlight=False, style="red"
        )
        return FAILED
    except AllocationLost as gone:
        what = f"no worker can be started: {gone}; what is finished is kept, and the same command goes on from there"
        complaints.print(
            f"scaling: {escape(hide_secrets(what))}", soft_wrap=True, highlight=False, style="red"
        )
        return FAILED
    except KeyboardInterrupt:
        complaints.print(
            "scaling: stopped; every finished record is kept, and the same command goes on from there",
            soft_wrap=True,
        )
        return INTERRUPTED


def _one_line(refusal: Refusal) -> str:
    """Return a refusal as one line, without the middle of one that a long value makes endless."""
    text = "".join(sign if sign.isprintable() else "?" for sign in " ".join(str(refusal).split()))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"


def _unknown_verb(words: Sequence[str], verbs: Sequence[str]) -> Refusal:
    """Return the refusal of a command that begins with no verb."""
    if "=" in words[0] and not words[0].startswith("-"):
        return Refusal(f"{words[0]!r} is no verb: did you mean `scaling run {words[0]}`?")
    return unknown_name(
        "verb", words[0], [*verbs, "version", *(["--version", "--help"] if words[0].startswith("-") else [])]
    )


def version(words: list[str], console: Console) -> int:
    """Print the version of the package."""
    Parser(prog="scaling version", description="Print the version of the package.").parse_args(words)
    console.print(scaling.__version__, highlight=False)
    return OK


def _interrupt(number: int, _frame: Any) -> None:
    if number == signal.SIGINT:
        signal.signal(signal.SIGINT, _leave)
    raise KeyboardInterrupt


def _leave(_signal: int, _frame: Any) -> None:
    """Ctrl-C again, while the first is being seen to: records are on disk line by line, and workers end with their launcher."""
    os.write(2, b"scaling: stopped at once; every finished record is kept\n")
    os._exit(INTERRUPTED)


def entry() -> None:
    """Run the console script."""
    streams.prepare()
    sys.exit(main())


def run(words: list[str], console: Console) -> int:
    """Compose with Hydra, once or (--multirun) several times, and run each; the worst exit status counts."""
    if {"-h", "--help"} & set(words):
        return _help_on_run(words, console)
    statuses: list[int] = []
    compose(words, lambda config, name: statuses.append(_run_one(config, name, console)))
    return max(statuses, default=OK)


def _help_on_run(words: list[str], console: Console) -> int:
    """Print what Hydra says of the verb, with the meaning of every field in it."""
    from scaling.study import field_help

    written = io.StringIO()
    with contextlib.redirect_stdout(written), contextlib.suppress(SystemExit):
        compose(words, lambda config, name: None)
    text = field_help.fill(written.getvalue()).replace(field_help.MARK, field_help.describe(configuration()))
    console.print(text, soft_wrap=True, highlight=False, markup=False)
    return OK


def _run_one(config: dict[str, Any], name: str, console: Console) -> int:
    """Run one composed study to its report."""
    job, tracking = running.read_study(config, name), _tracking(config)
    between = _early(job, tracking, console) if tracking is not None else None
    ran = running.run(job, config["versus"], config["dry_run"], console, between)
    if ran.submitted:
        return FAILED if ran.failed else OK
    found = _conclude(job.folder, console, ran.settings, brief=True, loaded=ran.loaded)
    if ran.baseline:
        _print_comparison(ran.baseline, job.folder, console)
    if tracking is not None:
        _publish(job.folder, tracking, console)
    return (
        FAILED
        if any(record.status == "failed" and record.key in ran.keys for record in found.records)
        else OK
    )


def plan(words: list[str], console: Console) -> int:
    """Compose with Hydra as `run` does, compile for other hardware, and say what the study would take there."""
    from scaling.plan import plan as planning

    if not words or {"-h", "--help"} & set(words):
        console.print(escape(planning.HELP), highlight=False)
        return OK
    statuses: list[int] = []
    compose(words, lambda config, name: statuses.append(_plan_one(config, name, console)))
    return max(statuses, default=OK)


def _plan_one(config: dict[str, Any], name: str, console: Console) -> int:
    """Plan one composed study, to its answers and its report."""
    from scaling.analysis import findings
    from scaling.plan import plan as planning
    from scaling.report import write_report as pages
    from scaling.report.labels import clean_text

    job = planning.read_plan(config, name)
    with progress.examination(console) as note:
        made = planning.prepare_plan(job, note)
    console.print(escape(planning.describe_estimate(made)), soft_wrap=True, highlight=False)
    names = {
        answer.case.key: label(answer.case) for answer in (*made.answers, *(each[0] for each in made.unfit))
    }
    with progress.display(console, names, len(made.answers), len(made.unfit)) as (listen, counts):
        planning.run(made, listen)
    found = findings.read(made.job.folder)
    index = pages.write_report(made.job.folder, found)
    for line in planning.plan_lines(made, found, config["deadline"]):
        console.print(f"- {escape(clean_text(line))}", soft_wrap=True, highlight=False)
    outcomes = ", ".join(f"{counts[status]} {status}" for status in ("planned", "skipped", "failed"))
    console.print(f"{outcomes}; report: {escape(str(index))}", soft_wrap=True, highlight=False)
    return FAILED if counts["failed"] else OK


def _tracking(config: dict[str, Any]) -> Any:
    """Where to publish, or None; checked before anything starts."""
    if config["tracking"]["name"] == "none":
        return None
    from scaling.wandb.settings import TrackingSettings

    return TrackingSettings.from_config(config["tracking"])


def _early(job: running.StudyRun, tracking: Any, console: Console) -> Callable[[], None]:
    """What publishes finished curves while the study runs."""
    from scaling.wandb.live_publish import LivePublisher

    def say(line: str) -> None:
        console.print(escape(line), soft_wrap=True, highlight=False)

    return LivePublisher(job.folder, tracking, job.settings.replicates, say)


def status(words: list[str], console: Console) -> int:
    """What is done, missing, skipped and failed in a results folder, and how its jobs do."""
    from scaling.cli import status as statuses

    parser = _parser(
        "status",
        "What is done, running, missing, skipped and failed in a results folder, and how its jobs do.",
    )
    parser.add_argument(
        "--watch", action="store_true", help="go on until nothing waits or runs; Ctrl-C leaves the jobs alone"
    )
    parser.add_argument("--all", action="store_true", help="every task and every case, however many")
    given = parser.parse_args(words)
    folder = store.folder_of(given.folder)
    if given.watch:
        streams.stop_with_reader()
    found = statuses.watch(folder, console, given.all) if given.watch else statuses.look(folder)
    if found is None:
        return INTERRUPTED
    if not given.watch:
        statuses.show(found, console, given.all)
    return FAILED if found.failed else OK


def logs(words: list[str], console: Console) -> int:
    """Print what was written about a case: by its task, its worker and the scheduler."""
    from scaling.cli import logs as logging

    parser = _parser("logs", "What the task, the worker and the scheduler wrote about a case.")
    known_by = "the case's key, or how it begins, as `scaling status` shows it; or its label; or a workload. Without: what failed"
    parser.add_argument("key", metavar="KEY", nargs="*", help=known_by)
    parser.add_argument("--all", action="store_true", help="files from their first line on, however long")
    given = parser.parse_args(words)
    known = logging.look(store.folder_of(given.folder))
    for number, part in enumerate(logging.show(known, logging.select(known, " ".join(given.key)), given.all)):
        if number:
            console.print()
        console.print(f"[bold]{escape(part.title)}[/]", soft_wrap=True, highlight=False)
        print(part.text, file=console.file)  # as it is: no markup, and no line broken
    return OK


def cancel(words: list[str], console: Console) -> int:
    """End what a folder has in a queue."""
    from scaling.cluster import follow, job_state

    folder = store.folder_of(
        _parser("cancel", "End every task of a results folder that waits or runs.").parse_args(words).folder
    )
    if not (count := job_state.cancel(job_state.look_up(folder))):
        console.print("nothing waits or runs")
        return OK
    left = follow.until_gone(folder)
    text = f"{count_of(count, 'task')} cancelled" + (
        f", {len(left)} of them still about to end" if left else ""
    )
    again = "what was finished is kept, and the same `scaling run` goes on from there"
    console.print(f"{text}; {again}", soft_wrap=True, highlight=False)
    return OK


def report(words: list[str], console: Console) -> int:
    """Write the report of a results folder."""
    parser = _parser(
        "report",
        "Write report/index.html, its figures (SVG, PNG, PDF), table.md and table.csv into a folder.",
    )
    parser.add_argument(
        "--proposal",
        action="store_true",
        help="also what an application for compute time needs, in LaTeX too",
    )
    given = parser.parse_args(words)
    folder = store.folder_of(given.folder)
    found = _conclude(folder, console)
    if given.proposal:
        from scaling.report import proposal

        written = proposal.write_proposal(folder, found)
        console.print(f"proposal: {escape(str(written[0]))}", soft_wrap=True, highlight=False)
    return OK


def compare(words: list[str], console: Console) -> int:
    """Say what became slower or faster from one results folder to another."""
    from scaling.analysis import compare as comparing

    what = "What became slower or faster from A, the old, to B, the new; exit status 1 when something is slower or failed in B."
    parser = Parser(prog="scaling compare", description=what)
    parser.add_argument(
        "a",
        metavar="A",
        help="a results folder; alone, one of `scaling run versus=...`",
    )
    parser.add_argument("b", metavar="B", nargs="?", help="the results folder to compare with it")
    parser.add_argument(
        "--markdown", metavar="FILE", help="write a table for a pull request; - prints that alone"
    )
    parser.add_argument("--margin", type=float, help="a ratio as near to 1 is no difference (default: 0.01)")
    given = parser.parse_args(words)
    if given.markdown not in (None, "-"):
        file = Path(given.markdown)
        if not given.markdown or file.is_dir() or not file.parent.is_dir():
            raise Refusal(
                f"--markdown {given.markdown!r} cannot be written: name a file in a folder that exists, or -"
            )
    return _print_comparison(*comparing.find_folders(given.a, given.b), console, given.margin, given.markdown)


def _print_comparison(
    a: Path, b: Path, console: Console, margin: float | None = None, markdown: str | None = None
) -> int:
    """Compare and print, what changed first; the exit status that it deserves."""
    from scaling.analysis import compare as comparing

    found = comparing.compare(a, b, comparing.MARGIN if margin is None else margin)
    if markdown == "-":
        console.print(
            comparing.format_markdown(found),
            end="",
            soft_wrap=True,
            markup=False,
            highlight=False,
            emoji=False,
        )
        return FAILED if found.bad else OK
    if markdown:
        Path(markdown).write_text(comparing.format_markdown(found), encoding="utf-8")
    table = Table(*comparing.COLUMNS)
    for row in comparing.comparison_rows(found):
        table.add_row(*(escape(cell) for cell in row))
    console.print(table)
    for line in comparing.comparison_lines(found):
        console.print(escape(line), soft_wrap=True, highlight=False)
    return FAILED if found.bad else OK


def lint(words: list[str], console: Console) -> int:
    """Say what a strict reviewer would of a results folder, the worst first, and what mends it."""
    from scaling.analysis import findings
    from scaling.analysis import lint as linting
    from scaling.report.labels import clean_text

    parser = _parser(
        "lint", "Check a results folder as a strict reviewer would; exit status 1 when there are errors."
    )
    parser.add_argument("--strict", action="store_true", help="warnings count as errors")
    given = parser.parse_args(words)
    folder = store.folder_of(given.folder)
    remarks = linting.lint_findings(findings.read(folder, unrecorded=_unrecorded(folder)))
    colours = {linting.ERROR: "red", linting.WARNING: "yellow", linting.NOTE: "dim"}
    for remark in remarks:
        head = f"[{colours[remark.severity]}]{remark.severity:8}[/]"
        shown = clean_text(f"{remark.rule} ({remark.count}): {remark.text}")
        console.print(f"{head}{escape(shown)}", soft_wrap=True, highlight=False)
        console.print(f"        mend: {escape(remark.fix)}", soft_wrap=True, highlight=False)
    console.print(linting.verdict(remarks), highlight=False)
    bad = (linting.ERROR, linting.WARNING) if given.strict else (linting.ERROR,)
    return FAILED if any(remark.severity in bad for remark in remarks) else OK


def export(words: list[str], console: Console) -> int:
    """Write a results folder in the formats of other programs."""
    from scaling.report import export as exporting

    parser = _parser(
        "export", "Write records, curves, samples and laws of a results folder for other programs to read."
    )
    known = ", ".join(exporting.FORMATS)
    parser.add_argument(
        "--format", action="append", default=[], help=f"{known}, or several with commas (default: csv)"
    )
    parser.add_argument("--output", metavar="PATH", help="the folder to write into (default: DIR/export)")
    given = parser.parse_args(words)
    if given.output is not None and not given.output.strip():
        raise Refusal(f"--output must be a folder, such as --output tables, not {given.output!r}")
    output = Path(given.output) if given.output else None
    written = exporting.write_exports(store.folder_of(given.folder), exporting.formats(given.format), output)
    for path in written:
        console.print(escape(str(path)), soft_wrap=True, highlight=False)
    return OK


def merge(words: list[str], console: Console) -> int:
    """Join results folders into one."""
    from scaling.cli import merge as merging

    what = "Join results folders of several clusters: records are copied, environments stay apart, nothing is copied twice."
    parser = Parser(prog="scaling merge", description=what)
    parser.add_argument(
        "folders", metavar="DIR", nargs="+", help="a results folder; nothing in it is changed"
    )
    parser.add_argument(
        "--output", metavar="PATH", required=True, help="the folder to make, or one of results to add to"
    )
    given = parser.parse_args(words)
    for line in merging.merge(given.folders, given.output).lines:
        console.print(escape(line), soft_wrap=True, highlight=False)
    return OK


def publish(words: list[str], console: Console) -> int:
    """Project a results folder onto W&B; status 1 when not all of it is where it was asked to be."""
    from scaling.wandb.settings import TrackingSettings

    parser = _parser(
        "publish",
        "Send the curves of a results folder to Weights & Biases; offline when there is no key (WANDB_API_KEY).",
    )
    parser.add_argument("--project", default="ad-scaling", help="W&B project (default: ad-scaling)")
    parser.add_argument("--entity", default=None, help="W&B entity (default: your own)")
    parser.add_argument("--mode", default="auto", help="auto, online or offline (default: auto)")
    words_on = "save the workspace and the report too (default: yes, needs ad-scaling[dashboard])"
    parser.add_argument("--dashboard", action=argparse.BooleanOptionalAction, default=True, help=words_on)
    given = parser.parse_args(words)
    options = {name: getattr(given, name) for name in ("project", "entity", "mode", "dashboard")}
    return (
        OK
        if _publish(store.folder_of(given.folder), TrackingSettings.from_config(options), console)
        else FAILED
    )


def _publish(folder: Path, settings: Any, console: Console) -> bool:
    """Publish and say what came of it; whether all of it is where it was asked to be."""
    from scaling.wandb.publish import publish

    published = publish(folder, settings)
    for line in published.lines:
        console.print(escape(line), soft_wrap=True, highlight=False)
    return published.well


def _conclude(
    folder: Path,
    console: Console,
    only: Collection[str] | None = None,
    brief: bool = False,
    loaded: store.Loaded | None = None,
) -> "Findings":
    """Write the report, unless it is current, and print its short form, of these environments.

    brief: on one screen, instead of with the table and the curves. loaded: the records of the folder.
    """
    from scaling.analysis import findings
    from scaling.report import freshness, summary

    digest = freshness.inputs_digest(folder)
    loaded, lost = loaded or store.load(folder), _unrecorded(folder)
    latest = store.latest(loaded.records)
    several = any(record.setting not in only for record in latest) if only else False
    shown = {*(only or ()), *(record.setting for record in lost)} if several else None
    found = findings.read(folder, shown, lost, loaded)
    if lost or not freshness.is_current(folder, digest):
        from scaling.report import write_report as pages

        pages.write_report(folder, findings.read(folder, None, lost, loaded) if several else found)
        if not lost:
            freshness.mark_current(folder, digest)
    index = folder / "report" / "index.html"
    if brief:
        for line in summary.summary_lines(found, folder, console.width):
            console.print(escape(line), soft_wrap=True, highlight=False)
    else:
        from scaling.report import terminal

        terminal.print_table(found, console)
        terminal.print_sentences(found, console)
    if elsewhere := len(latest) + len(lost) - len(found.records):
        text = f"- {elsewhere} records of other environments (versions, flags or code) are in the report, kept apart."
        for line in summary.wrap_text(text, indent="  ") if brief else [text]:
            console.print(line)
    counts = Counter(store.states(found.records).values())
    text = ", ".join(f"{counts[name]} {name}" for name in ("ok", "skipped", "failed"))
    joined = f"{text}; report: {index}"
    for line in [text, f"report: {index}"] if brief and len(joined) > summary.WIDTH else [joined]:
        console.print(escape(line), soft_wrap=True, highlight=False)
    return found


def _unrecorded(folder: Path) -> list[Record]:
    """Return records of the cases that jobs have lost and that are not in the folder yet."""
    if not (folder / SUBMISSIONS).is_dir():
        return []
    from scaling.cluster import job_state

    return job_state.unrecorded_in(folder)


def _parser(verb: str, what: str) -> Parser:
    parser = Parser(prog=f"scaling {verb}", description=what)
    parser.add_argument("folder", metavar="DIR", help="a results folder, such as results/smoke")
    return parser
