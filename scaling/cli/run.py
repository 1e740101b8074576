"""Implement `scaling run`: read a study, run or submit its missing cases, and report the results.

With cluster=slurm or cluster=local, submit.py submits the cases as jobs.
"""

import contextlib
import dataclasses
import functools

from rich.console import Console

from scaling.cli.commands import FAILED, OK
from scaling.cli.output import print_lines, show_preflight, show_run
from scaling.cli.study_run import StudyRun, plan_run, read_study
from scaling.cluster.cluster_settings import NONE, SLURM
from scaling.core.case import built_in, label
from scaling.core.formatting import format_count
from scaling.results import store
from scaling.study import preflight, user_workload
from scaling.study.configuration import compose, describe_fields, describe_groups
from scaling.workers import schedule as scheduling
from scaling.workers.schedule import Schedule, find_identities

HELP = """\
Run the missing cases of a scaling study.

  scaling run                                     the smoke study, on this host
  scaling run study=rbf 'devices=[1,2]'           over these device counts
  scaling run study=linear mode=jacrev sizes.p=64 a part of the study
  scaling run study=rbf dry_run=true              print the cases only
  scaling run study=rbf tracking=wandb            curves on Weights & Biases
  scaling run study=rbf cluster=slurm             as Slurm jobs
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


def execute(words: list[str], console: Console) -> int:
    """Run the study that the command-line arguments select, and return the exit status."""
    overrides = [word for word in words if word not in ("-h", "--help")]
    if overrides != words:
        text = HELP.format(groups=describe_groups(overrides), fields=describe_fields())
        console.print(text, soft_wrap=True, markup=False)
        return OK
    return _run_and_report(_examine(read_study(*compose(words)), console), console)


def _examine(run: StudyRun, console: Console) -> StudyRun:
    """Check the cases of a study, and return a copy of `run` with the results in its field `checked`.

    Raise `Refusal` if a case is invalid.
    """
    for folder in run.folders:
        store.load(folder)  # refuses results of a newer version before anything is written
    for name in built_in("workloads").intersection(cell.case.workload for cell in run.cells):
        user_workload.check_not_shadowed(name)  # cached answers may predate a user's module of this name
    key, seconds = preflight.cache_key(run.cells), run.settings.case_seconds
    with show_preflight(console) as note:
        answers = preflight.load_answers(run.folder, key) or preflight.check_cells(run.cells, seconds, note)
    preflight_results = preflight.results_from_answers(run.cells, answers)
    checked = [scheduling.skip_peers_off_cpu(run.machine.platform, result) for result in preflight_results]
    save_answers = functools.partial(preflight.save_answers, run.folder, key, answers)
    return dataclasses.replace(run, checked=checked, save_answers=save_answers)


def _run_and_report(run: StudyRun, console: Console) -> int:
    """Run the cases of a study that have no result, write its report, and return the exit status."""
    submitted = False
    with contextlib.ExitStack() as stack:
        if run.dry_run:
            return _print_dry_run(run, console)
        if run.baseline:
            from scaling.study import variants

            variant = stack.enter_context(variants.open_variant(str(run.versus)))
            run = dataclasses.replace(run, baseline=(variant, run.baseline[1]))
        for folder in run.folders:
            store.create_results(folder)
        run.save_answers()
        if run.cluster.submits:
            from scaling.cli import submit

            schedule, loaded, submitted = submit.submit_and_wait(run, console)
        else:
            schedule, loaded = _run_directly(run, console)
    if submitted:
        if run.tracking is not None:
            print_lines(console, [f"publish later with `{store.format_command('publish', run.folder)}`"])
        return OK
    return _report_and_publish(run, schedule, loaded, console)


def _report_and_publish(run: StudyRun, schedule: Schedule, loaded: store.Loaded, console: Console) -> int:
    """Write and print the report, compare with the baseline, and publish the curves. Return the exit status.

    The exit status is 1 if a case failed, or if a case is neither recorded nor queued. Otherwise, it is 0.
    """
    from scaling.cli import report

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


def _run_directly(run: StudyRun, console: Console) -> tuple[Schedule, store.Loaded]:
    """Run the missing cases without submitting jobs, and return (schedule, all records of the folder)."""
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
        labels = {result.case.key: label(result.case) for result in run.checked}
        with show_run(console, labels, total) as (listen, _):
            supervise.run_schedule(schedule, run.settings, run.folder, lock, listen, run.baseline, options)
    return schedule, store.load(run.folder)


def _print_dry_run(run: StudyRun, console: Console) -> int:
    """Print which cases would run, be skipped or fail. Return 1 if any case would fail, otherwise 0."""
    schedule, loaded = plan_run(run, console)
    for session in schedule.sessions:
        shape = scheduling.process_shape(session[0].case, schedule.machine, run.settings)
        devices = format_count(shape.devices, f"{schedule.machine.platform} device")
        processes = "a process" if shape.processes == 1 else f"{shape.processes} processes"
        print_lines(console, [f"{processes} with {devices} on {format_count(shape.nodes, 'node')}"], "bold")
        print_lines(console, [f"  run   {label(item.case)}" for item in session])
    for item in (*schedule.skips, *schedule.failures):
        status, *reason = item.preflight.outcome or ("",)
        mark, style = ("fail", "red") if status == "failed" else ("skip", "yellow")
        print_lines(console, [f"  {mark}  {label(item.case)}  {': '.join(reason)}"], style)
    failed = f"{len(schedule.failures)} that cannot be examined, " if schedule.failures else ""
    counts = f"{schedule.missing} to run, {len(schedule.skips)} to skip, {failed}{schedule.done} already done"
    console.print(f"{counts}; nothing was started")
    if run.cluster.name == SLURM:
        from scaling.cli import submit

        submit.print_scripts(run, schedule, loaded, console)
    return FAILED if schedule.failures else OK
