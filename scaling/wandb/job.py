"""Define `PublishJob`, the data that publish.py sends to remote.py: the runs, plots and sentences of a study.

The module does not import SciPy or the analysis that computes the data.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from scaling.analysis.cases import Method
from scaling.analysis.estimate import Estimate
from scaling.core.environment import scrub
from scaling.wandb.settings import TrackingSettings

FINISH_FACTOR = 3  # time limit for the upload at the end of a run, as a multiple of `timeout`
# Prefix of a metric (the part before the slash) -> metric of its x-axis.
STEP_METRICS = {"time": "devices", "speedup": "devices", "ideal": "devices", "time_by_size": "size"}
Fields = dict[str, Any]


class Line(NamedTuple):
    """The environment, workload and AD method of a W&B run, which identify a line in a plot."""

    environment: str
    workload: str
    method: Method


@dataclass(frozen=True)
class Plot:
    """A line plot with a line for each W&B run.

    The values are logged as `metric`, and the bounds of the 95 % intervals as `metric`_low and `metric`_high.
    """

    kind: str  # strong, weak or size
    metric: str
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
    """The content of a W&B run. The entries "study" and "kind" of `config` are the W&B group and job type."""

    digest: str  # a hash of the entire content
    series: str  # an identifier that does not depend on the results
    name: str
    tags: tuple[str, ...]
    config: Fields
    rows: list[Fields]  # the history: dicts from metric to value
    summary: Fields


@dataclass(frozen=True)
class PublishJob:
    """The settings of a publication, and the W&B runs, plots and sentences to publish."""

    settings: TrackingSettings
    runs: tuple[TrackedRun, ...]  # the last run represents the whole study
    plots: tuple[Plot, ...]
    sentences: tuple[str, ...]
    destination: str  # a hash of the project, the entity and the tags


def ideal_metric(baseline: int) -> str:
    """Return the W&B metric of the ideal speed-up relative to a number of devices, such as 'ideal/from_2'."""
    return f"ideal/from_{baseline}"


def describe_error(error: BaseException) -> str:
    """Return the first line of an error message, up to 200 characters, without secrets and folder names."""
    line = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return scrub(line)[:200].rstrip(" .")
