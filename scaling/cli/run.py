"""Implement `scaling run`: read each study (`StudyRun`), run or submit its missing cases, report the results.

With cluster=slurm or cluster=local, submit.py submits the cases as jobs.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from scaling.cli import progress
from scaling.cli.commands import FAILED, OK
from scaling.cli.streams import damaged_notes, print_lines
from scaling.cluster import cluster_settings, slurm
from scaling.cluster.cluster_settings import LOCAL, NONE, SLURM, SUBMISSIONS, ClusterSettings
from scaling.core.case import CEILING, FIELDS, Refusal, built_in, label
from scaling.core.formatting import count_of
from scaling.options import machine_peaks
from scaling.results import store
from scaling.study import arguments, grid, preflight, results_folder, user_workload
from scaling.study.compose import compose, configuration_folder, known_keys
from scaling.workers import schedule as scheduling
from scaling.workers.machine import Machine
from scaling.workers.run_settings import RunSettings
from scaling.workers.schedule import PreflightResult, Schedule

if TYPE_CHECKING:
    from scaling.wandb.job import TrackingSettings
    from scaling.workers.worker_group import Variant

HELP = """\
Run the missing cases of a scaling study.

  scaling run                                     the smoke study, on this host
  scaling run study=rbf 'devices=[1,2]'           over these device counts
  scaling run study=linear mode=jacrev sizes.p=64 a part of the study
  scaling run study=rbf dry_run=true              print the cases only
  scaling run study=rbf tracking=wandb            curves on Weights & Biases
  scaling run study=rbf cluster=slurm             as Slurm jobs
  scaling run --multirun study=rbf,linear         several studies in turn
  scaling run --config-dir my_conf study=mine     my_conf/study/mine.yaml
  scaling run --cfg job study=rbf                 the composed configuration

Studies and other choices (group=choice):

{groups}

Every field (field=value, sizes.p=value). A field that is not given has the
value of the study, or else its default; [a,b] sweeps over values.

{fields}

cluster=slurm, tracking=wandb and hardware=NAME have fields of their own, such
as cluster.time=30: see conf/cluster, conf/tracking and conf/hardware.

