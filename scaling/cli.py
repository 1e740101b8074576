"""The command `scaling VERB`: hands plain values on and prints what comes back. A refusal becomes one line and status 2."""

import argparse
import contextlib
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

import scaling
from scaling import ceilings, environment, launch, preflight, progress, store, study, supervise, versus
from scaling.case import CEILING, FIELDS, Case, Refusal, from_dict, label, unknown
from scaling.compose import compose
from scaling.record import Record
from scaling.sampling import Sampling

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
_MOST = 1e8  # of any setting
_BESIDE = 5  # replicates, where two sides are compared
_OVERVIEW = """\
How does the cost of a Jacobian scale, with problem size, with AD mode, and with the number of accelerators?

  scaling run       run a study, or what is missing of it      scaling run study=smoke
  scaling status    what is done, missing, skipped and failed  scaling status results/smoke
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
        "run": run, "status": status, "report": report, "compare": compare, "lint": lint, "publish": publish,
    }  # fmt: skip
    signal.signal(signal.SIGTERM, _interrupt)
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
    settings = _settings(config)
    tracking = _tracking(config)
    overrides = {field: config[field] for field in (*FIELDS, "scaling", "where")}
    if not isinstance(config["study"], dict):
        raise Refusal(f"study={name} is no mapping of fields and grids; name one study, such as study=smoke")
    if not config["results"]:
        raise Refusal("results must be a folder, such as results=results/mine")
    cells = study.expand(config["study"], overrides)
    if ceilings.wanted(config["study"]):
        cells += ceilings.cells(cells, environment.platform())
    folder = Path(str(config["results"]))
    launch.enough([cell.case.devices for cell in cells], settings)
    answers = preflight.ask(cells)
    with _beside(config["versus"], folder) as beside:
        folders = [folder, beside[1]] if beside else [folder]
        if config["dry_run"]:
            _print_plan(launch.plan(answers, settings, *(store.load(each).records for each in folders)), console)
            return OK
        for each in folders:
            store.prepare(each)
        with store.locked(folder) as lock:
            loaded = [store.load(each) for each in folders]
            for line in loaded[0].damaged:
                console.print(f"[yellow]damaged, passed over:[/] {escape(line)}", soft_wrap=True, highlight=False)
            made = launch.plan(answers, settings, *(each.records for each in loaded))
            cases = [answer.case for answer in answers]
            scalings = [cell.scaling for cell in cells if cell.case.workload != CEILING]
            told = launch.manifest(name, config["study"].get("title"), scalings, cases, settings)
            for each in folders:
                store.write_json(each / "study.json", told)
            _say_plan(made, name, folder, console)
            names = {case.key: label(case) for case in cases}
            with progress.display(console, names, made.missing, len(made.skips)) as (listen, _):
                supervise.run(made, settings, folder, lock, listen, beside)
    found = _conclude(folder, console, {where["setting"] for where in made.environments.values()})
    if beside:
        _print_comparison(beside[1], folder, console)
    if tracking is not None:
        _publish(folder, tracking, console)
    return FAILED if any(record.status == "failed" and record.key in names for record in found) else OK


@contextlib.contextmanager
def _beside(named: Any, folder: Path) -> Iterator[tuple[versus.Side, Path] | None]:
    """The other side that `versus` names, and its folder of results; None without one."""
    if named is None:
        yield None
        return
    with versus.side(str(named)) as side:
        yield side, folder / f"versus-{side.name}"


def _settings(config: dict[str, Any]) -> launch.Settings:
    """How to run, with every value checked."""

    def number(name: str, value: Any, least: float, whole: bool = False) -> Any:
        kinds = (int,) if whole else (int, float)
        bound = f" and at most {_MOST:g}" if isinstance(value, kinds) and value > _MOST else ""
        if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= _MOST:
            raise Refusal(f"{name} must be {'an integer' if whole else 'a number'}, {least:g} or more{bound}, not {value!r}")
        return value

    for name in ("bind", "oversubscribe", "dry_run"):
        if not isinstance(config[name], bool):
            raise Refusal(f"{name} must be true or false, not {config[name]!r}")
    given = config["sampling"]
    if not isinstance(given, dict):
        raise Refusal(f"sampling must be a mapping such as {{seconds: 1.0}}, not {given!r}")
    sampling = Sampling(
        width=number("sampling.width", given["width"], 0.0),
        least=number("sampling.least", given["least"], 1, whole=True),
        most=number("sampling.most", given["most"], given["least"], whole=True),
        seconds=number("sampling.seconds", given["seconds"], 0.0),
        warm_up=number("sampling.warm_up", given["warm_up"], 0.0),
        turns=number("sampling.turns", given["turns"], 1, whole=True),
        compilations=number("sampling.compilations", given["compilations"], 1, whole=True),
    )
    several = {"replicates": config["replicates"], "processes": config["processes"]}
    if several["replicates"] is None:
        several["replicates"] = 1 if config["versus"] is None else _BESIDE
    return launch.Settings(
        sampling, config["bind"], config["oversubscribe"], number("case_seconds", config["case_seconds"], 0.001),
        number("order_seed", config["order_seed"], 0, whole=True),
        **{name: number(name, value, 1, whole=True) for name, value in several.items()},
    )  # fmt: skip


def _tracking(config: dict[str, Any]) -> Any:
    """Where to publish, or None; checked before anything starts."""
    from scaling.reading import track

    return None if config["tracking"]["name"] == "none" else track.Settings.from_config(config["tracking"])


def _say_plan(made: launch.Plan, name: str, folder: Path, console: Console) -> None:
    where = next(iter(made.environments.values()))
    words = f"{name}: {made.missing} cases to run, {made.done} done before, {len(made.skips)} skipped"
    console.print(
        f"{escape(words)}; on {escape(str(where['device_kind']))}; results in {escape(str(folder))}",
        soft_wrap=True,
        highlight=False,
    )


def _print_plan(made: launch.Plan, console: Console) -> None:
    """Every case that would run, by process, and every one that would be skipped, with why."""
    for job in made.jobs:
        first = job[0].answer.case
        wide = ", 64-bit" if first.dtype == "float64" else ""
        console.print(
            f"[bold]a process with {first.devices} {made.platform} device{'s' * (first.devices > 1)}{wide}[/]", highlight=False
        )
        for item in job:
            console.print(f"  run   {escape(label(item.answer.case))}", soft_wrap=True, highlight=False)
    for item in made.skips:
        reason, words = item.answer.unfit or ("", "")
        console.print(
            f"  [yellow]skip[/]  {escape(label(item.answer.case))}  {reason}: {escape(words)}", soft_wrap=True, highlight=False
        )
    console.print(f"{made.missing} to run, {len(made.skips)} to skip, {made.done} done before; nothing was started")


def status(words: list[str], console: Console) -> int:
    """What is done, missing, skipped and failed in a results folder."""
    parser = _parser("status", "What is done, missing, skipped and failed in a results folder.")
    folder = store.folder_of(parser.parse_args(words).folder)
    loaded = store.load(folder)
    asked = _asked(folder)
    records = {record.key: record for record in sorted(store.latest(loaded.records), key=lambda r: r.started_at or "")}
    table = Table("workload", "ok", "skipped", "failed", "missing", title=str(folder))
    rows: dict[str, Counter] = {}
    for case in asked or [record.case for record in records.values()]:
        rows.setdefault(case.workload, Counter())[records[case.key].status if case.key in records else "missing"] += 1
    for workload, counts in rows.items():
        table.add_row(escape(workload), *(str(counts[state]) for state in ("ok", "skipped", "failed", "missing")))
    console.print(table)
    for record in records.values():
        if record.status != "ok":
            line = f"{record.status:7} {label(record.case)}  {record.reason}: {record.text}"
            console.print(escape(line), soft_wrap=True, highlight=False)
    for case in asked:
        if case.key not in records:
            console.print(escape(f"missing {label(case)}"), soft_wrap=True, highlight=False)
    for line in loaded.damaged:
        console.print(f"[yellow]damaged, passed over:[/] {escape(line)}", soft_wrap=True, highlight=False)
    return FAILED if any(record.status == "failed" for record in records.values()) else OK


def _asked(folder: Path) -> list[Case]:
    """The cases that the folder's study was last asked for; what cannot be read as a case is left out."""
    told = store.read_json(folder / "study.json")
    entries = told.get("cases") if isinstance(told, dict) else None
    cases = []
    for entry_ in entries if isinstance(entries, list) else []:
        with contextlib.suppress(Refusal, TypeError, KeyError, AttributeError):
            cases.append(from_dict(entry_["case"]))
    return cases


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
    from scaling.reading import answer
    from scaling.reading import lint as linting

    parser = _parser("lint", "Check a results folder as a strict reviewer would; exit status 1 when there are errors.")
    parser.add_argument("--strict", action="store_true", help="warnings count as errors")
    given = parser.parse_args(words)
    told = linting.remarks(answer.read(store.folder_of(given.folder)))
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
    from scaling.reading import track

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
    from scaling.reading import track

    for line in track.publish(folder, settings).lines:
        console.print(escape(line), soft_wrap=True, highlight=False)


def _conclude(folder: Path, console: Console, only: Collection[str] | None = None) -> list[Record]:
    """Write the report and print its short form, of these environments; their records."""
    from scaling.reading import answer
    from scaling.reading import report as pages

    index, found = pages.write(folder), answer.read(folder, only)
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
