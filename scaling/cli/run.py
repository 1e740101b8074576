"""The verb `run`: a composed study becomes a plan, and the plan records, here or by way of a cluster.

Knows the configuration and in what order things happen; each of them is done elsewhere.
"""

import contextlib
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from scaling.cli import progress
from scaling.cluster import settings as clusters
from scaling.cluster.settings import HOSTS, LOCAL, NONE, SLURM, SUBMISSIONS, Cluster
from scaling.core import store
from scaling.core.case import CEILING, FIELDS, Refusal, label
from scaling.core.formatting import count_of
from scaling.options import machine_peaks
from scaling.study import examination_cache, grid, preflight
from scaling.workers import schedule, supervise
from scaling.workers.examined import Examined
from scaling.workers.machine import Machine
from scaling.workers.settings import RunSettings
from scaling.workers.worker_group import Variant

_Baseline = tuple[Variant, Path]


@dataclass(frozen=True)
class StudyRun:
    """A study as it was asked for, and checked: what to run, how, and where."""

    name: str
    title: str | None
    settings: RunSettings
    cluster: Cluster
    machine: Machine
    folder: Path
    cells: list[grid.GridCell]
    nested: bool
    wait: bool
    retry: bool = False

    def manifest(self, answers: Sequence[Examined]) -> dict[str, Any]:
        """What study.json says of it."""
        here = [schedule.on_platform(self.machine.platform, answer) for answer in answers]
        once = {answer.case.key for answer in here if answer.unfit or answer.failure}
        scalings = [cell.scaling for cell in self.cells if cell.case.workload != CEILING]
        return schedule.study_manifest(
            self.name, self.title, scalings, [answer.case for answer in answers], self.settings, once
        )


@dataclass(frozen=True)
class RunOutcome:
    """The result of a run: the keys and settings of its records, and whether anything still runs."""

    keys: frozenset[str]
    settings: frozenset[str]  # digests of environments
    baseline: Path | None  # folder of the variant that was measured for comparison
    submitted: bool  # the run goes on by itself, or was not to be started
    failed: bool = False  # a case has failed already
    loaded: store.Loaded | None = None  # the records of the folder at the end


def read_study(config: dict[str, Any], name: str) -> StudyRun:
    """The study of a composed configuration; bad input is a `Refusal`, before anything starts."""
    cluster = clusters.from_config(config["cluster"])
    settings = RunSettings.from_config(config, cluster.attempts if cluster.submits else None)
    overrides = {field: config[field] for field in (*FIELDS, "scaling", "where")}
    if not isinstance(config["study"], dict):
        raise Refusal(f"study={name} is no mapping of fields and grids; name one study, such as study=smoke")
    if config.get("hardware") is not None:
        raise Refusal(
            "hardware is what `scaling plan` compiles for; a study runs on what is here: leave it out"
        )
    if config["deadline"] is not None:
        raise Refusal(
            f"deadline={config['deadline']} has no effect here: it is an option of `scaling plan`; leave it out"
        )
    if config["wait"] is False and not cluster.submits:
        raise Refusal(
            f"wait=false has no effect with cluster={cluster.name}, which runs the study here; leave it out"
        )
    folder = store.results_folder(config["results"])
    if config["versus"] is not None and cluster.name != NONE:
        raise Refusal(f"versus={config['versus']} is measured here alone: leave out cluster={cluster.name}")
    cells = grid.expand_study(config["study"], overrides, settings.max_cases)
    machine = _machine(cluster, config["dry_run"])
    if machine_peaks.are_wanted(config["study"]):
        peaks = machine_peaks.peak_cases([cell.case for cell in cells], machine.platform)
        cells += map(grid.GridCell, peaks)
    machine.enough([cell.case.devices for cell in cells], settings.processes, settings.oversubscribe)
    wait = cluster.name == LOCAL if config["wait"] is None else config["wait"]
    title = config["study"].get("title")
    return StudyRun(
        name, title, settings, cluster, machine, folder, cells, config["nested"], wait, config["retry"]
    )