Results go to results/<study> unless results=PATH says otherwise.
Exit status: 0 when every case is ok, skipped or in the queue, 1 when some
failed or have no record, 2 for bad input, 130 after Ctrl-C."""


@dataclass(frozen=True)
class StudyRun:
    """A validated study with its settings, cluster, devices and results folder."""

    name: str  # name of its YAML file, such as "rbf"
    title: str | None
    settings: RunSettings
    cluster: ClusterSettings
    machine: Machine  # available nodes and devices
    folder: Path  # the results folder
    cells: list[grid.GridCell]  # the cases as given in the study
    nested: bool  # whether all device counts run in one allocation
    wait: bool  # whether to wait for submitted jobs
    retry: bool = False  # whether cases that have no attempts left run once more
    dry_run: bool = False  # whether to print the cases only
    versus: object = None  # the program to compare with, such as "commit:main"
    baseline: tuple["Variant", Path] | None = None  # the program `versus`, and its results folder
    tracking: "TrackingSettings | None" = None  # None if nothing is published
    checked: Sequence[PreflightResult] = ()  # the cases after their preflight check
    save_answers: Callable[[], None] = lambda: None  # caches the answers of the preflight check

    @property
    def folders(self) -> list[Path]:
        """Return the results folder and, if `baseline` is set, the results folder of the baseline."""
        return [self.folder, *([self.baseline[1]] if self.baseline else [])]


def execute(words: list[str], console: Console) -> int:
    """Run every study that the command-line arguments select, and return the largest exit status."""
    if {"-h", "--help"} & set(words):
        from scaling.study import field_help

        conf, users = configuration_folder(), arguments.parse(words, known_keys()).config_dir
        groups = field_help.describe_groups([conf, *([Path(users)] if users else [])])
        text = HELP.format(groups=groups, fields=field_help.describe(conf))
        console.print(text, soft_wrap=True, markup=False)
        return OK
    studies = [read_study(config, name) for config, name in compose(words)]
    examined = [_examine(study, console) for study in studies]  # all, before any runs
    return max([_run_and_report(study, console) for study in examined], default=OK)


def _examine(run: StudyRun, console: Console) -> StudyRun:
    """Check whether the cases of a study can run. Return the study with the answers, or raise `Refusal`."""
    for folder in (run.folder, *sorted(run.folder.glob("versus-*"))):
        store.check_schemas(folder)
    for name in built_in("workloads").intersection(cell.case.workload for cell in run.cells):
        user_workload.check_not_shadowed(name)  # the cached answers do not depend on the user's files
    key, seconds = preflight.cache_key(run.cells), run.settings.case_seconds
    with progress.show_preflight(console) as note:
        answers = preflight.load_answers(run.folder, key) or preflight.check_cells(run.cells, seconds, note)
    preflight_results = preflight.results_from_answers(run.cells, answers)
    checked = [scheduling.skip_peers_off_cpu(run.machine.platform, result) for result in preflight_results]
    save_answers = functools.partial(preflight.save_answers, run.folder, key, answers)
    return dataclasses.replace(run, checked=checked, save_answers=save_answers)


def _run_and_report(run: StudyRun, console: Console) -> int:
    """Run the cases of a study that have no result yet, write its report, and return the exit status."""
    submitted = False
    with contextlib.ExitStack() as stack:
        if run.dry_run:
            return _print_dry_run(run, console)
        if run.baseline:
            from scaling.study import variants

            variant = stack.enter_context(variants.open_variant(str(run.versus)))
            run = dataclasses.replace(run, baseline=(variant, run.baseline[1]))
        for folder in run.folders:
            results_folder.create_results(folder)
        run.save_answers()
        if run.cluster.submits:
            from scaling.cli import submit

            schedule, loaded, submitted = submit.submit_and_wait(run, console)
        else:
            schedule, loaded = _run_directly(run, console)
    if submitted:
        if run.tracking is not None:
            print_lines(console, [f"publish later with `scaling publish {run.folder}`"])
        return FAILED if run.wait else OK  # a task was canceled while this process waited for it
    return _report_and_publish(run, schedule, loaded, console)


def _report_and_publish(run: StudyRun, schedule: Schedule, loaded: store.Loaded, console: Console) -> int:
    """Write and print the report, compare the results with the baseline, and publish the curves.

    Return exit status 1 if a case failed, or if a case has no record and is not queued. Otherwise return 0.
    """
    from scaling.cli import report

    settings = scheduling.comparable_settings(loaded.records, schedule.environments.values())
    found = report.write_and_print(run.folder, console, settings, brief=True, loaded=loaded)
    if run.baseline:
        from scaling.cli.compare import print_comparison

        print_comparison(run.baseline[1], run.folder, console)
    if run.tracking is not None:
        from scaling.wandb.publish import publish

        print_lines(console, publish(run.folder, run.tracking, loaded).lines)
    keys = {result.case.key for result in run.checked}
    has_failed = any(r.status == "failed" and r.key in keys for r in found.records)
    return FAILED if has_failed or len(found.missing) > schedule.queued else OK


def read_study(config: dict[str, Any], name: str) -> StudyRun:
    """Return the study that a composed configuration describes. Raise `Refusal` if it is invalid."""
    cluster = cluster_settings.from_config(config["cluster"])
    settings = RunSettings.from_config(config, cluster.attempts if cluster.submits else None)
    _check_options(config, name, cluster)
    tracking = None
    if config["tracking"].get("name") != "none":
        from scaling.wandb.job import TrackingSettings

        tracking = TrackingSettings.from_config(config["tracking"])
    folder = results_folder.parse_results(config["results"])
    if cluster.submits:
        from scaling.cluster import sbatch

        sbatch.resolve_results(folder, cluster)  # refuses a path that no job can use
    study, wait = config["study"], config["wait"]
    overrides = {field: config[field] for field in (*FIELDS, "scaling", "where")}
    cells = grid.expand_study(study, overrides, settings.max_cases, name=name)
    machine = slurm.find_machine(cluster, config["dry_run"])
    if machine_peaks.enables_peaks(study):
        peaks = machine_peaks.peak_cases([cell.case for cell in cells], machine.platform)
        cells += map(grid.GridCell, peaks)
    counts = [cell.case.devices for cell in cells]
    machine.check_device_counts(counts, settings.processes, settings.oversubscribe)
    wait = cluster.name == LOCAL if wait is None else wait
    baseline = None
    if config["versus"] is not None:
        from scaling.study import variants

        variant = variants.name_variant(str(config["versus"]))
        baseline = variant, folder / f"versus-{variant.name}"
    return StudyRun(
        name, study.get("title"), settings, cluster, machine, folder, cells, config["nested"], wait,
        config["retry"], config["dry_run"], config["versus"], baseline, tracking,
    )  # fmt: skip


def _check_options(config: dict[str, Any], name: str, cluster: ClusterSettings) -> None:
    """Raise `Refusal` if the study is not a mapping, or if an option has no effect in this run."""
    study, versus = config["study"], config["versus"]
    if not isinstance(study, dict):
        text = f"study={name} is not a mapping of fields and grids"
        raise Refusal(f"{text}; name one study, such as study=smoke")
    for option in ("hardware", "deadline"):
        if config.get(option) is not None:
            raise Refusal(f"{option} is an option of `scaling plan` and has no effect here: leave it out")
    if config["wait"] is False and not cluster.submits:
        text = f"wait=false has no effect with cluster={cluster.name}, which runs the study here"
        raise Refusal(f"{text}; leave it out")
    if versus is not None and cluster.name != NONE:
        raise Refusal(f"versus={versus} runs on this machine only: leave out cluster={cluster.name}")


def _run_directly(run: StudyRun, console: Console) -> tuple[Schedule, store.Loaded]:
    """Run the missing cases without submitting jobs. Return the schedule and all records."""
    with store.locked(run.folder) as lock:
        schedule, loaded = plan_run(run, console)
        total = schedule.missing + len(schedule.skips) + len(schedule.failures)
        if not total:
            return schedule, loaded
        from scaling.workers import supervise

        options = None
        if run.cluster.name != NONE:
            from scaling.cluster import task

            options = task.make_worker_options(run.cluster, nested=run.nested)
        names = {result.case.key: label(result.case) for result in run.checked}
        with progress.show_run(console, names, total) as (listen, _):
            supervise.run_schedule(schedule, run.settings, run.folder, lock, listen, run.baseline, options)
    return schedule, store.load(run.folder)


def plan_run(run: StudyRun, console: Console) -> tuple[Schedule, store.Loaded]:
    """Schedule the cases of a study that have no result yet. Return the schedule and all earlier records.

    Before scheduling, write a "failed" record for each case that an ended cluster job did not record. After
    scheduling, write study.json, and print a summary. In a dry run, do neither.
    """
    queued = set[tuple[str, int]]()
    if run.cluster.submits or (run.folder / SUBMISSIONS).exists():
        from scaling.cli import submit

        queued = submit.settle_submissions(run, console)
    loaded, *baselines = [store.load(folder) for folder in run.folders]
    baseline = baselines[0].records if baselines else None
    schedule = scheduling.make_schedule(
        run.checked, run.settings, run.machine, loaded.records, baseline, queued, run.retry
    )
    if run.dry_run:
        return schedule, loaded
    print_lines(console, damaged_notes(loaded.damaged), "yellow")
    recorded_once = {result.case.key for result in run.checked if result.inapplicable or result.failure}
    scalings = [cell.scaling for cell in run.cells if cell.case.workload != CEILING]
    cases = [result.case for result in run.checked]
    manifest = scheduling.study_manifest(run.name, run.title, scalings, cases, run.settings, recorded_once)
    for folder in run.folders:
        store.write_json(folder / "study.json", manifest)
    _print_counts(run, schedule, console)
    return schedule, loaded


def _print_counts(run: StudyRun, schedule: Schedule, console: Console) -> None:
    finally_failed = f"{schedule.lost} failed permanently or {run.settings.attempts} times (cluster.attempts)"
    skipped = f"{len(schedule.skips)} skipped"
    counts = (
        (True, f"{schedule.missing} cases to run, {schedule.done} already done, {skipped}"),
        (schedule.failures, f"{len(schedule.failures)} failed before the start"),
        (schedule.queued, f"{schedule.queued} in the queue already"),
        (schedule.lost, f"{finally_failed}: retry=true runs them once more"),
    )
    text = ", ".join(count_text for shown, count_text in counts if shown)
    device_kind = next(iter(schedule.environments.values()))["device_kind"]
    device_name = device_kind or f"{schedule.machine.platform} devices {schedule.machine.name}"
    print_lines(console, [f"{run.name}: {text}; on {device_name}; results in {run.folder}"])


def _print_dry_run(run: StudyRun, console: Console) -> int:
    """Print the cases that would run, be skipped or fail. Return exit status 1 if one fails, otherwise 0."""
    schedule, loaded = plan_run(run, console)
    for session in schedule.sessions:
        shape = scheduling.process_shape(session[0].case, schedule.machine, run.settings)
        devices = count_of(shape.devices, f"{schedule.machine.platform} device")
        processes = "a process" if shape.processes == 1 else f"{shape.processes} processes"
        print_lines(console, [f"{processes} with {devices} on {count_of(shape.nodes, 'node')}"], "bold")
        print_lines(console, [f"  run   {label(item.case)}" for item in session])
    for item in (*schedule.skips, *schedule.failures):
        mark, style = ("fail", "red") if item.preflight.failure else ("skip", "yellow")
        reason = ": ".join(item.preflight.failure or item.preflight.inapplicable or ())
        print_lines(console, [f"  {mark}  {label(item.case)}  {reason}"], style)
    failed = f"{len(schedule.failures)} that cannot be examined, " if schedule.failures else ""
    counts = f"{schedule.missing} to run, {len(schedule.skips)} to skip, {failed}{schedule.done} already done"
    console.print(f"{counts}; nothing was started")
    if run.cluster.name == SLURM:
        from scaling.cli import submit

        submit.print_scripts(run, schedule, loaded, console)
    return FAILED if schedule.failures else OK
