"""Say in words which AD mode of each function is the fastest (`FastestAnswer`), for cards and sentences."""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from scaling.analysis import timings
from scaling.analysis.curves import Curve
from scaling.analysis.estimate import format_ratio
from scaling.analysis.fastest import FastestMethod, best_device_counts, find_runner_up, largest_problems
from scaling.analysis.findings import Findings
from scaling.analysis.timings import Timing
from scaling.core.formatting import count_of, format_duration, format_number


class FastestAnswer(NamedTuple):
    """The fastest AD mode of a function at its largest size, in words."""

    problem: str  # the result of `problem_name`, such as 'mlp width=8 points=64'
    mode: str  # the fastest method, or both methods if the runner-up is not significantly slower
    time: str  # the time of one call with its 95 % interval
    layout: str  # such as '1 device, jit'; if `mode` names two methods, also the method of `time`
    ratio: str  # a clause on the ratio of the runner-up's time to `time`, or ''
    certainty: str  # the result of `describe_certainty`, or 'predicted, not measured'
    parts: tuple[str, ...]  # sentences, without a period, on devices, handwritten derivative and other sizes
    is_fastest: bool = False  # whether the runner-up is significantly slower

    @property
    def headline(self) -> str:
        """Return the problem, mode, time, ratio and certainty as one sentence, without a period."""
        time = f"{self.mode}{' is fastest' if self.is_fastest else ''}, {self.time} on {self.layout}"
        return f"{self.problem}: {'; '.join(filter(None, [time, self.ratio, self.certainty]))}"

    @property
    def sentence(self) -> str:
        """Return the headline and the parts as a paragraph."""
        return f"{'. '.join([self.headline, *self.parts])}."


def measured_answers(findings: Findings) -> list[FastestAnswer]:
    """Return one answer per function and environment, on the largest problem that was measured."""
    return [_describe_rows(findings, *rows) for rows in largest_problems(findings.fastest)]


def _describe_rows(
    findings: Findings, rows: Sequence[FastestMethod], largest: Sequence[FastestMethod]
) -> FastestAnswer:
    """Return the answer for a function. `rows` and `largest` are a pair that `largest_problems` returns."""
    row = largest[0]
    mode, ratio = timings.name_with_blocks(row.first), ""
    layout, parts = f"{_format_devices(findings, row.first)}, {row.call}", list[str]()
    if row.second is not None and not row.empty:
        second = row.second.method.name
        if not row.distinguished and second != mode:
            mode, layout = f"{mode} or {second}", f"{layout}, by {mode}"
        ratio = timings.describe_slower(second, row.second, row.first)
    if row.first.honest and not row.empty:
        parts += [*_describe_speedup(findings, row.first), *_describe_devices(findings, largest)]
    parts += [*_describe_by_hand(row), *_describe_other_sizes(rows, row)]
    name, time = problem_name(findings, row), timings.format_time(row.first)
    certainty = describe_certainty(row)
    return FastestAnswer(name, mode, time, layout, ratio, certainty, tuple(parts), row.distinguished)


def describe_certainty(row: FastestMethod) -> str:
    """Return how certain it is that a method is the fastest, such as 'sure' or 'not sure: ' with reasons."""
    if row.empty:
        return (
            f"not distinguishable from an empty call ({format_duration(timings.dispatch_floor(row.first))})"
        )
    if row.second is None:
        return f"no other {'automatic ' if row.others else ''}mode was measured"
    if row.distinguished:
        return row.certainty
    return "; ".join(filter(None, ["not distinguished from the runner-up", ", ".join(row.doubts)]))


def problem_name(findings: Findings, timing: Timing | FastestMethod) -> str:
    """Return the name of a problem, such as 'mlp width=8 points=64', followed by `Findings.suffix`."""
    return f"{timing.family} {timing.size}{findings.suffix(timing.environment, timing.honest)}"


def _format_devices(findings: Findings, timing: Timing) -> str:
    nodes = timings.nodes_of(timing.record)
    if not nodes or all((timings.nodes_of(each.record) or 1) == 1 for each in findings.timings):
        return timing.devices_text
    hours = format_number(nodes * timing.median / 3600 * 1e6)
    return f"{timing.devices_text} of {count_of(nodes, 'node')} ({hours} node-hours for a million calls)"


