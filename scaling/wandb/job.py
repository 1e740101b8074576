"""Classes PublishJob, TrackedRun, Plot and Line: what the process of wandb (remote.py) receives.

The module does not import SciPy or the analysis that computes the data.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from scaling.analysis.cases import Method
from scaling.analysis.estimate import Estimate
from scaling.core.environment import scrub
from scaling.wandb.settings import TrackingSettings

UPLOADS = 3  # finishing a run uploads its files, which may take this many times `timeout`
# From the prefix of a metric (before the slash) to the metric of its x-axis.
STEP_METRICS = {"time": "devices", "speedup": "devices", "ideal": "devices", "time_by_size": "size"}
Fields = dict[str, Any]


class Line(NamedTuple):
    """The key of a line in a plot: the environment digest, workload and AD method of its W&B run."""

    environment: str
    workload: str
    method: Method


@dataclass(frozen=True)
class Plot:
    """The data of a W&B line plot.

    The values are logged as `metric`, and the ends of their 95 % intervals as `metric`_low and `metric`_high.
    """

    kind: str  # strong, weak or size
    metric: str
    title: str
    x: str  # the metric of the x-axis: devices or size
    x_title: str
    y_title: str
    lines: Mapping[Line, Mapping[int, Estimate]]  # for each line, from x value to estimate
    baselines: tuple[int, ...] = ()  # for a speed-up: the device counts that it is relative to

    @property
    def width(self) -> int:
        """Return the number of distinct values on the x-axis."""
        return len({x for line in self.lines.values() for x in line})


@dataclass(frozen=True)
class TrackedRun:
    """The content of a W&B run."""

    digest: str  # a hash of the entire content
    series: str  # an identifier that does not depend on the results
    name: str
    group: str
    job_type: str
    tags: tuple[str, ...]
    config: Fields
    rows: list[Fields]  # the history
    summary: Fields


@dataclass(frozen=True)
class PublishJob:
    """The settings, and the W&B runs, plots and sentences to publish."""

    settings: TrackingSettings
    runs: tuple[TrackedRun, ...]  # the run of the study last
    plots: tuple[Plot, ...]  # the plots of the dashboard
    sentences: tuple[str, ...]


def ideal_metric(baseline: int) -> str:
    """Return the W&B metric name of the ideal speed-up over a device count, such as 'ideal/from_2'."""
    return f"ideal/from_{baseline}"


def reason_of(error: BaseException) -> str:
    """Return an exception's message as one line of up to 200 characters, without secrets or folder names."""
    first = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return scrub(first)[:200].rstrip(" .")
