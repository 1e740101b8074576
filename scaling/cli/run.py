"""Implement `scaling run`: compose the studies with Hydra, and run, report, compare and publish each one."""

import contextlib
import io
from typing import Any

from rich.console import Console

from scaling.cli import run_study
from scaling.cli.streams import print_lines
from scaling.cli.verbs import FAILED, OK
from scaling.study.compose import compose, configuration


def execute(words: list[str], console: Console) -> int:
    """Run every study that the arguments select, and return the largest exit status."""
    if {"-h", "--help"} & set(words):
        _print_hydra_help(words, console)
        return OK
    statuses: list[int] = []
    compose(words, lambda config, name: statuses.append(_run_and_report(config, name, console)))
    return max(statuses, default=OK)


def _print_hydra_help(words: list[str], console: Console) -> None:
    from scaling.study import field_help

    written = io.StringIO()
    with contextlib.redirect_stdout(written), contextlib.suppress(SystemExit):
        compose(words, lambda config, name: None)
    text = field_help.fill(written.getvalue()).replace(field_help.MARK, field_help.describe(configuration()))
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def _run_and_report(config: dict[str, Any], name: str, console: Console) -> int:
    job = run_study.read_study(config, name)
    tracking = between_groups = None
    if config["tracking"]["name"] != "none":
        from scaling.wandb.publish import LivePublisher
        from scaling.wandb.settings import TrackingSettings

        tracking = TrackingSettings.from_config(config["tracking"])
        between_groups = LivePublisher(
            job.folder, tracking, job.settings.replicates, lambda line: print_lines(console, [line])
        )
    ran = run_study.run(job, config["versus"], config["dry_run"], console, between_groups)
    if ran.submitted:
        return FAILED if ran.failed else OK
    from scaling.cli import report

    found = report.conclude(job.folder, console, ran.settings, brief=True, loaded=ran.loaded)
    if ran.baseline:
        from scaling.cli.compare import print_comparison

        print_comparison(ran.baseline, job.folder, console)
    if tracking is not None:
        from scaling.cli.publish import publish_folder

        publish_folder(job.folder, tracking, console)
    failed = any(record.status == "failed" and record.key in ran.keys for record in found.records)
    return FAILED if failed else OK
