"""Measure calls in alternation on one core, and put the results beside published figures: table and figure.

Results are JSON lines: first the machine, then {"name", "seconds"} for each call, and {"advice", ...} for
each advice. Published figures are the cells of a YAML file; the table between two comments of a page and the
figure are made from both.
"""

import functools
import io
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from examples import pages
from examples.pages import Row
from scaling.core import environment
from scaling.core.formatting import format_duration, format_number
from scaling.core.timing import median_interval, ratio_interval
from scaling.workers import cores

BEGIN, END = "<!-- generated: do not edit -->", "<!-- end -->"
HEADER = ("problem", "what", "system", "published", "ours", "over", "source")
ADVICE_HEADER = ("example", "advised by compiling alone", "fastest measured", "regret")
LEAST, MOST, SHORTEST = 21, 200, 2e-3  # samples of a call, and seconds of a sample


def restart_on_one_core() -> None:
    """Bind this process to one core and restart it, because XLA and glibc read their variables at start-up."""
    if not os.environ.get("EXAMPLES_BOUND"):
        os.sched_setaffinity(0, cores.usable_cores()[:1])
        variables = environment.variables("cpu") | {"JAX_PLATFORMS": "cpu", "EXAMPLES_BOUND": "1"}
        os.execve(sys.executable, sys.orig_argv, os.environ | variables)


def describe_machine() -> Row:
    """Return the line of a result file that describes the machine."""
    import jax

    return {"machine": environment.processor(), "cores": len(os.sched_getaffinity(0)), "jax": jax.__version__}


def time_calls(call: Callable[[], Any], count: int) -> float:
    """Return the seconds of one call, the mean of `count` calls, each until its result is computed."""
    import jax

    began = time.perf_counter()
    for _ in range(count):
        jax.block_until_ready(call())
    return (time.perf_counter() - began) / count


def sample_in_turns(
    timers: Mapping[str, Callable[[int], float]],
    seconds: float,
    least: int = LEAST,
    most: int = MOST,
    shortest: float = SHORTEST,
) -> dict[str, list[float]]:
    """Return samples of each timer in seconds. The timers alternate in random order.

    Args:
        timers: functions from a number of calls to the mean seconds of one call.
        seconds: how long to sample.
        least, most: minimum and maximum number of samples of each timer.
        shortest: minimum duration of a sample, in seconds, of up to 1,000 calls.
    """
    for timer in timers.values():
        timer(2)  # compiles
    counts = {name: min(1000, max(1, round(shortest / timer(3)))) for name, timer in timers.items()}
    samples: dict[str, list[float]] = {name: [] for name in timers}
    order, began = random.Random(0), time.perf_counter()
    for number in range(most):
        if number >= least and time.perf_counter() - began > seconds:
            break
        for name in order.sample(list(timers), len(timers)):
            samples[name].append(timers[name](counts[name]))
    return samples


def sample_calls(calls: Mapping[str, Callable[[], Any]], seconds: float) -> list[Row]:
    """Return the lines of a result file with the samples of each call. The calls alternate in random order."""
    timers = {name: functools.partial(time_calls, call) for name, call in calls.items()}
    samples = sample_in_turns(timers, seconds)
    return [{"name": name, "seconds": values} for name, values in samples.items()]


def advise(name: str, budget: float, *arguments: Any, **options: Any) -> Row:
    """Return what `scaling.advise` recommends by compiling alone, and its regret among the measured candidates.

    The regret is the time of the recommended method over that of the fastest, minus one.
    """
    import scaling

    options["cores"] = sorted(os.sched_getaffinity(0))
    predicted = scaling.advise(*arguments, budget=0, **options)
    measured = scaling.advise(*arguments, budget=budget, **options)
    samples = {measured.describe(case): record.seconds for case, record in measured.records.items()}
    advised, fastest = predicted.describe(predicted.best), measured.describe(measured.best)
    found = ratio_interval(samples[advised], samples[fastest]) if samples.get(advised) else None
    if advised == fastest:
        found = (1.0, 1.0, 1.0)
    known = sum(bool(seconds) for seconds in samples.values())
    regret = found and [round(value - 1, 4) for value in found]
    return {"advice": name, "advised": advised, "fastest": fastest, "measured": known, "regret": regret}


def write_lines(path: Path, rows: Iterable[Row]) -> None:
    """Write JSON lines, with the samples rounded to five digits."""
    rounded = (
        row | {"seconds": [float(f"{value:.5g}") for value in row["seconds"]]} if "seconds" in row else row
        for row in rows
    )
    pages.write_lines(path, rounded)


def compare(cells: Sequence[Row], lines: Sequence[Row]) -> list[Row]:
    """Return each published cell with `published` and `ours`, (middle, low, high) or None if not comparable.

    A cell with `over` is a ratio of two times: `seconds` over `over`, and ours is that of the calls `call`
    and `call_over`. Otherwise it is a time in seconds.
    """
    samples = {line["name"]: line["seconds"] for line in lines if "name" in line}
    rows = []
    for cell in cells:
        published, ours = cell["seconds"] / cell.get("over", 1.0), None
        if cell.get("call") in samples:
            seconds = samples[cell["call"]]
            interval = median_interval(seconds)
            ours = interval and (statistics.median(seconds), *interval)
            if "over" in cell:
                ours = ratio_interval(seconds, samples[cell["call_over"]])
        rows.append(cell | {"published": published, "ours": ours})
    return rows


