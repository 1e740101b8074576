"""Implement `scaling run`: read a study (`StudyRun`), run or submit its missing cases, print the results."""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from scaling.cli import report
from scaling.cli.commands import FAILED, OK
from scaling.cli.output import damaged_notes, print_lines, show_preflight, show_run
from scaling.cluster import cluster_settings, pack, sbatch, slurm, task_state
from scaling.cluster.cluster_settings import LOCAL, NONE, SLURM, SUBMISSIONS, ClusterSettings
from scaling.core.case import CEILING, Refusal, label, module_names
from scaling.core.formatting import format_count, format_wait
from scaling.launcher import schedule as scheduling
from scaling.launcher import supervise
from scaling.launcher.machine import Machine
from scaling.launcher.run_settings import RunSettings
from scaling.launcher.schedule import PreflightResult, Schedule, find_identities
from scaling.launcher.worker_group import Variant
from scaling.options import machine_peaks
from scaling.results import store
from scaling.study import grid, preflight, user_workload, variants
from scaling.study.configuration import compose, describe_fields, describe_groups
from scaling.wandb.job import TrackingSettings

HELP = """\
Run the missing cases of a scaling study.

  scaling run                                     the smoke study, on this host
  scaling run study=speedup 'devices=[1,2]'       over these device counts
  scaling run study=linear mode=jacrev sizes.p=64 a part of the study
  scaling run study=rbf dry_run=true              print the cases only
  scaling run study=speedup tracking=wandb        curves on Weights & Biases
  scaling run study=speedup cluster=slurm         as Slurm jobs
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
    """A study with its checked settings, cluster, devices and results folder."""

    name: str  # name of its YAML file, such as "rbf"
    title: str | None
    settings: RunSettings
    cluster: ClusterSettings
    machine: Machine  # available nodes and devices
    folder: Path  # the results folder
    cells: list[grid.GridCell]  # the cases as given in the study
    nested: bool  # whether all device counts run in one allocation
    wait: bool  # whether to wait for submitted jobs
    retry: bool  # whether cases that have no attempts left run once more
    dry_run: bool  # whether to print the cases only
    versus: object  # the program to compare with, such as "commit:main"
    baseline: tuple[Variant, Path] | None  # the program `versus`, and its results folder
    tracking: TrackingSettings | None  # None if nothing is published
    answers: Sequence[preflight.Answer] = ()  # of the preflight check, one for each of `cells`
    checked: Sequence[PreflightResult] = ()  # the cases after their preflight check

    @property
    def folders(self) -> list[Path]:
        """Return the results folder, and the folder of the baseline if the run has versus=."""
        return [self.folder, *([self.baseline[1]] if self.baseline else [])]


def execute(words: list[str], console: Console) -> int:
    """Run the missing cases of the study that the arguments select, and return the exit status."""
    overrides = [word for word in words if word not in ("-h", "--help")]
    if overrides != words:
        text = HELP.format(groups=describe_groups(overrides), fields=describe_fields())
        console.print(text, soft_wrap=True, markup=False)
        return OK
    run = _check_cases(_read_study(*compose(words)), console)
    return _print_dry_run(run, console) if run.dry_run else _run_and_report(run, console)


def _read_study(config: dict[str, Any], name: str) -> StudyRun:
    """Return the study that a composed configuration describes, or raise `Refusal` if it is invalid."""
    cluster = cluster_settings.parse_cluster_settings(config["cluster"])
    settings = RunSettings.from_config(config, cluster.attempts if cluster.submits else None)
    _check_run_options(config, cluster)
    is_tracked = config["tracking"].get("name") != "none"
    tracking = TrackingSettings.from_config(config["tracking"]) if is_tracked else None
    folder = store.parse_results_folder(config["results"])
    if cluster.submits:
        sbatch.resolve_results(folder, cluster)  # refuses a path that no job can use
    study = config["study"]
    cells = grid.expand_study(study, config, settings.max_cases, name=name)
    machine = slurm.find_machine(cluster, config["dry_run"])
    if machine_peaks.enables_peaks(study):
        peaks = machine_peaks.peak_cases([cell.case for cell in cells], machine.platform)
        cells += map(grid.GridCell, peaks)
    device_counts = [cell.case.devices for cell in cells]
    machine.check_device_counts(device_counts, settings.processes, settings.oversubscribe)
    baseline = None
    if config["versus"] is not None:
        variant = variants.name_variant(str(config["versus"]))
        baseline = variant, folder / f"versus-{variant.name}"
    return StudyRun(
        name, study.get("title"), settings, cluster, machine, folder, cells, config["nested"],
        cluster.name == LOCAL if config["wait"] is None else config["wait"], config["retry"],
        config["dry_run"], config["versus"], baseline, tracking,
    )  # fmt: skip


def _check_run_options(config: dict[str, Any], cluster: ClusterSettings) -> None:
    """Raise `Refusal` if a value in `config` has no effect with `scaling run` or with this cluster."""
    versus = config["versus"]
    if config.get("hardware") is not None:
        raise Refusal("hardware is an option of `scaling plan` and has no effect here: leave it out")
    for option, value in (("wait", False), ("retry", True)):
        if config[option] is value and not cluster.submits:
            text = f"{grid.format_setting(option, value)} has no effect with cluster={cluster.name}"
            raise Refusal(f"{text}, which runs the study here; leave it out")
    if versus is not None and cluster.name != NONE:
        raise Refusal(f"versus={versus} runs on this machine only: leave out cluster={cluster.name}")


def _check_cases(run: StudyRun, console: Console) -> StudyRun:
    """Return a copy of `run` with the preflight results. Raise `Refusal` if a case is invalid."""
    for folder in run.folders:
        store.refuse_newer_schema(folder)
    for name in module_names("workloads").intersection(cell.case.workload for cell in run.cells):
        user_workload.check_not_shadowed(name)  # cached answers may predate a user's module of this name
    with show_preflight(console) as note:
        answers = preflight.load_answers(run.folder, run.cells)
        answers = answers or preflight.check_cells(run.cells, run.settings.case_seconds, note)
    results = preflight.results_from_answers(run.cells, answers)
    checked = [preflight.skip_peers_off_cpu(run.machine.platform, result) for result in results]
    return dataclasses.replace(run, answers=answers, checked=checked)


def _run_and_report(run: StudyRun, console: Console) -> int:
    """Run the cases of a study that have no result, report the results, and return the exit status."""
    with contextlib.ExitStack() as stack:
        if run.baseline:
            variant = stack.enter_context(variants.open_variant(str(run.versus)))
            run = dataclasses.replace(run, baseline=(variant, run.baseline[1]))
        for folder in run.folders:
            store.create_results(folder)
        preflight.save_answers(run.folder, run.cells, run.answers)
        outcome = _submit_and_wait(run, console) if run.cluster.submits else _run_directly(run, console)
    if outcome is not None:
        return _report_and_publish(run, *outcome, console)
    if run.tracking is not None:
        print_lines(console, [f"publish later with `{store.format_command('publish', run.folder)}`"])
    return OK


def _print_dry_run(run: StudyRun, console: Console) -> int:
    """Print which cases would run, be skipped or fail. Return 1 if any case would fail, otherwise 0."""
    schedule, loaded = _plan_run(run, console)
    for session in schedule.sessions:
        shape = scheduling.process_shape(session[0].case, schedule.machine, run.settings)
        devices = format_count(shape.devices, f"{schedule.machine.platform} device")
        processes = "a process" if shape.processes == 1 else f"{shape.processes} processes"
        print_lines(console, [f"{processes} with {devices} on {format_count(shape.nodes, 'node')}"], "bold")
        print_lines(console, [f"  run   {label(scheduled.case)}" for scheduled in session])
    for scheduled in (*schedule.skips, *schedule.failures):
        status, *reason = scheduled.preflight.outcome or ("",)
        mark, style = ("fail", "red") if status == "failed" else ("skip", "yellow")
        print_lines(console, [f"  {mark}  {label(scheduled.case)}  {': '.join(reason)}"], style)
    failed = f"{len(schedule.failures)} that cannot be examined, " if schedule.failures else ""
    counts = f"{schedule.missing} to run, {len(schedule.skips)} to skip, {failed}{schedule.done} already done"
    console.print(f"{counts}; nothing was started")
    if run.cluster.name == SLURM:
        tasks = _pack_tasks(run, schedule, loaded) if schedule.sessions else []
        for text in sbatch.format_scripts(run.folder, run.cluster, tasks, schedule.machine):
            console.print(f"\n{text}", markup=False, soft_wrap=True)
    return FAILED if schedule.failures else OK


def _run_directly(run: StudyRun, console: Console) -> tuple[Schedule, store.Loaded]:
    """Run the missing cases without submitting jobs. Return the schedule, and all records of the folder."""
    with store.lock_folder(run.folder) as lock:
        schedule, loaded = _plan_run(run, console)
        total = schedule.missing + len(schedule.skips) + len(schedule.failures)
        if not total:
            return schedule, loaded
        options = None
        if run.cluster.name != NONE:
            from scaling.cluster.task import make_worker_options

            options = make_worker_options(run.cluster, nested=run.nested)
        labels = {result.case.key: label(result.case) for result in run.checked}
        with show_run(console, labels, total) as (listen, _):
            supervise.run_schedule(schedule, run.settings, run.folder, lock, listen, run.baseline, options)
    return schedule, store.load(run.folder)


def _submit_and_wait(run: StudyRun, console: Console) -> tuple[Schedule, store.Loaded] | None:
    """Submit the missing cases as cluster tasks. Return the schedule and all records, or None.

    If `run.wait` is true, wait until the tasks end, and write a "failed" record for each case that they did
    not finish. If it is false and tasks are queued, return None.
    """
    with store.lock_folder(run.folder):
        schedule, loaded = _plan_run(run, console)
        submitted = _submit(run, schedule, loaded, console)
    if not submitted:
        return schedule, store.load(run.folder)
    if not run.wait:
        return None
    _wait_until_done(run.folder, console)
    with store.lock_folder(run.folder):
        schedule, loaded = _plan_run(dataclasses.replace(run, retry=False), console)
    if schedule.missing:
        print_lines(console, ["repeat the command to run these cases; finished records are kept"])
    return schedule, loaded


def _wait_until_done(folder: Path, console: Console) -> None:
    """Print the progress of all submitted tasks whenever it changes, until no task is pending or running.

    After Ctrl-C, raise `KeyboardInterrupt`. Its message names the commands that show and cancel the tasks.
    """
    try:
        for line, _ in itertools.groupby(map(task_state.progress_line, task_state.poll(folder))):
            print_lines(console, [line] if line else [])
    except KeyboardInterrupt:
        status_command, cancel_command = (store.format_command(verb, folder) for verb in ("status", "cancel"))
        commands = f"`{status_command}` shows the jobs, `{cancel_command}` ends them"
        raise KeyboardInterrupt(f"no longer waiting; {commands}") from None


def _submit(run: StudyRun, schedule: Schedule, loaded: store.Loaded, console: Console) -> bool:
    """Submit the missing cases as cluster tasks, and write records of the skipped and failed cases.

    Return whether any case is queued, including the cases of earlier submissions.
    """
    without_runs = dataclasses.replace(schedule, sessions=())
    supervise.run_schedule(without_runs, run.settings, run.folder, None, lambda _: None)
    if not schedule.sessions:
        return bool(schedule.queued)
    tasks = _pack_tasks(run, schedule, loaded)
    submission = sbatch.submit(run.folder, run.cluster, tasks, run.settings, schedule, run.nested)
    jobs = list(dict.fromkeys((task.job or "").partition("_")[0] for task in submission.tasks))
    job_names = f"{'jobs' if len(jobs) > 1 else 'job'} {', '.join(jobs)}"
    longest, limit = max(task.seconds for task in tasks), run.cluster.time
    progress_advice = f"`{store.format_command('status', run.folder)}` shows their progress"
    duration = f"each about {format_wait(longest)} or less"
    submitted = f"submitted {format_count(len(tasks), 'task')} as {job_names}"
    print_lines(console, [f"{submitted}, {duration}; {progress_advice}"])
    if longest > 60 * limit:
        warning = f"one of them may take {format_wait(longest)}, longer than cluster.time={limit:g} minutes"
        print_lines(console, [f"{warning}: cluster.time={math.ceil(1.5 * longest / 60)} is enough"], "yellow")
    return True


def _pack_tasks(run: StudyRun, schedule: Schedule, loaded: store.Loaded) -> list[pack.PackedTask]:
    is_local = run.cluster.name == LOCAL  # a single task
    budget = math.inf if is_local else 60 * run.cluster.time * run.cluster.fill
    return pack.pack(schedule, run.settings, loaded.records, budget, run.nested or is_local)


def _plan_run(run: StudyRun, console: Console) -> tuple[Schedule, store.Loaded]:
    """Schedule the cases of a study that have no result. Return the schedule, and all records of the folder.

    Unless `run.dry_run` is true, also write study.json, and a "failed" record for each case that an ended job
    did not finish.
    """
    queued = set[tuple[str, int]]()
    if run.cluster.submits or (run.folder / SUBMISSIONS).exists():
        queued = _settle_submissions(run, console)  # writes records unless `run.dry_run` is true
    loaded, *baselines = [store.load(folder) for folder in run.folders]
    baseline = baselines[0].records if baselines else None
    schedule = scheduling.make_schedule(
        run.checked, run.settings, run.machine, loaded.records, baseline, queued, run.retry
    )
    if run.dry_run:
        return schedule, loaded
    print_lines(console, damaged_notes(loaded), "yellow")
    scalings = [cell.scaling for cell in run.cells if cell.case.workload != CEILING]
    manifest = scheduling.study_manifest(run.name, run.title, scalings, run.checked, run.settings)
    for folder in run.folders:
        store.write_json(folder / "study.json", manifest)
    _print_counts(run, schedule, console)
    return schedule, loaded


def _print_counts(run: StudyRun, schedule: Schedule, console: Console) -> None:
    counts = {  # text after a number -> the number, which is omitted if it is 0
        "failed before the start": len(schedule.failures),
        "in the queue already": schedule.queued,
        f"failed permanently or {run.settings.attempts} times (cluster.attempts): retry=true runs them once "
        "more": schedule.exhausted,
    }
    to_run, skipped = format_count(schedule.missing, "case"), len(schedule.skips)
    text = f"{to_run} to run, {schedule.done} already done, {skipped} skipped"
    text = ", ".join([text, *(f"{count} {what}" for what, count in counts.items() if count)])
    device_kind = next(iter(schedule.environments.values()))["device_kind"]
    device_name = device_kind or f"{schedule.machine.platform} devices {schedule.machine.name}"
    print_lines(console, [f"{run.name}: {text}; on {device_name}; results in {run.folder}"])


def _settle_submissions(run: StudyRun, console: Console) -> set[tuple[str, int]]:
    """Return the case key and replicate number of each case that a submitted task may still run.

    Unless `run.dry_run` is true, first write a "failed" record for each case that an ended job did not
    finish.
    """
    tasks = task_state.find_tasks(run.folder)
    if not run.dry_run and (lost := task_state.record_lost_cases(run.folder, tasks)):
        console.print(f"{format_count(lost, 'case')} of earlier jobs did not finish; the records say why")
    if unknown := [task.state.reason for task in tasks if task.state.name == task_state.UNKNOWN]:
        text = f"{format_count(len(unknown), 'task')} may still run ({unknown[0]})"
        print_lines(console, [f"{text}; if they have ended, remove {run.folder / SUBMISSIONS}"])
    return task_state.queued_cases(tasks)


def _report_and_publish(run: StudyRun, schedule: Schedule, loaded: store.Loaded, console: Console) -> int:
    """Write and print the report, compare with the baseline, and publish the curves. Return the exit status.

    The status is 1 if a case failed, or is neither recorded nor queued, and otherwise 0.
    """
    planned = schedule.environments
    settings = {record.setting for record in loaded.records if find_identities(record, planned)}
    study_findings = report.write_and_print(run.folder, console, settings, brief=True, loaded=loaded)
    if run.baseline:
        from scaling.cli.compare import print_comparison

        print_comparison(run.baseline[1], run.folder, console)
    if run.tracking is not None:
        from scaling.wandb.publish import publish

        print_lines(console, publish(run.folder, run.tracking, loaded).lines)
    counts = scheduling.replicate_counts(run.checked, run.settings)
    has_failed = any(record.status == "failed" and record.key in counts for record in study_findings.records)
    # `study_findings.missing` may belong to another study, which has replaced study.json in this folder.
    expected = {(key, replicate) for key, count in counts.items() for replicate in range(count)}
    missing = expected - {(record.key, record.replicate) for record in study_findings.records}
    return FAILED if has_failed or len(missing) > schedule.queued else OK