def _describe_speedup(findings: Findings, timing: Timing) -> list[str]:
    curve, point = findings.curves_of(timing).get("strong", (None, None))
    if curve is None or point is None or point.is_baseline:
        return []
    too_large = findings.too_large_on(timing, "strong")
    fewest = ", the fewest that it fits on," if too_large and too_large < point.baseline_devices else ""
    text = f"Its speed-up over the same program on {curve.baseline}{fewest} is {format_ratio(*point.speedup)}"
    text += f", efficiency {format_ratio(*point.efficiency, sign='')}"
    if point.against_jit:
        text += f", and over the best plain jit program on one device {format_ratio(*point.against_jit)}"
    return [text]


def _describe_by_hand(row: FastestMethod) -> list[str]:
    if row.by_hand is None:
        return []
    ratio = format_ratio(*row.by_hand.inverse)
    if not row.by_hand.is_determined:
        return [f"The ratio to the derivative written by hand is {ratio}"]
    return [f"Written by hand it would take {ratio} as long"]


def _describe_devices(findings: Findings, rows: Sequence[FastestMethod]) -> list[str]:
    """Return sentences that recommend a device count for one problem, and state its parallel efficiency.

    `rows` contains the fastest method on each device count, in ascending order of time.
    """
    first, *others = [row.first for row in rows]
    if not others:
        return [f"Measured on {first.devices_text} only"]
    sentences = []
    more, ratio = find_runner_up(first, (t for t in others if t.case.devices > first.case.devices))
    if more and ratio:
        pay = "do not pay" if ratio.above_one else "are not distinguished"
        slower = timings.describe_slower(f"the fastest mode on {more.devices_text}", more, first)
        sentences.append(f"More devices {pay}: {slower}")
    chosen, doubt = timings.recommend_devices([first, *others])
    curve, point = findings.curves_of(chosen).get("strong", (None, None))
    text = f"Recommended: {first.devices_text}"
    if doubt:
        text = f"No number of devices can be recommended: {doubt}"
    elif chosen is not first:
        takes = timings.describe_slower(chosen.method.name, chosen, first)
        text = f"Recommended: {_format_devices(findings, chosen)}"
        text += f", not distinguished from {first.devices_text} ({takes})"
        if point and not point.is_baseline:
            text += f", efficiency {format_ratio(*point.efficiency, sign='')}"
    if curve and len(curve.points) > 1:
        text += f"; {describe_efficiency(findings, curve)}"
    return [*sentences, text]


def describe_efficiency(findings: Findings, curve: Curve) -> str:
    """Return a clause on the largest device count up to which the efficiency is at least the required one."""
    required = f"{findings.efficiency:g}"
    if not all(point.efficiency.is_determined for point in curve.points):
        return f"the largest number of devices with an efficiency of at least {required} is not determined"
    efficient = list(itertools.takewhile(lambda p: p.efficiency.value >= findings.efficiency, curve.points))
    last, all_efficient = efficient[-1], len(efficient) == len(curve.points)
    devices = last.timing.devices_text + (", the most measured" if all_efficient else "")
    following = curve.points[len(efficient) : len(efficient) + 1]
    is_unsure = any((point.efficiency.low or 0.0) < findings.efficiency for point in efficient) or any(
        (point.efficiency.high or math.inf) >= findings.efficiency for point in following
    )
    doubt = ", not surely" if is_unsure else ""
    return f"efficiency stays at {required} or above up to {devices}{doubt}"


def _describe_other_sizes(rows: Sequence[FastestMethod], row: FastestMethod) -> list[str]:
    sizes = best_device_counts(rows)
    if len(sizes) < 2:
        return []
    names = dict.fromkeys(timings.name_with_blocks(each.first) for each in sizes if each.distinguished)
    others = [name for name in names if name != timings.name_with_blocks(row.first)]
    which = "The largest" if row.volume == max(each.volume for each in rows) else "One"
    return [
        f"{which} of {len(sizes)} sizes" + (f"; fastest at others: {', '.join(others)}" if others else "")
    ]