def load_cells(path: Path) -> tuple[list[Row], list[Row]]:
    """Return the published cells and their sources. The fields of a group apply to each of its cells."""
    groups = yaml.safe_load(path.read_text())
    cells = [
        {key: value for key, value in group.items() if key != "cells"} | {"reference": number} | cell
        for number, group in enumerate(groups, 1)
        for cell in group["cells"]
    ]
    return cells, groups


def make_table(cells_path: Path, lines: Sequence[Row]) -> str:
    """Return the Markdown text: the published figures beside ours, their sources, and the advice."""
    cells, groups = load_cells(cells_path)
    machine = lines[0]
    text = [
        f"Ours: {machine['cores']} core of an {machine['machine']}, JAX {machine['jax']}, float32 unless stated, medians "
        "of alternating calls in one process, with 95 % intervals. `over` is ours over the published number.",
        "",
    ]
    table = []
    for row in compare(cells, lines):
        unit = f"{{}} times {row['base']}" if "over" in row else "{}"
        show = format_number if "over" in row else format_duration
        published, ours, over = unit.format(show(row["published"])), row.get("why", "not measured"), ""
        if row["ours"]:
            middle, low, high = row["ours"]
            if "over" in row:
                ours = pages.format_ratio(middle, low, high)
            else:
                dtype = ", float64" if row["call"].endswith("float64") else ""
                ours = format_duration(middle, low, high) + dtype
            over = pages.format_ratio(*(value / row["published"] for value in (middle, low, high)))
        reference = f"[{row['reference']}]"
        table.append((row["problem"], row["what"], row["system"], published, ours, over, reference))
    text += [pages.make_table(HEADER, table), "", "Sources:", ""]
    text += [
        f"{number}. {group['source']} Machine: {group['machine']}." for number, group in enumerate(groups, 1)
    ]
    table = []
    for line in lines:
        if "advice" in line:
            percent = [f"{100 * value:.1f}" for value in line["regret"] or ()]
            regret = "{} % ({} to {})".format(*percent) if percent else "advised method not measured"
            regret = "0 %" if line["advised"] == line["fastest"] else regret
            fastest = f"{line['fastest']} (of {line['measured']})"
            table.append((line["advice"], line["advised"], fastest, regret))
    return "\n".join([*text, "", pages.make_table(ADVICE_HEADER, table)])


def draw(path: Path, rows: Sequence[Row], title: str, axis: str) -> None:
    """Draw published and our figures of the comparable cells as a PNG: one row of the figure for each cell."""
    import altair
    import vl_convert
    from PIL import Image

    from scaling.report.figures.theme import BLUE, CONFIG, GROUND, VERMILION

    scale = 1.0 if any("over" in row for row in rows) else 1e3
    labels = [
        f"{row['problem']}, {row['what']}, {row['system']} [{row['reference']}]"
        for row in rows
        if row["ours"]
    ]
    values = []
    for label, row in zip(labels, (row for row in rows if row["ours"]), strict=True):
        middle, low, high = (scale * value for value in row["ours"])
        values.append({"cell": label, "who": "published", "value": scale * row["published"]})
        values.append({"cell": label, "who": "ours", "value": middle, "low": low, "high": high})
    who = ["published", "ours"]
    base = altair.Chart(altair.Data(values=values)).encode(
        y=altair.Y("cell:N", sort=labels, title=None, axis=altair.Axis(labelLimit=420)),
        color=altair.Color(
            "who:N", scale=altair.Scale(domain=["published", "ours"], range=[VERMILION, BLUE])
        ),
    )
    points = base.mark_point(filled=True, size=55).encode(
        x=altair.X("value:Q", scale=altair.Scale(type="log"), title=axis),
        shape=altair.Shape("who:N", scale=altair.Scale(domain=who, range=["square", "circle"])),
    )
    rules = base.mark_rule(strokeWidth=2).encode(x=altair.X("low:Q", title=axis), x2="high:Q")
    chart = (rules + points).properties(width=380, title=title).configure(**CONFIG | {"background": GROUND})
    picture = Image.open(io.BytesIO(vl_convert.vegalite_to_png(chart.to_dict(), scale=2.0)))
    picture.convert("RGB").quantize(64).save(path, optimize=True)


def publish(name: str, cells_path: Path, title: str, axis: str, more: str = "") -> None:
    """Write the tables of docs/NAME.md, `more` first, and docs/NAME.png from docs/data/NAME.jsonl."""
    lines, page = pages.read_lines(pages.data_path(name)), pages.DOCS / f"{name}.md"
    text = f"\n\n{more}{make_table(cells_path, lines)}\n\n"
    page.write_text(pages.replace_between(page.read_text(), BEGIN, END, text))
    draw(page.with_suffix(".png"), compare(load_cells(cells_path)[0], lines), title, axis)
