"""Read a study from its configuration (`StudyRun`), and schedule its missing cases for `scaling run`."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from scaling.cli.output import damaged_notes, print_lines
from scaling.cluster import cluster_settings, slurm
from scaling.cluster.cluster_settings import LOCAL, NONE, SLURM, SUBMISSIONS, ClusterSettings
from scaling.core.case import CEILING, FIELDS, Refusal
from scaling.core.formatting import format_count
from scaling.options import machine_peaks
from scaling.results import store
from scaling.study import grid
from scaling.workers import schedule as scheduling
from scaling.workers.machine import Machine
from scaling.workers.run_settings import RunSettings
from scaling.workers.schedule import PreflightResult, Schedule

if TYPE_CHECKING:
    from scaling.wandb.job import TrackingSettings
    from scaling.workers.worker_group import Variant


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


def read_study(config: dict[str, Any], name: str) -> StudyRun:
    """Return the study that a composed configuration describes, or raise `Refusal` if it is invalid."""
    cluster = cluster_settings.from_config(config["cluster"])
    settings = RunSettings.from_config(config, cluster.attempts if cluster.submits else None)
    _check_options(config, cluster)
    tracking = None
    if config["tracking"].get("name") != "none":
        from scaling.wandb.job import TrackingSettings

        tracking = TrackingSettings.from_config(config["tracking"])
    folder = store.parse_results(config["results"])
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
    device_counts = [cell.case.devices for cell in cells]
    machine.check_device_counts(device_counts, settings.processes, settings.oversubscribe)
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


def _check_options(config: dict[str, Any], cluster: ClusterSettings) -> None:
    """Raise `Refusal` if an option in `config` cannot be used with `scaling run` or with this cluster."""
    versus = config["versus"]
    if config.get("hardware") is not None:
        raise Refusal("hardware is an option of `scaling plan` and has no effect here: leave it out")
    for option, value in (("wait", False), ("retry", True)):
        if config[option] is value and not cluster.submits:
            text = f"{grid.format_setting(option, value)} has no effect with cluster={cluster.name}"
            raise Refusal(f"{text}, which runs the study here; leave it out")
    if versus is not None and cluster.name != NONE:
        raise Refusal(f"versus={versus} runs on this machine only: leave out cluster={cluster.name}")


def plan_run(run: StudyRun, console: Console) -> tuple[Schedule, store.Loaded]:
    """Schedule the cases of a study that have no result. Return (schedule, all earlier records).

    If `run.dry_run` is false, also write study.json, and a "failed" record for each case that an ended job
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
    print_lines(console, damaged_notes(loaded.damaged), "yellow")
    scalings = [cell.scaling for cell in run.cells if cell.case.workload != CEILING]
    manifest = scheduling.study_manifest(run.name, run.title, scalings, run.checked, run.settings)
    for folder in run.folders:
        store.write_json(folder / "study.json", manifest)
    _print_counts(run, schedule, console)
    return schedule, loaded


def _print_counts(run: StudyRun, schedule: Schedule, console: Console) -> None:
    finally_failed = f"{schedule.lost} failed permanently or {run.settings.attempts} times (cluster.attempts)"
    skipped = f"{len(schedule.skips)} skipped"
    counts = (
        (True, f"{format_count(schedule.missing, 'case')} to run, {schedule.done} already done, {skipped}"),
        (schedule.failures, f"{len(schedule.failures)} failed before the start"),
        (schedule.queued, f"{schedule.queued} in the queue already"),
        (schedule.lost, f"{finally_failed}: retry=true runs them once more"),
    )
    text = ", ".join(count_text for shown, count_text in counts if shown)
    device_kind = next(iter(schedule.environments.values()))["device_kind"]
    device_name = device_kind or f"{schedule.machine.platform} devices {schedule.machine.name}"
    print_lines(console, [f"{run.name}: {text}; on {device_name}; results in {run.folder}"])


def _settle_submissions(run: StudyRun, console: Console) -> set[tuple[str, int]]:
    """Return {(case key, replicate number)} for the cases that submitted tasks may still run.

    If `run.dry_run` is false, first write a "failed" record for each case that an ended job did not finish.
    """
    from scaling.cluster import task_state

    query = (run.cluster.name == SLURM and not run.dry_run) or shutil.which("squeue") is not None
    tasks = task_state.find_tasks(run.folder, query)
    if not run.dry_run and (lost := task_state.record_lost_cases(run.folder, tasks)):
        console.print(f"{format_count(lost, 'case')} of earlier jobs did not finish; the records say why")
    if unknown := sum(task.state.name == task_state.UNKNOWN for task in tasks):
        text = f"{format_count(unknown, 'task')} cannot be queried by you on this host, and may still run"
        print_lines(console, [f"{text}; if they have ended, remove {run.folder / SUBMISSIONS}"])
    return task_state.queued_cases(tasks)
