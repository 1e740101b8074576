"""Implement `scaling publish`: read the W&B project, entity and mode, and call wandb/publish.py."""

import argparse

from rich.console import Console

from scaling.cli.commands import FAILED, OK
from scaling.cli.output import damaged_notes, print_lines
from scaling.results import store
from scaling.wandb.job import TrackingSettings
from scaling.wandb.publish import publish


def execute(args: argparse.Namespace, console: Console) -> int:
    """Upload the curves of a results folder to Weights & Biases. Return 1 if an error occurs, otherwise 0."""
    options = {name: getattr(args, name) for name in ("project", "entity", "mode", "dashboard")}
    settings = TrackingSettings.from_config(options)
    folder = store.require_results_folder(args.folder)
    if settings.mode != "disabled":
        store.require_writable(folder / "wandb")
    loaded = store.load(folder)
    if not loaded.records:
        raise store.no_records_error("publish", folder, loaded.damaged)
    print_lines(console, damaged_notes(loaded), "yellow")
    published = publish(folder, settings, loaded)
    print_lines(console, published.lines)
    return OK if published.succeeded else FAILED
