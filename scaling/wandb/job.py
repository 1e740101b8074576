"""Define the settings of a publication to W&B (`TrackingSettings`), and its runs and plots (`PublishJob`).

publish.py sends a `PublishJob` to its child process, upload.py. This module imports neither NumPy nor SciPy,
so that the child process starts quickly.
"""

import dataclasses
import errno
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from scaling.analysis.cases import Method
from scaling.analysis.estimate import Estimate
from scaling.core.case import Refusal, check_names, check_value
from scaling.core.environment import scrub
from scaling.core.record import is_number

JOB_FILE = "job.pickle"  # file with the pickled `PublishJob` in the working directory of upload.py
FINISH_FACTOR = 3  # time limit for the upload at the end of a run, as a multiple of `timeout`
Fields = dict[str, Any]  # a W&B config, history row or summary
MODES = ("auto", "online", "offline", "disabled")


def _is_printable_name(value: Any) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= 64 and value.isprintable()


@dataclass(frozen=True)
class TrackingSettings:
    """Settings for publishing results to W&B. The constructor raises `Refusal` if a value is invalid."""

    project: str = "ad-scaling"
    entity: str | None = None  # user or team, or None for the default of the API key
    mode: str = "auto"  # "auto" is online if there is an API key, otherwise offline
    timeout: float = 20.0  # seconds to wait for the server
    dashboard: bool = True  # whether to save a W&B workspace and a W&B report
    tags: tuple[str, ...] = ()  # added to the tags of each W&B run

    def __post_init__(self) -> None:
        check_names("tracking.mode", [self.mode], MODES)
        checks = {  # field -> (whether its value is valid, valid values)
            "project": (_is_printable_name(self.project) and not set(self.project) & set("/\\#?%:"),
                        "a name of 1 to 64 printable characters without / \\ # ? % :"),
            "entity": (self.entity is None or (_is_printable_name(self.entity) and "/" not in self.entity),
                       "a name of 1 to 64 printable characters without /, or null"),
            "timeout": (is_number(self.timeout) and self.timeout > 0, "a positive number of seconds"),
            "dashboard": (isinstance(self.dashboard, bool), "true or false"),
            "tags": (isinstance(self.tags, list | tuple) and all(map(_is_printable_name, self.tags)),
                     "a list of words of at most 64 printable characters"),
        }  # fmt: skip
        for name, (is_valid, valid) in checks.items():
            check_value(f"tracking.{name}", getattr(self, name), is_valid, valid)
        object.__setattr__(self, "tags", tuple(self.tags))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "TrackingSettings":
        """Return the settings in the group `tracking` of a configuration. Raise `Refusal` if one is invalid.

        If the mode is "auto", the environment variable WANDB_MODE can replace it.
        """
        fields = {str(name): value for name, value in config.items() if name != "name"}
        for name in fields:
            if re.search("key|token|secret|passw", name, re.IGNORECASE):
                raise Refusal(f"tracking.{name}: keys come from WANDB_API_KEY, never from a config")
        check_names("key of tracking", fields, [field.name for field in dataclasses.fields(cls)])
        if mode := os.environ.get("WANDB_MODE"):
            check_names("WANDB_MODE", [mode], MODES)
            fields["mode"] = mode if fields.get("mode", "auto") == "auto" else fields["mode"]
        return cls(**fields)


class Line(NamedTuple):
    """The environment, workload and AD method of a line in a plot. A line is one W&B run."""

    environment: str
    workload: str
    method: Method


@dataclass(frozen=True)
class Plot:
    """A W&B line plot of times or speed-ups, with one line per W&B run."""

    kind: str  # strong, weak or size
    metric: str  # the bounds of the 95 % intervals have the metrics `metric`_low and `metric`_high
    title: str
    x: str  # the metric of the x-axis: devices or size
    x_title: str
    y_title: str
    lines: Mapping[Line, Mapping[int, Estimate]]  # line -> x value -> estimate
    baselines: tuple[int, ...] = ()  # for a speed-up: the device counts of its baselines

    @property
    def x_count(self) -> int:
        """Return the number of distinct values on the x-axis."""
        return len({x for line in self.lines.values() for x in line})


@dataclass(frozen=True)
class TrackedRun:
    """The name, tags, config, history and summary of one W&B run."""

    name: str
    tags: tuple[str, ...]
    config: Fields  # its entries "study" and "kind" are the W&B group and the W&B job type
    rows: list[Fields]  # the history: dicts from metric to value
    summary: Fields

    @property
    def digest(self) -> str:
        """Return a hash of the content of the run. Runs with equal results have equal digests."""
        return str(self.config["digest"])

    @property
    def series(self) -> str:
        """Return an ID that is equal for this run and for the earlier runs that it supersedes."""
        return str(self.config["series"])


@dataclass(frozen=True)
class PublishJob:
    """The settings, runs, plots and sentences of one publication to W&B."""

    settings: TrackingSettings
    runs: tuple[TrackedRun, ...]  # the last run represents the whole study
    plots: tuple[Plot, ...]
    sentences: tuple[str, ...]
    destination: str  # a hash of the project, the entity and the tags


def ideal_metric(baseline: int) -> str:
    """Return the W&B metric of the ideal speed-up relative to `baseline` devices, such as 'ideal/from_2'."""
    return f"ideal/from_{baseline}"


def describe_wandb_error(error: BaseException) -> str:
    """Return the first line of an error message, at most 200 characters, without secrets and folder names."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{error.strerror}: free some space"
    first_line = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return scrub(first_line)[:200].rstrip(" .")
