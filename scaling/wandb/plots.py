"""Data of the W&B line plots: time and speed-up against device count, and time against problem size.

A plot shows one function with one transformation (such as `shard_map`), with a line per AD method and
environment. This module does not import wandb.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from scaling.analysis.cases import Method, describe_call, family_name, group_by, method_of, stem
from scaling.analysis.curves import Curve
from scaling.analysis.findings import Findings
from scaling.analysis.growth import SizeSweep
from scaling.analysis.ratios import Estimate
from scaling.core.case import Case
from scaling.core.formatting import count_of

_NO_METHOD = Method("jacfwd", "vmap")._asdict() | {"mesh": None}


class Line(NamedTuple):
    """The key of a line in a plot: the environment digest, workload and AD method of a W&B run."""

    environment: str
    workload: str
    method: Method


@dataclass(frozen=True)
class Plot:
    """The data of a W&B line plot.

    The values are logged as `metric`, and the bounds of their 95 % confidence intervals as `metric`_low and
    `metric`_high.
    """

    kind: str  # strong, weak or size
    metric: str
    title: str
    x: str  # the metric of the x-axis: devices or size
    x_title: str
    y_title: str
    lines: Mapping[Line, Mapping[int, Estimate]]  # line -> x value -> estimate
    baselines: tuple[int, ...] = ()  # for a speed-up: the device counts that it is relative to

    @property
    def width(self) -> int:
        """Return the number of distinct values on the x-axis."""
        return len({x for line in self.lines.values() for x in line})


def make_plots(found: Findings) -> list[Plot]:
    """Return all line plots of a study, sorted by decreasing number of lines. Metric names are unique."""
    used: Counter[str] = Counter()
    plots = []
    for plot in (*_plots_over_devices(found.curves), *_plots_against_size(found.size_sweeps)):
        metric = f"{plot.metric}/{re.sub('[^A-Za-z0-9]+', '_', plot.title).strip('_')}"
        used[metric] += 1
        plots.append(replace(plot, metric=metric + (f"_{used[metric]}" if used[metric] > 1 else "")))
    return sorted(plots, key=lambda plot: (-len(plot.lines), -plot.width))


def _plots_over_devices(curves: Iterable[Curve]) -> Iterator[Plot]:
    def plot_key(curve: Curve) -> tuple[str, Case]:
        return curve.kind, replace(stem(curve.case, curve.kind), **_NO_METHOD)

    for (kind, _), group in group_by(curves, plot_key).items():
        case = group[0].case
        title = f"{family_name(case)} {group[0].size}, {describe_call(case)}"
        times, speedups = dict[Line, dict[int, Estimate]](), dict[Line, dict[int, Estimate]]()
        for curve in group:
            line, points = Line(curve.environment, case.workload, method_of(curve.case)), curve.points
            times[line] = {p.devices: Estimate(p.seconds, p.low, p.high) for p in points}
            speedups[line] = {p.devices: p.speedup for p in points}
        baselines = tuple(sorted({curve.baseline_devices for curve in group}))
        yield Plot(kind, "time", title, "devices", "devices", "seconds", times)
        over = f"speed-up over {' or '.join(count_of(base, 'device') for base in baselines)}"
        over = f"scaled {over}" if kind == "weak" else over
        yield Plot(kind, "speedup", title, "devices", "devices", over, speedups, baselines)


def _plots_against_size(sweeps: Iterable[SizeSweep]) -> Iterator[Plot]:
    def plot_key(sweep: SizeSweep) -> tuple[Case, str, str, bool]:
        case = replace(sweep.case, **_NO_METHOD, points=1, sizes={})
        return case, sweep.swept, sweep.held, sweep.honest

    for (case, swept, held, honest), group in group_by(sweeps, plot_key).items():
        words = [f"{family_name(case)} {held}".strip(), count_of(case.devices, "device"), describe_call(case)]
        title = ", ".join([*words, *([] if honest else ["oversubscribed"])])
        lines = {
            Line(sweep.environment, case.workload, method): {
                size: Estimate(timing.median, *(timing.interval or (None, None))) for size, timing in row
            }
            for sweep in group
            for method, row in sweep.lines.items()
        }
        yield Plot("size", "time_by_size", title, "size", swept, "seconds", lines)