def _machine(cluster: Cluster, dry_run: bool = False) -> Machine:
    """What there is to run on."""
    if dry_run and cluster.name == SLURM:
        return _machine_to_print(cluster)
    if cluster.name in (NONE, LOCAL):
        return schedule.local_machine()
    if cluster.name != HOSTS:
        from scaling.cluster import slurm

        return (slurm.machine if cluster.name == SLURM else slurm.allocation)(cluster)
    if not cluster.hosts or not cluster.per_node:
        raise Refusal(
            "cluster=hosts wants to know them, and their devices: cluster.hosts=[a,b] cluster.per_node=4"
        )
    named = f"of {', '.join(cluster.hosts)}"
    return Machine(
        cluster.platform,
        cluster.device_kind,
        cluster.per_node,
        len(cluster.hosts),
        named,
        True,
        cluster.untold,
    )


def _machine_to_print(cluster: Cluster) -> Machine:
    """Return the nodes for a dry run: those of the Slurm here, or by `cluster.per_node` where it is that of another site."""
    from scaling.cluster import slurm

    if shutil.which("sinfo") is None:
        return slurm.assumed_machine(cluster)
    try:
        return slurm.machine(cluster)
    except Refusal as refusal:
        if not cluster.per_node:
            raise
        print(
            f"scaling: not of the Slurm here: {refusal}; the scripts follow cluster.per_node", file=sys.stderr
        )
        return slurm.assumed_machine(cluster)


def run(
    job: StudyRun, named: Any, dry_run: bool, console: Console, between: Callable[[], None] | None = None
) -> RunOutcome:
    """Run what is missing of a study, or submit it to its cluster.

    named: the variant to compare with, as `versus` names it. between: called when nothing is being measured on this machine.
    """
    for each in (job.folder, *sorted(job.folder.glob("versus-*"))):
        store.check_schemas(each)
    key = examination_cache.cache_key(job.cells)
    if (answered := examination_cache.load_answers(job.folder, key)) is None:
        with progress.examination(console) as note:
            answered = preflight.ask_cells(job.cells, job.settings.case_seconds, note)
    answers = preflight.judge_answers(job.cells, answered)
    with _open_baseline(named, job.folder) as baseline:
        folders = [job.folder, baseline[1]] if baseline else [job.folder]
        if dry_run:
            made = _plan_dry(job, answers, folders)
            _print_plan(made, job, console)
            if job.cluster.name == SLURM:
                from scaling.cli import submit

                submit.print_scripts(made, job, console)
            return RunOutcome(frozenset(), frozenset(), None, True, bool(made.failures))
        for each in folders:
            store.prepare(each)
        examination_cache.save_answers(job.folder, key, answered)
        if job.cluster.submits:
            from scaling.cli import submit

            made, loaded, submitted = submit.submit_and_wait(job, answers, console, between)
        else:
            (made, loaded), submitted = _run_here(job, answers, folders, baseline, console, between), False
    settings = schedule.comparable_settings(loaded.records, made.environments.values())
    keys, other = frozenset(answer.case.key for answer in answers), baseline[1] if baseline else None
    return RunOutcome(keys, settings, other, submitted, loaded=loaded)


def _run_here(
    job: StudyRun, answers: Sequence[Examined], folders: Sequence[Path], baseline: _Baseline | None, console: Console,
    between: Callable[[], None] | None,
) -> tuple[schedule.Schedule, store.Loaded]:  # fmt: skip
    """Run what is missing to its end, in this process or in the allocation that it runs in."""
    with store.locked(job.folder) as lock:
        made, loaded = plan_run(job, answers, folders, console)
        if not (made.jobs or made.skips or made.failures):
            return made, loaded
        names = {answer.case.key: label(answer.case) for answer in answers}
        site = _site(job)
        with progress.display(console, names, made.missing, len(made.skips) + len(made.failures)) as (
            listen,
            _,
        ):
            supervise.run_schedule(made, job.settings, job.folder, lock, listen, baseline, site, between)
    return made, store.load(job.folder)


def _site(job: StudyRun) -> supervise.Site | None:
    """Return where the workers run; None for this host, without a cluster."""
    if job.cluster.name == NONE:
        return None
    from scaling.cluster import task

    return task.make_site(job.cluster, nested=job.nested)


def _has_submissions(job: StudyRun) -> bool:
    """Return whether tasks were ever submitted for the results folder, or may be now."""
    return job.cluster.submits or (job.folder / SUBMISSIONS).exists()


