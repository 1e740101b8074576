"""Implement `scaling publish`: parse its arguments, call wandb/publish.py, and print the outcome."""

import argparse
import os

from rich.console import Console

from scaling.cli.commands import FAILED, OK
from scaling.cli.streams import damaged_notes, print_lines
from scaling.core.case import Refusal
from scaling.results import store
from scaling.wandb.job import TrackingSettings
from scaling.wandb.publish import publish


def execute(args: argparse.Namespace, console: Console) -> int:
    """Upload the curves of a results folder to Weights & Biases, and return 1 if a step failed, or else 0."""
    options = {name: getattr(args, name) for name in ("project", "entity", "mode", "dashboard")}
    settings = TrackingSettings.from_config(options)
    folder = store.folder_of(args.folder)
    copies = folder / "wandb" if (folder / "wandb").exists() else folder
    if settings.mode != "disabled" and not os.access(copies, os.W_OK | os.X_OK):
        text = f"cannot write to {copies}, where publish keeps its W&B runs"
        raise Refusal(f"{text}: change the permissions, or publish a copy of the folder")
    loaded = store.load(folder)
    print_lines(console, damaged_notes(loaded.damaged), "yellow")
    published = publish(folder, settings, loaded)
    print_lines(console, published.lines)
    return OK if published.succeeded else FAILED