def _plan_dry(job: StudyRun, answers: Sequence[Examined], folders: Sequence[Path]) -> schedule.Schedule:
    """Return what is missing, and change nothing."""
    queued: Collection[tuple[str, int]] = ()
    if _has_submissions(job):
        from scaling.cli import submit

        queued = submit.queued_cases(job)
    return _plan(job, answers, [store.load(each) for each in folders], queued)


def _plan(
    job: StudyRun,
    answers: Sequence[Examined],
    loaded: Sequence[store.Loaded],
    queued: Collection[tuple[str, int]],
) -> schedule.Schedule:
    """Return what is missing, from the records of the folder and of the baseline, if there is one."""
    records, *baseline = (each.records for each in loaded)
    return schedule.make_schedule(
        answers, job.settings, job.machine, records, baseline[0] if baseline else None, queued, job.retry
    )


def plan_run(
    job: StudyRun, answers: Sequence[Examined], folders: Sequence[Path], console: Console
) -> tuple[schedule.Schedule, store.Loaded]:
    """Print and return what is missing now, and the records; what earlier submissions lost is recorded first."""
    queued: Collection[tuple[str, int]] = ()
    if _has_submissions(job):
        from scaling.cli import submit

        queued = submit.settle_submissions(job, console)
    loaded = [store.load(each) for each in folders]
    for line in loaded[0].damaged:
        console.print(f"[yellow]damaged, passed over:[/] {escape(line)}", soft_wrap=True, highlight=False)
    made = _plan(job, answers, loaded, queued)
    for each in folders:
        store.write_json(each / "study.json", job.manifest(answers))
    _print_summary(made, job, console)
    return made, loaded[0]


@contextlib.contextmanager
def _open_baseline(named: Any, folder: Path) -> Iterator[_Baseline | None]:
    """Yield the variant that `versus` names, and its folder of results; None without one."""
    if named is None:
        yield None
        return
    from scaling.study import variants

    with variants.open_variant(str(named)) as variant:
        yield variant, folder / f"versus-{variant.name}"


def _print_summary(made: schedule.Schedule, job: StudyRun, console: Console) -> None:
    """Print how many cases will run, are done, are skipped and failed, in one line."""
    where = next(iter(made.environments.values()))
    words = [f"{made.missing} cases to run", f"{made.done} done before", f"{len(made.skips)} skipped"]
    words += [f"{len(made.failures)} failed before the start"] if made.failures else []
    words += [f"{made.queued} in the queue already"] if made.queued else []
    lost = f"{made.lost} failed for good or {job.settings.attempts} times (cluster.attempts)"
    words += [f"{lost}: retry=true runs them once more"] if made.lost else []
    on = where["device_kind"] or f"{made.machine.platform} devices {made.machine.name}"
    summary = f"{job.name}: {', '.join(words)}; on {on}; results in {job.folder}"
    console.print(escape(summary), soft_wrap=True, highlight=False)


def _print_plan(made: schedule.Schedule, job: StudyRun, console: Console) -> None:
    """Every case that would run, by process, and every one that would be skipped, with why."""
    platform = made.machine.platform
    for each in made.jobs:
        first = each[0].answer.case
        wide = ", 64-bit" if first.dtype == "float64" else ""
        devices = f"{count_of(first.devices, f'{platform} device')}{wide}"
        shape = schedule.process_shape(first, made.machine, job.settings)
        several = f" on {count_of(shape.nodes, 'node')}" if shape.nodes > 1 else ""
        who = "a process" if shape.processes == 1 else f"{shape.processes} processes"
        console.print(f"[bold]{who} with {devices}{several}[/]", highlight=False)
        for item in each:
            console.print(f"  run   {escape(label(item.answer.case))}", soft_wrap=True, highlight=False)
    for item in made.skips:
        reason, words = item.answer.unfit or ("", "")
        console.print(
            f"  [yellow]skip[/]  {escape(label(item.answer.case))}  {reason}: {escape(words)}",
            soft_wrap=True,
            highlight=False,
        )
    for item in made.failures:
        reason, words = item.answer.failure or ("", "")
        console.print(
            f"  [red]fail[/]  {escape(label(item.case))}  {reason}: {escape(words)}",
            soft_wrap=True,
            highlight=False,
        )
    failed = f"{len(made.failures)} that cannot be examined, " if made.failures else ""
    console.print(
        f"{made.missing} to run, {len(made.skips)} to skip, {failed}{made.done} done before; nothing was started"
    )
